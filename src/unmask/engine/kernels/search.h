/* Beam search over many sentences, as decode/beam.py describes it; a beam of one is greedy decoding.

   A thread has some sentences under way, all their beginnings in one batch. Who is done leaves at once, and new
   sentences take the free places, so that a batch stays full while there is work. */
#ifndef UNMASK_SEARCH_H
#define UNMASK_SEARCH_H

#include "vocabulary.h"

/* What is asked for. Field by field what binding.py declares. */
typedef struct {
    const encoder *reader;
    const decoder *writer;
    const int64_t *ids, *lengths; /* of the sources, end to end */
    int64_t sentences;
    const int64_t *limits;  /* at most so many tokens each, the end token counted */
    const int64_t *prefixes, *prefix_lengths; /* what each must begin with, end to end; or NULL */
    int64_t width, num_best, at_once; /* of the beam; outputs wanted; sentences that a thread has under way */
    int64_t start, end;
    const int64_t *never;   /* tokens that may not come */
    int64_t num_never, min_length, no_repeat; /* no_repeat 0: may repeat */
    const double *divisors; /* what a log probability is divided by, by the number of tokens */
    /* answers: of each sentence num_best; tokens at out_ids + num_best · (sum of the limits before) */
    int64_t *out_ids, *out_lengths; /* -1: there is no such output */
    double *out_log_probabilities;
    int64_t *out_finished;
    const volatile int64_t *stop; /* not zero any more: nobody wants the answers */
} search;

enum { NOT_A_NUMBER = 5, STOPPED };

/* A token that was chosen, and the one before it (-1: it is the first). */
typedef struct {
    int32_t token, parent;
} node;

typedef struct {
    double log_probability, score;
    int64_t finished, length;
    int32_t last; /* node */
} output;

/* A beginning under way. */
typedef struct {
    double score;
    int32_t last; /* its last token, -1: none yet */
} beginning;

/* A sentence under way, in a place that others had before. */
typedef struct {
    int64_t sentence, step, live, nodes, node_room, outputs;
    double to_beat;
    beam looks;
    room source, past, masks[2], tree;
    beginning *live_ones, *next;
    output *found;
} place;

typedef struct {
    const search *of;
    const int64_t *starts, *prefix_starts, *answers; /* sums of lengths before each sentence */
    atomic_llong next;
    atomic_int failed; /* an outcome */
} errand;

/* What a thread works with. */
typedef struct {
    place *places;
    int64_t under_way;
    beam *beams;
    int64_t *ids, *cells, *tokens; /* tokens: room for two outputs */
    outlook *outlooks;
    candidate *candidates;
    double *totals;
    int64_t *parents, *chosen;
    room buffers, rows, bans_room;
} desk;

/* --- outputs --- */

/* The tokens up to a node, the last one first. */
static int64_t tokens_until(const place *one, int32_t last, int64_t *into) {
    const node *tree = (const node *)one->tree.bytes;
    int64_t count = 0;
    for (; last >= 0; last = tree[last].parent) into[count++] = tree[last].token;
    return count;
}

/* Whether the ids of a come before those of b. */
static int comes_first(const place *one, const output *a, const output *b, int64_t *room) {
    int64_t *x = room, *y = room + a->length, i = a->length, j = b->length;
    tokens_until(one, a->last, x);
    tokens_until(one, b->last, y);
    while (i && j && x[i - 1] == y[j - 1]) i--, j--;
    return i && j ? x[i - 1] < y[j - 1] : i < j;
}

static int better(const place *one, const output *a, const output *b, int64_t *room) {
    if (a->finished != b->finished) return a->finished > b->finished;
    if (a->score != b->score) return a->score > b->score;
    return comes_first(one, a, b, room);
}

/* Only the best so many are kept, best first. */
static void note(const search *of, place *one, output made, int64_t *room) {
    int64_t at = one->outputs;
    if (at == of->num_best && !better(one, &made, one->found + at - 1, room)) return;
    if (at < of->num_best) one->outputs++;
    else at--;
    for (; at && better(one, &made, one->found + at - 1, room); at--) one->found[at] = one->found[at - 1];
    one->found[at] = made;
}

/* Beginnings that had to stop before their end. */
static void note_cut(const search *of, place *one, int64_t *room) {
    for (int64_t i = 0; i < one->live; i++) {
        beginning at = one->live_ones[i];
        note(of, one, (output){at.score, at.score / of->divisors[larger_of(one->step, 1)], 0, one->step, at.last}, room);
    }
}

static void hand_out(const errand *of, const place *one) {
    const search *asked = of->of;
    int64_t *ids = asked->out_ids + of->answers[one->sentence], limit = asked->limits[one->sentence];
    for (int64_t i = 0; i < asked->num_best; i++, ids += limit) {
        int64_t at = one->sentence * asked->num_best + i;
        asked->out_lengths[at] = i < one->outputs ? one->found[i].length : -1;
        if (i >= one->outputs) continue;
        asked->out_log_probabilities[at] = one->found[i].log_probability;
        asked->out_finished[at] = one->found[i].finished;
        int64_t count = tokens_until(one, one->found[i].last, ids);
        for (int64_t j = 0; j < count / 2; j++) {
            int64_t swapped = ids[j];
            ids[j] = ids[count - 1 - j];
            ids[count - 1 - j] = swapped;
        }
    }
}

/* --- cells --- */

/* As `room_for`, and what was in it stays. */
static char *more_room(room *of, size_t size) {
    room before = *of;
    if (before.size >= size) return before.bytes;
    *of = (room){0};
    char *bytes = room_for(of, size);
    if (bytes && before.bytes) memcpy(bytes, before.bytes, before.size);
    if (bytes) free(before.bytes);
    else *of = before;
    return bytes;
}

/* Room for so many cells; those that are there stay. */
static int grow(const search *of, place *one, int64_t cells) {
    const decoder *model = of->writer;
    int64_t heads = own_heads(model), size = model->stack.head_size, before = one->looks.capacity;
    int64_t capacity = whole_lanes(larger_of(cells, before + before / 2));
    size_t floats_each = (size_t)(heads * capacity * size), mask = (size_t)(of->width * capacity) * sizeof(float);
    room past = {0};
    float *keys = (float *)room_for(&past, 2 * floats_each * sizeof(float));
    if (!keys) return 0;
    float *values = keys + floats_each;
    for (int64_t head = 0; head < heads && before; head++) {
        size_t held = (size_t)(before * size) * sizeof(float);
        memcpy(keys + head * capacity * size, one->looks.keys + head * before * size, held);
        memcpy(values + head * capacity * size, one->looks.values + head * before * size, held);
    }
    free(one->past.bytes);
    one->past = past;
    one->looks.keys = keys;
    one->looks.values = values;
    for (int i = 0; i < 2 && of->width > 1; i++) {
        room masks = {0};
        float *to = (float *)room_for(&masks, mask);
        if (!to) return 0;
        for (int64_t row = 0; row < of->width; row++)
            for (int64_t k = 0; k < capacity; k++)
                to[row * capacity + k] = k < before ? ((float *)one->masks[i].bytes)[row * before + k] : -INFINITY;
        free(one->masks[i].bytes);
        one->masks[i] = masks;
    }
    one->looks.capacity = capacity;
    return 1;
}

/* A cell for each live row: one that is in nobody's past, or a new one. */
static int choose_cells(const search *of, place *one, int64_t *cells) {
    beam *looks = &one->looks;
    if (looks->cells + one->live > looks->capacity && !grow(of, one, looks->cells + one->live)) return 0;
    if (of->width == 1) {
        cells[0] = looks->cells++;
        return 1;
    }
    float *masks = (float *)one->masks[0].bytes;
    int64_t next = 0;
    for (int64_t row = 0; row < one->live; row++) {
        for (; next < looks->cells; next++) {
            int taken = 0;
            for (int64_t other = 0; other < one->live; other++) taken |= masks[other * looks->capacity + next] == 0.0f;
            if (!taken) break;
        }
        if (next == looks->cells) looks->cells++;
        cells[row] = next++;
    }
    for (int64_t row = 0; row < one->live; row++) masks[row * looks->capacity + cells[row]] = 0.0f;
    looks->mask = masks;
    return 1;
}

/* --- a step --- */

/* The tokens that would repeat a row of `size` tokens. */
static int64_t repeats(const place *one, int32_t last, int64_t size, int64_t *tokens, int64_t *into) {
    int64_t length = tokens_until(one, last, tokens), count = 0; /* the last first */
    for (int64_t end = 0; end + size <= length; end++) {
        /* the row that ends in tokens[end]: its first size - 1 are tokens[end + 1 …] */
        int64_t same = 0;
        while (same < size - 1 && tokens[end + 1 + same] == tokens[same]) same++;
        if (same == size - 1) into[count++] = tokens[end];
    }
    return count;
}

/* What each live row looks at, and what it may say. Gives the number of rows, or -1: no memory. */
static int64_t prepare_step(const errand *of, desk *with) {
    const search *asked = of->of;
    int64_t row = 0, longest = 0;
    for (int64_t p = 0; p < with->under_way; p++) longest = larger_of(longest, with->places[p].step);
    if (asked->no_repeat && !room_for(&with->bans_room, (size_t)(asked->width * asked->at_once * (longest + 1)) *
                                                            sizeof(int64_t)))
        return -1;
    int64_t *banned = (int64_t *)with->bans_room.bytes;
    for (int64_t p = 0; p < with->under_way; p++) {
        place *one = with->places + p;
        const node *tree = (const node *)one->tree.bytes;
        int64_t forced = -1;
        if (asked->prefixes && one->step < asked->prefix_lengths[one->sentence])
            forced = asked->prefixes[of->prefix_starts[one->sentence] + one->step];
        if (!choose_cells(asked, one, with->cells + row)) return -1;
        one->looks.row = row;
        one->looks.count = one->live;
        one->looks.position = one->step;
        with->beams[p] = one->looks;
        for (int64_t i = 0; i < one->live; i++, row++) {
            int32_t last = one->live_ones[i].last;
            outlook *to = with->outlooks + row;
            with->ids[row] = last < 0 ? asked->start : tree[last].token;
            *to = (outlook){-INFINITY, 0.0, 0, forced, 0, banned, with->candidates + row * asked->width};
            if (asked->no_repeat) {
                to->bans = repeats(one, last, asked->no_repeat, with->tokens, banned);
                banned += to->bans;
            }
            if (one->step < asked->min_length) { /* the end may not come yet */
                if (!asked->no_repeat) to->banned = &asked->end;
                else *banned++ = asked->end;
                to->bans++;
            }
        }
    }
    return row;
}

/* The best continuations of a sentence's beginnings, best first, equal ones by beginning, then by token. */
static int64_t choose_best(const search *of, const place *one, const desk *with) {
    int64_t found = 0;
    for (int64_t i = 0; i < one->live; i++) {
        const outlook *from = with->outlooks + one->looks.row + i;
        double off = from->largest + log(from->sum);
        for (int64_t c = 0; c < from->found; c++) {
            double gained = (double)from->best[c].logit - off;
            double total = (gained < 0 ? gained : 0.0) + one->live_ones[i].score; /* whatever the last bit says */
            int64_t at = found;
            if (found == of->width && !(total > with->totals[found - 1])) break;
            if (found < of->width) found++;
            else at--;
            for (; at && total > with->totals[at - 1]; at--) {
                with->totals[at] = with->totals[at - 1];
                with->parents[at] = with->parents[at - 1];
                with->chosen[at] = with->chosen[at - 1];
            }
            with->totals[at] = total;
            with->parents[at] = i;
            with->chosen[at] = from->best[c].id;
        }
    }
    return found;
}

/* One token further. Gives 0 where the sentence is done, -1 without memory. */
static int advance(const search *of, place *one, desk *with) {
    int64_t found = choose_best(of, one, with), live = 0, limit = of->limits[one->sentence];
    if (!more_room(&one->tree, (size_t)(one->nodes + of->width) * sizeof(node) * 2)) return -1;
    node *tree = (node *)one->tree.bytes;
    for (int64_t i = 0; i < found; i++) {
        double total = with->totals[i];
        if (with->chosen[i] != of->end) continue;
        output made = {total, total / of->divisors[one->step + 1], 1, one->step,
                       one->live_ones[with->parents[i]].last};
        if (made.score < one->to_beat) continue;
        note(of, one, made, with->tokens);
        if (one->outputs == of->num_best) one->to_beat = one->found[one->outputs - 1].score;
    }
    int64_t capacity = one->looks.capacity;
    float *before = (float *)one->masks[0].bytes, *after = (float *)one->masks[1].bytes;
    for (int64_t i = 0; i < found; i++) {
        if (with->chosen[i] == of->end || with->totals[i] / of->divisors[limit] < one->to_beat) continue;
        int64_t parent = with->parents[i];
        tree[one->nodes] = (node){(int32_t)with->chosen[i], one->live_ones[parent].last};
        one->next[live] = (beginning){with->totals[i], (int32_t)one->nodes++};
        if (of->width > 1)
            memcpy(after + live * capacity, before + parent * capacity, (size_t)capacity * sizeof(float));
        live++;
    }
    if (!live) { /* all has ended, or no token was allowed at all */
        if (!one->outputs) note_cut(of, one, with->tokens);
        return 0;
    }
    beginning *last = one->live_ones;
    room mask = one->masks[0];
    one->live_ones = one->next;
    one->next = last;
    one->masks[0] = one->masks[1];
    one->masks[1] = mask;
    one->live = live;
    one->step++;
    if (one->step < limit) return 1;
    note_cut(of, one, with->tokens);
    return 0;
}

/* --- a thread's work --- */

/* Read some sentences and put them into free places. */
static int admit(errand *of, desk *with, int64_t first, int64_t count, room *own) {
    const search *asked = of->of;
    const decoder *model = asked->writer;
    int64_t bounds[2] = {0, count}, rows[2] = {0, of->starts[first + count] - of->starts[first]};
    int64_t hidden = model->stack.hidden, size = model->stack.head_size, heads = source_heads(model), longest = 0;
    int64_t values = whole_lanes(rows[1] * hidden);
    float *read = (float *)room_for(&with->rows, (size_t)values * sizeof(float) + (size_t)count * sizeof(memory));
    if (!read) return NO_MEMORY;
    job reading = {.model = asked->reader, .ids = asked->ids + of->starts[first], .lengths = asked->lengths + first,
                   .sequences = count, .out = read, .first = bounds, .start = rows, .portions = 1};
    run_portion(&reading, 0, 0, 1, own);
    if (atomic_load(&reading.failed)) return NO_MEMORY;
    memory *into = (memory *)(read + values);
    for (int64_t i = 0; i < count; i++) {
        place *one = with->places + with->under_way + i;
        int64_t length = asked->lengths[first + i], wide = whole_lanes(length);
        longest = larger_of(longest, length);
        float *keys = (float *)room_for(&one->source, (size_t)(heads * size * (wide + length)) * sizeof(float));
        if (!keys) return NO_MEMORY;
        into[i] = (memory){keys, keys + heads * size * wide};
        one->sentence = first + i;
        one->step = one->nodes = one->outputs = one->looks.cells = 0;
        one->looks.source_keys = into[i].keys;
        one->looks.source_values = into[i].values;
        one->looks.source_length = length;
        one->looks.mask = NULL;
        one->to_beat = -INFINITY;
        one->live = 1;
        one->live_ones[0] = (beginning){0.0, -1};
        for (int64_t k = 0; asked->width > 1 && k < one->looks.capacity; k++)
            ((float *)one->masks[0].bytes)[k] = -INFINITY;
    }
    buffers room_of;
    char *bytes = room_for(&with->buffers, step_buffers(model, rows[1], longest, NULL, &room_of));
    if (!bytes) return NO_MEMORY;
    step_buffers(model, rows[1], longest, bytes, &room_of);
    remember(model, read, asked->lengths + first, count, &room_of, into);
    with->under_way += count;
    return DONE;
}

/* Take sentences while there are free places worth filling. */
static int refill(errand *of, desk *with, room *own) {
    const search *asked = of->of;
    while (with->under_way < asked->at_once) {
        int64_t wanted = asked->at_once - with->under_way;
        if (with->under_way && wanted * 4 < asked->at_once) return DONE;
        int64_t first = atomic_fetch_add(&of->next, wanted);
        if (first >= asked->sentences) return DONE;
        if (first + wanted > asked->sentences) wanted = asked->sentences - first;
        while (wanted) { /* as many rows at once as the encoder likes */
            int64_t count = 1, most = of->starts[first] + portion_rows(asked->reader->quantised);
            while (count < wanted && of->starts[first + count + 1] <= most) count++;
            int wrong = admit(of, with, first, count, own);
            if (wrong) return wrong;
            first += count;
            wanted -= count;
        }
    }
    return DONE;
}

static int one_step(errand *of, desk *with) {
    const search *asked = of->of;
    int64_t count = prepare_step(of, with), longest = 0;
    if (count < 0) return NO_MEMORY;
    for (int64_t b = 0; b < with->under_way; b++)
        longest = larger_of(longest, larger_of(with->beams[b].source_length, with->beams[b].cells));
    step now = {asked->writer, with->beams, with->under_way, count, longest, with->ids, with->cells,
                asked->width == 1};
    buffers room_of;
    char *bytes = room_for(&with->buffers, step_buffers(asked->writer, count, longest, NULL, &room_of));
    if (!bytes) return NO_MEMORY;
    step_buffers(asked->writer, count, longest, bytes, &room_of);
    run_step(&now, &room_of);
    look_ahead(asked->writer, &room_of, count, (never){asked->never, asked->num_never}, asked->width, with->outlooks);
    for (int64_t i = 0; i < count; i++)
        if (!(with->outlooks[i].largest > -INFINITY && with->outlooks[i].largest < INFINITY)) return NOT_A_NUMBER;
    for (int64_t p = with->under_way - 1; p >= 0; p--) {
        int more = advance(asked, with->places + p, with);
        if (more < 0) return NO_MEMORY;
        if (more) continue;
        hand_out(of, with->places + p);
        place free_again = with->places[p]; /* the last one takes its number */
        with->places[p] = with->places[--with->under_way];
        with->places[with->under_way] = free_again;
    }
    return DONE;
}

static int open_desk(const search *of, desk *with) {
    int64_t rows = of->at_once * of->width, limit = 0;
    for (int64_t s = 0; s < of->sentences; s++) limit = larger_of(limit, of->limits[s]);
    with->places = calloc((size_t)of->at_once, sizeof(place));
    with->beams = malloc((size_t)of->at_once * sizeof(beam));
    with->ids = malloc((size_t)(2 * rows + 2 * of->width + 2 * limit + 2) * sizeof(int64_t));
    with->outlooks = malloc((size_t)rows * sizeof(outlook));
    with->candidates = malloc((size_t)(rows * of->width) * sizeof(candidate));
    with->totals = malloc((size_t)of->width * sizeof(double));
    if (!with->places || !with->beams || !with->ids || !with->outlooks || !with->candidates || !with->totals) return 0;
    with->cells = with->ids + rows;
    with->parents = with->cells + rows;
    with->chosen = with->parents + of->width;
    with->tokens = with->chosen + of->width;
    for (int64_t p = 0; p < of->at_once; p++) {
        place *one = with->places + p;
        one->live_ones = malloc((size_t)(2 * of->width) * sizeof(beginning));
        one->found = malloc((size_t)of->num_best * sizeof(output));
        if (!one->live_ones || !one->found) return 0;
        one->next = one->live_ones + of->width;
    }
    return 1;
}

static void close_desk(const search *of, desk *with) {
    for (int64_t p = 0; with->places && p < of->at_once; p++) {
        place *one = with->places + p;
        room *rooms[] = {&one->source, &one->past, one->masks, one->masks + 1, &one->tree};
        for (int i = 0; i < 5; i++) free(rooms[i]->bytes);
        free(one->live_ones < one->next || !one->next ? one->live_ones : one->next); /* they change places */
        free(one->found);
    }
    void *all[] = {with->places, with->beams, with->ids, with->outlooks, with->candidates, with->totals,
                   with->buffers.bytes, with->rows.bytes, with->bans_room.bytes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void run_errand(void *what, int rank, int size, room *own) {
    errand *of = what;
    desk with = {0};
    int wrong = open_desk(of->of, &with) ? DONE : NO_MEMORY;
    while (!wrong && !atomic_load(&of->failed)) {
        if (*of->of->stop) wrong = STOPPED;
        if (!wrong) wrong = refill(of, &with, own);
        if (wrong || !with.under_way) break;
        wrong = one_step(of, &with);
    }
    if (wrong) atomic_store(&of->failed, wrong);
    close_desk(of->of, &with);
}

#endif
