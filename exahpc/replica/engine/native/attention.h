// Rotary embedding, and attention over a paged cache.

#pragma once

#include "attention_floats.h"
#include "attention_pairs.h"

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
        for (long h = 0; h < kv_heads; h++)
            write(c, writes[t] / BLOCK, h, writes[t] % BLOCK, k + t * ldk + h * dim, v + t * ldv + h * dim);
    for (long r = 0; r < rows; r++) tasks += (starts[r + 1] - starts[r] + most - 1) / most * kv_heads;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (long task = 0; task < tasks; task++) {
        long r = 0, i = task;
        for (long of; i >= (of = (starts[r + 1] - starts[r] + most - 1) / most * kv_heads); r++) i -= of;
        long first = i / kv_heads * most, news = starts[r + 1] - starts[r];
        long at = starts[r] + first, tokens = news - first < most ? news - first : most;
        Tile tile = {c, tables + r * width, i % kv_heads, group, tokens, lengths[r] - news + first,
                     q + at * ldq, ldq, scale, window, out + at * ldo, ldo};
#if defined(DOTS)
        if (format == BFLOAT16) {
            attend_pairs(tile);
            continue;
        }
#endif
        attend_floats(tile);
    }
}
