// Reading: what each query and each key gets, from queries, keys and the kernel's own log-sum-exp. No weights are kept.
#pragma once
#include "forward.h"

constexpr int SEGMENTS = 4;     // a head's row blocks are dealt to this many sums, added up in a fixed order
constexpr int READ_KEYS = 128;  // keys of a tile

extern "C" {
struct Reading {
    const float* lse;          // [batch, heads, t], natural; +inf for a query that is not counted
    const int64_t* first;      // [batch]: the key that is kept apart from `rest` and `entropy`
    int32_t window;            // how many last keys are local; 0: local, previous, own and entropy are not wanted
    float* columns;            // [batch, heads, SEGMENTS, s]: Σ over queries
    float *rest, *entropy;     // [batch, heads, t]: Σ and −Σ p log2 p over keys other than `first`
    float* log_first;          // [batch, heads, t]: log2 of the weight on `first`, −1e30 where it is not seen
    double *local, *previous, *own;  // [batch, heads, SEGMENTS]
};
}

// M rows by one panel: weights of the accumulated scores go into row sums, entropies and column sums, all vectors.
template <int M, bool FULL>
INLINE void read_micro(const float* A, int d, const float* B, const float* lse, float* sums, float* entropy, float* columns,
                       vf keep0, vf keep1) {
    vf s[M][NV];
    micro<M, NV>(A, d, 1, B, NR, d, [&](int i, int w, vf x) __attribute__((always_inline)) { s[i][w] = x; });
    vf c0 = vf{}, c1 = vf{};
#pragma GCC unroll 16
    for (int i = 0; i < M; i++) {
        const vf t0 = s[i][0] - lse[i], t1 = s[i][1] - lse[i];
        const vf p0 = exp2v(t0), p1 = exp2v(t1);
        c0 += p0;
        c1 += p1;
        const vf k0 = p0 * keep0, k1 = p1 * keep1;
        store(sums + i * VL, load(sums + i * VL) + (k0 + k1));
        if (FULL) store(entropy + i * VL, load(entropy + i * VL) - (k0 * t0 + k1 * t1));
    }
    store(columns, load(columns) + c0);
    store(columns + VL, load(columns + VL) + c1);
}

template <int M, bool FULL>
__attribute__((noinline)) void read_call(const float* A, int d, const float* B, const float* lse, float* sums,
                                         float* entropy, float* columns, vf keep0, vf keep1) {
    read_micro<M, FULL>(A, d, B, lse, sums, entropy, columns, keep0, keep1);
}
template <int M, bool FULL>
void read_left(int i, int m, const float* A, int d, const float* B, const float* lse, float* sums, float* entropy,
               float* columns, vf keep0, vf keep1) {
    if constexpr (M > 0) {
        if (m >= M) {
            read_call<M, FULL>(A + i * d, d, B, lse + i, sums + i * VL, entropy + i * VL, columns, keep0, keep1);
            i += M, m -= M;
        }
        if (m) read_left<M / 2, FULL>(i, m, A, d, B, lse, sums, entropy, columns, keep0, keep1);
    }
}

template <bool FULL>
void read_blocks(const Call& c, const Reading& out, const Keys& keys, int b, int h, int segment, Worker& w) {
    const int d = c.d, s = c.s, offset = c.s - c.t, lds = READ_KEYS + VL;
    const int64_t head = (int64_t)b * c.heads + h, first = out.first[b];
    float* qb = w.q.get((size_t)BR * d);
    float* S = w.s.get((size_t)BR * lds);
    float* sums = w.o.get((size_t)2 * BR * VL);
    float* entropy = sums + BR * VL;
    float* columns = out.columns + (head * SEGMENTS + segment) * s;
    double local = 0, previous = 0, own = 0;
    bool lost[BR];
    float lse[BR];
    for (int block = segment; block * BR < c.t; block += SEGMENTS) {
        Rows rows;
        for (int i = block * BR; i < std::min(c.t, (block + 1) * BR); i++) rows.add(c, b, h, i);
        rows.close();
        read_queries(c, rows, qb, c.scale * LOG2E, lost);
        std::fill(sums, sums + 2 * BR * VL, 0.0f);
        for (int r = 0; r < rows.n; r++) {
            lse[r] = out.lse[head * c.t + rows.query[r]] * LOG2E;
            if (lse[r] == INF) lse[r] = 1e30f;  // not counted: every weight 0, and no inf − inf
            out.log_first[head * c.t + rows.query[r]] = -1e30f;
        }
        const int near = offset + rows.query[0] - out.window + 1;  // local keys of some row begin here
        for (int c0 = rows.kmin / NR * NR; c0 < rows.kmax; c0 += READ_KEYS) {
            const int c1 = std::min(c0 + READ_KEYS, rows.kmax), width = c1 - c0;
            if (!rows.any(c0, c1)) continue;
            const float* kp = keys.kp + (ptrdiff_t)c0 * d;
            if (width % NR == 0 && rows.full(c0, c1) && (!FULL || c1 <= near)) {
                for (int p = c0; p < c1; p += NR) {
                    const float* panel = kp + (ptrdiff_t)(p - c0) * d;
                    vf keep0 = splat(1.0f), keep1 = splat(1.0f);
                    if (first >= p && first < p + VL) keep0[first - p] = 0.0f;
                    if (first >= p + VL && first < p + NR) keep1[first - p - VL] = 0.0f;
                    int r = 0;
                    for (; r + MR <= rows.n; r += MR)
                        read_call<MR, FULL>(qb + r * d, d, panel, lse + r, sums + r * VL, entropy + r * VL, columns + p, keep0,
                                            keep1);
                    if (r < rows.n)
                        read_left<(MR > 8 ? 8 : 4), FULL>(r, rows.n - r, qb, d, panel, lse, sums, entropy, columns + p, keep0, keep1);
                }
                if (first >= c0 && first < c1)
                    for (int r = 0; r < rows.n; r++) {  // one small product, in the order the other one sums
                        float t = 0;
                        for (int e = 0; e < d; e++) t = __builtin_fmaf(qb[r * d + e], kp[((first - c0) / NR * d + e) * NR + (first - c0) % NR], t);
                        out.log_first[head * c.t + rows.query[r]] = t - lse[r];
                    }
                continue;
            }
            gemm(rows.n, round_up(width, NR), d, qb, d, 1, kp, NR, (ptrdiff_t)d * NR, Store{S, lds});
            for (int r = 0; r < rows.n; r++) {
                float* x = S + (ptrdiff_t)r * lds;
                const int n = round_up(width, VL), at = offset + rows.query[r];
                rows.hide(r, c0, c1, x, -1e30f);
                for (int j = width; j < n; j++) x[j] = -1e30f;
                if (first >= c0 && first < c1 && rows.sees(r, (int)first)) {
                    const float t = x[first - c0] - lse[r];
                    out.log_first[head * c.t + rows.query[r]] = t;
                    const float p = exp2v(splat(t))[0];
                    columns[first] += p;
                    if (FULL) {
                        local += at - first < out.window ? p : 0.0f;
                        previous += first == at - 1 ? p : 0.0f;
                        own += first == at ? p : 0.0f;
                    }
                    x[first - c0] = -1e30f;
                }
                vf sum = vf{}, e = vf{};
                for (int j = 0; j < n; j += VL) {
                    const vf t = load(x + j) - lse[r], p = exp2v(t);
                    sum += p;
                    if (FULL) e -= p * t;
                    store(x + j, p);
                }
                store(sums + r * VL, load(sums + r * VL) + sum);
                if (FULL) {
                    store(entropy + r * VL, load(entropy + r * VL) + e);
                    for (int j = std::max(c0, at - out.window + 1); j < std::min(c1, at + 1); j++) local += x[j - c0];
                    if (at - 1 >= c0 && at - 1 < c1) previous += x[at - 1 - c0];
                    if (at >= c0 && at < c1) own += x[at - c0];
                }
            }
            for (int r = 0; r < rows.n; r++) {
                const float* x = S + (ptrdiff_t)r * lds;
                for (int j = 0; j < width; j++) columns[c0 + j] += x[j];
            }
        }
        for (int r = 0; r < rows.n; r++) {
            const int64_t at = head * c.t + rows.query[r];
            out.rest[at] = hsum(load(sums + r * VL));
            if (FULL) out.entropy[at] = hsum(load(entropy + r * VL));
        }
    }
    if (FULL) {
        out.local[head * SEGMENTS + segment] = local;
        out.previous[head * SEGMENTS + segment] = previous;
        out.own[head * SEGMENTS + segment] = own;
    }
}

INLINE void read(const Call& c, const Reading& out) {
    const int units = c.batch * c.kv_heads, group = c.heads / c.kv_heads;
    std::vector<Keys> keys(units);
    std::vector<uint8_t> bad(c.s, 0);  // the caller has looked: nothing here is NaN
    Scratch space;
    const size_t one = (size_t)round_up(c.s, NR) * c.d;
    float* all = space.get(one * units);
    for (int u = 0; u < units; u++) {
        keys[u] = Keys{&c, u / c.kv_heads, u % c.kv_heads};
        keys[u].kp = all + one * u;
        keys[u].bad = &bad;
    }
    std::atomic<int> next{0};
    Barrier barrier;
    constexpr int CHUNK = 16 * NR;
    const int chunks = (c.s + CHUNK - 1) / CHUNK, tasks = c.batch * c.heads * SEGMENTS;
    in_threads(c.threads, [&](int, int team) {
        Worker w;
        for (int i; (i = next++) < units * chunks;)
            keys[i % units].pack_k(i / units * CHUNK, std::min((i / units + 1) * CHUNK, c.s), w.rows.get((size_t)NR * c.d));
        barrier.wait(team, [&] { next = 0; });
        for (int i; (i = next++) < tasks;) {
            const int b = i / (c.heads * SEGMENTS), h = i / SEGMENTS % c.heads;
            const Keys& mine = keys[b * c.kv_heads + h / group];
            if (out.window) read_blocks<true>(c, out, mine, b, h, i % SEGMENTS, w);
            else read_blocks<false>(c, out, mine, b, h, i % SEGMENTS, w);
        }
    });
}
