// Vectors, exponentials, conversions and one matrix-product micro-kernel, for whatever the compiler targets.
// GNU vector extensions (GCC and Clang): the same source becomes AVX-512, AVX2, SSE or NEON.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int VL = 16, MR = 12;
#elif defined(__AVX__)
constexpr int VL = 8, MR = 6;
#elif defined(__aarch64__)
constexpr int VL = 4, MR = 12;
#else
constexpr int VL = 4, MR = 6;
#endif
constexpr int NV = 2, NR = NV * VL;  // a panel: two vectors wide

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef float vfu __attribute__((vector_size(VL * 4), aligned(4), may_alias));

#define INLINE inline __attribute__((always_inline))

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float QNAN = std::numeric_limits<float>::quiet_NaN();
constexpr float LOG2E = 1.44269504088896340736f, LN2 = 0.693147180559945309417f;

INLINE vf load(const float* p) { return *(const vfu*)p; }
INLINE void store(float* p, vf x) { *(vfu*)p = x; }
INLINE vf splat(float x) { return x - vf{}; }
INLINE vf select(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
#if defined(__AVX512F__)
INLINE vf vmax(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf vmin(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#else
INLINE vf vmax(vf a, vf b) { return select(a > b, a, b); }
INLINE vf vmin(vf a, vf b) { return select(a < b, a, b); }
#endif
INLINE vf vabs(vf a) { return (vf)((vi)a & 0x7fffffff); }

#if defined(__AVX512F__)
INLINE float hsum(vf x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE float hmax(vf x) { return _mm512_reduce_max_ps((__m512)x); }
#else
INLINE float hsum(vf x) {
    for (int w = VL / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) x[i] += x[i + w];
    return x[0];
}
INLINE float hmax(vf x) {
    float m = x[0];
    for (int i = 1; i < VL; i++) m = x[i] > m ? x[i] : m;
    return m;
}
#endif

// 2^f − 1 over f for f in [−½, ½] (near-minimax; 2^f then errs by under 1e-8), constant term ln 2 first.
INLINE vf exp2_tail(vf f) {
    vf p = splat(1.546144746e-4f);
    p = p * f + 1.339086735e-3f;
    p = p * f + 9.618056670e-3f;
    p = p * f + 5.550357104e-2f;
    p = p * f + 2.402265092e-1f;
    return p * f + 6.931471880e-1f;
}
// The same to two parts in 10⁴, a twentieth of bfloat16's step.
INLINE vf exp2_tail_fast(vf f) {
    vf p = splat(5.5838343e-2f);
    p = p * f + 2.4203593e-1f;
    return p * f + 6.9313673e-1f;
}
constexpr float MAGIC = 12582912.0f;  // 1.5·2^23: adding it rounds to a whole number and leaves that in the low bits

// 2^t; 0 below 2^-126, t up to 127; NaN stays NaN.
template <bool FAST = false>
INLINE vf exp2v(vf t) {
    vf shifted = vmax(t, splat(-127.0f)) + MAGIC;
    vf f = t - (shifted - MAGIC);
    vf p = (FAST ? exp2_tail_fast(f) : exp2_tail(f)) * f + 1.0f;
    vf r = (vf)((vi)p + ((vi)shifted << 23));
    return (vf)((vi)r & ~(t < -126.0f));
}
INLINE float exp2s(float t) { return t < -126.0f ? 0.0f : std::exp2(t); }

// 2^t − 1 with full relative accuracy near 0, t up to 126.
template <bool FAST = false>
INLINE vf exp2m1v(vf t) {
    vf shifted = vmax(t, splat(-64.0f)) + MAGIC;
    vf n = shifted - MAGIC;
    vf f = vmax(t, splat(-64.0f)) - n;
    vf scale = (vf)(((vi)shifted << 23) + 0x3f800000);
    return scale * ((FAST ? exp2_tail_fast(f) : exp2_tail(f)) * f) + (scale - 1.0f);
}
// cap·tanh(s/cap)
INLINE vf softcapv(vf s, float cap, float inv) {
    vf x = vmin(vmax(s * (2.0f * LOG2E * inv), splat(-60.0f)), splat(60.0f));
    vf e = exp2m1v(x);
    return cap * (e / (e + 2.0f));
}

// 1 / x, with FAST to 14 bits where the processor has that.
template <bool FAST>
INLINE vf inverse(vf x) {
#if defined(__AVX512F__)
    if (FAST) return (vf)_mm512_rcp14_ps((__m512)x);
#endif
    return 1.0f / x;
}

// ---- dtypes ------------------------------------------------------------------------------------------------------

enum Dtype { F32 = 0, BF16 = 1, F16 = 2 };
INLINE int item_size(int dtype) { return dtype == F32 ? 4 : 2; }

INLINE float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mantissa = h & 0x3ff;
    int exponent = (h >> 10) & 31;
    uint32_t bits;
    if (exponent == 31) bits = sign | 0x7f800000 | (mantissa << 13);
    else if (exponent) bits = sign | ((uint32_t)(exponent + 112) << 23) | (mantissa << 13);
    else {
        float f = (float)mantissa * 5.9604644775390625e-8f;
        return sign ? -f : f;
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
INLINE uint16_t float_to_half(float f) {
    uint32_t x;
    std::memcpy(&x, &f, 4);
    uint16_t sign = (x >> 16) & 0x8000;
    x &= 0x7fffffff;
    if (x > 0x7f800000) return sign | 0x7e00;
    if (x >= 0x477ff000) return sign | 0x7c00;          // rounds to 65536 or more
    if (x < 0x38800000) {                                // subnormal: whole numbers of 2^-24
        float a;
        std::memcpy(&a, &x, 4);
        return sign | (uint16_t)std::nearbyint(a * 16777216.0f);
    }
    x += 0xfff + ((x >> 13) & 1);
    return sign | (uint16_t)((x - 0x38000000) >> 13);
}
INLINE float bf16_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
INLINE uint16_t float_to_bf16(float f) {
    uint32_t x;
    std::memcpy(&x, &f, 4);
    if ((x & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef uint16_t vhu __attribute__((vector_size(VL * 2), aligned(2), may_alias));

INLINE vf widen_bf16(const uint16_t* p) { return (vf)(__builtin_convertvector(*(const vhu*)p, vi) << 16); }
#if defined(__AVX512BF16__)
#define HALF_PRODUCTS 1  // bfloat16 × bfloat16 → float32, two at a time
INLINE void narrow_bf16(uint16_t* p, vf x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh((__m512)x)); }
#else
#define HALF_PRODUCTS 0
INLINE void narrow_bf16(uint16_t* p, vf x) {
    const vi bits = (vi)x;
    vi rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff;
    const vi nan = (bits & 0x7fffffff) > 0x7f800000;
    rounded = (rounded & ~nan) | (nan & 0x7fc0);
    *(vhu*)p = __builtin_convertvector(rounded, vh);
}
#endif

// n numbers at p (contiguous) → float, times a factor.
INLINE void read_row(const void* p, int dtype, float* out, int n, float factor) {
    int i = 0;
    if (dtype == F32) {
        const float* x = (const float*)p;
        for (; i + VL <= n; i += VL) store(out + i, load(x + i) * factor);
        for (; i < n; i++) out[i] = x[i] * factor;
    } else if (dtype == BF16) {
        const uint16_t* x = (const uint16_t*)p;
        for (; i + VL <= n; i += VL) store(out + i, widen_bf16(x + i) * factor);
        for (; i < n; i++) out[i] = bf16_to_float(x[i]) * factor;
    } else {
        const uint16_t* x = (const uint16_t*)p;
#if defined(__AVX512F__)
        for (; i + VL <= n; i += VL) store(out + i, (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(x + i))) * factor);
#elif defined(__F16C__)
        for (; i + VL <= n; i += VL) store(out + i, (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(x + i))) * factor);
#endif
        for (; i < n; i++) out[i] = half_to_float(x[i]) * factor;
    }
}
INLINE void write_row(void* p, int dtype, const float* x, int n, float factor) {
    int i = 0;
    if (dtype == F32) {
        float* out = (float*)p;
        for (; i + VL <= n; i += VL) store(out + i, load(x + i) * factor);
        for (; i < n; i++) out[i] = x[i] * factor;
    } else if (dtype == BF16) {
        uint16_t* out = (uint16_t*)p;
        for (; i + VL <= n; i += VL) narrow_bf16(out + i, load(x + i) * factor);
        for (; i < n; i++) out[i] = float_to_bf16(x[i] * factor);
    } else {
        uint16_t* out = (uint16_t*)p;
        for (; i < n; i++) out[i] = float_to_half(x[i] * factor);
    }
}
INLINE bool all_finite(const float* x, int n) {
    vf bad = vf{};
    int i = 0;
    for (; i + VL <= n; i += VL) bad += load(x + i) - load(x + i);  // 0 unless inf or NaN
    float rest = hsum(bad);
    for (; i < n; i++) rest += x[i] - x[i];
    return rest == 0;
}
INLINE void fill(float* x, ptrdiff_t n, float value) {
    const vf v = splat(value);
    ptrdiff_t i = 0;
    for (; i + VL <= n; i += VL) store(x + i, v);
    for (; i < n; i++) x[i] = value;
}

// ---- matrix product ----------------------------------------------------------------------------------------------

// acc[M][W] = Σ_k A[i·ars + k·acs] · B[k·ldb + …], M rows by W vectors, kept in registers; `done` takes it from there.
template <int M, int W, class Done>
INLINE void micro(const float* A, ptrdiff_t ars, ptrdiff_t acs, const float* B, ptrdiff_t ldb, int K, Done done) {
    vf acc[M][W];
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) acc[i][w] = vf{};
    for (int k = 0; k < K; k++) {
        vf b[W];
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) b[w] = load(B + k * ldb + w * VL);
        const float* a = A + k * acs;
#pragma GCC unroll 16
        for (int i = 0; i < M; i++) {
            vf x = splat(a[i * ars]);
#pragma GCC unroll 2
            for (int w = 0; w < W; w++) acc[i][w] += x * b[w];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) done(i, w, acc[i][w]);
}

// `narrow`: the width may be an odd number of vectors; else it is whole panels (fewer sizes to compile).
struct Store {
    static constexpr bool narrow = false;
    float* C;
    ptrdiff_t ldc;
    INLINE void operator()(int i, int w, vf x) const { store(C + i * ldc + w * VL, x); }
    Store at(int i, int j) const { return {C + i * ldc + j, ldc}; }
};
struct Add {
    static constexpr bool narrow = true;
    float* C;
    ptrdiff_t ldc;
    INLINE void operator()(int i, int w, vf x) const {
        float* c = C + i * ldc + w * VL;
        store(c, load(c) + x);
    }
    Add at(int i, int j) const { return {C + i * ldc + j, ldc}; }
};

template <int M, int W, class Done>
__attribute__((noinline)) void micro_call(const float* A, ptrdiff_t ars, ptrdiff_t acs, const float* B, ptrdiff_t ldb,
                                          int K, Done done) {
    micro<M, W>(A, ars, acs, B, ldb, K, done);
}
// The rows that are left over, fewer than MR: 8, 4, 2 and 1 at a time (fewer sizes to compile).
template <int M, int W, class Done>
void rows_left(int i, int m, const float* A, ptrdiff_t ars, ptrdiff_t acs, const float* B, ptrdiff_t ldb, int K,
               Done done) {
    if constexpr (M > 0) {
        if (m >= M) {
            micro_call<M, W>(A + i * ars, ars, acs, B, ldb, K, done.at(i, 0));
            i += M, m -= M;
        }
        if (m) rows_left<M / 2, W>(i, m, A, ars, acs, B, ldb, K, done);
    }
}

// C[M, N] (+)= A·B. B lies in panels NR columns wide: panel p at B + p·panel, row stride ldb. N is a multiple of NR, or
// of VL where `done` may be narrow.
template <class Done>
void gemm(int M, int N, int K, const float* A, ptrdiff_t ars, ptrdiff_t acs, const float* B, ptrdiff_t ldb,
          ptrdiff_t panel, Done done) {
    for (int j = 0; j < N; j += NR) {
        const float* b = B + (j / NR) * panel;
        const bool wide = N - j >= NR;
        int i = 0;
        for (; i + MR <= M; i += MR)
            if (!Done::narrow || wide) micro_call<MR, NV>(A + i * ars, ars, acs, b, ldb, K, done.at(i, j));
            else if constexpr (Done::narrow) micro_call<MR, 1>(A + i * ars, ars, acs, b, ldb, K, done.at(i, j));
        if (i < M) {
            constexpr int most = MR > 8 ? 8 : 4;
            if (!Done::narrow || wide) rows_left<most, NV>(i, M - i, A, ars, acs, b, ldb, K, done.at(0, j));
            else if constexpr (Done::narrow) rows_left<most, 1>(i, M - i, A, ars, acs, b, ldb, K, done.at(0, j));
        }
    }
}

// x[n, d] (row stride ldx) → panels [n/NR][d][NR], i.e. transposed; columns past n are 0.
INLINE void pack_transposed(const float* x, ptrdiff_t ldx, int n, int d, float* out) {
    for (int j = 0; j < n; j += NR, out += (ptrdiff_t)d * NR) {
        const int m = n - j < NR ? n - j : NR;
        for (int c = 0; c < d; c++)
            for (int i = 0; i < NR; i++) out[c * NR + i] = i < m ? x[(j + i) * ldx + c] : 0.0f;
    }
}

// ---- the same in bfloat16 pairs ----------------------------------------------------------------------------------

#if HALF_PRODUCTS
// As `micro`, where every number is a pair of bfloat16 and every product the sum of two, kept in float32.
template <int M, int W, class Done>
__attribute__((noinline)) void micro_half(const uint32_t* A, ptrdiff_t ars, ptrdiff_t acs, const uint32_t* B, ptrdiff_t ldb,
                                          int K, Done done) {
    __m512 acc[M][W];
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) acc[i][w] = _mm512_setzero_ps();
    for (int k = 0; k < K; k++) {
        __m512bh b[W];
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) b[w] = (__m512bh)_mm512_loadu_si512(B + k * ldb + w * VL);
        const uint32_t* a = A + k * acs;
#pragma GCC unroll 16
        for (int i = 0; i < M; i++) {
            const __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i * ars]);
#pragma GCC unroll 2
            for (int w = 0; w < W; w++) acc[i][w] = _mm512_dpbf16_ps(acc[i][w], b[w], x);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
        for (int w = 0; w < W; w++) done(i, w, (vf)acc[i][w]);
}
template <int M, int W, class Done>
void rows_left_half(int i, int m, const uint32_t* A, ptrdiff_t ars, ptrdiff_t acs, const uint32_t* B, ptrdiff_t ldb, int K,
                    Done done) {
    if constexpr (M > 0) {
        if (m >= M) {
            micro_half<M, W>(A + i * ars, ars, acs, B, ldb, K, done.at(i, 0));
            i += M, m -= M;
        }
        if (m) rows_left_half<M / 2, W>(i, m, A, ars, acs, B, ldb, K, done);
    }
}
template <class Done>
void gemm_half(int M, int N, int K, const uint32_t* A, ptrdiff_t ars, ptrdiff_t acs, const uint32_t* B, ptrdiff_t ldb,
               ptrdiff_t panel, Done done) {
    for (int j = 0; j < N; j += NR) {
        const uint32_t* b = B + (j / NR) * panel;
        const bool wide = N - j >= NR;
        int i = 0;
        for (; i + MR <= M; i += MR)
            if (!Done::narrow || wide) micro_half<MR, NV>(A + i * ars, ars, acs, b, ldb, K, done.at(i, j));
            else if constexpr (Done::narrow) micro_half<MR, 1>(A + i * ars, ars, acs, b, ldb, K, done.at(i, j));
        if (i < M) {
            if (!Done::narrow || wide) rows_left_half<8, NV>(i, M - i, A, ars, acs, b, ldb, K, done.at(0, j));
            else if constexpr (Done::narrow) rows_left_half<8, 1>(i, M - i, A, ars, acs, b, ldb, K, done.at(0, j));
        }
    }
}

// Two rows of floats → one row of pairs (low half: the first row).
INLINE void pair_rows(uint32_t* out, vf a, vf b) {
    const __m512i x = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)a));
    const __m512i y = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)b));
    _mm512_storeu_si512(out, _mm512_or_si512(x, _mm512_slli_epi32(y, 16)));
}
#endif

// The scores of a product of unscaled operands.
struct ScaledStore {
    static constexpr bool narrow = false;
    float* C;
    ptrdiff_t ldc;
    float factor;
    INLINE void operator()(int i, int w, vf x) const { store(C + i * ldc + w * VL, x * factor); }
    ScaledStore at(int i, int j) const { return {C + i * ldc + j, ldc, factor}; }
};
