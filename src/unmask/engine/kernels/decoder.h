/* One step of a decoder: the newest tokens of many targets → logits of what comes next, a few hundred at a time.

   The targets of one source lie side by side and share what they look at: the source, and the cells in which their
   pasts lie. A target that goes on from another's past sees the same cells; a mask says which are whose, and nothing
   is ever moved. Keys lie turned, sixteen side by side, ready to be compared. Comes after encoder.c in the same unit. */
#ifndef UNMASK_DECODER_H
#define UNMASK_DECODER_H

/* How a block looks at the source. */
typedef struct {
    matrix query, memory, output; /* memory: keys and values side by side */
    norm around;
    int64_t heads;
} cross;

typedef struct {
    encoder stack;          /* self-attention and feed-forward networks, embeddings and last norm: as in an encoder */
    const cross *crosses;   /* one a layer */
    matrix output;          /* to the vocabulary */
    int64_t vocabulary;
} decoder;

/* The targets of one source. Of layer l and head h, keys lie at keys + capacity · head_size · (heads before it). */
typedef struct {
    float *keys, *values; /* cells of the past */
    int64_t capacity, cells; /* in whole vectors; how many of them are in use, those of this step counted */
    const float *source_keys, *source_values;
    int64_t source_length;
    int64_t row, count; /* its rows of this step */
    int64_t position;
    const float *mask; /* (count, capacity) as in attend; NULL: each sees all cells */
} beam;

typedef struct {
    const decoder *model;
    const beam *beams;
    int64_t num_beams, count, longest; /* rows; the most keys that anybody looks at */
    const int64_t *ids, *cells;        /* of each row: the token, and where its keys and values go */
    int alone;                         /* no source ever has more than one row */
} step;

static int64_t own_heads(const decoder *model) {
    int64_t heads = 0;
    for (int64_t i = 0; i < model->stack.num_layers; i++) heads += model->stack.layers[i].heads;
    return heads;
}

static int64_t source_heads(const decoder *model) {
    int64_t heads = 0;
    for (int64_t i = 0; i < model->stack.num_layers; i++) heads += model->crosses[i].heads;
    return heads;
}

/* Columns of logits that are looked at before the next are computed, while they are near; and for so many rows. */
#define CHUNK (8 * PANEL)
#define CHUNK_ROWS 128

/* From `at` on. Gives their size; `at` may be NULL to ask for it. */
static size_t step_buffers(const decoder *model, int64_t count, int64_t longest, char *at, buffers *into) {
    const encoder *stack = &model->stack;
    widths most = widths_of(stack);
    char *begin = at;
    for (int64_t i = 0; i < stack->num_layers; i++) {
        const cross *one = model->crosses + i;
        most.qkv = larger_of(most.qkv, larger_of(one->query.outputs, one->memory.outputs));
        most.context = larger_of(most.context, whole_panels(one->heads * stack->head_size));
    }
    int64_t widest = larger_of(larger_of(stack->stride, most.context) * count, most.inner * BLOCK_ROWS);
    into->x = floats(&at, count * stack->stride);
    into->seen = stack->pre_norm ? floats(&at, count * stack->stride) : into->x;
    into->qkv[0] = into->qkv[1] = floats(&at, larger_of(count * most.qkv, CHUNK_ROWS * CHUNK));
    into->context = floats(&at, count * most.context);
    into->inner = floats(&at, BLOCK_ROWS * most.inner);
    into->scales = floats(&at, larger_of(count, BLOCK_ROWS));
    into->largest = floats(&at, BLOCK_ROWS * LANES);
    into->attend = floats(&at, attend_room(longest, stack->head_size));
    into->bytes = (uint8_t *)at;
    return (size_t)(at + whole_lanes(widest) - begin);
}

static const share ALONE = {.team = 1};

static void embed_step(const step *of, float *x) {
    const encoder *stack = &of->model->stack;
    for (int64_t b = 0; b < of->num_beams; b++) {
        const beam *one = of->beams + b;
        const float *place = stack->positions ? stack->positions + one->position * stack->hidden : NULL;
        for (int64_t row = one->row; row < one->row + one->count; row++) {
            const float *token = stack->tokens + of->ids[row] * stack->hidden;
            float *to = x + row * stack->stride;
            for (int64_t d = 0; d < stack->hidden; d++)
                to[d] = place ? token[d] * stack->token_scale + place[d] : token[d] * stack->token_scale;
            memset(to + stack->hidden, 0, (size_t)(stack->stride - stack->hidden) * sizeof(float));
            if (stack->embedding.weight) normalise(to, stack->hidden, stack->stride, &stack->embedding, to);
        }
    }
}

/* Keys and values of this step's rows → their cells. */
static void keep(const step *of, const beam *one, const layer *by, int64_t head_before, const float *qkv) {
    int64_t size = of->model->stack.head_size, stride = by->qkv.outputs, width = by->heads * size;
    for (int64_t row = one->row; row < one->row + one->count; row++) {
        int64_t cell = of->cells[row];
        for (int64_t head = 0; head < by->heads; head++) {
            int64_t base = (head_before + head) * one->capacity * size;
            const float *key = qkv + row * stride + width + head * size;
            float *to = one->keys + base + cell / LANES * LANES * size + cell % LANES;
            for (int64_t d = 0; d < size; d++) to[d * LANES] = key[d];
            memcpy(one->values + base + cell * size, key + width, (size_t)size * sizeof(float));
        }
    }
}

/* The rows of one source look at something. With a single beginning there is nothing to share. */
static void look(const step *of, const beam *one, const float *q, int64_t stride, const looked_at *at, float *out,
                 int64_t out_stride, float *room) {
    int64_t size = of->model->stack.head_size;
    if (of->alone) attend_one(q, at, size, out, room);
    else attend(q, one->count, stride, at, size, out, out_stride, room);
}

/* Each row looks at its own past, the newest token in it. */
static void attend_past(const step *of, const layer *by, int64_t head_before, const float *qkv, float *context,
                        float *room) {
    int64_t size = of->model->stack.head_size, stride = by->qkv.outputs, width = whole_panels(by->heads * size);
    for (int64_t b = 0; b < of->num_beams; b++) {
        const beam *one = of->beams + b;
        keep(of, one, by, head_before, qkv);
        for (int64_t head = 0; head < by->heads; head++) {
            int64_t base = (head_before + head) * one->capacity * size;
            looked_at past = {one->keys + base, one->values + base, one->cells, size, one->mask, one->capacity};
            look(of, one, qkv + one->row * stride + head * size, stride, &past,
                 context + one->row * width + head * size, width, room);
        }
    }
}

/* Each row looks at its source. */
static void attend_source(const step *of, const cross *by, int64_t head_before, const float *q, float *context,
                          float *room) {
    int64_t size = of->model->stack.head_size, stride = by->query.outputs, width = whole_panels(by->heads * size);
    for (int64_t b = 0; b < of->num_beams; b++) {
        const beam *one = of->beams + b;
        for (int64_t head = 0; head < by->heads; head++) {
            int64_t before = (head_before + head) * size;
            looked_at source = {one->source_keys + before * whole_lanes(one->source_length),
                                one->source_values + before * one->source_length, one->source_length, size, NULL, 0};
            look(of, one, q + one->row * stride + head * size, stride, &source,
                 context + one->row * width + head * size, width, room);
        }
    }
}

/* Zeros behind what the heads will write. */
static void clear_behind(float *context, int64_t count, int64_t heads, int64_t size) {
    int64_t used = heads * size, width = whole_panels(used);
    for (int64_t i = 0; used < width && i < count; i++)
        memset(context + i * width + used, 0, (size_t)(width - used) * sizeof(float));
}

/* Rows of x, as the vocabulary is to see them. */
static void run_step(const step *of, const buffers *with) {
    const decoder *model = of->model;
    const encoder *stack = &model->stack;
    int64_t stride = stack->stride, count = of->count, own_before = 0, source_before = 0;
    float *x = with->x, *seen = with->seen, *qkv = with->qkv[0], *context = with->context;
    embed_step(of, x);
    for (int64_t number = 0; number < stack->num_layers; number++) {
        const layer *one = stack->layers + number;
        const cross *other = model->crosses + number;
        int64_t width = whole_panels(one->heads * stack->head_size), wide = whole_panels(other->heads * stack->head_size);
        if (stack->pre_norm) normalise_all(stack, &one->around_attention, x, seen, count, &ALONE);
        multiply_part(prepared(stack, seen, stride, count, with), count, &one->qkv,
                      (target){qkv, one->qkv.outputs, IDENTITY, NULL, NULL}, &ALONE, &one->output);
        clear_behind(context, count, one->heads, stack->head_size);
        attend_past(of, one, own_before, qkv, context, with->attend);
        multiply_part(prepared(stack, context, width, count, with), count, &one->output,
                      (target){x, stride, IDENTITY, x, NULL}, &ALONE, &other->query);
        normalise_all(stack, stack->pre_norm ? &other->around : &one->around_attention, x, seen, count, &ALONE);
        multiply_part(prepared(stack, seen, stride, count, with), count, &other->query,
                      (target){qkv, other->query.outputs, IDENTITY, NULL, NULL}, &ALONE, &other->output);
        clear_behind(context, count, other->heads, stack->head_size);
        attend_source(of, other, source_before, qkv, context, with->attend);
        multiply_part(prepared(stack, context, wide, count, with), count, &other->output,
                      (target){x, stride, IDENTITY, x, NULL}, &ALONE, &one->inner);
        normalise_all(stack, stack->pre_norm ? &one->around_ffn : &other->around, x, seen, count, &ALONE);
        feed_forward(stack, one, x, seen, count, with, &ALONE,
                     number + 1 < stack->num_layers ? &one[1].qkv : NULL);
        if (!stack->pre_norm) normalise_all(stack, &one->around_ffn, x, x, count, &ALONE);
        own_before += one->heads;
        source_before += other->heads;
    }
    if (stack->final.weight) normalise_all(stack, &stack->final, x, x, count, &ALONE);
}

/* Some columns of a matrix, as a matrix. */
static matrix columns_of(const matrix *by, int64_t from, int64_t until) {
    matrix part = *by;
    part.weights = panel_of(by, from);
    part.bias += from;
    part.outputs = until - from;
    if (by->scales) {
        part.scales += from;
        part.sums += from;
    }
    return part;
}

/* Where keys and values of a source go. */
typedef struct {
    float *keys, *values;
} memory;

/* Rows of some sources, end to end as the encoder left them → keys and values for every layer. */
static void remember(const decoder *model, const float *given, const int64_t *lengths, int64_t sources,
                     const buffers *with, const memory *into) {
    const encoder *stack = &model->stack;
    int64_t size = stack->head_size, stride = stack->stride, count = 0, before = 0;
    for (int64_t s = 0; s < sources; s++) count += lengths[s];
    for (int64_t i = 0; i < count; i++) {
        memcpy(with->x + i * stride, given + i * stack->hidden, (size_t)stack->hidden * sizeof(float));
        memset(with->x + i * stride + stack->hidden, 0, (size_t)(stride - stack->hidden) * sizeof(float));
    }
    rows x = prepared(stack, with->x, stride, count, with);
    for (int64_t number = 0; number < stack->num_layers; number++) {
        const cross *one = model->crosses + number;
        int64_t wide = one->memory.outputs, row = 0;
        multiply_part(x, count, &one->memory, (target){with->qkv[0], wide, IDENTITY, NULL, NULL}, &ALONE, NULL);
        for (int64_t s = 0; s < sources; row += lengths[s++])
            for (int64_t head = 0; head < one->heads; head++) {
                const float *key = with->qkv[0] + row * wide + head * size, *value = key + one->heads * size;
                turn_keys(key, lengths[s], wide, size, into[s].keys + (before + head) * whole_lanes(lengths[s]) * size);
                for (int64_t i = 0; i < lengths[s]; i++)
                    memcpy(into[s].values + ((before + head) * lengths[s] + i) * size, value + i * wide,
                           (size_t)size * sizeof(float));
            }
        before += one->heads;
    }
}

#endif
