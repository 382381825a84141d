/* Matrix products: rows times a packed matrix.

   The matrix lies in panels of 64 columns; within a panel, row after row (fp32) or four rows at a time, the four
   values of a column side by side (int8, as the instruction wants them). A tile of 6 rows by 64 columns, or as many as
   there are registers for, is kept in registers while a panel runs by. Every sum is taken in the order of the matrix's rows, whatever stands in the other
   rows of the tile: a text's numbers do not depend on its neighbours.

   int8: a row of inputs is quantised with a scale of its own, q = round(x / scale) + 128 in 0…255, a column of weights
   with its own scale. The 128 is taken off again by subtracting 128 times the column's sum. */
#ifndef UNMASK_PRODUCT_H
#define UNMASK_PRODUCT_H

#include "vector.h"

#define TILE_ROWS 6
#define PANEL 64
#define TILE_VECTORS (PANEL / LANES)

typedef struct {
    const void *weights;  /* panels */
    const float *scales;  /* one a column, or NULL: the weights are fp32 */
    const int32_t *sums;  /* 128 times the sum of each column, int8 only */
    const float *bias;    /* one a column */
    int64_t inputs, outputs; /* rows, a multiple of 4; and columns, a multiple of 64: filled up with zeros */
} matrix;

INLINE const char *panel_of(const matrix *by, int64_t column) {
    return (const char *)by->weights + column * by->inputs * (by->scales ? 1 : (int64_t)sizeof(float));
}

/* Rows to be multiplied: as numbers, or quantised with their scales. */
typedef struct {
    const float *numbers;
    const uint8_t *bytes;
    const float *scales;
    int64_t stride; /* values between rows */
} rows;

/* What becomes of a product: activation(product + bias) [+ added]. */
typedef struct {
    float *out;
    int64_t stride;
    int activation;
    const float *added; /* as many rows and the same stride, or NULL */
    float *largest;     /* (rows, LANES) the largest size so far of each row, or NULL */
} target;

/* What is needed next: so many lines of 64 bytes of it are asked for with each step of a sum, and it is near when its
   turn comes. (All of it at once would wait for memory.) */
typedef struct {
    const char *from;
    int64_t lines;
} upcoming;

#define NOTHING ((upcoming){NULL, 0})

INLINE void ask_for(upcoming next, int64_t step) {
    for (int64_t i = 0; i < next.lines; i++) __builtin_prefetch(next.from + (step * next.lines + i) * 64, 0, 2);
}

/* Sums that fit into registers: AVX-512 has 32 of them, AVX2 has 16. */
#ifdef __AVX512F__
#define HELD_ROWS (2 * TILE_ROWS)
#define HELD_VECTORS TILE_VECTORS
#else
#define HELD_ROWS TILE_ROWS
#define HELD_VECTORS 2
#endif

INLINE void held_tile(const int count, const int vectors, const float *a, int64_t stride, const float *b, int64_t b_row,
                      int64_t b_vector, int64_t depth, const float *before, float *out, int64_t out_stride,
                      upcoming next) {
    vec sum[HELD_ROWS][HELD_VECTORS];
    UNROLL for (int i = 0; i < count; i++) UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = splat(0.0f);
    for (int64_t k = 0; k < depth; k++) {
        vec column[HELD_VECTORS];
        UNROLL for (int j = 0; j < vectors; j++) column[j] = load(b + k * b_row + j * b_vector);
        ask_for(next, k);
        UNROLL for (int i = 0; i < count; i++) {
            vec x = splat(a[i * stride + k]);
            UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = fused(x, column[j], sum[i][j]);
        }
    }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < vectors; j++) {
            int64_t at = i * out_stride + j * LANES;
            if (before) sum[i][j] = load(before + at) + sum[i][j];
            store(out + at, sum[i][j]);
        }
}

/* count rows × vectors·LANES columns, from rows of `a` and `b`, whose rows are b_row and whose vectors b_vector apart;
   added to what was summed before, which lies as `out` does, or NULL. */
INLINE void tile(const int count, const int vectors, const float *a, int64_t stride, const float *b, int64_t b_row,
                 int64_t b_vector, int64_t depth, const float *before, float *out, int64_t out_stride, upcoming next) {
    UNROLL for (int i = 0; i < count; i += HELD_ROWS)
        UNROLL for (int j = 0; j < vectors; j += HELD_VECTORS)
            held_tile(count - i < HELD_ROWS ? count - i : HELD_ROWS,
                      vectors - j < HELD_VECTORS ? vectors - j : HELD_VECTORS, a + i * stride, stride,
                      b + j * b_vector, b_row, b_vector, depth, before ? before + i * out_stride + j * LANES : NULL,
                      out + i * out_stride + j * LANES, out_stride, i + j ? NOTHING : next);
}

/* Long sums are taken in pieces, which are then added: half the error of one long sum. And a piece of a panel, 32 KB,
   stays next to the core while many rows run by. */
#define PIECE 128

static void tile_of_piece(int count, const float *a, int64_t stride, const float *b, int64_t depth,
                          const float *before, float *out, upcoming next) {
#define CASE(n) \
    case n: \
        if (next.lines) tile(n, TILE_VECTORS, a, stride, b, PANEL, LANES, depth, before, out, PANEL, next); \
        else tile(n, TILE_VECTORS, a, stride, b, PANEL, LANES, depth, before, out, PANEL, NOTHING); \
        break;
    switch (count) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

#ifdef __AVX512VNNI__
INLINE void tile_int8(const int count, const uint8_t *a, int64_t stride, const int8_t *b, int64_t depth, int32_t *out,
                      upcoming next) {
    __m512i sum[TILE_ROWS][TILE_VECTORS];
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = _mm512_setzero_si512();
    for (int64_t k = 0; k < depth; k += 4) {
        __m512i column[TILE_VECTORS];
        UNROLL for (int j = 0; j < TILE_VECTORS; j++) column[j] = _mm512_load_si512(b + k * PANEL + j * 64);
        ask_for(next, k / 4);
        UNROLL for (int i = 0; i < count; i++) {
            int32_t four;
            memcpy(&four, a + i * stride + k, sizeof four);
            __m512i x = _mm512_set1_epi32(four);
            UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], x, column[j]);
        }
    }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < TILE_VECTORS; j++) _mm512_store_si512(out + i * PANEL + j * LANES, sum[i][j]);
}

static void tile_of_panel_int8(int count, const uint8_t *a, int64_t stride, const int8_t *b, int64_t depth,
                               int32_t *out, upcoming next) {
#define CASE(n) \
    case n: \
        if (next.lines) tile_int8(n, a, stride, b, depth, out, next); \
        else tile_int8(n, a, stride, b, depth, out, NOTHING); \
        break;
    switch (count) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}
#endif

/* Sums of one tile → what the target wants of them. */
INLINE void finish(const int activation, int count, const vec *sums, const matrix *by, int64_t column,
                   const float *scales, target to, int64_t row) {
    for (int i = 0; i < count; i++) {
        float *out = to.out + (row + i) * to.stride + column;
        vec most = to.largest ? load(to.largest + (row + i) * LANES) : splat(0.0f);
        UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
            vec x = sums[i * TILE_VECTORS + j];
            int64_t at = column + j * LANES;
            if (by->scales) {
                ivec whole = (ivec)x - *(const ivec *)(by->sums + at);
                x = __builtin_convertvector(whole, vec) * (splat(scales[row + i]) * load(by->scales + at));
            }
            x = activated(activation, x + load(by->bias + at));
            if (to.added) x += load(to.added + (row + i) * to.stride + at);
            if (to.largest) most = larger(most, size_of(x));
            store(out + j * LANES, x);
        }
        if (to.largest) store(to.largest + (row + i) * LANES, most);
    }
}

static void finish_as(int count, const vec *sums, const matrix *by, int64_t column, const float *scales, target to,
                      int64_t row) {
    switch (to.activation) {
    case GELU: finish(GELU, count, sums, by, column, scales, to, row); break;
    case GELU_TANH: finish(GELU_TANH, count, sums, by, column, scales, to, row); break;
    case RELU: finish(RELU, count, sums, by, column, scales, to, row); break;
    case SILU: finish(SILU, count, sums, by, column, scales, to, row); break;
    default: finish(IDENTITY, count, sums, by, column, scales, to, row);
    }
}

/* A strip's part of what is to be asked for. A step of a sum reads four lines of its panel, so that four lines a
   step, by one strip or by several, ask for as much as is being read. */
INLINE upcoming part_of_next(const char *from, int64_t steps, int64_t strip, int64_t strips) {
    int64_t lines = strips > 3 ? 1 : strips > 1 ? 2 : 4;
    return from && strip * lines < 4 ? (upcoming){from + strip * steps * lines * 64, lines} : NOTHING;
}

/* Rows that run by a panel together: their numbers and their sums stay near. */
#define NEAR_ROWS 192

/* At most NEAR_ROWS rows times one panel, piece by piece; `then`: what is read after it, or NULL. */
static void multiply_panel(rows x, int64_t count, const matrix *by, int64_t column, target to, const char *then) {
    float sums[NEAR_ROWS * PANEL] __attribute__((aligned(64)));
    int64_t strips = (count + TILE_ROWS - 1) / TILE_ROWS;
    const float *panel = (const float *)panel_of(by, column);
    for (int64_t k = 0; k < by->inputs; k += PIECE) {
        int64_t left = by->inputs - k, some = left < PIECE ? left : PIECE;
        const char *following = some < left ? (const char *)(panel + (k + some) * PANEL) : then;
        for (int64_t strip = 0; strip < strips; strip++) {
            /* Strips of as equal heights as can be. */
            int64_t row = strip * count / strips, height = (strip + 1) * count / strips - row;
            float *sum = sums + row * PANEL;
            tile_of_piece((int)height, x.numbers + row * x.stride + k, x.stride, panel + k * PANEL, some,
                          k ? sum : NULL, sum, part_of_next(following, some, strip, strips));
            if (some == left) finish_as((int)height, (vec *)sum, by, column, NULL, to, row);
        }
    }
}

#ifdef __AVX512VNNI__
static void multiply_panel_int8(rows x, int64_t count, const matrix *by, int64_t column, target to, const char *then) {
    vec sums[TILE_ROWS * TILE_VECTORS];
    int64_t strips = (count + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t strip = 0; strip < strips; strip++) {
        int64_t row = strip * count / strips, height = (strip + 1) * count / strips - row;
        tile_of_panel_int8((int)height, x.bytes + row * x.stride, x.stride, (const int8_t *)panel_of(by, column),
                           by->inputs, (int32_t *)sums, part_of_next(then, by->inputs / 4, strip, strips));
        finish_as((int)height, sums, by, column, x.scales, to, row);
    }
}
#endif

INLINE rows rows_from(rows x, int64_t row, int64_t quantised) {
    if (quantised) return (rows){NULL, x.bytes + row * x.stride, x.scales + row, x.stride};
    return (rows){x.numbers + row * x.stride, NULL, NULL, x.stride};
}

INLINE target target_from(target to, int64_t row) {
    return (target){to.out + row * to.stride, to.stride, to.activation, to.added ? to.added + row * to.stride : NULL,
                    to.largest ? to.largest + row * LANES : NULL};
}

/* `count` rows times the matrix's columns [from, until), panels at a time; `then`: a panel that is needed soon after,
   or NULL. */
static void multiply_columns(rows x, int64_t count, const matrix *by, int64_t from, int64_t until, target to,
                             const char *then) {
    int64_t most = by->scales ? count : NEAR_ROWS;
    for (int64_t row = 0; row < count; row += most) {
        int64_t some = count - row < most ? count - row : most;
        for (int64_t column = from; column < until; column += PANEL) {
            const char *following = column + PANEL < until ? panel_of(by, column + PANEL)
                                    : row + some < count   ? panel_of(by, from)
                                                           : then;
            rows part = rows_from(x, row, by->scales != NULL);
#ifdef __AVX512VNNI__
            if (by->scales) {
                multiply_panel_int8(part, some, by, column, target_from(to, row), following);
                continue;
            }
#endif
            multiply_panel(part, some, by, column, target_from(to, row), following);
        }
    }
}

#endif
