// Rotary embedding, and attention over a paged cache.

#pragma once

#include "products.h"

// ---- rotary embedding -------------------------------------------------------------------------------------------

// In place, on `heads` heads of `dim` side by side in each of `tokens` lines: the norm of a head (if any), then the
// first `rotary` of its elements turned by the angles in cos, sin [tokens, rotary], of which the halves are equal.
static void rotate(float* x, int64_t tokens, int64_t ldx, int64_t heads, int64_t dim, int64_t rotary,
                   const float* cos, const float* sin, const Norm& norm) {
    long half = rotary / 2;
    for (long t = 0; t < tokens; t++)
        for (long h = 0; h < heads; h++) {
            float *a = x + t * ldx + h * dim, *b = a + half;
            if (norm.weight) {
                float factor = root_mean_square(a, dim, norm.epsilon);
                for (long i = 0; i < dim; i++) a[i] = a[i] * factor * norm.weight[i];
            }
            const float *c = cos + t * rotary, *s = sin + t * rotary;
            for (long i = 0; i < half; i++) {
                float u = a[i], v = b[i];
                a[i] = u * c[i] - v * s[i];
                b[i] = v * c[i] + u * s[i];
            }
        }
}

// ---- attention over a paged cache -------------------------------------------------------------------------------

constexpr long BLOCK = 16;   // tokens of a block
constexpr long QUERIES = 24;  // of a tile (heads of a group x tokens): what they read of the cache stays in L1

struct Cache {  // of one layer: k, v [blocks, heads, BLOCK, dim], float32 or bfloat16; dim is a multiple of L
    void *k, *v;
    int64_t heads, dim, format;
};

static const float* unpacked(const Cache& c, const void* from, long block, long head, float* to) {
    long size = BLOCK * c.dim, at = (block * c.heads + head) * size;
    if (c.format == FLOAT32) return (const float*)from + at;
    auto p = (const uint16_t*)from + at;
    for (long i = 0; i < size; i++) {
        uint32_t bits = (uint32_t)p[i] << 16;
        memcpy(to + i, &bits, 4);
    }
    return to;
}

static void prefetch(const Cache& c, const void* from, long block, long head) {
    long bytes = BLOCK * c.dim * (c.format == FLOAT32 ? 4 : 2);
    auto at = (const char*)from + (block * c.heads + head) * bytes;
    for (long i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
}

static void write(const Cache& c, void* to, long at, const float* from) {
    if (c.format == FLOAT32) {
        memcpy((float*)to + at, from, c.dim * sizeof(float));
        return;
    }
    auto p = (uint16_t*)to + at;
    for (long i = 0; i < c.dim; i++) {  // to nearest, ties to even; NaN stays NaN
        uint32_t bits;
        memcpy(&bits, from + i, 4);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        p[i] = (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded;
    }
}

struct Query {  // softmax so far (Milakov and Gimelshein, 2018): largest score, sum of weights, weighted values
    const float* q;
    float* values;
    float most, sum;
    long low, high;  // keys of the block at hand that it sees
};

static inline F larger(F a, F b) { return a > b ? a : b; }
static inline float largest(F v) {  // NaN is passed over: it comes back as weight
    alignas(64) float x[L];
    store(x, v);
    for (int n = L / 2; n; n /= 2)
        for (int i = 0; i < n; i++) x[i] = x[i] > x[i + n] ? x[i] : x[i + n];
    return x[0];
}

// Scores of one query with all keys of a block; those outside [low, high) it does not see.
static inline void score(const Query& of, const float* k, long dim, float scale, float* p) {
    for (long j = 0; j < BLOCK; j += 8) {
        F acc[8] = {};
        for (long d = 0; d < dim; d += L) {
            F x = load<F>(of.q + d);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) acc[i] = fma(x, load<F>(k + (j + i) * dim + d), acc[i]);
        }
        store(p + j, sums(acc[0], acc[1], acc[2], acc[3]) * scale);
        store(p + j + 4, sums(acc[4], acc[5], acc[6], acc[7]) * scale);
    }
    for (long j = 0; j < of.low; j++) p[j] = -INFINITY;
    for (long j = of.high; j < BLOCK; j++) p[j] = -INFINITY;
}

// Scores to weights, relative to the largest score so far; what was taken before is made relative to it too.
static inline void soften(Query& of, long dim, float* p) {
    F best = load<F>(p);
    for (long j = L; j < BLOCK; j += L) best = larger(best, load<F>(p + j));
    float most = largest(best);
    if (most > of.most) {
        float factor = exponential(spread(of.most - most))[0];
        of.sum *= factor;
        for (long d = 0; d < dim; d += L) store(of.values + d, load<F>(of.values + d) * factor);
        of.most = most;
    }
    F total = {};
    for (long j = 0; j < BLOCK; j += L) {
        F score = load<F>(p + j), weight = exponential(score - of.most);
        weight = score == -INFINITY ? (F){} : weight;
        store(p + j, weight);
        total += weight;
    }
    of.sum += sum(total);
}

static inline void take(const Query& of, const float* p, const float* v, long dim) {
    auto add = [&](long d, auto count) __attribute__((always_inline)) {
        constexpr int N = decltype(count)::value;
        F acc[N];
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) acc[i] = load<F>(of.values + d + i * L);
        for (long j = of.low; j < of.high; j++)
#pragma GCC unroll 8
            for (int i = 0; i < N; i++) acc[i] = fma(spread(p[j]), load<F>(v + j * dim + d + i * L), acc[i]);
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) store(of.values + d + i * L, acc[i]);
    };
    long d = 0;
    for (; d + 8 * L <= dim; d += 8 * L) add(d, std::integral_constant<int, 8>());
    for (; d + 4 * L <= dim; d += 4 * L) add(d, std::integral_constant<int, 4>());
    for (; d < dim; d += L) add(d, std::integral_constant<int, 1>());
}

// Query heads [head * group, ...) of `tokens` tokens, the first at `position`, over the blocks of one sequence.
static void attend_tile(const Cache& c, const int32_t* table, long head, long group, const float* q, long ldq,
                        long tokens, long position, float scale, long window, float* out, long ldo) {
    long dim = c.dim, size = BLOCK * dim, count = tokens * group;
    float *room = scratch(2 * size + count * dim), *values = room + 2 * size;
    Query state[count];
    alignas(64) float p[count][BLOCK];
    memset(values, 0, count * dim * sizeof(float));
    for (long i = 0; i < count; i++)
        state[i] = {q + i / group * ldq + (head * group + i % group) * dim, values + i * dim, -INFINITY, 0.f, 0, 0};
    long seen = position - window + 1, last = position + tokens - 1;
    for (long b = seen > 0 ? seen / BLOCK : 0; b <= last / BLOCK; b++) {
        if (b < last / BLOCK) {
            prefetch(c, c.k, table[b + 1], head);
            prefetch(c, c.v, table[b + 1], head);
        }
        const float* k = unpacked(c, c.k, table[b], head, room);
        const float* v = unpacked(c, c.v, table[b], head, room + size);
        long from = count, to = 0;  // queries that see any
        for (long i = 0; i < count; i++) {
            long own = position + i / group, low = own - window + 1 - b * BLOCK, high = own + 1 - b * BLOCK;
            state[i].low = low < 0 ? 0 : low;
            state[i].high = high > BLOCK ? BLOCK : high;
            if (state[i].low < state[i].high) {
                from = i < from ? i : from;
                to = i + 1;
            }
        }
        // One after the other these are long chains; query by query they overlap.
        for (long i = from; i < to; i++) score(state[i], k, dim, scale, p[i]);
        for (long i = from; i < to; i++) soften(state[i], dim, p[i]);
        for (long i = from; i < to; i++) take(state[i], p[i], v, dim);
    }
    for (long i = 0; i < count; i++) {
        float* to = out + i / group * ldo + (head * group + i % group) * dim;
        for (long d = 0; d < dim; d++) to[d] = state[i].values[d] / state[i].sum;
    }
}

// Writes k and v of all tokens to the cache, then attends. Arguments as in attention.Step: writes [tokens], tables
// [rows, width], lengths [rows], starts [rows + 1]. A token sees `window` positions, its own included.
extern "C" void attend(void* k_cache, void* v_cache, int64_t kv_heads, int64_t dim, int64_t format, const float* q,
                       int64_t ldq, const float* k, int64_t ldk, const float* v, int64_t ldv, int64_t heads,
                       const int64_t* writes, const int32_t* tables, int64_t width, const int32_t* lengths,
                       const int32_t* starts, int64_t rows, float scale, int64_t window, float* out, int64_t ldo,
                       int64_t threads) {
    const Cache c = {k_cache, v_cache, kv_heads, dim, format};
    long group = heads / kv_heads, most = QUERIES / group > 0 ? QUERIES / group : 1, tasks = 0;
    for (long t = 0; t < starts[rows]; t++)
        for (long h = 0; h < kv_heads; h++) {
            long at = ((writes[t] / BLOCK * kv_heads + h) * BLOCK + writes[t] % BLOCK) * dim;
            write(c, c.k, at, k + t * ldk + h * dim);
            write(c, c.v, at, v + t * ldv + h * dim);
        }
    for (long r = 0; r < rows; r++) tasks += (starts[r + 1] - starts[r] + most - 1) / most * kv_heads;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (long task = 0; task < tasks; task++) {
        long r = 0, i = task;
        for (long of; i >= (of = (starts[r + 1] - starts[r] + most - 1) / most * kv_heads); r++) i -= of;
        long first = i / kv_heads * most, news = starts[r + 1] - starts[r];
        long at = starts[r] + first, tokens = news - first < most ? news - first : most;
        attend_tile(c, tables + r * width, i % kv_heads, group, q + at * ldq, ldq, tokens, lengths[r] - news + first,
                    scale, window, out + at * ldo, ldo);
    }
}
