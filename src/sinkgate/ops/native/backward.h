// Backward passes: scores are computed again, tile by tile.
#pragma once
#include "forward.h"

// One row of a block in the backward pass: S holds scores, D holds do·v; they become weights and score gradients.
// Scores of hidden keys are −inf (relu, softpick: 0), which makes both 0.
template <int F>
INLINE void row_gradient(const Call& c, const Rows& rows, int r, float* S, float* D, int n, double* dhead) {
    const int64_t at = rows.flat(c, r);
    const float delta = c.delta ? c.delta[at] : 0.0f;
    if constexpr (F == SOFTMAX) {
        const float top = c.stat[at], inv = c.stat2[at];
        for (int j = 0; j < n; j += VL) {
            const vf p = exp2v(load(S + j) - top) * inv;
            store(S + j, p);
            store(D + j, p * (load(D + j) - delta));
        }
    } else if constexpr (F == SIGMOID) {
        const float bias = LOG2E * (c.head ? c.head[rows.head[r]] : row_value(c, rows, r));
        vf sum = vf{};
        for (int j = 0; j < n; j += VL) {
            const vf y = load(S + j);
            const vf p = select(y == -INF, vf{}, 1.0f / (1.0f + exp2v(vmin(-(y + bias), splat(126.0f)))));
            const vf g = p * (1.0f - p) * load(D + j);
            store(S + j, p);
            store(D + j, g);
            sum += g;
        }
        if (dhead) dhead[rows.head[r]] += hsum(sum);
    } else if constexpr (F == RELU) {
        const float f = c.row ? 1.0f / row_value(c, rows, r) : 1.0f;
        const bool squared = c.flags & SQUARED;
        for (int j = 0; j < n; j += VL) {
            const vf y = vmax(load(S + j), vf{});
            store(S + j, squared ? y * y * f : y * f);
            store(D + j, select(y > 0.0f, (squared ? y * (2.0f * f) : splat(f)) * load(D + j), vf{}));
        }
    } else if constexpr (F == SOFTPICK) {
        const float top = c.stat[at] * LOG2E, factor = c.stat2[at], em = exp2s(-top);
        const bool near = top < 80.0f;
        for (int j = 0; j < n; j += VL) {
            const vf y = load(S + j);
            const vf e = exp2v(y - top) * factor;
            const vf x = near ? exp2m1v(vmin(y, splat(100.0f))) * em : exp2v(y - top) - em;
            store(S + j, vmax(x, vf{}) * factor);
            const vf g = select(y > 0.0f, load(D + j) - delta, select(y < 0.0f, splat(delta), vf{}));
            store(D + j, e * g);
        }
    } else {  // CLIPPED
        const float top = c.stat[at] == -INF ? 0.0f : c.stat[at], inv = c.stat2[at];
        const float gamma = c.row ? -c.p1 / row_value(c, rows, r) : c.p1, spread = c.p0 - gamma;
        for (int j = 0; j < n; j += VL) {
            const vf p = exp2v(load(S + j) - top) * inv;
            const vf a = spread * p + gamma, cut = vmin(vmax(a, vf{}), splat(1.0f));
            store(S + j, select(p > 0.0f, cut, vf{}));
            store(D + j, p * (select((a > 0.0f) & (a < 1.0f), spread * load(D + j), vf{}) - delta));
        }
    }
}

// What every row of a backward block needs: queries and do, padded to whole vectors, and which rows are lost.
struct RowInputs {
    float *q, *dout;
    bool lost[BR];
};
INLINE void read_rows(const Call& c, const Rows& rows, int dp, int dvp, float factor, RowInputs& in) {
    const int size = item_size(c.dtype);
    for (int r = 0; r < rows.n; r++) {
        const int64_t at = rows.flat(c, r);
        float *q = in.q + (ptrdiff_t)r * dp, *g = in.dout + (ptrdiff_t)r * dvp;
        read_row((const char*)c.q + (rows.b * c.qs[0] + rows.head[r] * c.qs[1] + rows.query[r] * c.qs[2]) * size, c.dtype, q,
                 c.d, factor);
        read_row((const char*)c.dout + at * c.dv * size, c.dtype, g, c.dv, 1.0f);
        std::fill(q + c.d, q + dp, 0.0f);
        std::fill(g + c.dv, g + dvp, 0.0f);
        in.lost[r] = !all_finite(q, c.d) || !all_finite(g, c.dv) || (c.stat && c.stat[at] != c.stat[at]);
        if (in.lost[r]) {  // ones, so that the NaN put into its weights below reaches the keys it sees, and no others
            std::fill(q, q + dp, 1.0f);
            std::fill(g, g + dvp, 1.0f);
        }
    }
}

struct Gradients {  // of one kv head, as floats
    float* dq;      // [rows of the unit, dp]
    std::vector<double> dhead;
};

// One tile of keys against every block of rows that sees it.
template <int F>
void tile_backward(const Call& c, Keys& keys, const std::vector<Rows>& blocks, int c0, int c1, Worker& w, Gradients& g) {
    const int d = c.d, dp = round_up(d, VL), dvp = keys.dvp, lds = KB + VL, width = c1 - c0, N = round_up(width, NR);
    const int size = item_size(c.dtype);
    const float unit = unit_of(c), cap = c.softcap * unit;
    // keys as rows and as panels, values as panels
    float* space = w.extra.get((size_t)KB * (2 * d + dp + dvp + dp + dvp + c.dv));
    float *kp = space, *vp = kp + (size_t)KB * d, *krow = vp + (size_t)KB * c.dv, *vrow = krow + (size_t)KB * dp;
    float *dk = vrow + (size_t)KB * dvp, *dvalue = dk + (size_t)KB * dp;
    for (int j = c0; j < c1; j++) {
        float *k = krow + (ptrdiff_t)(j - c0) * dp, *v = vrow + (ptrdiff_t)(j - c0) * dvp;
        read_row(keys.key(j), c.dtype, k, d, 1.0f);
        read_row(keys.value(j), c.dtype, v, c.dv, 1.0f);
        std::fill(k + d, k + dp, 0.0f);
        std::fill(v + c.dv, v + dvp, 0.0f);
        if (!all_finite(k, d)) std::fill(k, k + d, 0.0f);
        if (!all_finite(v, c.dv)) std::fill(v, v + c.dv, 0.0f);
    }
    pack_transposed(krow, dp, width, d, kp);
    pack_transposed(vrow, dvp, width, c.dv, vp);
    fill(dk, (ptrdiff_t)width * dp, 0.0f);
    fill(dvalue, (ptrdiff_t)width * dvp, 0.0f);

    float* S = w.s.get((size_t)2 * BR * lds);
    float* D = S + (size_t)BR * lds;
    RowInputs in;
    in.q = w.q.get((size_t)BR * (dp + dvp));
    in.dout = in.q + (size_t)BR * dp;
    ptrdiff_t first_row = 0;
    for (const Rows& rows : blocks) {
        float* dq = g.dq + first_row * dp;
        first_row += rows.n;
        if (!rows.any(c0, c1)) continue;
        read_rows(c, rows, dp, dvp, c.scale * unit, in);
        gemm(rows.n, N, d, in.q, dp, 1, kp, NR, (ptrdiff_t)d * NR, Store{S, lds});
        gemm(rows.n, N, c.dv, in.dout, dvp, 1, vp, NR, (ptrdiff_t)c.dv * NR, Store{D, lds});
        const bool full = rows.full(c0, c1);
        const float none = F == RELU || F == SOFTPICK ? 0.0f : -INF;
        for (int r = 0; r < rows.n; r++) {
            float *s = S + (ptrdiff_t)r * lds, *x = D + (ptrdiff_t)r * lds;
            float* slope = nullptr;
            if (c.softcap != 0) {
                softcap_row(s, width, cap);
                slope = w.o.get(KB + VL);
                for (int j = 0; j < width; j++) slope[j] = 1.0f - (s[j] / cap) * (s[j] / cap);
            }
            apply_mask(c, rows, r, c0, c1, s, none, unit);
            if (!full) rows.hide(r, c0, c1, s, none);
            const int n = round_up(width, VL);
            for (int j = width; j < n; j++) s[j] = none, x[j] = 0.0f;
            if (in.lost[r]) {
                for (int j = c0; j < c1; j++)
                    s[j - c0] = x[j - c0] = rows.sees(r, j) && !mask_hides(c, rows, r, j) ? QNAN : 0.0f;
                continue;
            }
            row_gradient<F>(c, rows, r, s, x, n, g.dhead.empty() ? nullptr : g.dhead.data());
            if (slope)
                for (int j = 0; j < width; j++) x[j] *= slope[j];
        }
        gemm(width, dvp, rows.n, S, 1, lds, in.dout, dvp, NR, Add{dvalue, dvp});
        gemm(width, dp, rows.n, D, 1, lds, in.q, dp, NR, Add{dk, dp});
        gemm(rows.n, dp, width, D, lds, 1, krow, dp, NR, Add{dq, dp});
    }
    for (int j = c0; j < c1; j++) {
        const int64_t at = ((int64_t)keys.b * c.kv_heads + keys.hk) * c.s + j;
        write_row((char*)c.dk + at * d * size, c.dtype, dk + (ptrdiff_t)(j - c0) * dp, d, 1.0f / unit);
        write_row((char*)c.dvalue + at * c.dv * size, c.dtype, dvalue + (ptrdiff_t)(j - c0) * dvp, c.dv, 1.0f);
    }
}

#if HALF_PRODUCTS
// The same where all five products are of bfloat16 pairs. A weight or gradient of a score is rounded once to bfloat16
// and laid out twice: along keys for dQ, along query rows for dK and dV.
template <int F>
void tile_backward_half(const Call& c, Keys& keys, const std::vector<Rows>& blocks, int c0, int c1, Worker& w, Gradients& g) {
    const int d = c.d, dp = round_up(d, VL), dvp = keys.dvp, lds = KB + VL, width = c1 - c0, N = round_up(width, NR);
    const int d2 = (d + 1) / 2, dv2 = (c.dv + 1) / 2, even = width + width % 2, ldk = KB + VL;
    const float unit = unit_of(c), cap = c.softcap * unit, factor = c.scale * unit;
    constexpr int ROWS = BR + BR % 2;
    const size_t sizes[] = {(size_t)KB * d2, (size_t)KB * dv2, (size_t)KB / 2 * dp, (size_t)KB * dp, (size_t)KB * dvp,
                            (size_t)BR * d2, (size_t)BR * dv2, (size_t)ROWS / 2 * dp, (size_t)ROWS / 2 * dvp,
                            (size_t)BR * ldk / 2, (size_t)ROWS / 2 * ldk, (size_t)ROWS / 2 * ldk};
    size_t total = 0;
    for (size_t n : sizes) total += n + 16;
    float* space = w.extra.get(total);
    int next = 0;
    auto take = [&] {
        float* here = space;
        space += sizes[next++] + 16;
        return here;
    };
    auto *kp = (uint32_t*)take(), *vp = (uint32_t*)take(), *kpair = (uint32_t*)take();
    float *dk = take(), *dvalue = take();
    auto *q16 = (uint32_t*)take(), *g16 = (uint32_t*)take(), *qpair = (uint32_t*)take(), *gpair = (uint32_t*)take();
    auto* ds16 = (uint32_t*)take();
    auto *ppair = (uint32_t*)take(), *dspair = (uint32_t*)take();

    auto half = [](const void* base, int64_t at) { return (const uint16_t*)base + at; };
    for (int p = 0; p < N; p += NR)  // panels of pairs along d: what is not finite is nothing
        for (int i = 0; i < NR; i++) {
            const int j = c0 + p + i;
            const uint16_t *k = nullptr, *v = nullptr;
            if (j < c1) {
                k = (const uint16_t*)keys.key(j);
                v = (const uint16_t*)keys.value(j);
                if (!Keys::finite_half(k, d)) k = nullptr;
                if (!Keys::finite_half(v, c.dv)) v = nullptr;
            }
            uint32_t *ko = kp + (size_t)p * d2 + i, *vo = vp + (size_t)p * dv2 + i;
            for (int e = 0; e < d2; e++) ko[e * NR] = !k ? 0u : k[2 * e] | (2 * e + 1 < d ? (uint32_t)k[2 * e + 1] << 16 : 0u);
            for (int e = 0; e < dv2; e++) vo[e * NR] = !v ? 0u : v[2 * e] | (2 * e + 1 < c.dv ? (uint32_t)v[2 * e + 1] << 16 : 0u);
        }
    for (int j = 0; j < even; j += 2) {  // rows of pairs of keys
        uint32_t* out = kpair + (size_t)(j / 2) * dp;
        const uint16_t* a = (const uint16_t*)keys.key(c0 + j);
        const uint16_t* b = c0 + j + 1 < c1 ? (const uint16_t*)keys.key(c0 + j + 1) : nullptr;
        const bool fine_a = Keys::finite_half(a, d), fine_b = b && Keys::finite_half(b, d);
        for (int e = 0; e < d; e++) out[e] = (fine_a ? a[e] : 0u) | ((uint32_t)(fine_b ? b[e] : 0u) << 16);
        for (int e = d; e < dp; e++) out[e] = 0;
    }
    fill(dk, (ptrdiff_t)width * dp, 0.0f);
    fill(dvalue, (ptrdiff_t)width * dvp, 0.0f);

    float* S = w.s.get((size_t)2 * ROWS * lds);
    float* D = S + (size_t)ROWS * lds;
    RowInputs in;
    ptrdiff_t first_row = 0;
    for (const Rows& rows : blocks) {
        float* dq = g.dq + first_row * dp;
        first_row += rows.n;
        if (!rows.any(c0, c1)) continue;
        const int pairs = (rows.n + 1) / 2;
        for (int r = 0; r < 2 * pairs; r++) {
            uint16_t *q = (uint16_t*)(q16 + (size_t)r * d2), *o = (uint16_t*)(g16 + (size_t)r * dv2);
            if (r == rows.n) break;
            const int64_t at = rows.flat(c, r);
            const uint16_t* from = half(c.q, rows.b * c.qs[0] + rows.head[r] * c.qs[1] + rows.query[r] * c.qs[2]);
            const uint16_t* up = half(c.dout, at * c.dv);
            in.lost[r] = !Keys::finite_half(from, d) || !Keys::finite_half(up, c.dv) || (c.stat && c.stat[at] != c.stat[at]);
            const uint16_t one = 0x3f80;
            for (int e = 0; e < 2 * d2; e++) q[e] = e >= d ? 0 : in.lost[r] ? one : from[e];
            for (int e = 0; e < 2 * dv2; e++) o[e] = e >= c.dv ? 0 : in.lost[r] ? one : up[e];
        }
        for (int r = 0; r < pairs; r++) {
            const uint16_t *qa = (const uint16_t*)(q16 + (size_t)2 * r * d2), *ga = (const uint16_t*)(g16 + (size_t)2 * r * dv2);
            const bool two = 2 * r + 1 < rows.n;
            const uint16_t *qb = qa + 2 * d2, *gb = ga + 2 * dv2;
            uint32_t *qo = qpair + (size_t)r * dp, *go = gpair + (size_t)r * dvp;
            for (int e = 0; e < dp; e++) qo[e] = e < d ? qa[e] | (two ? (uint32_t)qb[e] << 16 : 0u) : 0u;
            for (int e = 0; e < dvp; e++) go[e] = e < c.dv ? ga[e] | (two ? (uint32_t)gb[e] << 16 : 0u) : 0u;
        }
        gemm_half(rows.n, N, d2, q16, d2, 1, kp, NR, (ptrdiff_t)d2 * NR, ScaledStore{S, lds, factor});
        gemm_half(rows.n, N, dv2, g16, dv2, 1, vp, NR, (ptrdiff_t)dv2 * NR, Store{D, lds});
        const bool full = rows.full(c0, c1);
        const float none = F == RELU || F == SOFTPICK ? 0.0f : -INF;
        const int n = round_up(width, VL);
        for (int r = 0; r < rows.n; r++) {
            float *s = S + (ptrdiff_t)r * lds, *x = D + (ptrdiff_t)r * lds;
            float* slope = nullptr;
            if (c.softcap != 0) {
                softcap_row(s, width, cap);
                slope = w.o.get(KB + VL);
                for (int j = 0; j < width; j++) slope[j] = 1.0f - (s[j] / cap) * (s[j] / cap);
            }
            apply_mask(c, rows, r, c0, c1, s, none, unit);
            if (!full) rows.hide(r, c0, c1, s, none);
            for (int j = width; j < n; j++) s[j] = none, x[j] = 0.0f;
            if (in.lost[r]) {
                for (int j = c0; j < c1; j++)
                    s[j - c0] = x[j - c0] = rows.sees(r, j) && !mask_hides(c, rows, r, j) ? QNAN : 0.0f;
                for (int j = width; j < n; j++) s[j] = x[j] = 0.0f;
            } else {
                row_gradient<F>(c, rows, r, s, x, n, g.dhead.empty() ? nullptr : g.dhead.data());
                if (slope)
                    for (int j = 0; j < width; j++) x[j] *= slope[j];
            }
            uint16_t* out = (uint16_t*)(ds16 + (size_t)r * ldk / 2);
            for (int j = 0; j < n; j += VL) narrow_bf16(out + j, load(x + j));
        }
        if (rows.n % 2) fill(S + (ptrdiff_t)rows.n * lds, n, 0.0f), fill(D + (ptrdiff_t)rows.n * lds, n, 0.0f);
        for (int r = 0; r < pairs; r++) {
            const float *sa = S + (ptrdiff_t)2 * r * lds, *xa = D + (ptrdiff_t)2 * r * lds;
            for (int j = 0; j < n; j += VL) {
                pair_rows(ppair + (size_t)r * ldk + j, load(sa + j), load(sa + lds + j));
                pair_rows(dspair + (size_t)r * ldk + j, load(xa + j), load(xa + lds + j));
            }
        }
        gemm_half(width, dvp, pairs, ppair, 1, ldk, gpair, dvp, NR, Add{dvalue, dvp});
        gemm_half(width, dp, pairs, dspair, 1, ldk, qpair, dp, NR, Add{dk, dp});
        gemm_half(rows.n, dp, even / 2, ds16, ldk / 2, 1, kpair, dp, NR, Add{dq, dp});
    }
    for (int j = c0; j < c1; j++) {
        const int64_t at = ((int64_t)keys.b * c.kv_heads + keys.hk) * c.s + j;
        write_row((char*)c.dk + at * d * 2, BF16, dk + (ptrdiff_t)(j - c0) * dp, d, c.scale);
        write_row((char*)c.dvalue + at * c.dv * 2, BF16, dvalue + (ptrdiff_t)(j - c0) * dvp, c.dv, 1.0f);
    }
}
#endif

INLINE void write_queries(const Call& c, const std::vector<Rows>& blocks, const float* dq, int dp, int from, int to) {
    ptrdiff_t first_row = 0;
    for (int i = 0; i < (int)blocks.size(); i++) {
        const Rows& rows = blocks[i];
        if (i >= from && i < to)
            for (int r = 0; r < rows.n; r++)
                write_row((char*)c.dq + rows.flat(c, r) * c.d * item_size(c.dtype), c.dtype, dq + (first_row + r) * dp, c.d,
                          c.scale);
        first_row += rows.n;
    }
}

template <int F>
void dense_backward(const Call& c) {
    const int units = c.batch * c.kv_heads, dp = round_up(c.d, VL), group = c.heads / c.kv_heads;
    std::atomic<int> next{0};
    Barrier barrier;
    std::vector<Gradients> parts(c.threads);
    std::vector<Scratch> space(c.threads);

    in_threads(c.threads, [&](int me, int team) {
        const bool alone = units >= team;  // a thread per kv head, else all threads on one after the other
        Worker w;
        for (int u = 0; (u = alone ? next++ : u) < units; u++) {
            Keys keys{&c, u / c.kv_heads, u % c.kv_heads};
            keys.dvp = round_up(c.dv, VL);
            const std::vector<Rows> blocks = blocks_of(c, keys.b, keys.hk);
            size_t n = 0;
            int used = 0;
            for (auto& rows : blocks) n += rows.n, used = std::max(used, rows.kmax);
            Gradients& g = parts[me];
            g.dq = space[me].get(std::max<size_t>(n * dp, 1));
            fill(g.dq, (ptrdiff_t)(n * dp), 0.0f);
            g.dhead.assign(F == SIGMOID && c.dhead ? c.heads : 0, 0.0);
            for (int i = alone ? 0 : me; i * KB < used; i += alone ? 1 : team)
#if HALF_PRODUCTS
                if (c.dtype == BF16) tile_backward_half<F>(c, keys, blocks, i * KB, std::min((i + 1) * KB, used), w, g);
                else
#endif
                    tile_backward<F>(c, keys, blocks, i * KB, std::min((i + 1) * KB, used), w, g);
            auto heads_out = [&] {
                if (F == SIGMOID && c.dhead)
                    for (int h = keys.hk * group; h < (keys.hk + 1) * group; h++) {
                        double sum = 0;
                        for (int p = alone ? me : 0; p < (alone ? me + 1 : team); p++) sum += parts[p].dhead[h];
                        c.dhead[(int64_t)keys.b * c.heads + h] = (float)sum;
                    }
            };
            if (alone) {
                write_queries(c, blocks, g.dq, dp, 0, (int)blocks.size());
                heads_out();
            } else {
                barrier.wait(team, [&] {
                    for (int p = 1; p < team; p++)  // always in this order: the same bits every time
                        for (size_t i = 0; i < n * dp; i++) parts[0].dq[i] += parts[p].dq[i];
                    write_queries(c, blocks, parts[0].dq, dp, 0, (int)blocks.size());
                    heads_out();
                });
            }
        }
    });
}

INLINE float dot(const float* a, const float* b, int n) {
    vf sum = vf{};
    for (int i = 0; i < n; i += VL) sum += load(a + i) * load(b + i);
    return hsum(sum);
}
INLINE void axpy(float* y, float a, const float* x, int n) {
    for (int i = 0; i < n; i += VL) store(y + i, load(y + i) + a * load(x + i));
}

// Top-k and entmax: scores again in one product; everything else runs over the keys with a weight.
template <int F>
void sparse_backward(const Call& c) {
    const int units = c.batch * c.kv_heads, d = c.d, dp = round_up(d, VL), group = c.heads / c.kv_heads;
    std::atomic<int> next{0};
    in_threads(std::min(c.threads, std::max(units, 1)), [&](int, int) {
        Worker w;
        Scratch rows_of, panels, sums, inputs;
        std::vector<uint8_t> bad;
        for (int u; (u = next++) < units;) {
            Keys keys{&c, u / c.kv_heads, u % c.kv_heads};
            const int dvp = keys.dvp = round_up(c.dv, VL), size = item_size(c.dtype);
            bad.assign(c.s, 0);
            keys.bad = &bad;
            const std::vector<Rows> blocks = blocks_of(c, keys.b, keys.hk);
            int used = 0;
            for (auto& rows : blocks) used = std::max(used, rows.kmax);
            if (!used) continue;
            keys.kp = panels.get((size_t)round_up(used, NR) * d);
            keys.pack_k(0, used, w.rows.get((size_t)NR * d));
            float* krow = rows_of.get((size_t)used * (dp + dvp));
            float* vrow = krow + (size_t)used * dp;
            float* dk = sums.get((size_t)used * (dp + dvp));
            float* dvalue = dk + (size_t)used * dp;
            std::fill(dk, dk + (size_t)used * (dp + dvp), 0.0f);
            keys.vbuf = vrow;
            keys.convert_v(0, used);
            for (int j = 0; j < used; j++) {
                float* k = krow + (size_t)j * dp;
                read_row(keys.key(j), c.dtype, k, d, 1.0f);
                std::fill(k + d, k + dp, 0.0f);
                if (!all_finite(k, d)) std::fill(k, k + d, 0.0f);
            }
            std::vector<double> dhead(c.heads, 0.0);
            const float unit = unit_of(c), cap = c.softcap * unit;
            RowInputs in;
            in.q = inputs.get((size_t)BR * (dp + dvp));
            in.dout = in.q + (size_t)BR * dp;
            for (const Rows& all : blocks) {
                const int from = all.kmin / NR * NR, lds = round_up(all.kmax - from, NR) + 2 * VL;
                const int fit = std::max(MR, std::min(BR, (int)((640 << 10) / ((size_t)lds * 4) / MR * MR)));
                float* S = w.s.get((size_t)fit * lds);
                for (int r0 = 0; r0 < all.n; r0 += fit) {
                    Rows rows;
                    for (int r = r0; r < std::min(all.n, r0 + fit); r++) rows.add(c, all.b, all.head[r], all.query[r]);
                    rows.close();
                    read_rows(c, rows, dp, dvp, c.scale * unit, in);
                    const int n = rows.kmax - from;
                    if (n > 0)
                        gemm(rows.n, round_up(n, NR), d, in.q, dp, 1, keys.kp + (ptrdiff_t)from * d, NR, (ptrdiff_t)d * NR,
                             Store{S, lds});
                    float* dq = w.o.get(dp);
                    for (int r = 0; r < rows.n; r++) {
                        const int64_t at = rows.flat(c, r);
                        char* out = (char*)c.dq + at * d * size;
                        const float *q = in.q + (ptrdiff_t)r * dp, *g = in.dout + (ptrdiff_t)r * dvp;
                        float* x = S + (ptrdiff_t)r * lds;
                        std::fill(dq, dq + dp, in.lost[r] ? QNAN : 0.0f);
                        if (in.lost[r]) {
                            for (int j = rows.kmin; j < rows.kmax; j++)
                                if (rows.sees(r, j) && !mask_hides(c, rows, r, j)) {
                                    std::fill(dk + (size_t)j * dp, dk + (size_t)(j + 1) * dp, QNAN);
                                    std::fill(dvalue + (size_t)j * dvp, dvalue + (size_t)(j + 1) * dvp, QNAN);
                                }
                            write_row(out, c.dtype, dq, d, 1.0f);
                            continue;
                        }
                        if (c.softcap != 0) softcap_row(x, n, cap);
                        apply_mask(c, rows, r, from, rows.kmax, x, -INF, unit);
                        rows.hide(r, from, rows.kmax, x, -INF);
                        Sparse& list = w.list;
                        list.reserve(std::max(n, 1));
                        float* dp_of = list.work.data();
                        const float stat = c.stat[at];
                        const float alpha = F == ENTMAX ? c.head[rows.head[r]] : 0.0f;
                        if (n <= 0 || (F == ENTMAX ? stat == -INF : stat == 0.0f)) list.n = 0;
                        else if constexpr (F == ENTMAX) collect(x, n, stat / (alpha - 1.0f), false, list);
                        else collect(x, n, c.stat2[at], c.stat2[at] != -INF, list);
                        float m = F == TOPK && c.p0 > 0 ? std::log2(c.p0) : -INF;
                        if (F == TOPK) m = std::max(m, row_max(list.weight.data(), list.n));
                        double su = 0, sud = 0, entropy = 0, total = 0;
                        for (int i = 0; i < list.n; i++) {
                            const int j = from + list.index[i];
                            dp_of[i] = dot(g, vrow + (size_t)j * dvp, dvp);
                            float p, slope;
                            if constexpr (F == ENTMAX) {
                                const float gap = std::max((alpha - 1.0f) * list.weight[i] - stat, 1e-30f);
                                if (alpha == 2.0f) p = gap, slope = 1.0f;
                                else if (alpha == 1.5f) p = gap * gap, slope = gap;
                                else p = std::pow(gap, 1.0f / (alpha - 1.0f)), slope = p / gap;
                                su += slope;
                                sud += (double)slope * dp_of[i];
                                total += p;
                                if (p > 0) entropy += (double)p * std::log(p);
                                axpy(dvalue + (size_t)j * dvp, p, g, dvp);
                                list.weight[i] = slope;
                            } else {
                                p = exp2s(list.weight[i] - m) * stat;
                                axpy(dvalue + (size_t)j * dvp, p, g, dvp);
                                list.weight[i] = p;
                            }
                        }
                        const float mean = F == ENTMAX ? (su > 0 ? (float)(sud / su) : 0.0f) : c.delta[at];
                        for (int i = 0; i < list.n; i++) {
                            const int j = from + list.index[i];
                            if (F == ENTMAX && c.dhead) {
                                const double a1 = alpha - 1.0, slope = list.weight[i];
                                const double p = alpha == 2.0f ? std::max(a1 * (double)x[list.index[i]] - stat, 0.0)
                                                 : std::pow(std::max(a1 * (double)x[list.index[i]] - stat, 1e-30), 1.0 / a1);
                                const double share = slope / su, plogp = p > 0 ? p * std::log(p) : 0.0;
                                dhead[rows.head[r]] += dp_of[i] * ((p - share) / (a1 * a1) - (plogp - share * entropy) / a1);
                            }
                            float ds = list.weight[i] * (dp_of[i] - mean);
                            if (c.softcap != 0) {
                                // undo the bias to find where on the curve the score lies
                                float s = x[list.index[i]];
                                if (c.mask_type == FLOAT_MASK)
                                    s -= unit * ((const float*)c.mask)[rows.b * c.ms[0] + rows.head[r] * c.ms[1] + rows.query[r] * c.ms[2] + j * c.ms[3]];
                                ds *= 1.0f - (s / cap) * (s / cap);
                            }
                            axpy(dq, ds, krow + (size_t)j * dp, dp);
                            axpy(dk + (size_t)j * dp, ds, q, dp);
                        }
                        write_row(out, c.dtype, dq, d, c.scale);
                    }
                }
            }
            for (int j = 0; j < used; j++) {
                const int64_t at = ((int64_t)keys.b * c.kv_heads + keys.hk) * c.s + j;
                write_row((char*)c.dk + at * d * size, c.dtype, dk + (size_t)j * dp, d, 1.0f / unit);
                write_row((char*)c.dvalue + at * c.dv * size, c.dtype, dvalue + (size_t)j * dvp, c.dv, 1.0f);
            }
            if (c.dhead)
                for (int h = keys.hk * group; h < (keys.hk + 1) * group; h++)
                    c.dhead[(int64_t)keys.b * c.heads + h] = (float)dhead[h];
        }
    });
}

INLINE void backward(const Call& c) {
    switch (c.family) {
        case SOFTMAX: return dense_backward<SOFTMAX>(c);
        case SIGMOID: return dense_backward<SIGMOID>(c);
        case RELU: return dense_backward<RELU>(c);
        case SOFTPICK: return dense_backward<SOFTPICK>(c);
        case CLIPPED: return dense_backward<CLIPPED>(c);
        case TOPK: return sparse_backward<TOPK>(c);
        default: return sparse_backward<ENTMAX>(c);
    }
}
