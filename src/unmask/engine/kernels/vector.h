/* Sixteen floats at a time, or eight, and the functions of them that a Transformer needs.

   Written with the compiler's own vectors, so that any processor can run it; where a processor with AVX-512 has an
   instruction that the compiler would not find, it is named. Vectors are no longer than the processor's: of longer ones
   compilers make many small pieces. A lane's result never depends on its neighbours. */
#ifndef UNMASK_VECTOR_H
#define UNMASK_VECTOR_H

#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef float vec_anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), may_alias));

INLINE vec load(const float *from) { return *(const vec_anywhere *)from; }
INLINE void store(float *to, vec x) { *(vec_anywhere *)to = x; }
/* Not `0 + a`, which costs an addition because of negative zeros. */
#if LANES == 16
INLINE vec splat(float a) { return (vec){a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a}; }
#else
INLINE vec splat(float a) { return (vec){a, a, a, a, a, a, a, a}; }
#endif

/* a b + sum, rounded once where the processor can. By name: left to the compiler, one row alone may come out otherwise
   than the same row among others. */
INLINE vec fused(vec a, vec b, vec sum) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return a * b + sum;
#endif
}

INLINE vec choose(ivec where, vec a, vec b) { return (vec)(((ivec)a & where) | ((ivec)b & ~where)); }

INLINE vec larger(vec a, vec b) {
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return choose(a > b, a, b);
#endif
}

INLINE vec smaller(vec a, vec b) {
#ifdef __AVX512F__
    return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return choose(a < b, a, b);
#endif
}

INLINE vec size_of(vec a) { return (vec)((ivec)a & 0x7fffffff); }

#ifdef __AVX512F__
/* Halves until four are left, with this instruction. */
#define HALVED(a, with) \
    __m256 eight = with##256(_mm512_castps512_ps256((__m512)a), _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)a, 1))); \
    __m128 four = with(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)); \
    __m128 two = with(four, _mm_movehl_ps(four, four)); \
    return _mm_cvtss_f32(with(two, _mm_shuffle_ps(two, two, 1)))
#define add_lanes256 _mm256_add_ps
#define add_lanes _mm_add_ps
#define most_lanes256 _mm256_max_ps
#define most_lanes _mm_max_ps
#endif

/* Always in the same order: the halves are added until one number is left. */
INLINE float sum_of(vec a) {
#ifdef __AVX512F__
    HALVED(a, add_lanes);
#else
    float x[LANES];
    store(x, a);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
#endif
}

INLINE float largest_of(vec a) {
#ifdef __AVX512F__
    HALVED(a, most_lanes);
#else
    float x[LANES];
    store(x, a);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
#endif
}

/* The first `count` lanes, the others `rest`. */
INLINE vec load_part(const float *from, int64_t count, float rest) {
    float x[LANES];
    store(x, splat(rest));
    memcpy(x, from, (size_t)count * sizeof(float));
    return load(x);
}

/* e^x within two units of the last place; 0 below -87. */
INLINE vec exponential(vec x) {
    const vec low = splat(-87.0f), round = splat(12582912.0f); /* 1.5 · 2^23: adding it rounds to a whole number */
    ivec alive = x > low;
    x = larger(x, low);
    vec shifted = x * splat(1.44269504f) + round;
    vec n = shifted - round;
    vec r = x - n * splat(0.693145752f);
    r = r - n * splat(1.42860677e-6f);
    vec p = splat(1.0f / 720);
    p = p * r + splat(1.0f / 120);
    p = p * r + splat(1.0f / 24);
    p = p * r + splat(1.0f / 6);
    p = p * r + splat(0.5f);
    p = p * r + splat(1.0f);
    p = p * r + splat(1.0f);
    ivec power = ((ivec)shifted + 127) << 23; /* the whole number stands in the lowest bits */
    return (vec)((ivec)(p * (vec)power) & alive);
}

/* x Φ(x), Φ(x) - 1/2 = x g(x²): g fitted on |x| ≤ 5.4 so that x² g errs least, beyond it Φ is 0 or 1.
   The fit errs by 1.3e-8, which is below what rounding does. */
INLINE vec gelu(vec x) {
    const float fit[] = {-0.0001357918418f, 0.0004323746254f, -0.0005336946922f, 0.0007414781947f,
                         -0.001904285233f, 0.003834700126f, -0.006187177332f, 0.009537335941f,
                         -0.01417038572f, 0.01968264517f, -0.02570501733f, 0.03211077925f,
                         -0.03921044652f, 0.04849992517f, -0.06532796339f, 0.1309281096f};
    vec c = smaller(larger(x, splat(-5.4f)), splat(5.4f));
    vec t = c * c * splat(2.0f / (5.4f * 5.4f)) - splat(1.0f);
    vec g = splat(fit[0]);
    UNROLL for (int i = 1; i < 16; i++) g = g * t + splat(fit[i]);
    return x * (c * g + splat(0.5f));
}

INLINE vec sigmoid(vec x) { return splat(1.0f) / (splat(1.0f) + exponential(smaller(-x, splat(87.0f)))); }

/* The tanh approximation: x σ(2 √(2/π) (x + 0.044715 x³)). */
INLINE vec gelu_tanh(vec x) {
    return x * sigmoid(splat(1.5957691216f) * (x + splat(0.044715f) * x * x * x));
}

enum activation { IDENTITY, GELU, GELU_TANH, RELU, SILU };

INLINE vec activated(int kind, vec x) {
    switch (kind) {
    case GELU: return gelu(x);
    case GELU_TANH: return gelu_tanh(x);
    case RELU: return larger(splat(0.0f), x); /* in this order, what is not a number stays so */
    case SILU: return x * sigmoid(x);
    default: return x;
    }
}

#endif
