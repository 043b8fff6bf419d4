// The inner loops of an engine on CPUs: matrix products on weights as the checkpoint has them, rotary embedding,
// attention over a paged cache. Plain C interface (see api.py), no dependencies; vectors are those of GCC and Clang,
// so the same text runs on AVX2, AVX-512, NEON or SVE machines.
//
// Law: the result of one row depends on nothing but that row. Every sum is taken in an order that is fixed by the
// length of the sum alone, whatever the number of rows, their tiling, the threads or the neighbours.

#include "attention.h"

// ---- layers of Llama's shape ------------------------------------------------------------------------------------

struct Layer {
    Matrix qkv[3], o, gated[2], down;
    Norm before, after, q, k;  // q, k: of each head, before it is turned
    void *k_cache, *v_cache;
    int64_t heads, kv_heads, dim, format, window, activation;  // format: of the cache
    float scale;
};

struct Step {  // see attention.Step; cos, sin [tokens, rotary]
    const float *cos, *sin;
    const int64_t* writes;
    const int32_t *tables, *lengths, *starts;
    int64_t tokens, rotary, width, rows, threads;
};

static const Norm NO_NORM = {nullptr, 0.f};

// out = attention(norm(x)) (+ residual), each [tokens, columns]; `work` has room for 2 (heads + kv_heads) dim floats a
// token.
extern "C" void attention_half(const Layer* l, const Step* s, const float* x, const float* residual, float* out,
                               float* work) {
    long own = l->heads * l->dim, kv = l->kv_heads * l->dim, wide = own + 2 * kv, columns = l->qkv[0].columns;
    float *qkv = work, *seen = work + s->tokens * wide;
    linear(l->qkv, 3, NONE, &l->before, x, s->tokens, columns, nullptr, 0, qkv, wide, s->threads);
    rotate(qkv, s->tokens, wide, l->heads, l->dim, s->rotary, s->cos, s->sin, l->q);
    rotate(qkv + own, s->tokens, wide, l->kv_heads, l->dim, s->rotary, s->cos, s->sin, l->k);
    attend(l->k_cache, l->v_cache, l->kv_heads, l->dim, l->format, qkv, wide, qkv + own, wide, qkv + own + kv, wide,
           l->heads, s->writes, s->tables, s->width, s->lengths, s->starts, s->rows, l->scale, l->window, seen, own,
           s->threads);
    linear(&l->o, 1, NONE, &NO_NORM, seen, s->tokens, own, residual, columns, out, columns, s->threads);
}

// out = feed-forward(norm(x)) (+ residual); `work` has room for gated[0].rows floats a token.
extern "C" void feed_forward_half(const Layer* l, const Step* s, const float* x, const float* residual, float* out,
                                  float* work) {
    long inner = l->gated[0].rows, columns = l->gated[0].columns;
    linear(l->gated, 2, l->activation, &l->after, x, s->tokens, columns, nullptr, 0, work, inner, s->threads);
    linear(&l->down, 1, NONE, &NO_NORM, work, s->tokens, inner, residual, columns, out, columns, s->threads);
}

// Both halves of `count` layers, in place: where no rank has to add what others have computed.
extern "C" void layers(const Layer* l, int64_t count, const Step* s, float* x, float* work) {
    for (const Layer* end = l + count; l < end; l++) {
        attention_half(l, s, x, x, x, work);
        feed_forward_half(l, s, x, x, x, work);
    }
}
