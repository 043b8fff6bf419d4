// Attention of a tile in float32; a cache in bfloat16 is unpacked block by block.

#pragma once

#include "cache.h"

struct Query {  // softmax so far (Milakov and Gimelshein, 2018): largest score, sum of weights, weighted values
    const float* q;
    float* values;
    float most, sum;
    long low, high;  // keys of the block at hand that it sees
};

static const float* unpacked(const Cache& c, void* of, long block, long head, float* to) {
    auto from = c.at(of, block, head);
    if (c.format == FLOAT32) return (const float*)from;
    auto p = (const uint16_t*)from;
    for (long i = 0; i < c.size(); i++) {
        uint32_t bits = (uint32_t)p[i] << 16;
        memcpy(to + i, &bits, 4);
    }
    return to;
}

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

static void attend_floats(const Tile& t) {
    const Cache& c = t.cache;
    long dim = c.dim, count = t.count();
    float *room = scratch(2 * c.size() + count * dim), *values = room + 2 * c.size();
    Query state[count];
    alignas(64) float p[count][BLOCK];
    memset(values, 0, count * dim * sizeof(float));
    for (long i = 0; i < count; i++) state[i] = {t.query(i), values + i * dim, -INFINITY, 0.f, 0, 0};
    for (long b = t.first() / BLOCK; b <= t.last() / BLOCK; b++) {
        if (b < t.last() / BLOCK) prefetch(c, t.table[b + 1], t.head);
        const float* k = unpacked(c, c.k, t.table[b], t.head, room);
        const float* v = unpacked(c, c.v, t.table[b], t.head, room + c.size());
        long from = count, to = 0;  // queries that see any
        for (long i = 0; i < count; i++) {
            state[i].low = t.low(i, b * BLOCK);
            state[i].high = t.high(i, b * BLOCK, BLOCK);
            if (state[i].low < state[i].high) {
                from = i < from ? i : from;
                to = i + 1;
            }
        }
        // One after the other these are long chains; query by query they overlap.
        for (long i = from; i < to; i++) score(state[i], k, dim, t.scale, p[i]);
        for (long i = from; i < to; i++) soften(state[i], dim, p[i]);
        for (long i = from; i < to; i++) take(state[i], p[i], v, dim);
    }
    for (long i = 0; i < count; i++) finish(t, i, state[i].values, state[i].sum);
}
