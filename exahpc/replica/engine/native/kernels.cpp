// The inner loops of an engine on CPUs: matrix products on weights as the checkpoint has them, rotary embedding,
// attention over a paged cache. Plain C interface (see api.py), no dependencies; vectors are those of GCC and Clang,
// so the same text runs on AVX2, AVX-512, NEON or SVE machines.
//
// Law: the result of one row depends on nothing but that row. Every sum is taken in an order that is fixed by the
// length of the sum alone, whatever the number of rows, their tiling, the threads or the neighbours.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#if defined(__FMA__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int L = 16;          // floats of a vector
constexpr int TALL = 4, WIDE = 5;  // register tile: weight rows x input rows; accumulators must fit the registers
#else
constexpr int L = 8;
constexpr int TALL = 4, WIDE = 3;
#endif
constexpr int STRIP = 8;       // weight rows of one task: stay in L1 while all input rows pass
constexpr long DEPTH = 1024;   // columns of one pass: a strip and WIDE input rows fit L1; sums of passes are added
constexpr long MANY = 12;      // input rows from which on it pays to unpack weights
constexpr long ROWS = 48;      // input rows of one pass: stay in L2 while all weights pass

typedef float F __attribute__((vector_size(L * 4)));
typedef int32_t I __attribute__((vector_size(L * 4)));
typedef float F4 __attribute__((vector_size(16)));

template <class V> static inline V load(const void* p) { V v; memcpy(&v, p, sizeof v); return v; }
template <class V> static inline void store(void* p, V v) { memcpy(p, &v, sizeof v); }

static inline F spread(float x) { return (F){} + x; }

// a * b + c, rounded once. Said explicitly, and compiled without contraction, so that no compiler chooses anew in each
// place (GCC avoids chains of them when it tunes for AMD: slower here, and unequal among tiles).
static inline F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < L; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

// ---- number formats: two vectors at a time. A format with SPLIT yields the even, then the odd elements. --------

struct Float32 {
    typedef float T;
    static constexpr bool SPLIT = false;
    template <int H> static F get(const T* p) { return load<F>(p + H * L); }
};
struct BFloat16 {  // the upper half of a float32: two neighbours in one 32-bit lane cost one operation each
    typedef uint16_t T;
    static constexpr bool SPLIT = true;
    template <int H> static F get(const T* p) {
        I pair = load<I>(p);
        return (F)(H ? pair & (int32_t)0xffff0000 : pair << 16);
    }
};
struct Float16 {
    typedef _Float16 T;
    typedef T H16 __attribute__((vector_size(L * 2)));
    static constexpr bool SPLIT = false;
    template <int H> static F get(const T* p) {
#if defined(__AVX512F__)
        return (F)_mm512_cvtph_ps(load<__m256i>(p + H * L));
#elif defined(__F16C__)
        return (F)_mm256_cvtph_ps(load<__m128i>(p + H * L));
#else
        return __builtin_convertvector(load<H16>(p + H * L), F);
#endif
    }
};
struct Int8 {
    typedef int8_t T;
    typedef int8_t Q __attribute__((vector_size(L)));
    static constexpr bool SPLIT = false;
    template <int H> static F get(const T* p) {
#if defined(__AVX512F__)
        return (F)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)load<Q>(p + H * L)));
#elif defined(__AVX2__)
        return (F)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + H * L))));
#else
        return __builtin_convertvector(load<Q>(p + H * L), F);
#endif
    }
};

// ---- sums of a vector's lanes, always in the same order ---------------------------------------------------------

static inline F4 fold(F v) {
#if defined(__AVX512F__)
    typedef float F8 __attribute__((vector_size(32)));
    F8 w = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    F w = v;
#endif
    return __builtin_shufflevector(w, w, 0, 1, 2, 3) + __builtin_shufflevector(w, w, 4, 5, 6, 7);
}
static inline F4 sums(F a, F b, F c, F d) {  // of four vectors
    F4 p = fold(a), q = fold(b), r = fold(c), s = fold(d);
    F4 x = __builtin_shufflevector(p, q, 0, 4, 1, 5) + __builtin_shufflevector(p, q, 2, 6, 3, 7);
    F4 y = __builtin_shufflevector(r, s, 0, 4, 1, 5) + __builtin_shufflevector(r, s, 2, 6, 3, 7);
    return __builtin_shufflevector(x, y, 0, 1, 4, 5) + __builtin_shufflevector(x, y, 2, 3, 6, 7);
}
static inline float sum(F v) { return sums(v, v, v, v)[0]; }

// e^x to 2 units in the last place (Cephes' expf); results below the normal numbers become about 1e-38.
static inline F exponential(F x) {
    x = x < -87.3f ? spread(-87.3f) : x;
    x = x > 88.3f ? spread(88.3f) : x;
    F shifted = x * 1.44269504088896341f + 12582912.f, n = shifted - 12582912.f;  // nearest integer
    F r = fma(n, spread(2.12194440e-4f), fma(n, spread(-0.693359375f), x)), p = spread(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fma(p, r, spread(c));
    p = fma(p * r, r, r) + 1.f;
    return p * (F)(((I)shifted << 23) + 0x3f800000);
}

// ---- products ---------------------------------------------------------------------------------------------------

enum Format { FLOAT32, BFLOAT16, FLOAT16, INT8 };
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
    void prefetch(long i) const {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) __builtin_prefetch(at[r] + i);
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

// One input row, normalized if asked, padded with zeros to whole steps, in the order in which the format is read.
static void prepare(const float* x, long n, const Norm& norm, bool split, float* to) {
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
        if (split) deal(a, b);
        store(to + i, a);
        store(to + i + L, b);
    }
}

static void any_strip(const Matrix& a, long at, long n, const float* x, long ldx, long m, float* out) {
    switch (a.format) {
        case FLOAT32: strip<Float32>(a, at, n, x, ldx, m, out); break;
        case BFLOAT16: strip<BFloat16>(a, at, n, x, ldx, m, out); break;
        case FLOAT16: strip<Float16>(a, at, n, x, ldx, m, out); break;
        case INT8: strip<Int8>(a, at, n, x, ldx, m, out); break;
    }
    for (long r = 0; r < n; r++) {
        float scale = a.scale ? a.scale[at + r] : 1.f, bias = a.bias ? a.bias[at + r] : 0.f;
        if (a.scale || a.bias)
            for (long c = 0; c < m; c++) out[c * STRIP + r] = out[c * STRIP + r] * scale + bias;
    }
}

// y[m, :] = activation(norm(x)[m, columns] @ a.T) (+ residual[m, :]); all matrices have the same columns and format
// class (split or not). Without an activation the results of `count` matrices lie side by side in y; with one and
// two matrices the result is activation(first) * second, as in gated feed-forward layers.
extern "C" void linear(const Matrix* a, int64_t count, int64_t activation, const Norm* norm, const float* x, int64_t m,
                       int64_t ldx, const float* residual, int64_t ldr, float* y, int64_t ldy, int64_t threads) {
    long columns = a[0].columns, wide = padded(columns), strips = 0;
    bool split = a[0].format == BFLOAT16, gated = activation != NONE && count == 2;
    for (long i = 0; i < (gated ? 1 : count); i++) strips += (a[i].rows + STRIP - 1) / STRIP;
    for (long first = 0; first < m; first += ROWS) {
        long rows = m - first < ROWS ? m - first : ROWS;
        float* ready = scratch(ROWS * wide);
        for (long r = 0; r < rows; r++) prepare(x + (first + r) * ldx, columns, *norm, split, ready + r * wide);
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
extern "C" void attend(void* k_cache, void* v_cache, int64_t kv_heads, int64_t dim, int64_t format, const float* q, int64_t ldq, const float* k, int64_t ldk, const float* v,
                       int64_t ldv, int64_t heads, const int64_t* writes, const int32_t* tables, int64_t width,
                       const int32_t* lengths, const int32_t* starts, int64_t rows, float scale, int64_t window,
                       float* out, int64_t ldo, int64_t threads) {
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
