// Products of a few or many input rows with weights as they lie in the checkpoint.

#pragma once

#include "vectors.h"

constexpr int STRIP = 8;       // weight rows of one task: stay in L1 while all input rows pass
constexpr long DEPTH = 1024;   // columns of one pass: a strip and WIDE input rows fit L1; sums of passes are added
constexpr long MANY = 12;      // input rows from which on it pays to unpack weights
constexpr long ROWS = 96;      // input rows of one pass: stay in L2 while all weights pass

enum Format { FLOAT32, BFLOAT16, FLOAT16, INT8, INT8_OF_BFLOAT16 };  // the last: of a bfloat16 model
enum Activation { NONE, SILU, GELU_TANH, GELU, RELU };

struct Matrix {  // [rows, columns], row-major, stride in elements; scale (of a row) and bias may be null
    const void* data;
    const float *scale, *bias;
    int64_t rows, columns, stride, format;
};

struct Norm {  // root mean square: x * weight / sqrt(mean(x^2) + epsilon); no norm where weight is null
    const float* weight;
    float epsilon;
};

// Whether inputs are rounded to bfloat16 before they meet weights of this format.
extern "C" int64_t rounds(int64_t format) {
#if defined(DOTS)
    return format == BFLOAT16 || format == INT8_OF_BFLOAT16;
#else
    return 0;
#endif
}

static inline F activate(F x, int64_t kind) {
    switch (kind) {
        case SILU: return x / (1.f + exponential(-x));
        case GELU_TANH: {
            F u = x * 1.5957691216057308f * (1.f + 0.044715f * x * x);  // twice the argument of tanh
            return x / (1.f + exponential(-u));
        }
        case GELU:
            for (int i = 0; i < L; i++) x[i] = 0.5f * x[i] * (1.f + erff(x[i] * 0.70710678118654752f));
            return x;
        case RELU: return x < 0.f ? (F){} : x;
        default: return x;
    }
}

// Keeps a value in a register: compilers would rather read it again from memory, and loads are what runs out first.
static inline void keep(F& v) {
#if defined(__x86_64__)
    asm("" : "+x"(v));
#endif
}

// R rows of weights as they lie in the checkpoint; rows past the last repeat it.
template <class W, int R> struct Rows {
    typedef typename W::T T;
    const T* at[R];
    typename W::T tail[R][2 * L];  // the last columns, with zeros: never read past a row, the mapping may end there
    long whole, rest;
    Rows(const T* w, long ldw, long rows, long columns) : whole(columns / (2 * L) * (2 * L)), rest(columns - whole) {
        for (int r = 0; r < R; r++) {
            at[r] = w + (r < rows ? r : rows - 1) * ldw;
            if (rest) memcpy(memset(tail[r], 0, sizeof tail[r]), at[r] + whole, rest * sizeof(T));
        }
    }
    template <int H> F get(int r, long i) const { return W::template get<H>(at[r] + i); }
    template <int H> F last(int r) const { return W::template get<H>(tail[r]); }
    void prefetch(long i) const {  // into L2, of which more lines can be under way than of L1
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) __builtin_prefetch(at[r] + i, 0, 2);
    }
};

// The same rows, made float32 once for many input rows: one stream, in the order in which it is read.
template <class W, int R> static void unpack(const Rows<W, R>& rows, long ahead, float* to) {
    for (long i = 0; i < rows.whole; i += 2 * L, to += 2 * L * R) {
        rows.prefetch(i + ahead);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) store(to + r * L, rows.template get<0>(r, i));
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) store(to + (R + r) * L, rows.template get<1>(r, i));
    }
    for (int r = 0; rows.rest && r < R; r++) {
        store(to + r * L, rows.template last<0>(r));
        store(to + (R + r) * L, rows.template last<1>(r));
    }
}

// acc[c][r] += w[r] . x[c], one half step. One accumulator for each pair: its order of sums is always the same.
template <int R, int C, class Get>
static inline void half(F (&acc)[C][R], const float* x, long ldx, Get get) __attribute__((always_inline));
template <int R, int C, class Get> static inline void half(F (&acc)[C][R], const float* x, long ldx, Get get) {
    F in[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
        in[c] = load<F>(x + c * ldx);
        keep(in[c]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        F v = get(r);
        keep(v);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) acc[c][r] = fma(v, in[c], acc[c][r]);
    }
}

template <int R, int C> static inline void finish(F (&acc)[C][R], float* out, bool add) {
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
#pragma GCC unroll 8
        for (int r = 0; r < R; r += 4) {
            F4 s = sums(acc[c][r], acc[c][r + 1], acc[c][r + 2], acc[c][r + 3]);
            float* to = out + c * STRIP + r;
            store(to, add ? load<F4>(to) + s : s);
        }
}

// out[c][r] (+)= w[r] . x[c], weights read where they lie: for few input rows, where memory is what takes the time.
template <class W, int R, int C>
static void direct(const Rows<W, R>& w, const float* x, long ldx, long ahead, float* out, bool add) {
    F acc[C][R] = {};
    for (long i = 0; i < w.whole; i += 2 * L) {
        if (ahead) w.prefetch(i + ahead);
        half<R, C>(acc, x + i, ldx, [&](int r) { return w.template get<0>(r, i); });
        half<R, C>(acc, x + i + L, ldx, [&](int r) { return w.template get<1>(r, i); });
    }
    if (w.rest) {
        half<R, C>(acc, x + w.whole, ldx, [&](int r) { return w.template last<0>(r); });
        half<R, C>(acc, x + w.whole + L, ldx, [&](int r) { return w.template last<1>(r); });
    }
    finish<R, C>(acc, out, add);
}

#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
// The loop of `paneled` for the tile that fills all 16 registers; compilers spill some of them, which costs a third.
#define ROW(at, a, b, c)                                                               \
    "vmovups " #at "(%[w]), %%ymm15\n vfmadd231ps %%ymm12, %%ymm15, %%ymm" #a "\n"      \
    "vfmadd231ps %%ymm13, %%ymm15, %%ymm" #b "\n vfmadd231ps %%ymm14, %%ymm15, %%ymm" #c "\n"
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define ZERO(i) "vxorps %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n"
#define SAVE(i) "vmovups %%ymm" #i ", 32*" #i "(%[acc])\n"
static inline void full_tile(const float* w, const float* x, long ldx, long columns, F (&acc)[3][4]) {
    long steps = (columns + 2 * L - 1) / (2 * L) * 2;
    asm volatile(EACH(ZERO)
                 "1:\n"
                 "vmovups (%[x]), %%ymm12\n vmovups (%[x],%[ld]), %%ymm13\n vmovups (%[x],%[ld],2), %%ymm14\n"
                 ROW(0, 0, 4, 8) ROW(32, 1, 5, 9) ROW(64, 2, 6, 10) ROW(96, 3, 7, 11)
                 "add $128, %[w]\n add $32, %[x]\n dec %[n]\n jnz 1b\n"
                 EACH(SAVE)
                 : [w] "+r"(w), [x] "+r"(x), [n] "+r"(steps)
                 : [ld] "r"(ldx * sizeof(float)), [acc] "r"(acc)
                 : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
#define FULL_TILE
#endif

// The same from unpacked rows: for many input rows, where arithmetic is.
template <int R, int C>
static void paneled(const float* w, const float* x, long ldx, long columns, float* out, bool add) {
    F acc[C][R] = {};
#if defined(FULL_TILE)
    if constexpr (R == 4 && C == 3)
        full_tile(w, x, ldx, columns, acc);
    else
#endif
        for (long i = 0; i < columns; i += 2 * L, w += 2 * L * R) {
            half<R, C>(acc, x + i, ldx, [&](int r) { return load<F>(w + r * L); });
            half<R, C>(acc, x + i + L, ldx, [&](int r) { return load<F>(w + (R + r) * L); });
        }
    finish<R, C>(acc, out, add);
}

// out[m][STRIP] = rows [at, at + n) of `a` times x[m][padded columns].
template <class W> static void strip(const Matrix& a, long at, long n, const float* x, long ldx, long m, float* out) {
    alignas(64) float room[STRIP / TALL][(DEPTH + 2 * L) * TALL];
    for (long k = 0; k < a.columns; k += DEPTH) {
        long columns = a.columns - k < DEPTH ? a.columns - k : DEPTH, ahead = STRIP * a.stride;
        auto w = (const typename W::T*)a.data + at * a.stride + k;
        const float* in = x + k;
        if (m == 1) {  // more weight rows at once: enough accumulators to hide the latency of sums
            direct<W, STRIP, 1>(Rows<W, STRIP>(w, a.stride, n, columns), in, ldx, ahead, out, k > 0);
            continue;
        }
        for (long r = 0; r < n; r += TALL) {
            Rows<W, TALL> rows(w + r * a.stride, a.stride, n - r, columns);
            if (m >= MANY) {
                unpack(rows, ahead, room[r / TALL]);
                continue;
            }
            long c = 0;
            for (; c + 2 <= m; c += 2)
                direct<W, TALL, 2>(rows, in + c * ldx, ldx, c ? 0 : ahead, out + c * STRIP + r, k > 0);
            if (c < m) direct<W, TALL, 1>(rows, in + c * ldx, ldx, 0, out + c * STRIP + r, k > 0);
        }
        for (long c = m >= MANY ? 0 : m; c < m;) {
            auto tiles = [&](auto wide) {
                for (long r = 0; r < n; r += TALL)
                    paneled<TALL, wide()>(room[r / TALL], in + c * ldx, ldx, columns, out + c * STRIP + r, k > 0);
                c += wide();
            };
            if (m - c >= WIDE && m - c != WIDE + 1) tiles(std::integral_constant<int, WIDE>());
            else tiles(std::integral_constant<int, 2>());
        }
    }
}

#if defined(DOTS)
// ---- weights of bfloat16 models where pairs are multiplied: the input is rounded to bfloat16, sums are float32 ----
constexpr int DOT_WIDE = 3;  // 8 x 3 sums, three inputs and a row of weights in 28 of 32 registers

// What is fetched `ahead` of use, rows [from, to) of it. far: into L2 only, see `Rows::prefetch`.
struct Ahead {
    long by;
    int from, to;
    bool far;
};

// out[c][r] (+)= w[r] . x[c]. One accumulator for each pair, as everywhere.
template <class W, int R, int C>
static void dots(const Rows<W, R>& w, const uint16_t* x, long ldx, Ahead ahead, float* out, bool add) {
    F acc[C][R] = {};
    auto step = [&](long i, auto row) __attribute__((always_inline)) {
        __m512bh in[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) in[c] = pairs(x + c * ldx + i);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m512bh v = W::both(row(r));
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) acc[c][r] = (F)_mm512_dpbf16_ps((__m512)acc[c][r], v, in[c]);
        }
    };
    for (long i = 0; i < w.whole; i += 2 * L) {
        for (int r = ahead.from; r < ahead.to; r++) {
            if (ahead.far) __builtin_prefetch(w.at[r] + i + ahead.by, 0, 2);
            else __builtin_prefetch(w.at[r] + i + ahead.by);
        }
        step(i, [&](int r) { return w.at[r] + i; });
    }
    if (w.rest) step(w.whole, [&](int r) { return w.tail[r]; });
    finish<R, C>(acc, out, add);
}

// As `strip`, of prepared input rows x[m][padded columns] in bfloat16. All rows of the strip at once: the input, which
// comes from L2, is read once for them. stride: of the weights where they lie; 0 of those that are in the cache already.
template <class W>
static void dot_strip(const Rows<W, STRIP>& rows, long stride, const uint16_t* x, long ldx, long m, float* out,
                      bool add) {
    long tiles = (m + DOT_WIDE - 1) / DOT_WIDE;
    int last = stride ? STRIP : 0, each = (last + tiles - 1) / tiles;  // the next strip comes bit by bit
    Ahead ahead = {STRIP * stride, 0, 0, m < 24};
    for (long c = 0; c < m;) {
        auto tile = [&](auto wide) {
            ahead.from = ahead.to;
            ahead.to = ahead.to + each < last ? ahead.to + each : last;
            dots<W, STRIP, wide()>(rows, x + c * ldx, ldx, ahead, out + c * STRIP, add);
            c += wide();
        };
        if (m - c >= DOT_WIDE) tile(std::integral_constant<int, DOT_WIDE>());
        else if (m - c == 2) tile(std::integral_constant<int, 2>());
        else tile(std::integral_constant<int, 1>());
    }
}

template <class W>
static void dot_strips(const Matrix& a, long at, long n, const uint16_t* x, long ldx, long m, float* out) {
    for (long k = 0; k < a.columns; k += DEPTH) {
        long columns = a.columns - k < DEPTH ? a.columns - k : DEPTH;
        Rows<W, STRIP> rows((const typename W::T*)a.data + at * a.stride + k, a.stride, n, columns);
        if (std::is_same<W, BFloat16>() || m <= DOT_WIDE) {
            dot_strip(rows, a.stride, x + k, ldx, m, out, k > 0);
            continue;
        }
        alignas(64) uint16_t room[STRIP][DEPTH + 2 * L];  // made bfloat16 once for many input rows
        for (long i = 0; i < columns; i += 2 * L) {
            rows.prefetch(i + STRIP * a.stride);
            for (int r = 0; r < STRIP; r++)
                store(room[r] + i, (__m512i)W::both(i < rows.whole ? rows.at[r] + i : rows.tail[r]));
        }
        Rows<BFloat16, STRIP> made(room[0], DEPTH + 2 * L, STRIP, (columns + 2 * L - 1) / (2 * L) * (2 * L));
        dot_strip(made, 0, x + k, ldx, m, out, k > 0);
    }
}
#endif

// ---- a product with all that belongs to it ----------------------------------------------------------------------

// Floats of a prepared input row: whole steps, and some more so that rows do not meet in the same sets of the cache.
static long padded(long columns) { return (columns + 2 * L - 1) / (2 * L) * (2 * L) + 16; }

static float* scratch(size_t floats) {  // of this thread, kept: grows to the largest call
    struct Buffer {
        float* data = nullptr;
        size_t size = 0;
        ~Buffer() { free(data); }
    };
    static thread_local Buffer buffer;
    if (buffer.size < floats) {
        free(buffer.data);
        buffer.size = (floats + 1023) / 1024 * 1024;
        buffer.data = (float*)aligned_alloc(64, buffer.size * sizeof(float));
        if (!buffer.data) abort();
    }
    return buffer.data;
}

static inline float root_mean_square(const float* x, long n, float epsilon) {  // its reciprocal
    F squares = {};
    long i = 0;
    for (; i + L <= n; i += L) squares = fma(load<F>(x + i), load<F>(x + i), squares);
    F tail = {};
    memcpy(&tail, x + i, (n - i) * sizeof(float));
    squares = fma(tail, tail, squares);
    return 1.f / sqrtf(sum(squares) / n + epsilon);
}

// Even, then odd elements of two vectors.
static inline void deal(F& a, F& b) {
#if defined(__AVX512F__)
    F even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    b = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#else
    F even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
    b = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#endif
    a = even;
}

// One input row, normalized if asked, padded with zeros to whole steps, in the order and the format in which it meets
// weights of `format`.
static void prepare(const float* x, long n, const Norm& norm, int64_t format, float* to) {
    float factor = norm.weight ? root_mean_square(x, n, norm.epsilon) : 1.f;
    for (long i = 0; i < n; i += 2 * L) {
        float part[2 * L] = {}, by[2 * L] = {};
        const float *in = x + i, *weight = norm.weight + i;
        if (n - i < 2 * L) {
            in = (float*)memcpy(part, in, (n - i) * sizeof(float));
            if (norm.weight) weight = (float*)memcpy(by, weight, (n - i) * sizeof(float));
        }
        F a = load<F>(in), b = load<F>(in + L);
        if (norm.weight) {
            a = a * factor * load<F>(weight);
            b = b * factor * load<F>(weight + L);
        }
#if defined(DOTS)
        if (rounds(format)) {
            store((uint16_t*)to + i, (__m512i)rounded(a, b));
            continue;
        }
#else
        if (format == BFLOAT16) deal(a, b);
#endif
        store(to + i, a);
        store(to + i + L, b);
    }
}

static void any_strip(const Matrix& a, long at, long n, const float* x, long ldx, long m, float* out) {
    switch (a.format) {
        case FLOAT32: strip<Float32>(a, at, n, x, ldx, m, out); break;
#if defined(DOTS)
        case BFLOAT16: dot_strips<BFloat16>(a, at, n, (const uint16_t*)x, 2 * ldx, m, out); break;
        case INT8_OF_BFLOAT16: dot_strips<Int8>(a, at, n, (const uint16_t*)x, 2 * ldx, m, out); break;
#else
        case BFLOAT16: strip<BFloat16>(a, at, n, x, ldx, m, out); break;
        case INT8_OF_BFLOAT16: strip<Int8>(a, at, n, x, ldx, m, out); break;
#endif
        case FLOAT16: strip<Float16>(a, at, n, x, ldx, m, out); break;
        case INT8: strip<Int8>(a, at, n, x, ldx, m, out); break;
    }
    for (long r = 0; r < n; r++) {
        float scale = a.scale ? a.scale[at + r] : 1.f, bias = a.bias ? a.bias[at + r] : 0.f;
        if (a.scale || a.bias)
            for (long c = 0; c < m; c++) out[c * STRIP + r] = out[c * STRIP + r] * scale + bias;
    }
}

// y[m, :] = activation(norm(x)[m, columns] @ a.T) (+ residual[m, :]); all matrices have the same columns and format.
// Without an activation the results of `count` matrices lie side by side in y; with one and
// two matrices the result is activation(first) * second, as in gated feed-forward layers.
extern "C" void linear(const Matrix* a, int64_t count, int64_t activation, const Norm* norm, const float* x, int64_t m,
                       int64_t ldx, const float* residual, int64_t ldr, float* y, int64_t ldy, int64_t threads) {
    long columns = a[0].columns, wide = padded(columns), strips = 0;
    bool gated = activation != NONE && count == 2;
    for (long i = 0; i < (gated ? 1 : count); i++) strips += (a[i].rows + STRIP - 1) / STRIP;
    for (long first = 0; first < m; first += ROWS) {
        long rows = m - first < ROWS ? m - first : ROWS;
        float* ready = scratch(ROWS * wide);
        for (long r = 0; r < rows; r++) prepare(x + (first + r) * ldx, columns, *norm, a[0].format, ready + r * wide);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
        for (long s = 0; s < strips; s++) {
            alignas(64) float out[ROWS * STRIP + L], other[ROWS * STRIP + L];
            long which = 0, index = s, column = 0;
            for (; index >= (a[which].rows + STRIP - 1) / STRIP; which++) {
                index -= (a[which].rows + STRIP - 1) / STRIP;
                column += a[which].rows;
            }
            long at = index * STRIP, n = a[which].rows - at < STRIP ? a[which].rows - at : STRIP;
            any_strip(a[which], at, n, ready, wide, rows, out);
            if (activation != NONE)
                for (long i = 0; i < rows * STRIP; i += L) store(out + i, activate(load<F>(out + i), activation));
            if (gated) {
                any_strip(a[1], at, n, ready, wide, rows, other);
                for (long i = 0; i < rows * STRIP; i += L) store(out + i, load<F>(out + i) * load<F>(other + i));
            }
            for (long r = 0; r < rows; r++) {
                float* to = y + (first + r) * ldy + column + at;
                const float* add = residual ? residual + (first + r) * ldr + column + at : nullptr;
                for (long i = 0; i < n; i++) to[i] = add ? add[i] + out[r * STRIP + i] : out[r * STRIP + i];
            }
        }
    }
}
