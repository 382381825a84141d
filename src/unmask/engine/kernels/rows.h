/* What is done to one row after another: normalising, and quantising for int8 products. */
#ifndef UNMASK_ROWS_H
#define UNMASK_ROWS_H

#include <math.h>

#include "vector.h"

typedef struct {
    const float *weight, *bias; /* filled up with zeros to whole panels; weight NULL: there is no norm */
    float epsilon;
} norm;

/* (x - mean) / √(variance + ε) · weight + bias over `size` values, `stride` written. In place if out is x. */
INLINE void normalise(const float *x, int64_t size, int64_t stride, const norm *by, float *out) {
    int64_t whole = size - size % LANES, rest = size - whole;
    vec total = splat(0.0f), squares = splat(0.0f);
    for (int64_t i = 0; i < whole; i += LANES) total += load(x + i);
    if (rest) total += load_part(x + whole, rest, 0.0f);
    float mean = sum_of(total) / (float)size;
    for (int64_t i = 0; i < whole; i += LANES) {
        vec d = load(x + i) - splat(mean);
        squares += d * d;
    }
    if (rest) {
        vec d = load_part(x + whole, rest, mean) - splat(mean);
        squares += d * d;
    }
    float factor = 1.0f / sqrtf(sum_of(squares) / (float)size + by->epsilon);
    for (int64_t i = 0; i < stride; i += LANES)
        store(out + i, (load(x + i) - splat(mean)) * splat(factor) * load(by->weight + i) + load(by->bias + i));
}

#ifdef __AVX512F__
/* q = round(x / scale) + 128, for a row whose largest size is known. */
INLINE float quantise(const float *x, int64_t count, float most, uint8_t *out) {
    float inverse = most > 0.0f ? 127.0f / most : 0.0f;
    const __m512i half = _mm512_set1_epi32(128);
    for (int64_t i = 0; i < count; i += LANES) {
        __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)(load(x + i) * splat(inverse))), half);
        _mm_storeu_si128((__m128i *)(out + i), _mm512_cvtepi32_epi8(whole));
    }
    return most / 127.0f;
}

INLINE float largest_size(const float *x, int64_t count) {
    vec most = splat(0.0f);
    for (int64_t i = 0; i < count; i += LANES) most = larger(most, size_of(load(x + i)));
    return largest_of(most);
}
#endif

#endif
