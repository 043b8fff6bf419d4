// Vectors of floats, the number formats of weights as vectors, and sums in a fixed order.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int L = 16;          // floats of a vector
constexpr int TALL = 4, WIDE = 5;  // register tile: weight rows x input rows; accumulators must fit the registers
#else
constexpr int L = 8;
constexpr int TALL = 4, WIDE = 3;
#endif
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

#if defined(__AVX512BF16__)
#define DOTS  // bfloat16 numbers are multiplied in pairs, and summed in float32
static inline __m512bh pairs(const uint16_t* p) { return (__m512bh)load<__m512i>(p); }
static inline __m512bh rounded(F a, F b) { return _mm512_cvtne2ps_pbh((__m512)b, (__m512)a); }  // first a, then b
#endif

// ---- number formats: two vectors at a time. A format with SPLIT yields the even, then the odd elements. --------

struct Float32 {
    typedef float T;
    static constexpr bool SPLIT = false;
    template <int H> static F get(const T* p) { return load<F>(p + H * L); }
};
struct BFloat16 {  // the upper half of a float32: two neighbours in one 32-bit lane cost one operation each
    typedef uint16_t T;
    static constexpr bool SPLIT = true;
#if defined(DOTS)
    static __m512bh both(const T* p) { return pairs(p); }
#endif
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
#if defined(DOTS)
    static __m512bh both(const T* p) { return rounded(get<0>(p), get<1>(p)); }  // exact: 8 digits
#endif
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
#if defined(__AVX512F__)
    auto ab = _mm512_unpacklo_ps((__m512)a, (__m512)b) + _mm512_unpackhi_ps((__m512)a, (__m512)b);
    auto cd = _mm512_unpacklo_ps((__m512)c, (__m512)d) + _mm512_unpackhi_ps((__m512)c, (__m512)d);
    auto low = _mm512_unpacklo_pd((__m512d)ab, (__m512d)cd), high = _mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
    return fold((F)low + (F)high);
#else
    F4 p = fold(a), q = fold(b), r = fold(c), s = fold(d);
    F4 x = __builtin_shufflevector(p, q, 0, 4, 1, 5) + __builtin_shufflevector(p, q, 2, 6, 3, 7);
    F4 y = __builtin_shufflevector(r, s, 0, 4, 1, 5) + __builtin_shufflevector(r, s, 2, 6, 3, 7);
    return __builtin_shufflevector(x, y, 0, 1, 4, 5) + __builtin_shufflevector(x, y, 2, 3, 6, 7);
#endif
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
