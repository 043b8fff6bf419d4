// Attention of a tile over a cache in bfloat16, on processors that multiply pairs of such numbers: queries and weights
// are rounded to bfloat16 once, sums are float32.

#pragma once

#include "cache.h"

#if defined(DOTS)
constexpr long SPAN = 4;  // blocks that share a step of the softmax
constexpr long KEYS = SPAN * BLOCK;
constexpr int ABREAST = 4;  // queries that share a read of the cache: 4 x 4 sums in the registers

struct Softmax {  // of a query so far, see `Query`; factor: what its values are still to be multiplied by
    float most, sum, factor;
    long low, high;  // keys of the span at hand that it sees
};

static inline __m512bh pair(const uint16_t* p) {  // one pair in all lanes
    int32_t both;
    memcpy(&both, p, 4);
    return (__m512bh)_mm512_set1_epi32(both);
}

// p[Q][KEYS] = q[Q][dim] . keys of a span.
template <int Q> static inline void scores(const uint16_t* const* k, const uint16_t* q, long dim, float* p) {
    __m512 acc[Q][SPAN] = {};
    for (long d = 0; d < dim; d += 2) {
        __m512bh keys[SPAN];
#pragma GCC unroll 4
        for (int b = 0; b < SPAN; b++) keys[b] = pairs(k[b] + d * BLOCK);
#pragma GCC unroll 4
        for (int i = 0; i < Q; i++) {
            __m512bh x = pair(q + i * dim + d);
#pragma GCC unroll 4
            for (int b = 0; b < SPAN; b++) acc[i][b] = _mm512_dpbf16_ps(acc[i][b], keys[b], x);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
        for (int b = 0; b < SPAN; b++) store(p + i * KEYS + b * BLOCK, acc[i][b]);
}

// 2^x to 1e-7 of itself (degree 5, minimax over a period); 0 of minus infinity, NaN of NaN.
static inline F power(F x) {
    constexpr int DOWN = 1;
    F part = (F)_mm512_reduce_ps((__m512)x, DOWN), p = spread(1.8671300e-3f);  // x - floor(x)
    for (float c : {9.0170307e-3f, 5.5799913e-2f, 2.4016444e-1f, 6.9315130e-1f, 1.f}) p = fma(p, part, spread(c));
    return (F)_mm512_scalef_ps((__m512)p, (__m512)x);
}

// Scores p[KEYS], times `scale` the logarithms to base 2, to weights w[KEYS], relative to the largest score so far.
static inline void soften(Softmax& of, float scale, const float* p, uint16_t* w) {
    of.factor = 1.f;
    if (of.low >= of.high) {
        memset(w, 0, KEYS * sizeof *w);
        return;
    }
    const I lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const bool all = of.low <= 0 && of.high >= KEYS;
    F score[SPAN], best = spread(-INFINITY), total = {};
#pragma GCC unroll 4
    for (int b = 0; b < SPAN; b++) {
        I at = lane + (int32_t)(b * BLOCK);
        score[b] = load<F>(p + b * BLOCK) * scale;
        if (!all) score[b] = (at >= (int32_t)of.low) & (at < (int32_t)of.high) ? score[b] : spread(-INFINITY);
        best = score[b] > best ? score[b] : best;  // NaN is passed over: it comes back as weight
    }
    float most = _mm512_reduce_max_ps((__m512)best);
    if (most > of.most) {
        of.factor = power(spread(of.most - most))[0];
        of.sum *= of.factor;
        of.most = most;
    }
#pragma GCC unroll 4
    for (int b = 0; b < SPAN; b++) {
        score[b] = power(score[b] - of.most);
        total += score[b];
    }
    of.sum += sum(total);
#pragma GCC unroll 4
    for (int b = 0; b < SPAN; b += 2)
        store(w + b * BLOCK, (__m512i)rounded(score[b], score[b + 1]));
}

// values[Q][dim] = values x factor + w[Q][KEYS] . values of a span, N vectors of elements from `at` on, pairs
// [from, to) of tokens.
template <int Q, int N>
static inline void take(const Softmax* of, const uint16_t* const* v, const uint16_t* w, long from, long to, long dim,
                        long at, float* values) {
    __m512 acc[Q][N];
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) acc[i][n] = load<__m512>(values + i * dim + n * L) * of[i].factor;
    for (long j = from; j < to; j++) {
        auto line = v[j / (BLOCK / 2)] + (j % (BLOCK / 2) * dim + at) * 2;
        __m512bh in[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) in[n] = pairs(line + n * 2 * L);
#pragma GCC unroll 4
        for (int i = 0; i < Q; i++) {
            __m512bh weight = pair(w + i * KEYS + 2 * j);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) acc[i][n] = _mm512_dpbf16_ps(acc[i][n], in[n], weight);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) store(values + i * dim + n * L, acc[i][n]);
}

// The blocks of a span as a tile sees them; where it sees none, some other, whose scores count for nothing.
struct Span {
    const uint16_t *k[SPAN], *v[SPAN];
    Span(const Tile& t, long from, uint16_t* room) {
        const Cache& c = t.cache;
        long first = t.first() / BLOCK, last = t.last() / BLOCK;
        for (long b = 0; b < SPAN; b++) {
            long at = from / BLOCK + b, block = t.table[at < first ? first : at > last ? last : at];
            k[b] = (const uint16_t*)c.at(c.k, block, t.head);
            v[b] = (const uint16_t*)c.at(c.v, block, t.head);
        }
        long seen = t.last() + 1 - from;
        if (seen >= KEYS || seen % BLOCK == 0) return;
        // What lies behind the last token is multiplied by 0, and may be no number.
        uint16_t* clean = (uint16_t*)memcpy(room, v[seen / BLOCK], c.bytes());
        for (long j = seen % BLOCK; j < BLOCK; j++)
            for (long d = 0; d < c.dim; d++) clean[j / 2 * 2 * c.dim + d * 2 + j % 2] = 0;
        v[seen / BLOCK] = clean;
    }
};

// Queries of a tile, one after the other, and how far they are.
struct Queries {
    Softmax* state;
    float *values, *p;
    uint16_t *w, *q;

    template <int Q> void add(const Tile& t, const Span& span, long i) const {
        long dim = t.cache.dim, low = KEYS, high = 0;  // keys that any of them sees
        Softmax* of = state + i;
        for (int n = 0; n < Q; n++) {
            low = of[n].low < low ? of[n].low : low;
            high = of[n].high > high ? of[n].high : high;
        }
        if (low >= high) return;
        scores<Q>(span.k, q + i * dim, dim, p + i * KEYS);
        for (int n = 0; n < Q; n++) soften(of[n], t.scale * 1.44269504f, p + (i + n) * KEYS, w + (i + n) * KEYS);
        for (long d = 0; d < dim;) {
            float* to = values + i * dim + d;
            bool four = dim - d >= 4 * L;
            if (four) take<Q, 4>(of, span.v, w + i * KEYS, low / 2, (high + 1) / 2, dim, d, to);
            else take<Q, 1>(of, span.v, w + i * KEYS, low / 2, (high + 1) / 2, dim, d, to);
            d += four ? 4 * L : L;
        }
    }
};

static void attend_pairs(const Tile& t) {
    const Cache& c = t.cache;
    long dim = c.dim, count = t.count(), i;
    Softmax state[count];
    Queries of = {state, scratch(count * (dim + KEYS) * 3 / 2 + c.size() / 2)};
    of.p = of.values + count * dim;
    of.w = (uint16_t*)(of.p + count * KEYS);
    of.q = of.w + count * KEYS;
    memset(of.values, 0, count * dim * sizeof(float));
    for (i = 0; i < count; i++) {
        state[i] = {-INFINITY, 0.f, 1.f, 0, 0};
        for (long d = 0; d < dim; d++) of.q[i * dim + d] = rounded(t.query(i)[d]);
    }
    for (long from = t.first() / KEYS * KEYS; from <= t.last(); from += KEYS) {
        Span span(t, from, of.q + count * dim);
        for (long b = from / BLOCK + SPAN; b < from / BLOCK + 2 * SPAN && b <= t.last() / BLOCK; b++)
            prefetch(c, t.table[b], t.head);
        for (i = 0; i < count; i++) {
            state[i].low = t.low(i, from);
            state[i].high = t.high(i, from, KEYS);
        }
        for (i = 0; i + ABREAST <= count; i += ABREAST) of.add<ABREAST>(t, span, i);
        switch (count - i) {
            case 3: of.add<3>(t, span, i); break;
            case 2: of.add<2>(t, span, i); break;
            case 1: of.add<1>(t, span, i); break;
        }
    }
    for (i = 0; i < count; i++) finish(t, i, of.values + i * dim, state[i].sum);
}
#endif
