// Maps of one whole row of scores to weights, for the families that need the whole row: clipped, top-k, entmax.
// They return the keys with a weight, since most have none.
#pragma once
#include "common.h"

struct Sparse {
    std::vector<int> index;
    std::vector<float> weight;
    std::vector<float> work;
    int n = 0;
    void reserve(int size) {
        size += VL;  // room to pad to whole vectors
        if ((int)index.size() < size) index.resize(size), weight.resize(size), work.resize(size);
        n = 0;
    }
};

INLINE float row_max(const float* x, int n) {
    float m = -INF;
    int j = 0;
    vf top = splat(-INF);
    for (; j + VL <= n; j += VL) top = vmax(load(x + j), top);
    m = hmax(top);
    for (; j < n; j++) m = std::max(m, x[j]);
    return m;
}

// Keys with x > floor (or ≥, `equal`), in order.
INLINE void collect(const float* x, int n, float floor, bool equal, Sparse& out) {
    int m = 0, j = 0;
#if defined(__AVX512F__)
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512 level = _mm512_set1_ps(floor);
    for (; j + 16 <= n; j += 16) {
        const __m512 y = _mm512_loadu_ps(x + j);
        const __mmask16 in = equal ? _mm512_cmp_ps_mask(y, level, _CMP_GE_OQ) : _mm512_cmp_ps_mask(y, level, _CMP_GT_OQ);
        if (!in) continue;
        alignas(64) int at[16];
        alignas(64) float value[16];
        _mm512_store_epi32(at, _mm512_maskz_compress_epi32(in, _mm512_add_epi32(lane, _mm512_set1_epi32(j))));
        _mm512_store_ps(value, _mm512_maskz_compress_ps(in, y));
        const int found = __builtin_popcount(in);
        for (int i = 0; i < found; i++) out.index[m + i] = at[i], out.weight[m + i] = value[i];
        m += found;
    }
#endif
    for (; j < n; j++)
        if (equal ? x[j] >= floor : x[j] > floor) {
            out.index[m] = j;
            out.weight[m] = x[j];
            m++;
        }
    out.n = m;
}

INLINE int count_above(const float* x, int n, float level) {
    int j = 0;
    vi m = vi{};
    for (; j + VL <= n; j += VL) m -= load(x + j) >= level;
    int total = 0;
    for (int i = 0; i < VL; i++) total += m[i];
    for (; j < n; j++) total += x[j] >= level;
    return total;
}

// Sum over a list of max(x − τ, 0)^power; and of the power one less, for Newton's step. The list is padded to whole
// vectors with −inf.
struct Sums {
    float p, slope;
};
INLINE Sums power_sums(const float* x, int n, float tau, float power) {
    if (power == 1.0f || power == 2.0f) {
        vf p = vf{}, slope = vf{};
        for (int i = 0; i < n; i += VL) {
            const vf u = vmax(load(x + i) - tau, vf{});
            if (power == 1.0f) p += u, slope += select(u > 0.0f, splat(1.0f), vf{});
            else p += u * u, slope += 2.0f * u;
        }
        return {hsum(p), hsum(slope)};
    }
    double p = 0, slope = 0;
    for (int i = 0; i < n; i++) {
        const float u = x[i] - tau;
        if (u > 0) {
            const float w = std::pow(u, power);
            p += w, slope += power * w / u;
        }
    }
    return {(float)p, (float)slope};
}

// τ with Σ max(x − τ, 0)^{1/(α−1)} = 1 over x shifted to a maximum of 0; weights replace x in the list.
// For α ≤ 2 the sum is convex in τ and Newton from below climbs to it; above, it is bisected.
INLINE float solve_entmax(Sparse& list, float alpha) {
    const float power = alpha == 2.0f ? 1.0f : alpha == 1.5f ? 2.0f : 1.0f / (alpha - 1.0f);
    float tau = -1.0f;
    for (int i = list.n; i < round_up(list.n, VL); i++) list.weight[i] = -INF;
    if (power >= 1.0f) {
        for (int step = 0; step < 200; step++) {
            const Sums sums = power_sums(list.weight.data(), list.n, tau, power);
            const float next = tau + (sums.p - 1.0f) / sums.slope;
            if (!(next > tau)) break;
            tau = next;
        }
    } else {
        float low = -1.0f, high = 0.0f;
        for (int step = 0; step < 40; step++) {
            const float middle = 0.5f * (low + high);
            if (power_sums(list.weight.data(), list.n, middle, power).p >= 1.0f) low = middle;
            else high = middle;
        }
        tau = low;
    }
    int m = 0;
    double total = 0;
    for (int i = 0; i < list.n; i++) {
        const float u = list.weight[i] - tau;
        if (u > 0) {
            const float w = power == 1.0f ? u : power == 2.0f ? u * u : std::pow(u, power);
            list.index[m] = list.index[i];
            list.weight[m++] = w;
            total += w;
        }
    }
    list.n = m;
    const float inv = (float)(1.0 / total);  // what rounding left over
    for (int i = 0; i < m; i++) list.weight[i] *= inv;
    return tau;
}

// x: natural scores, −inf where hidden. Returns τ + top in units of (α−1)·s, −inf in an empty row.
INLINE float entmax_row(float* x, int n, float alpha, Sparse& list) {
    list.reserve(n);
    const float top = row_max(x, n);
    if (top == -INF) return -INF;
    const float reach = 1.0f / (alpha - 1.0f);
    collect(x, n, top - reach, false, list);
    for (int i = 0; i < list.n; i++) list.weight[i] = (list.weight[i] - top) * (alpha - 1.0f);
    return solve_entmax(list, alpha) + top * (alpha - 1.0f);
}

// The k-th largest of a row; −inf where fewer are visible.
INLINE float kth_largest(const float* x, int n, int k, float top, Sparse& list) {
    if (k >= n) return -INF;
    float low = top - 1.0f;  // walk down until enough are above, then halve until few enough to sort
    float width = 1.0f;
    int found = count_above(x, n, low);
    while (found < k) {
        width *= 2.0f;
        low -= width;
        if (width > 3e38f) return -INF;
        found = count_above(x, n, low);
    }
    float high = top;
    for (int step = 0; step < 30 && found > 4 * k + 64; step++) {
        const float middle = 0.5f * (low + high);
        const int more = count_above(x, n, middle);
        if (more >= k) low = middle, found = more;
        else high = middle;
    }
    collect(x, n, low, true, list);
    std::copy(list.weight.begin(), list.weight.begin() + list.n, list.work.begin());
    std::nth_element(list.work.begin(), list.work.begin() + (k - 1), list.work.begin() + list.n, std::greater<float>());
    return list.work[k - 1];
}

// x in base-2 units. Weights over the top k; *level gets the k-th largest. Returns what 2^{x − m} is multiplied by, where m
// is the largest of x and log2 δ.
INLINE float topk_row(const float* x, int n, int k, float delta, Sparse& list, float* level, float* mass) {
    list.reserve(n);
    const float top = row_max(x, n);
    *mass = 0;
    *level = INF;
    if (top == -INF) return 0.0f;
    *level = kth_largest(x, n, k, top, list);
    list.n = 0;
    if (*level == -INF) collect(x, n, -INF, false, list);
    else collect(x, n, *level, true, list);
    const float z = delta > 0 ? std::log2(delta) : -INF, m = std::max(top, z);
    float total = 0;
    for (int i = 0; i < list.n; i++) total += list.weight[i] = exp2s(list.weight[i] - m);
    const float inverse = 1.0f / (total + (z == -INF ? 0.0f : exp2s(z - m)));
    for (int i = 0; i < list.n; i++) list.weight[i] *= inverse;
    *mass = total * inverse;
    return inverse;
}

// x in base-2 units, replaced by 2^{x − top}. Lists the keys whose clipped weight is not 0; returns top, and the inverse
// of the sum: from these two the backward pass gets every weight to the bit, and so clips the same keys.
INLINE float clipped_row(float* x, int n, float zeta, float gamma, Sparse& list, float* inverse, float* mass) {
    list.reserve(n);
    *mass = *inverse = 0;
    const float top = row_max(x, n);
    if (top == -INF) {
        std::fill(x, x + n, 0.0f);
        return -INF;
    }
    vf sum = vf{};
    float total = 0;
    int j = 0;
    for (; j + VL <= n; j += VL) {
        const vf e = exp2v(load(x + j) - top);
        store(x + j, e);
        sum += e;
    }
    for (; j < n; j++) total += x[j] = exp2v(splat(x[j] - top))[0];
    total += hsum(sum);
    // (ζ−γ)·e/total + γ > 0
    const float inv = 1.0f / total, floor = zeta - gamma > 0 ? -gamma * total / (zeta - gamma) : INF;
    collect(x, n, floor * 0.9999f, false, list);
    float all = 0;
    int m = 0;
    for (int i = 0; i < list.n; i++) {
        const float w = std::min(__builtin_fmaf(zeta - gamma, list.weight[i] * inv, gamma), 1.0f);
        if (!(w > 0)) continue;
        list.index[m] = list.index[i];
        all += list.weight[m++] = w;
    }
    list.n = m;
    *inverse = inv;
    *mass = all;
    return top;
}
