/* A stack of encoder blocks on a ragged batch, fp32 or int8.

   Sequences are put into portions of some hundred rows, and a thread takes a portion through all layers, so that what
   it works on stays in its cache and nobody waits. Where there are fewer portions than threads, the threads share one.
   Many rows are divided among them: they meet once a layer, before attention, the only place where rows need one
   another. Of few rows each thread takes a part of the columns, since fetching the weights is what takes the time;
   then they meet after every step. The numbers are the same in any case. */
#define _GNU_SOURCE
#include "attention.h"
#include "product.h"
#include "rows.h"
#include "team.h"

/* Sizes that were measured to be best: fp32 weights are four times as large, so each is used for more rows. */
INLINE int64_t portion_rows(int64_t quantised) { return quantised ? 384 : 768; }
/* Up to here threads divide columns. */
INLINE int64_t few_rows(int64_t quantised) { return quantised ? 24 : 160; }
#define BLOCK_ROWS 192 /* rows that go through the feed-forward network together */

typedef struct {
    matrix qkv, output, inner, outer;
    norm around_attention, around_ffn;
    int64_t heads;
} layer;

typedef struct {
    int64_t hidden, stride;          /* of a row: its values, and as it lies, whole panels, zeros behind */
    int64_t head_size, num_layers;   /* head_size in whole vectors */
    int64_t pre_norm, activation;
    int64_t quantised;
    const layer *layers;
    norm final;
    const float *tokens, *positions, *segments; /* tables; tokens NULL: rows are given */
    int64_t vocabulary, num_positions, num_segments;
    float token_scale;
    norm embedding;
} encoder;

typedef struct {
    const encoder *model;
    const int64_t *ids, *kinds; /* of each row; kinds are segments */
    const float *given;
    const int64_t *lengths;
    int64_t sequences;
    const int64_t *asked; /* the only rows that somebody will look at, in order; NULL: all */
    int64_t num_asked;
    float *out;
    /* portions: sequences [first[p], first[p + 1]), rows from start[p] on */
    int64_t *first, *start, portions;
    atomic_llong next;
    atomic_int failed;
    int shared; /* all threads work on the same portion */
    barrier meeting;
    char *common; /* what they share then */
} job;

/* Buffers of a portion: first those that threads have in common where they share it, then a thread's own. */
typedef struct {
    float *x, *seen, *qkv[2], *context, *inner;
    float *scales, *largest, *turned, *values, *attend;
    uint8_t *bytes;
} buffers;

typedef struct {
    int64_t qkv, context, inner; /* the largest of all layers */
} widths;

INLINE int64_t whole_panels(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }
INLINE int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }

static widths widths_of(const encoder *model) {
    widths most = {0};
    for (int64_t i = 0; i < model->num_layers; i++) {
        const layer *one = model->layers + i;
        most.qkv = larger_of(most.qkv, one->qkv.outputs);
        most.context = larger_of(most.context, whole_panels(one->heads * model->head_size));
        most.inner = larger_of(most.inner, one->inner.outputs);
    }
    return most;
}

INLINE float *floats(char **at, int64_t count) {
    float *here = (float *)*at;
    *at += whole_lanes(count) * (int64_t)sizeof(float);
    return here;
}

/* From `at` on. Gives their size; `at` may be NULL to ask for it. */
static size_t common_buffers(const encoder *model, int64_t count, int team, char *at, buffers *into) {
    widths most = widths_of(model);
    char *begin = at;
    into->x = floats(&at, count * model->stride);
    into->seen = model->pre_norm ? floats(&at, count * model->stride) : into->x;
    into->qkv[0] = floats(&at, count * most.qkv);
    into->qkv[1] = team > 1 ? floats(&at, count * most.qkv) : into->qkv[0];
    into->context = floats(&at, count * most.context);
    into->inner = floats(&at, team * BLOCK_ROWS * most.inner);
    return (size_t)(at - begin);
}

static size_t own_buffers(const encoder *model, int64_t count, int64_t longest, char *at, buffers *into) {
    widths most = widths_of(model);
    char *begin = at;
    int64_t widest = larger_of(larger_of(model->stride * count, most.context * count), most.inner * BLOCK_ROWS);
    into->scales = floats(&at, larger_of(count, BLOCK_ROWS));
    into->largest = floats(&at, BLOCK_ROWS * LANES);
    into->turned = floats(&at, whole_lanes(longest) * model->head_size);
    into->values = floats(&at, whole_lanes(longest) * model->head_size);
    into->attend = floats(&at, attend_room(longest, model->head_size));
    into->bytes = (uint8_t *)at;
    return (size_t)(at + whole_lanes(widest) - begin);
}

/* Rows as the products want them. */
static rows prepared(const encoder *model, const float *x, int64_t stride, int64_t count, const buffers *with) {
#ifdef __AVX512VNNI__
    if (model->quantised) {
        for (int64_t i = 0; i < count; i++)
            with->scales[i] = quantise(x + i * stride, stride, largest_size(x + i * stride, stride),
                                       with->bytes + i * stride);
        return (rows){NULL, with->bytes, with->scales, stride};
    }
#endif
    return (rows){x, NULL, NULL, stride};
}

/* This thread's part of a portion: rows [from, until), counted from the portion's first. */
typedef struct {
    const int64_t *lengths;
    int64_t sequences, start, from, until;
    const int64_t *asked; /* of these, counted from the batch's first row; NULL: all */
    int64_t num_asked;
    int rank, team;  /* how many threads share the portion */
    int by_columns;  /* all have all rows, and each computes a part of the columns */
    barrier *meeting;
} share;

INLINE int64_t answered(const share *mine) { return mine->asked ? mine->num_asked : mine->until - mine->from; }

/* [from, until) of `count` that are this thread's where threads divide something other than rows. */
typedef struct {
    int64_t from, until;
} range;

INLINE range part_of(int64_t count, const share *mine) {
    if (!mine->by_columns) return (range){0, count};
    return (range){mine->rank * count / mine->team, (mine->rank + 1) * count / mine->team};
}

INLINE void step_done(const share *mine) {
    if (mine->by_columns) meet(mine->meeting, mine->team);
}

/* This thread's columns of a product; `then`: the matrix after it, or NULL. */
static void multiply_part(rows x, int64_t count, const matrix *by, target to, const share *mine, const matrix *then) {
    range panels = part_of(by->outputs / PANEL, mine);
    const char *next = then ? panel_of(then, part_of(then->outputs / PANEL, mine).from * PANEL) : NULL;
    multiply_columns(x, count, by, panels.from * PANEL, panels.until * PANEL, to, next);
}

static void embed(const job *of, const share *mine, const buffers *with) {
    const encoder *model = of->model;
    int64_t row = 0, start = mine->start;
    for (int64_t s = 0; s < mine->sequences; row += mine->lengths[s++]) {
        for (int64_t i = 0; i < mine->lengths[s]; i++) {
            if (row + i < mine->from || row + i >= mine->until) continue;
            float *x = with->x + (row + i) * model->stride;
            if (of->given) {
                memcpy(x, of->given + (start + row + i) * model->hidden, (size_t)model->hidden * sizeof(float));
                memset(x + model->hidden, 0, (size_t)(model->stride - model->hidden) * sizeof(float));
                continue;
            }
            const float *token = model->tokens + of->ids[start + row + i] * model->hidden;
            const float *place = model->positions ? model->positions + i * model->hidden : NULL;
            const float *kind = model->segments ? model->segments + of->kinds[start + row + i] * model->hidden : NULL;
            for (int64_t d = 0; d < model->hidden; d++) {
                float sum = token[d] * model->token_scale;
                if (place) sum += place[d];
                if (kind) sum += kind[d];
                x[d] = sum;
            }
            memset(x + model->hidden, 0, (size_t)(model->stride - model->hidden) * sizeof(float));
            if (model->embedding.weight) normalise(x, model->hidden, model->stride, &model->embedding, x);
        }
    }
}

/* Rows [from, until) of one sequence look at all of it, head by head. */
typedef struct {
    int64_t row, length, from, until;
} stretch;

static void attend_stretch(const encoder *model, const layer *one, stretch of, range heads, const buffers *with,
                           const float *qkv, float *out) {
    int64_t stride = one->qkv.outputs, size = model->head_size, width = one->heads * size;
    int64_t out_stride = whole_panels(width);
    for (int64_t head = heads.from; head < heads.until; head++) {
        const float *k = qkv + of.row * stride + width + head * size;
        turn_keys(k, of.length, stride, size, with->turned);
        /* Values side by side: rows that lie far apart, as they do among queries and keys, share few places of a cache. */
        for (int64_t i = 0; i < of.length; i++)
            for (int64_t d = 0; d < size; d += LANES)
                store(with->values + i * size + d, load(k + width + i * stride + d));
        looked_at all = {with->turned, with->values, of.length, size, NULL, 0};
        attend(qkv + of.from * stride + head * size, of.until - of.from, stride, &all, size, out + head * size,
               out_stride, with->attend);
    }
    for (int64_t i = 0; i < of.until - of.from; i++)
        memset(out + i * out_stride + width, 0, (size_t)(out_stride - width) * sizeof(float));
}

/* This thread's rows and heads; the rows come to lie one behind the other in the context. */
static void attend_all(const encoder *model, const layer *one, const share *mine, const buffers *with,
                       const float *qkv, float *context) {
    range heads = part_of(one->heads, mine);
    int64_t width = whole_panels(one->heads * model->head_size), row = 0, done = 0;
    for (int64_t s = 0; s < mine->sequences; row += mine->lengths[s++]) {
        int64_t from = larger_of(row, mine->from);
        int64_t until = row + mine->lengths[s] < mine->until ? row + mine->lengths[s] : mine->until;
        while (from < until) {
            int64_t end = until;
            if (mine->asked) { /* the next rows that are asked for and lie side by side */
                if (done == mine->num_asked || mine->asked[done] - mine->start >= until) break;
                from = mine->asked[done] - mine->start;
                for (end = from + 1; end < until && done + end - from < mine->num_asked &&
                                     mine->asked[done + end - from] - mine->start == end;)
                    end++;
            }
            attend_stretch(model, one, (stretch){row, mine->lengths[s], from, end}, heads, with, qkv,
                           context + done * width);
            done += end - from;
            from = end;
        }
    }
}

static void normalise_all(const encoder *model, const norm *by, const float *from, float *to, int64_t count,
                          const share *mine) {
    range some = part_of(count, mine);
    for (int64_t i = some.from; i < some.until; i++)
        normalise(from + i * model->stride, model->hidden, model->stride, by, to + i * model->stride);
    step_done(mine);
}

/* x + W_2 activation(W_1 seen), a few rows at a time. */
static void feed_forward(const encoder *model, const layer *one, float *x, const float *seen, int64_t count,
                         const buffers *with, const share *mine, const matrix *then) {
    int64_t stride = model->stride, width = one->inner.outputs;
    float *inner = with->inner + (mine->by_columns ? 0 : mine->rank * BLOCK_ROWS * width);
    /* Who computes all columns of a row sees its largest value on the way. */
    float *largest = model->quantised && !mine->by_columns ? with->largest : NULL;
    for (int64_t i = 0; i < count; i += BLOCK_ROWS) {
        int64_t some = count - i < BLOCK_ROWS ? count - i : BLOCK_ROWS;
        if (largest) memset(largest, 0, (size_t)(some * LANES) * sizeof(float));
        multiply_part(prepared(model, seen + i * stride, stride, some, with), some, &one->inner,
                      (target){inner, width, (int)model->activation, NULL, largest}, mine, &one->outer);
        step_done(mine);
        rows activations = {inner, NULL, NULL, width};
#ifdef __AVX512VNNI__
        if (largest) {
            for (int64_t r = 0; r < some; r++)
                with->scales[r] = quantise(inner + r * width, width, largest_of(load(largest + r * LANES)),
                                           with->bytes + r * width);
            activations = (rows){NULL, with->bytes, with->scales, width};
        } else
#endif
            activations = prepared(model, inner, width, some, with);
        float *to = x + i * stride;
        multiply_part(activations, some, &one->outer, (target){to, stride, IDENTITY, to, NULL}, mine,
                      i + BLOCK_ROWS < count ? &one->inner : then);
        step_done(mine);
    }
}

/* Only the rows that are asked for stay, at the front. */
static void keep_asked(const encoder *model, const share *mine, float *x) {
    if (!mine->by_columns || !mine->rank)
        for (int64_t i = 0; i < mine->num_asked; i++)
            memmove(x + i * model->stride, x + (mine->asked[i] - mine->start - mine->from) * model->stride,
                    (size_t)model->stride * sizeof(float));
    step_done(mine);
}

static void run_layers(const encoder *model, const share *mine, const buffers *with) {
    int64_t stride = model->stride, count = mine->until - mine->from;
    float *x = with->x + mine->from * stride, *seen = with->seen + mine->from * stride;
    for (int64_t number = 0; number < model->num_layers; number++) {
        const layer *one = model->layers + number;
        int last = number == model->num_layers - 1;
        int64_t width = whole_panels(one->heads * model->head_size);
        float *qkv = with->qkv[number % 2], *context = with->context + mine->from * width;
        share all = *mine;
        if (!last) all.asked = NULL;
        if (model->pre_norm) normalise_all(model, &one->around_attention, x, seen, count, mine);
        multiply_part(prepared(model, seen, stride, count, with), count, &one->qkv,
                      (target){qkv + mine->from * one->qkv.outputs, one->qkv.outputs, IDENTITY, NULL, NULL}, mine,
                      &one->output);
        meet(mine->meeting, mine->team);
        attend_all(model, one, &all, with, qkv, context);
        step_done(mine);
        if (all.asked) {
            keep_asked(model, mine, x);
            count = mine->num_asked;
        }
        multiply_part(prepared(model, context, width, count, with), count, &one->output,
                      (target){x, stride, IDENTITY, x, NULL}, mine, &one->inner);
        step_done(mine);
        normalise_all(model, model->pre_norm ? &one->around_ffn : &one->around_attention, x, seen, count, mine);
        feed_forward(model, one, x, seen, count, with, mine, last ? NULL : &one[1].qkv);
        if (!model->pre_norm) normalise_all(model, &one->around_ffn, x, x, count, mine);
    }
    if (model->final.weight) normalise_all(model, &model->final, x, x, count, mine);
}

/* How many of the rows asked for come before this one. */
static int64_t asked_before(const job *of, int64_t row) {
    int64_t low = 0, high = of->num_asked;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (of->asked[middle] < row) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Where this thread's part of a portion begins and ends. */
static share part_of_portion(job *of, int64_t portion, int rank, int team) {
    int64_t first = of->first[portion], start = of->start[portion], count = of->start[portion + 1] - start;
    int by_columns = team > 1 && count <= few_rows(of->model->quantised);
    share mine = {.lengths = of->lengths + first, .sequences = of->first[portion + 1] - first, .start = start,
                  .from = by_columns ? 0 : rank * count / team,
                  .until = by_columns ? count : (rank + 1) * count / team,
                  .rank = rank, .team = team, .by_columns = by_columns, .meeting = &of->meeting};
    if (of->asked) {
        int64_t before = asked_before(of, start + mine.from);
        mine.asked = of->asked + before;
        mine.num_asked = asked_before(of, start + mine.until) - before;
    }
    return mine;
}

static void run_portion(job *of, int64_t portion, int rank, int team, room *own) {
    const encoder *model = of->model;
    share mine = part_of_portion(of, portion, rank, team);
    int64_t count = of->start[portion + 1] - mine.start, longest = 0;
    for (int64_t s = 0; s < mine.sequences; s++) longest = larger_of(longest, mine.lengths[s]);
    buffers with;
    size_t common = rank ? 0 : common_buffers(model, count, team, NULL, &with);
    meet(&of->meeting, team); /* nobody needs the last portion's buffers any more */
    char *bytes = room_for(own, common + own_buffers(model, count, longest, NULL, &with)), *shared = bytes;
    if (!bytes) atomic_store(&of->failed, 1);
    if (!rank && team > 1) of->common = bytes;
    meet(&of->meeting, team); /* everybody knows whether memory was enough, and where */
    if (atomic_load(&of->failed)) return;
    if (team > 1) shared = of->common;
    common_buffers(model, count, team, shared, &with);
    own_buffers(model, count, longest, bytes + common, &with);
    if (!mine.by_columns || !rank) embed(of, &mine, &with);
    step_done(&mine);
    run_layers(model, &mine, &with);
    if (mine.by_columns && rank) return;
    int64_t place = mine.asked ? mine.asked - of->asked : mine.start + mine.from;
    for (int64_t i = 0; i < answered(&mine); i++)
        memcpy(of->out + (place + i) * model->hidden, with.x + (mine.from + i) * model->stride,
               (size_t)model->hidden * sizeof(float));
}

static void run_job(void *what, int rank, int size, room *mine) {
    job *of = what;
    if (of->shared) {
        for (int64_t portion = 0; portion < of->portions; portion++) run_portion(of, portion, rank, size, mine);
        return;
    }
    /* From the last, usually the longest texts, on: the small ones fill the gaps at the end. */
    for (int64_t left; (left = atomic_fetch_sub(&of->next, 1)) > 0;) run_portion(of, left - 1, 0, 1, mine);
}

/* Sequences → portions of about as many rows each, as many for every thread. */
static void divide(job *of, int64_t rows, int threads) {
    int64_t most = threads * portion_rows(of->model->quantised);
    int64_t rounds = (rows + most - 1) / most, row = 0, planned = 0;
    for (int64_t s = 0; s < of->sequences; s++) {
        /* A portion begins where the middle of a sequence lies past the planned end of the last. */
        if (!of->portions || (row + of->lengths[s] / 2) * rounds * threads >= rows * planned) {
            of->first[of->portions] = s;
            of->start[of->portions++] = row;
            planned = (row + of->lengths[s] / 2) * rounds * threads / rows + 1;
        }
        row += of->lengths[s];
    }
    of->first[of->portions] = of->sequences;
    of->start[of->portions] = row;
}

enum outcome { DONE, NO_MEMORY, BAD_TOKEN, BAD_SEGMENT, TOO_LONG };

static int check(const encoder *model, const job *of, int64_t rows) {
    if (of->given) return DONE;
    for (int64_t s = 0; s < of->sequences; s++)
        if (model->positions && of->lengths[s] > model->num_positions) return TOO_LONG;
    for (int64_t i = 0; i < rows; i++) {
        if (of->ids[i] < 0 || of->ids[i] >= model->vocabulary) return BAD_TOKEN;
        if (model->segments && (of->kinds[i] < 0 || of->kinds[i] >= model->num_segments)) return BAD_SEGMENT;
    }
    return DONE;
}

/* Token vectors (rows, hidden) of sequences that lie end to end: from ids and segments, or from embedded rows.
   With `asked`, rows in order, only theirs. */
int unmask_encode(const encoder *model, const int64_t *ids, const int64_t *kinds, const float *given,
                  const int64_t *lengths, int64_t sequences, const int64_t *asked, int64_t num_asked, float *out,
                  int threads) {
    int64_t rows = 0;
    for (int64_t s = 0; s < sequences; s++) rows += lengths[s];
    job of = {.model = model, .ids = ids, .kinds = kinds, .given = given, .lengths = lengths, .sequences = sequences,
              .asked = asked, .num_asked = num_asked, .out = out};
    int wrong = check(model, &of, rows);
    if (wrong) return wrong;
    of.first = malloc(2 * (size_t)(sequences + 1) * sizeof(int64_t));
    if (!of.first) return NO_MEMORY;
    of.start = of.first + sequences + 1;
    divide(&of, rows, threads);
    atomic_store(&of.next, of.portions);
    of.shared = of.portions < threads;
    together(run_job, &of, threads);
    free(of.first);
    return atomic_load(&of.failed) ? NO_MEMORY : DONE;
}

/* What this was compiled for: 1 if it has int8 products. */
int unmask_has_int8(void) {
#ifdef __AVX512VNNI__
    return 1;
#else
    return 0;
#endif
}
