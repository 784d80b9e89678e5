/* One forward pass of a Llama-like model over tokens of many sequences, on one or several CPU cores in float32.

   A token's numbers depend on nothing but itself and the keys and values before it: every sum runs over its inputs in
   one order, whatever else is in the batch and whichever thread computes it. `kernel.py` says what is computed here and
   what isn't. */

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

/* LANES is how many numbers a vector register has, TILE how many rows are multiplied at once: as many sums as there are
   registers for. */
#if defined(__AVX512F__)
#define LANES 16
#define TILE 12
#elif defined(__AVX2__)
#define LANES 8
#define TILE 6
#else
#define LANES 4
#define TILE 6
#endif
#define PANEL (2 * LANES) /* columns of a packed matrix that lie side by side */
#define LINE 16 /* numbers of a line of the processor's caches */
#define MOST 64 /* threads of a step */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

typedef struct {
    const float *norm_in, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *norm_mlp, *gate_up, *down;
} Layer;

typedef struct {
    int64_t layers, width, heads, kv_heads, head, mlp, vocab;
    float eps, scale;
    const float *embedding, *norm, *head_matrix, *cosines, *sines;
    const Layer *layer;
} Model;

/* Tokens are in the order in which they are computed. `from_row` is where a token's first `from_length` keys lie: in its
   own row, or in that of another sequence that begins alike. `least`: multiplications for which one of at most `threads`
   threads is started. */
typedef struct {
    int64_t tokens, kept, threads, least, score_stride, row_stride, head_stride, values_offset, layer_stride;
    const int64_t *token, *position, *row, *from_row, *from_length, *keep;
    float *kv, *logits, *scratch;
} Step;

INLINE vec load(const float *at) { return *(const vec *)at; }
INLINE void store(float *at, vec what) { *(vec *)at = what; }

INLINE vec choose(ints where, vec a, vec b) { return (vec)((where & (ints)a) | (~where & (ints)b)); }

/* Neighbours' sums, of quarters of registers or of numbers in them: first those of a, then those of b. */
INLINE vec fold(vec a, vec b, ints even, ints odd) { return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd); }

/* The sums of as many vectors as a vector has lanes, each in its lane. */
INLINE vec totals(vec *x) {
#if LANES == 16
    const ints even = {0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30}, odd = even + 1;
    const ints first = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, second = first + 4;
#elif LANES == 8
    const ints even = {0, 2, 8, 10, 4, 6, 12, 14}, odd = even + 1;
    const ints first = {0, 1, 2, 3, 8, 9, 10, 11}, second = first + 4;
#else
    const ints even = {0, 2, 4, 6}, odd = even + 1;
#endif
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) x[i] = fold(x[2 * i], x[2 * i + 1], even, odd);
#pragma GCC unroll 4
    for (int i = 0; i < LANES / 4; i++) x[i] = fold(x[2 * i], x[2 * i + 1], even, odd);
#if LANES > 4
#pragma GCC unroll 2
    for (int i = 0; i < LANES / 8; i++) x[i] = fold(x[2 * i], x[2 * i + 1], first, second);
#endif
#if LANES > 8
    x[0] = fold(x[0], x[1], first, second);
#endif
    return x[0];
}

INLINE float total(vec x) {
    vec all[LANES] = {x};
    return totals(all)[0];
}

/* e^x = 2^n e^r with |r| <= ln 2 / 2 and ln 2 in two parts (Cody and Waite, 1980), e^r by its Taylor series. */
INLINE vec exponential(vec x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vec lowest = (vec){0} - 87.0f, highest = (vec){0} + 88.0f;
    x = choose(x < lowest, lowest, x);
    x = choose(x > highest, highest, x);
    vec n = x * 1.44269504088896341f + shift;
    n = n - shift;
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440054690583e-4f;
    vec sum = r * (1.0f / 5040) + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    ints power = (__builtin_convertvector(n, ints) + 127) << 23;
    return sum * (vec)power;
}

/* `rows` rows of x [*, inner] times a panel of PANEL columns. */
INLINE void tile(const int rows, const float *x, int64_t inner, const float *panel, float *y, int64_t wide,
                 int64_t columns, const float *bias, int add) {
    vec sum[TILE][2];
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vec){0};
    for (int64_t k = 0; k < inner; k++) {
        vec first = load(panel + k * PANEL), second = load(panel + k * PANEL + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            float one = x[r * inner + k];
            sum[r][0] += one * first;
            sum[r][1] += one * second;
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        float *to = y + r * wide;
        if (bias) {
            sum[r][0] += load(bias);
            sum[r][1] += load(bias + LANES);
        }
        if (columns == PANEL) {
            if (add) {
                sum[r][0] = load(to) + sum[r][0];
                sum[r][1] = load(to + LANES) + sum[r][1];
            }
            store(to, sum[r][0]);
            store(to + LANES, sum[r][1]);
        } else {
            float found[PANEL];
            store(found, sum[r][0]);
            store(found + LANES, sum[r][1]);
            for (int64_t c = 0; c < columns; c++) to[c] = add ? to[c] + found[c] : found[c];
        }
    }
}

/* y [rows, wide] = x [rows, inner] times a matrix in panels; or y += that. */
static void multiply(const float *x, int64_t rows, int64_t inner, const float *matrix, int64_t wide, const float *bias,
                     float *y, int add) {
#define ROWS(n) \
    case n: tile(n < TILE ? n : 1, x + r * inner, inner, panel, y + r * wide + start, wide, columns, part, add); break
    for (int64_t start = 0; start < wide; start += PANEL) {
        const float *panel = matrix + start * inner, *part = bias ? bias + start : 0;
        int64_t columns = wide - start < PANEL ? wide - start : PANEL, r = 0;
        for (; r + TILE <= rows; r += TILE)
            tile(TILE, x + r * inner, inner, panel, y + r * wide + start, wide, columns, part, add);
        switch (rows - r) {
            ROWS(1); ROWS(2); ROWS(3); ROWS(4); ROWS(5);
#if TILE > 6
            ROWS(6); ROWS(7); ROWS(8); ROWS(9); ROWS(10); ROWS(11);
#endif
        }
    }
#undef ROWS
}

static void normalise(const float *x, int64_t rows, int64_t width, const float *weight, float eps, float *y) {
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        vec squares = {0};
        for (int64_t i = 0; i < width; i += LANES) squares += load(x + i) * load(x + i);
        float factor = 1.0f / sqrtf(total(squares) / (float)width + eps);
        for (int64_t i = 0; i < width; i += LANES) store(y + i, load(weight + i) * (load(x + i) * factor));
    }
}

static void rotate(float *x, int64_t head, const float *cosine, const float *sine) {
    int64_t half = head / 2;
    for (int64_t i = 0; i < half; i++) {
        float first = x[i], second = x[i + half];
        x[i] = first * cosine[i] - second * sine[i];
        x[i + half] = second * cosine[i + half] + first * sine[i + half];
    }
}

/* One query head of one token over keys [0, count), which lie in two places: `shared` of them in `from`. */
static void attend(const float *query, const float *from, const float *own, int64_t shared, int64_t count,
                   int64_t head, int64_t values, float *score, float *out) {
    int64_t padded = (count + LANES - 1) / LANES * LANES;
    vec highest = (vec){0} - INFINITY;
    for (int64_t k = 0; k < padded; k += LANES) {
        vec sum[LANES];
        for (int part = 0; part < LANES; part++) {
            int64_t at = k + part < count ? k + part : count - 1;
            const float *key = (at < shared ? from : own) + at * head;
            for (int64_t i = 0; i < head; i += LINE) __builtin_prefetch(key + values + i);
            sum[part] = load(query) * load(key);
            for (int64_t i = LANES; i < head; i += LANES) sum[part] += load(query + i) * load(key + i);
        }
        vec found = totals(sum);
        store(score + k, found);
        highest = choose(found > highest, found, highest);
    }
    float top = highest[0];
    for (int lane = 1; lane < LANES; lane++) top = highest[lane] > top ? highest[lane] : top;
    vec sums = {0};
    for (int64_t k = 0; k < padded; k += LANES) {
        store(score + k, exponential(load(score + k) - top));
        for (int64_t past = count; past < k + LANES; past++) score[past] = 0.0f;
        sums += load(score + k);
    }
    float factor = 1.0f / total(sums);
    for (int64_t i = 0; i < head; i += PANEL) {
        vec sum[4][2] = {{{0}, {0}}, {{0}, {0}}, {{0}, {0}}, {{0}, {0}}};
        for (int64_t k = 0; k < count; k += 4)
#pragma GCC unroll 4
            for (int part = 0; part < 4; part++) {
                int64_t at = k + part < count ? k + part : count - 1;
                const float *value = (at < shared ? from : own) + values + at * head + i;
                sum[part][0] += score[k + part] * load(value);
                if (i + LANES < head) sum[part][1] += score[k + part] * load(value + LANES);
            }
        store(out + i, ((sum[0][0] + sum[1][0]) + (sum[2][0] + sum[3][0])) * factor);
        if (i + LANES < head)
            store(out + i + LANES, ((sum[0][1] + sum[1][1]) + (sum[2][1] + sum[3][1])) * factor);
    }
}

static void activate(const float *gate_up, int64_t rows, int64_t mlp, float *out) {
    for (int64_t r = 0; r < rows; r++, gate_up += 2 * mlp, out += mlp)
        for (int64_t i = 0; i < mlp; i += LANES) {
            vec gate = load(gate_up + i);
            store(out + i, gate / (1.0f + exponential(-gate)) * load(gate_up + mlp + i));
        }
}

/* Queries, keys and values of tokens [from, to): keys and values go to their places, queries stay where they are. */
static void place(const Model *m, const Layer *layer, const Step *s, int64_t from, int64_t to, float *kv, float *qkv) {
    int64_t queries = m->heads * m->head, own = m->kv_heads * m->head, wide = queries + 2 * own;
    for (int64_t t = from; t < to; t++) {
        float *q = qkv + t * wide, *k = q + queries, *v = k + own;
        const float *cosine = m->cosines + s->position[t] * m->head, *sine = m->sines + s->position[t] * m->head;
        if (layer->q_norm) {
            normalise(q, m->heads, m->head, layer->q_norm, m->eps, q);
            normalise(k, m->kv_heads, m->head, layer->k_norm, m->eps, k);
        }
        for (int64_t h = 0; h < m->heads; h++) rotate(q + h * m->head, m->head, cosine, sine);
        for (int64_t i = 0; i < queries; i++) q[i] *= m->scale;
        for (int64_t h = 0; h < m->kv_heads; h++) {
            float *to = kv + s->row[t] * s->row_stride + h * s->head_stride + s->position[t] * m->head;
            rotate(k + h * m->head, m->head, cosine, sine);
            memcpy(to, k + h * m->head, m->head * sizeof(float));
            memcpy(to + s->values_offset, v + h * m->head, m->head * sizeof(float));
        }
    }
}

/* Threads of a step, which wait for each other asleep: on a busy machine the other one may not even be running. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t parties, waiting, round;
} Meeting;

static void meet(Meeting *all) {
    pthread_mutex_lock(&all->lock);
    int64_t round = all->round;
    if (++all->waiting == all->parties) {
        all->waiting = 0;
        all->round++;
        pthread_cond_broadcast(&all->changed);
    }
    while (round == all->round) pthread_cond_wait(&all->changed, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

/* A thread's part of a step: every token's work is one thread's. */
typedef struct {
    const Model *model;
    const Step *step;
    Meeting *meeting;
    int64_t number;
} Part;

/* Products of a token in a layer, counted as keys that it attends to: a key takes a head's width twice for each head. */
static int64_t products(const Model *m) {
    int64_t queries = m->heads * m->head;
    return m->width * (2 * queries + 2 * m->kv_heads * m->head + 3 * m->mlp) / (2 * queries);
}

static int64_t work(const Model *m, const Step *s) {
    int64_t sum = 0;
    for (int64_t t = 0; t < s->tokens; t++) sum += s->position[t] + 1 + products(m);
    return sum;
}

/* The first token of a thread's part, whose work begins at its share of the whole. */
static int64_t begin(const Model *m, const Step *s, int64_t number, int64_t parties) {
    int64_t before = 0, share = work(m, s) / parties * number, t = 0;
    if (number == parties) return s->tokens;
    for (; t < s->tokens && before < share; t++) before += s->position[t] + 1 + products(m);
    return t;
}

static void compute(const Part *p) {
    const Model *m = p->model;
    const Step *s = p->step;
    int64_t queries = m->heads * m->head, wide = queries + 2 * m->kv_heads * m->head, n = s->tokens;
    int64_t group = m->heads / m->kv_heads, parties = p->meeting->parties;
    float *hidden = s->scratch, *normed = hidden + n * m->width, *qkv = normed + n * m->width;
    float *attended = qkv + n * wide, *gate_up = attended + n * queries, *act = gate_up + n * 2 * m->mlp;
    float *score = act + n * m->mlp + p->number * s->score_stride;
    int64_t from = begin(m, s, p->number, parties), to = begin(m, s, p->number + 1, parties);
    for (int64_t t = from; t < to; t++)
        memcpy(hidden + t * m->width, m->embedding + s->token[t] * m->width, m->width * sizeof(float));
    for (int64_t l = 0; l < m->layers; l++) {
        const Layer *layer = m->layer + l;
        float *kv = s->kv + l * s->layer_stride;
        int last = l == m->layers - 1; /* where only some tokens' logits are wanted, only they go on from here */
        normalise(hidden + from * m->width, to - from, m->width, layer->norm_in, m->eps, normed + from * m->width);
        multiply(normed + from * m->width, to - from, m->width, layer->qkv, wide, layer->qkv_bias, qkv + from * wide, 0);
        place(m, layer, s, from, to, kv, qkv);
        meet(p->meeting); /* all keys and values are in their places */
        if (last) {
            from = s->kept * p->number / parties, to = s->kept * (p->number + 1) / parties;
            for (int64_t a = from; a < to; a++)
                memcpy(normed + a * m->width, hidden + s->keep[a] * m->width, m->width * sizeof(float));
            meet(p->meeting); /* nobody reads what the next line writes over */
            memcpy(hidden + from * m->width, normed + from * m->width, (to - from) * m->width * sizeof(float));
        }
        for (int64_t h = 0; h < m->kv_heads; h++)
            for (int64_t a = from; a < to; a++) {
                int64_t t = last ? s->keep[a] : a;
                const float *own = kv + s->row[t] * s->row_stride + h * s->head_stride;
                const float *first = kv + s->from_row[t] * s->row_stride + h * s->head_stride;
                for (int64_t g = h * group; g < (h + 1) * group; g++)
                    attend(qkv + t * wide + g * m->head, first, own, s->from_length[t], s->position[t] + 1, m->head,
                           s->values_offset, score, attended + a * queries + g * m->head);
            }
        multiply(attended + from * queries, to - from, queries, layer->out, m->width, 0, hidden + from * m->width, 1);
        normalise(hidden + from * m->width, to - from, m->width, layer->norm_mlp, m->eps, normed + from * m->width);
        multiply(normed + from * m->width, to - from, m->width, layer->gate_up, 2 * m->mlp, 0,
                 gate_up + from * 2 * m->mlp, 0);
        activate(gate_up + from * 2 * m->mlp, to - from, m->mlp, act + from * m->mlp);
        multiply(act + from * m->mlp, to - from, m->mlp, layer->down, m->width, 0, hidden + from * m->width, 1);
    }
    normalise(hidden + from * m->width, to - from, m->width, m->norm, m->eps, normed + from * m->width);
    multiply(normed + from * m->width, to - from, m->width, m->head_matrix, m->vocab, 0, s->logits + from * m->vocab, 0);
}

/* A thread begins when it is known how many there are. */
static void *enter(void *part) {
    Part *p = part;
    pthread_mutex_lock(&p->meeting->lock);
    while (p->meeting->parties == 0) pthread_cond_wait(&p->meeting->changed, &p->meeting->lock);
    pthread_mutex_unlock(&p->meeting->lock);
    compute(p);
    return 0;
}

/* Columns of a packed matrix that lie side by side. */
int64_t agentrl_panel(void) { return PANEL; }

/* Floats that a thread needs for the scores of a token's keys. */
int64_t agentrl_scores(int64_t longest) { return (longest + 2 * LANES + LINE - 1) / LINE * LINE; }

/* Floats that a step needs beside its results and the scores. */
int64_t agentrl_scratch(const Model *m, int64_t tokens) {
    int64_t queries = m->heads * m->head;
    return tokens * (2 * m->width + 2 * queries + 2 * m->kv_heads * m->head + 3 * m->mlp);
}

void agentrl_step(const Model *m, const Step *s) {
    int64_t wanted = work(m, s) * m->layers * 2 * m->heads * m->head / s->least, started = 1;
    if (wanted > s->threads) wanted = s->threads;
    if (wanted > MOST) wanted = MOST;
    if (wanted > s->tokens) wanted = s->tokens;
    Meeting meeting = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0};
    Part parts[MOST] = {{m, s, &meeting, 0}};
    pthread_t threads[MOST];
    for (; started < wanted; started++) { /* with those that the system lets start */
        parts[started] = (Part){m, s, &meeting, started};
        if (pthread_create(threads + started, 0, enter, parts + started)) break;
    }
    pthread_mutex_lock(&meeting.lock);
    meeting.parties = started;
    pthread_cond_broadcast(&meeting.changed);
    pthread_mutex_unlock(&meeting.lock);
    compute(parts);
    for (int64_t i = 1; i < started; i++) pthread_join(threads[i], 0);
}
