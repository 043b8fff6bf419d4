// The paged cache of a layer, and how a token's key and value come into it.

#pragma once

#include "products.h"

constexpr long BLOCK = 16;    // tokens of a block
constexpr long QUERIES = 24;  // of a tile: what they read of the cache stays in L1

struct Cache {  // of one layer: k, v [blocks, heads, BLOCK, dim], float32 or bfloat16; dim is a multiple of L
    void *k, *v;
    int64_t heads, dim, format;
    long size() const { return BLOCK * dim; }  // elements of a block of one head
    long bytes() const { return size() * (format == FLOAT32 ? 4 : 2); }
    // Keys or values (`of`) of a block and head.
    char* at(void* of, long block, long head) const { return (char*)of + (block * heads + head) * bytes(); }
};

static void prefetch(const Cache& c, long block, long head) {
    for (void* of : {c.k, c.v})
        for (long i = 0; i < c.bytes(); i += 64) __builtin_prefetch(c.at(of, block, head) + i);
}

static inline uint16_t rounded(float x) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Token `place` of a block. Where bfloat16 numbers are multiplied in pairs, the pairs lie together: two neighbouring
// elements of all keys, [dim / 2, BLOCK, 2], and two neighbouring tokens' values, [BLOCK / 2, dim, 2].
static void write(const Cache& c, long block, long head, long place, const float* key, const float* value) {
    char *k = c.at(c.k, block, head), *v = c.at(c.v, block, head);
    if (c.format == FLOAT32) {
        memcpy((float*)k + place * c.dim, key, c.dim * sizeof(float));
        memcpy((float*)v + place * c.dim, value, c.dim * sizeof(float));
        return;
    }
    for (long d = 0; d < c.dim; d++) {
#if defined(DOTS)
        ((uint16_t*)k)[d / 2 * 2 * BLOCK + place * 2 + d % 2] = rounded(key[d]);
        ((uint16_t*)v)[place / 2 * 2 * c.dim + d * 2 + place % 2] = rounded(value[d]);
#else
        ((uint16_t*)k)[place * c.dim + d] = rounded(key[d]);
        ((uint16_t*)v)[place * c.dim + d] = rounded(value[d]);
#endif
    }
}

// What a tile of queries reads: heads of one group x neighbouring tokens, over the blocks of one sequence.
struct Tile {
    const Cache& cache;
    const int32_t* table;  // the sequence's blocks
    long head, group, tokens, position;  // key/value head; its query heads; tokens, the first at `position`
    const float* q;  // of the first token
    long ldq;
    float scale;
    long window;
    float* out;
    long ldo;

    long count() const { return tokens * group; }
    long last() const { return position + tokens - 1; }
    long first() const { return position - window + 1 > 0 ? position - window + 1 : 0; }  // key that any sees
    const float* query(long i) const { return q + i / group * ldq + (head * group + i % group) * cache.dim; }
    float* result(long i) const { return out + i / group * ldo + (head * group + i % group) * cache.dim; }
    long own(long i) const { return position + i / group; }
    // Of `keys` keys from `from` on, those that query i sees: [low, high).
    long low(long i, long from) const { return own(i) - window + 1 > from ? own(i) - window + 1 - from : 0; }
    long high(long i, long from, long keys) const { return own(i) + 1 - from < keys ? own(i) + 1 - from : keys; }
};

static inline void finish(const Tile& t, long i, const float* values, float sum) {
    for (long d = 0; d < t.cache.dim; d++) t.result(i)[d] = values[d] / sum;
}
