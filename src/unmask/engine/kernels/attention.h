/* softmax(q kᵀ) v of one head, for some rows of one sequence. Queries come scaled: the factor is in their weights. */
#ifndef UNMASK_ATTENTION_H
#define UNMASK_ATTENTION_H

#include <math.h>

#include "product.h"

#define ATTEND_ROWS (2 * TILE_ROWS)

INLINE int64_t whole_lanes(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

#ifdef __AVX512F__
/* 16 rows of 16 → their transpose. */
INLINE void transpose(const float *from, int64_t stride, float *to) {
    __m512 r[16], t[16];
    UNROLL for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(from + i * stride);
    UNROLL for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 8; i++) {
        _mm512_storeu_ps(to + i * LANES, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_ps(to + (i + 8) * LANES, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
    }
}
#else
INLINE void transpose(const float *from, int64_t stride, float *to) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) to[j * LANES + i] = from[i * stride + j];
}
#endif

/* Keys (length, size), rows `stride` apart → (length / LANES, size, LANES): the same value of so many keys side by side. */
static void turn_keys(const float *keys, int64_t length, int64_t stride, int64_t size, float *turned) {
    for (int64_t first = 0; first < length; first += LANES) {
        float *to = turned + first * size;
        if (first + LANES <= length) {
            for (int64_t d = 0; d < size; d += LANES) transpose(keys + first * stride + d, stride, to + d * LANES);
            continue;
        }
        for (int64_t i = 0; i < LANES; i++)
            for (int64_t d = 0; d < size; d++)
                to[d * LANES + i] = first + i < length ? keys[(first + i) * stride + d] : 0.0f;
    }
}

/* Scores of some queries with four vectors of keys, or the one or two that are left. */
static void scores_of(int count, const float *q, int64_t stride, const float *b, int64_t left, int64_t size,
                      float *out, int64_t width) {
#define CASE(n) \
    case n: \
        if (left >= 4) tile(n, 4, q, stride, b, LANES, LANES * size, size, NULL, out, width, NOTHING); \
        else if (left >= 2) tile(n, 2, q, stride, b, LANES, LANES * size, size, NULL, out, width, NOTHING); \
        else tile(n, 1, q, stride, b, LANES, LANES * size, size, NULL, out, width, NOTHING); \
        break;
    switch (count) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

/* Scores of a strip of queries: all of them meet some keys while these are near. */
static void scores_of_strip(int64_t count, const float *q, int64_t stride, const float *keys, int64_t size,
                            int64_t width, float *out) {
    for (int64_t key = 0, left; key < width; key += LANES * (left >= 4 ? 4 : left >= 2 ? 2 : 1)) {
        left = (width - key) / LANES;
        for (int64_t i = 0; i < count; i += TILE_ROWS)
            scores_of((int)(count - i < TILE_ROWS ? count - i : TILE_ROWS), q + i * stride, stride, keys + key * size,
                      left, size, out + i * width + key, width);
    }
}

/* Scores of one query → e^(score - largest), zero past `length`; gives 1 / their sum. */
INLINE float soften(float *scores, int64_t length, int64_t width) {
    int64_t whole = length - length % LANES;
    if (whole < length) store(scores + whole, load_part(scores + whole, length - whole, -INFINITY));
    vec most = load(scores);
    for (int64_t i = LANES; i < width; i += LANES) most = larger(most, load(scores + i));
    vec shift = splat(largest_of(most)), total = splat(0.0f);
    for (int64_t i = 0; i < width; i += LANES) {
        vec x = exponential(load(scores + i) - shift);
        total += x;
        store(scores + i, x);
    }
    return 1.0f / sum_of(total);
}

static void mix_values(int count, const float *weights, int64_t width, const float *values, int64_t stride,
                       int64_t size, int64_t length, float *out) {
    for (int64_t d = 0; d < size;) {
        int64_t left = (size - d) / LANES;
#define CASE(n) \
    case n: \
        if (left >= 2) tile(n, 2, weights, width, values + d, stride, LANES, length, NULL, out + d, size, NOTHING); \
        else tile(n, 1, weights, width, values + d, stride, LANES, length, NULL, out + d, size, NOTHING); \
        break;
        switch (count) {
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
        }
#undef CASE
        d += LANES * (left >= 2 ? 2 : 1);
    }
}

/* Room that `attend` needs, in floats: scores of a strip of queries, and their answers. */
INLINE int64_t attend_room(int64_t length, int64_t size) { return ATTEND_ROWS * (whole_lanes(length) + size); }

/* The scores of one query, whose sums are taken in four parts: one long sum would wait for itself. */
static void scores_of_one(const float *q, const float *keys, int64_t size, int64_t width, float *out) {
    for (int64_t key = 0; key < width; key += LANES) {
        const float *b = keys + key * size;
        vec part[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
        for (int64_t d = 0; d < size; d += 4)
            UNROLL for (int j = 0; j < 4; j++) part[j] += splat(q[d + j]) * load(b + (d + j) * LANES);
        store(out + key, (part[0] + part[1]) + (part[2] + part[3]));
    }
}

/* The values of one query, likewise. */
static void mix_values_of_one(const float *weights, const float *values, int64_t stride, int64_t size, int64_t length,
                              float share, float *out) {
    for (int64_t d = 0; d < size; d += LANES) {
        vec part[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
        int64_t k = 0;
        for (; k + 4 <= length; k += 4)
            UNROLL for (int j = 0; j < 4; j++) part[j] += splat(weights[k + j]) * load(values + (k + j) * stride + d);
        for (; k < length; k++) part[0] += splat(weights[k]) * load(values + k * stride + d);
        store(out + d, ((part[0] + part[1]) + (part[2] + part[3])) * splat(share));
    }
}

/* What is looked at by one head: keys that were turned, and values, whose rows are `stride` apart. */
typedef struct {
    const float *turned, *values;
    int64_t length, stride;
    const float *mask; /* (queries, mask_stride) added to the scores: 0, or -∞ for what a query must not see; or NULL */
    int64_t mask_stride;
} looked_at;

/* One query that may see everything, as in greedy decoding. */
static void attend_one(const float *q, const looked_at *at, int64_t size, float *out, float *room) {
    int64_t width = whole_lanes(at->length);
    scores_of_one(q, at->turned, size, width, room);
    float share = soften(room, at->length, width);
    mix_values_of_one(room, at->values, at->stride, size, at->length, share, out);
}

/* `count` queries; heads of `size`, a multiple of 16. */
static void attend(const float *q, int64_t count, int64_t stride, const looked_at *at, int64_t size, float *out,
                   int64_t out_stride, float *room) {
    int64_t length = at->length;
    int64_t width = whole_lanes(length), strips = (count + ATTEND_ROWS - 1) / ATTEND_ROWS;
    float *answers = room + ATTEND_ROWS * width, share[ATTEND_ROWS];
    for (int64_t strip = 0; strip < strips; strip++) {
        int64_t row = strip * count / strips, height = (strip + 1) * count / strips - row;
        scores_of_strip(height, q + row * stride, stride, at->turned, size, width, room);
        for (int64_t i = 0; at->mask && i < height; i++)
            for (int64_t k = 0; k < width; k += LANES)
                store(room + i * width + k, load(room + i * width + k) + load(at->mask + (row + i) * at->mask_stride + k));
        for (int64_t i = 0; i < height; i++) share[i] = soften(room + i * width, length, width);
        mix_values((int)height, room, width, at->values, at->stride, size, length, answers);
        for (int64_t i = 0; i < height; i++)
            for (int64_t d = 0; d < size; d += LANES)
                store(out + (row + i) * out_stride + d, load(answers + i * size + d) * splat(share[i]));
    }
}

#endif
