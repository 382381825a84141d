/* All there is, as one unit: the encoder and the decoder share threads and products. */
#include "encoder.c"
#include "decoder.h"
#include "vocabulary.h"
#include "search.h"

/* Outputs of all sentences; see `search`. */
int unmask_search(const search *of, int threads) {
    int64_t sentences = of->sentences, *sums = malloc(3 * (size_t)(sentences + 1) * sizeof(int64_t));
    if (!sums) return NO_MEMORY;
    int64_t *starts = sums, *prefixes = sums + sentences + 1, *answers = prefixes + sentences + 1;
    starts[0] = prefixes[0] = answers[0] = 0;
    for (int64_t s = 0; s < sentences; s++) {
        starts[s + 1] = starts[s] + of->lengths[s];
        prefixes[s + 1] = prefixes[s] + (of->prefixes ? of->prefix_lengths[s] : 0);
        answers[s + 1] = answers[s] + of->num_best * of->limits[s];
    }
    job all = {.ids = of->ids, .lengths = of->lengths, .sequences = sentences};
    int wrong = check(of->reader, &all, starts[sentences]);
    if (!wrong) {
        errand one = {.of = of, .starts = starts, .prefix_starts = prefixes, .answers = answers};
        together(run_errand, &one, threads);
        wrong = atomic_load(&one.failed);
    }
    free(sums);
    return wrong;
}

/* Steps of targets that somebody else keeps: one token a row, all at the same position. */
typedef struct {
    const decoder *model;
    int64_t count, position, capacity;
    const int64_t *ids, *sources, *lengths; /* of a row: its token, its source; of a source: how long it is */
    const int64_t *key_starts, *value_starts; /* of a source: where its keys and values begin */
    const float *source_keys, *source_values;
    float *keys, *values; /* (count, heads, capacity, head_size), the keys turned */
    float *logits;        /* (count, vocabulary) */
} given_step;

typedef struct {
    const given_step *of;
    atomic_int failed;
} stepping;

static int step_rows(const given_step *of, int64_t from, int64_t until, room *own) {
    const decoder *model = of->model;
    int64_t count = until - from, longest = of->position + 1, each = own_heads(model) * of->capacity * model->stack.head_size;
    beam *beams = malloc((size_t)count * (sizeof(beam) + sizeof(int64_t)));
    if (!beams) return NO_MEMORY;
    int64_t *cells = (int64_t *)(beams + count);
    for (int64_t i = 0; i < count; i++) {
        int64_t source = of->sources[from + i];
        longest = larger_of(longest, of->lengths[source]);
        cells[i] = of->position;
        beams[i] = (beam){of->keys + (from + i) * each, of->values + (from + i) * each, of->capacity, of->position + 1,
                          of->source_keys + of->key_starts[source], of->source_values + of->value_starts[source],
                          of->lengths[source], i, 1, of->position, NULL};
    }
    step now = {model, beams, count, count, longest, of->ids + from, cells, 1};
    buffers with;
    char *bytes = room_for(own, step_buffers(model, count, longest, NULL, &with));
    if (bytes) {
        step_buffers(model, count, longest, bytes, &with);
        run_step(&now, &with);
        all_logits(model, &with, count, of->logits + from * model->vocabulary);
    }
    free(beams);
    return bytes ? DONE : NO_MEMORY;
}

static void run_rows(void *what, int rank, int size, room *own) {
    stepping *all = what;
    int64_t count = all->of->count, from = rank * count / size, until = (rank + 1) * count / size;
    int wrong = from < until ? step_rows(all->of, from, until, own) : DONE;
    if (wrong) atomic_store(&all->failed, wrong);
}

int unmask_step(const given_step *of, int threads) {
    const encoder *stack = &of->model->stack;
    if (stack->positions && of->position >= stack->num_positions) return TOO_LONG;
    for (int64_t i = 0; i < of->count; i++)
        if (of->ids[i] < 0 || of->ids[i] >= stack->vocabulary) return BAD_TOKEN;
    stepping all = {.of = of};
    together(run_rows, &all, threads);
    return atomic_load(&all.failed);
}

/* Keys and values of all sources, from the rows (rows, hidden) that the encoder made of them. */
int unmask_remember(const decoder *model, const float *given, const int64_t *lengths, int64_t sources,
                    const int64_t *key_starts, const int64_t *value_starts, float *keys, float *values) {
    for (int64_t s = 0; s < sources; given += lengths[s++] * model->stack.hidden) {
        buffers with;
        room own = {0};
        char *bytes = room_for(&own, step_buffers(model, lengths[s], 1, NULL, &with));
        if (!bytes) return NO_MEMORY;
        step_buffers(model, lengths[s], 1, bytes, &with);
        remember(model, given, lengths + s, 1, &with, &(memory){keys + key_starts[s], values + value_starts[s]});
        free(bytes);
    }
    return DONE;
}
