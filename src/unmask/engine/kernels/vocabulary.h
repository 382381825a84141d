/* Over the vocabulary: the logarithm of the sum of all exponentials, and the best tokens, of each row.

   Logits are computed some hundred columns at a time and looked through while they are near; nobody ever holds them
   all. Rows are independent of one another, and chunks of columns the same for any number of rows. */
#ifndef UNMASK_VOCABULARY_H
#define UNMASK_VOCABULARY_H

#include "decoder.h"

typedef struct {
    float logit;
    int32_t id;
} candidate;

/* What is known of a row's next token. */
typedef struct {
    double largest, sum;  /* of all logits so far; the sum of e^(logit - largest) */
    int64_t found;        /* candidates, at most `width`, best first, equal ones by the lower id */
    int64_t forced;       /* the only token that may come, or -1 */
    int64_t bans;         /* tokens that may not */
    const int64_t *banned;
    candidate *best;
} outlook;

/* What no row may say. */
typedef struct {
    const int64_t *ids;
    int64_t count;
} never;

INLINE int any_of(ivec where) {
#ifdef __AVX512F__
    return _mm512_test_epi32_mask((__m512i)where, (__m512i)where) != 0;
#else
    int32_t some = 0;
    for (int j = 0; j < LANES; j++) some |= where[j];
    return some != 0;
#endif
}

INLINE void offer(outlook *to, int64_t width, float logit, int64_t id) {
    if (to->found == width && !(logit > to->best[width - 1].logit)) return;
    int64_t place = to->found < width ? to->found++ : width - 1;
    for (; place && logit > to->best[place - 1].logit; place--) to->best[place] = to->best[place - 1];
    to->best[place] = (candidate){logit, (int32_t)id};
}

/* Adds e^logit of the columns, `width` of them in whole panels, `-∞` behind the last. */
static void sum_up(outlook *to, const float *logits, int64_t width) {
    vec most = load(logits);
    ivec bad = most != most;
    for (int64_t i = LANES; i < width; i += LANES) {
        vec x = load(logits + i);
        bad |= x != x;
        most = larger(most, x);
    }
    float largest = any_of(bad) ? NAN : largest_of(most);
    vec shift = splat(largest), total[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    for (int64_t i = 0; i < width; i += PANEL)
        UNROLL for (int j = 0; j < TILE_VECTORS; j++)
            total[j % 4] += exponential(load(logits + i + j * LANES) - shift);
    double sum = sum_of((total[0] + total[1]) + (total[2] + total[3]));
    if (!(largest <= to->largest)) { /* greater, or not a number */
        to->sum = sum + (to->sum > 0 ? to->sum * exp(to->largest - largest) : 0.0);
        to->largest = largest;
    } else
        to->sum += sum * exp(largest - to->largest);
}

static void look_for_best(outlook *to, int64_t width, const float *logits, int64_t from, int64_t count) {
    for (int64_t i = 0; i < count; i += PANEL) {
        vec most = load(logits + i);
        UNROLL for (int j = 1; j < TILE_VECTORS; j++) most = larger(most, load(logits + i + j * LANES));
        float floor = to->found < width ? -INFINITY : to->best[width - 1].logit;
        ivec any = most > splat(floor);
        if (!any_of(any)) continue;
        for (int64_t j = i; j < i + PANEL; j++)
            if (logits[j] > floor) offer(to, width, logits[j], from + j);
    }
}

static void ban(float *logits, int64_t from, int64_t count, const int64_t *ids, int64_t num_ids) {
    for (int64_t i = 0; i < num_ids; i++)
        if (ids[i] >= from && ids[i] < from + count) logits[ids[i] - from] = -INFINITY;
}

/* Logits of some rows as they are. */
static void all_logits(const decoder *model, const buffers *with, int64_t count, float *out) {
    const encoder *stack = &model->stack;
    float *logits = with->qkv[0];
    for (int64_t first = 0; first < count; first += CHUNK_ROWS) {
        int64_t some = count - first < CHUNK_ROWS ? count - first : CHUNK_ROWS;
        rows x = prepared(stack, with->x + first * stack->stride, stack->stride, some, with);
        for (int64_t from = 0; from < model->vocabulary; from += CHUNK) {
            int64_t until = from + CHUNK < model->output.outputs ? from + CHUNK : model->output.outputs;
            int64_t real = until < model->vocabulary ? until - from : model->vocabulary - from;
            matrix part = columns_of(&model->output, from, until);
            multiply_columns(x, some, &part, 0, until - from, (target){logits, CHUNK, IDENTITY, NULL, NULL}, NULL);
            for (int64_t i = 0; i < some; i++)
                memcpy(out + (first + i) * model->vocabulary + from, logits + i * CHUNK, (size_t)real * sizeof(float));
        }
    }
}

/* What may come next in each row, of which `outlooks` say what is allowed. */
static void look_ahead(const decoder *model, const buffers *with, int64_t count, never nobody, int64_t width,
                       outlook *outlooks) {
    const encoder *stack = &model->stack;
    float *logits = with->qkv[0];
    for (int64_t first = 0; first < count; first += CHUNK_ROWS) {
        int64_t some = count - first < CHUNK_ROWS ? count - first : CHUNK_ROWS;
        rows x = prepared(stack, with->x + first * stack->stride, stack->stride, some, with);
        for (int64_t from = 0; from < model->output.outputs; from += CHUNK) {
            int64_t until = from + CHUNK < model->output.outputs ? from + CHUNK : model->output.outputs;
            matrix part = columns_of(&model->output, from, until);
            multiply_columns(x, some, &part, 0, until - from, (target){logits, CHUNK, IDENTITY, NULL, NULL}, NULL);
            for (int64_t i = 0; i < some; i++) {
                outlook *to = outlooks + first + i;
                float *row = logits + i * CHUNK;
                for (int64_t j = model->vocabulary; j < until; j++) row[j - from] = -INFINITY;
                sum_up(to, row, until - from);
                if (to->forced >= 0) {
                    if (to->forced >= from && to->forced < until) offer(to, width, row[to->forced - from], to->forced);
                    continue;
                }
                ban(row, from, until - from, nobody.ids, nobody.count);
                ban(row, from, until - from, to->banned, to->bans);
                look_for_best(to, width, row, from, until - from);
            }
        }
    }
}

#endif
