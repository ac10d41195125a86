// Forward passes. Tiles of scores stay in the cache; nothing of the size queries × keys is ever held.
#pragma once
#include "maps.h"

struct Worker {  // what one thread keeps between blocks
    Scratch q, s, o, rows, kp, v, extra;
    std::vector<uint8_t> bad;
    Sparse list;
};

// Queries of a block, times scale (and log2 e), one row after the other. A row that is not finite is zeroed, marked.
INLINE bool read_queries(const Call& c, const Rows& rows, float* qb, float factor, bool* lost) {
    bool any = false;
    for (int r = 0; r < rows.n; r++) {
        const char* x = (const char*)c.q +
                        (rows.b * c.qs[0] + rows.head[r] * c.qs[1] + rows.query[r] * c.qs[2]) * item_size(c.dtype);
        read_row(x, c.dtype, qb + r * c.d, c.d, factor);
        lost[r] = !all_finite(qb + r * c.d, c.d);
        if (lost[r]) std::fill(qb + r * c.d, qb + (r + 1) * c.d, 0.0f), any = true;
    }
    return any;
}

// The keys of a block's tile, and where its packed keys and its values lie.
struct Tile {
    int c0, c1;
    const float *kp, *v;
    ptrdiff_t ldv;
    const uint32_t *kp16, *v16;
};

// Whether a call multiplies bfloat16 pairs: where the backward pass does too, since both must round scores alike.
INLINE bool in_half(const Call& c) { return HALF_PRODUCTS && c.dtype == BF16 && c.family <= CLIPPED; }

// A few rows against many keys, as in decoding: packing would cost more than it saves, so keys and values are read where
// they lie. Scores then differ from the backward pass's in their last bits, hence not where one will come.
constexpr int FEW = 4;
INLINE bool by_dots(const Call& c, const Rows& rows, bool lazy) { return lazy && (c.flags & NO_BACKWARD) && rows.n <= FEW; }

INLINE vf load_as_float(const void* p, int dtype, int at) {
    if (dtype == F32) return load((const float*)p + at);
    if (dtype == BF16) return widen_bf16((const uint16_t*)p + at);
    vf x;
    read_row((const uint16_t*)p + at, F16, (float*)&x, VL, 1.0f);
    return x;
}
// S[r, j − c0] = q_r · k_j. A key that is not finite is marked, its scores 0.
INLINE void dot_scores(const Call& c, const Keys& keys, const Rows& rows, const float* qb, int c0, int c1, float* S, ptrdiff_t lds) {
    const int d = c.d, whole = d / VL * VL;
    for (int j = c0; j < c1; j++) {
        const char* k = keys.key(j);
        bool odd = false;
        for (int r = 0; r < rows.n; r++) {
            const float* q = qb + (ptrdiff_t)r * d;
            vf acc = vf{};
            for (int e = 0; e < whole; e += VL) acc += load(q + e) * load_as_float(k, c.dtype, e);
            float sum = hsum(acc), x;
            for (int e = whole; e < d; e++) read_row(k + e * item_size(c.dtype), c.dtype, &x, 1, 1.0f), sum += q[e] * x;
            S[r * lds + j - c0] = sum;
            odd |= !(sum - sum == 0);
        }
        if (!odd) continue;
        std::vector<float> row(d);
        read_row(k, c.dtype, row.data(), d, 1.0f);
        if (all_finite(row.data(), d)) continue;  // large numbers, not a broken key
        (*keys.bad)[j] = 1;
        for (int r = 0; r < rows.n; r++) S[r * lds + j - c0] = 0.0f;
    }
}
// O[r] += Σ_j S[r, j − c0] · v_j.
INLINE void dot_values(const Call& c, const Keys& keys, const Rows& rows, int c0, int c1, const float* S, ptrdiff_t lds, float* O,
                       ptrdiff_t ldo) {
    const int dv = c.dv, whole = dv / VL * VL, size = item_size(c.dtype);
    for (int e0 = 0; e0 < whole; e0 += 4 * VL) {
        const int n = std::min(4, (whole - e0) / VL);
        for (int r = 0; r < rows.n; r++) {
            vf acc[4] = {vf{}, vf{}, vf{}, vf{}};
            const float* p = S + r * lds;
            if (n == 4) {
                for (int j = c0; j < c1; j++) {
                    const char* v = keys.value(j) + (ptrdiff_t)e0 * size;
#pragma GCC unroll 4
                    for (int u = 0; u < 4; u++) acc[u] += p[j - c0] * load_as_float(v, c.dtype, u * VL);
                }
            } else {
                for (int j = c0; j < c1; j++)
                    for (int u = 0; u < n; u++) acc[u] += p[j - c0] * load_as_float(keys.value(j) + (ptrdiff_t)e0 * size, c.dtype, u * VL);
            }
            for (int u = 0; u < n; u++) {
                float* o = O + r * ldo + e0 + u * VL;
                store(o, load(o) + acc[u]);
            }
        }
    }
    for (int e = whole; e < dv; e++)
        for (int r = 0; r < rows.n; r++)
            for (int j = c0; j < c1; j++) {
                float x;
                read_row(keys.value(j) + (ptrdiff_t)e * size, c.dtype, &x, 1, 1.0f);
                O[r * ldo + e] += S[r * lds + j - c0] * x;
            }
}
// Visits the tiles that some row of the block sees. With `lazy` keys are packed tile by tile into the worker's scratch,
// with `dots` not at all.
template <class Visit>
void tiles(const Call& c, Keys& keys, const Rows& rows, Worker& w, bool lazy, bool dots, Visit visit) {
    for (int c0 = rows.kmin / NR * NR; c0 < rows.kmax; c0 += KB) {
        const int c1 = std::min(c0 + KB, rows.kmax);
        if (!rows.any(c0, c1)) continue;
        Tile tile{c0, c1, nullptr, nullptr, 0, nullptr, nullptr};
        if (dots) {
            visit(tile);
            continue;
        }
#if HALF_PRODUCTS
        if (in_half(c)) {
            const int d2 = keys.pairs();
            if (lazy) {
                keys.origin = c0;
                keys.kp16 = (uint32_t*)w.kp.get((size_t)KB * d2);
                keys.v16 = (uint32_t*)w.v.get((size_t)KB / 2 * keys.dvp);
                keys.pack_half(c0, c1);
            }
            tile.kp16 = keys.kp16 + (ptrdiff_t)(c0 - keys.origin) * d2;
            tile.v16 = keys.v16 + (ptrdiff_t)(c0 - keys.origin) / 2 * keys.dvp;
            visit(tile);
            continue;
        }
#endif
        if (lazy) {
            keys.origin = c0;
            keys.kp = w.kp.get((size_t)KB * c.d);
            keys.pack_k(c0, c1, w.rows.get((size_t)NR * c.d));
            tile.kp = keys.kp;
            if (keys.v_direct() && keys.finite_v(c0, c1)) {
                tile.v = (const float*)keys.value(c0);
                tile.ldv = c.vs[2];
            } else {
                keys.vbuf = w.v.get((size_t)KB * keys.dvp);
                keys.convert_v(c0, c1);
                tile.v = keys.vbuf;
                tile.ldv = keys.dvp;
            }
        } else {
            tile.kp = keys.kp + (ptrdiff_t)c0 * c.d;
            tile.v = keys.v + c0 * keys.ldv;
            tile.ldv = keys.ldv;
        }
        visit(tile);
    }
}

// Rows that see a key with something that is not finite, and rows of a query that is not, say so.
INLINE bool row_is_lost(const Call& c, const Rows& rows, int r, const std::vector<uint8_t>& bad, bool some_bad) {
    if (!some_bad) return false;
    const int spans[2][2] = {{rows.flo[r], rows.fhi[r]}, {rows.lo[r], rows.hi[r]}};
    for (auto& span : spans)
        for (int j = span[0]; j < span[1]; j++)
            if (bad[j] && !mask_hides(c, rows, r, j)) return true;
    return false;
}

INLINE void finish_row(const Call& c, const Rows& rows, int r, const float* o, float factor, bool lost, float stat,
                       float stat2, float mass) {
    const int64_t at = rows.flat(c, r);
    char* out = (char*)c.out + at * c.dv * item_size(c.dtype);
    if (lost) {
        std::vector<float> nan(c.dv, QNAN);
        write_row(out, c.dtype, nan.data(), c.dv, 1.0f);
        stat = stat2 = mass = QNAN;
    } else {
        write_row(out, c.dtype, o, c.dv, factor);
    }
    if (c.stat) c.stat[at] = stat;
    if (c.stat2) c.stat2[at] = stat2;
    if (c.mass) c.mass[at] = mass;
}

INLINE void softcap_row(float* x, int n, float cap) {
    const float inv = 1.0f / cap;
    int j = 0;
    for (; j + VL <= n; j += VL) store(x + j, softcapv(load(x + j), cap, inv));
    for (; j < n; j++) x[j] = softcapv(splat(x[j]), cap, inv)[0];
}

// σ of base-2 scores with a bias per row, written by the product's own epilogue.
struct SigmoidStore {
    static constexpr bool narrow = false;
    float* C;
    ptrdiff_t ldc;
    const float* bias;
    INLINE void operator()(int i, int w, vf x) const {
        const vf e = exp2v(vmin(-(x + bias[i]), splat(126.0f)));
        store(C + i * ldc + w * VL, 1.0f / (1.0f + e));
    }
    SigmoidStore at(int i, int j) const { return {C + i * ldc + j, ldc, bias + i}; }
};
struct ReluStore {
    static constexpr bool narrow = false;
    float* C;
    ptrdiff_t ldc;
    INLINE void operator()(int i, int w, vf x) const { store(C + i * ldc + w * VL, vmax(x, vf{})); }
    ReluStore at(int i, int j) const { return {C + i * ldc + j, ldc}; }
};
struct SquareStore {
    static constexpr bool narrow = false;
    float* C;
    ptrdiff_t ldc;
    INLINE void operator()(int i, int w, vf x) const {
        const vf y = vmax(x, vf{});
        store(C + i * ldc + w * VL, y * y);
    }
    SquareStore at(int i, int j) const { return {C + i * ldc + j, ldc}; }
};

#if HALF_PRODUCTS
// The same two for bfloat16 weights; the product comes unscaled.
template <bool FAST>
struct SigmoidHalf {
    static constexpr bool narrow = false;
    uint16_t* C;
    ptrdiff_t ldc;
    const float* bias;
    float factor;
    INLINE void operator()(int i, int w, vf x) const {
        const vf e = exp2v<FAST>(vmin(-(x * factor + bias[i]), splat(126.0f)));
        narrow_bf16(C + i * ldc + w * VL, inverse<FAST>(1.0f + e));
    }
    SigmoidHalf at(int i, int j) const { return {C + i * ldc + j, ldc, bias + i, factor}; }
};
struct ReluHalf {
    static constexpr bool narrow = false;
    uint16_t* C;
    ptrdiff_t ldc;
    float factor;
    bool squared;
    INLINE void operator()(int i, int w, vf x) const {
        const vf y = vmax(x * factor, vf{});
        narrow_bf16(C + i * ldc + w * VL, squared ? y * y : y);
    }
    ReluHalf at(int i, int j) const { return {C + i * ldc + j, ldc, factor, squared}; }
};
#endif

INLINE float row_value(const Call& c, const Rows& rows, int r) { return c.row[rows.b * c.rs[0] + rows.head[r] * c.rs[1] + rows.query[r]]; }

// Softmax (with a sink logit), sigmoid, relu, softpick: one pass over the keys. HALF: products of bfloat16 pairs;
// FAST: exponentials to 2·10⁻⁴.
template <int F, bool HALF, bool FAST>
void online_block(const Call& c, Keys& keys, const Rows& rows, Worker& w, bool lazy, bool may_dot = true) {
    const int d = c.d, dvp = keys.dvp, lds = KB + VL;
    float* qb = w.q.get((size_t)BR * d);
    float* S = w.s.get((size_t)BR * lds);
    float* O = w.o.get((size_t)BR * dvp);
    bool lost[BR];
    float m[BR], l[BR], num[BR], bias[BR];
    const float unit = unit_of(c), cap = c.softcap * unit;
    read_queries(c, rows, qb, HALF ? 1.0f : c.scale * unit, lost);
    constexpr ptrdiff_t ldp = KB + 2 * VL;  // bfloat16 weights
    uint32_t* q16 = nullptr;
    uint16_t* P16 = nullptr;
    const int d2 = (d + 1) / 2;
    if constexpr (HALF) {  // exactly what came: bfloat16 → float → bfloat16
        q16 = (uint32_t*)w.extra.get((size_t)BR * d2 + (size_t)BR * ldp / 2);
        P16 = (uint16_t*)(q16 + (size_t)BR * d2);
        for (int r = 0; r < rows.n; r++) {
            uint16_t* out = (uint16_t*)(q16 + (size_t)r * d2);
            write_row(out, BF16, qb + (size_t)r * d, d, 1.0f);
            if (d % 2) out[d] = 0;
        }
    }
    fill(O, (ptrdiff_t)rows.n * dvp, 0.0f);
    for (int r = 0; r < rows.n; r++) {
        m[r] = F == SOFTMAX ? (c.head ? c.head[rows.head[r]] * LOG2E : -INF) : 0.0f;
        l[r] = num[r] = 0.0f;
        bias[r] = F != SIGMOID ? 0.0f : LOG2E * (c.head ? c.head[rows.head[r]] : row_value(c, rows, r));
    }
    const bool dots = !HALF && may_dot && by_dots(c, rows, lazy);
    const bool fused = (F == SIGMOID || F == RELU) && c.softcap == 0 && c.mask_type == NO_MASK && !dots;
    const bool squared = c.flags & SQUARED;

    tiles(c, keys, rows, w, lazy, dots, [&](const Tile& tile) {
        const int width = tile.c1 - tile.c0, N = round_up(width, NR);
        const ptrdiff_t panel = (ptrdiff_t)d * NR;
        const bool full = rows.full(tile.c0, tile.c1);
        if constexpr (HALF) {
#if HALF_PRODUCTS
            const ptrdiff_t half_panel = (ptrdiff_t)d2 * NR;
            const float factor = c.scale * unit;
            if (fused && F == SIGMOID) gemm_half(rows.n, N, d2, q16, d2, 1, tile.kp16, NR, half_panel, SigmoidHalf<FAST>{P16, ldp, bias, factor});
            else if (fused) gemm_half(rows.n, N, d2, q16, d2, 1, tile.kp16, NR, half_panel, ReluHalf{P16, ldp, factor, squared});
            else gemm_half(rows.n, N, d2, q16, d2, 1, tile.kp16, NR, half_panel, ScaledStore{S, lds, factor});
#endif
        } else if (dots) dot_scores(c, keys, rows, qb, tile.c0, tile.c1, S, lds);
        else if (fused && F == SIGMOID) gemm(rows.n, N, d, qb, d, 1, tile.kp, NR, panel, SigmoidStore{S, lds, bias});
        else if (fused && squared) gemm(rows.n, N, d, qb, d, 1, tile.kp, NR, panel, SquareStore{S, lds});
        else if (fused) gemm(rows.n, N, d, qb, d, 1, tile.kp, NR, panel, ReluStore{S, lds});
        else gemm(rows.n, N, d, qb, d, 1, tile.kp, NR, panel, Store{S, lds});

        const int whole = width / VL * VL;
        for (int r = 0; r < rows.n; r++) {
            float* x = S + r * lds;
            uint16_t* p16 = HALF ? P16 + r * ldp : nullptr;
            // where a weight goes once it is known
            auto put = [&](int j, vf p) __attribute__((always_inline)) {
                if constexpr (HALF) narrow_bf16(p16 + j, p);
                else store(x + j, p);
            };
            if (HALF && fused) {
                if (!full || width % VL) rows.hide_half(r, tile.c0, tile.c1, p16, round_up(width, VL));
                if (c.mass) {
                    vf sum = vf{};
                    for (int j = 0; j < round_up(width, VL); j += VL) sum += widen_bf16(p16 + j);
                    l[r] += hsum(sum);
                }
                continue;
            }
            if (fused) {
                if (!full) rows.hide(r, tile.c0, tile.c1, x, 0.0f);
            } else {
                const float none = F == SOFTMAX || F == SIGMOID ? -INF : 0.0f;
                if (c.softcap != 0) softcap_row(x, width, cap);
                apply_mask(c, rows, r, tile.c0, tile.c1, x, none, unit);
                if (!full) rows.hide(r, tile.c0, tile.c1, x, none);
            }
            // pad to whole vectors with what weighs nothing
            const float pad = fused || F == RELU || F == SOFTPICK ? 0.0f : -INF;
            for (int j = width; j < round_up(width, VL); j++) x[j] = pad;
            const int n = width == whole ? whole : whole + VL;

            if constexpr (F == SIGMOID || F == RELU) {
                vf sum = vf{};
                if (!fused) {
                    for (int j = 0; j < n; j += VL) {
                        const vf y = load(x + j);
                        vf p;
                        if constexpr (F == SIGMOID) {
                            const vf e = exp2v(vmin(-(y + bias[r]), splat(126.0f)));
                            p = select(y == -INF, vf{}, 1.0f / (1.0f + e));
                        } else {
                            p = vmax(y, vf{});
                            if (squared) p = p * p;
                        }
                        sum += p;
                        put(j, p);
                    }
                } else if (c.mass) {
                    for (int j = 0; j < n; j += VL) sum += load(x + j);
                }
                l[r] += hsum(sum);
            } else {
                vf top4[4] = {splat(-INF), splat(-INF), splat(-INF), splat(-INF)};
                int j = 0;
                for (; j + 4 * VL <= n; j += 4 * VL)
                    for (int u = 0; u < 4; u++) top4[u] = vmax(load(x + j + u * VL), top4[u]);
                for (; j < n; j += VL) top4[0] = vmax(load(x + j), top4[0]);
                const float top = std::max(m[r], hmax(vmax(vmax(top4[0], top4[1]), vmax(top4[2], top4[3]))));
                if (F == SOFTMAX && top == -INF) {
                    for (int i = 0; i < n; i += VL) put(i, vf{});
                    continue;
                }
                if (top > m[r]) {
                    const float shrink = exp2s(m[r] - top);
                    l[r] *= shrink;
                    num[r] *= shrink;
                    float* o = O + (ptrdiff_t)r * dvp;
                    for (int i = 0; i < dvp; i += VL) store(o + i, load(o + i) * shrink);
                    m[r] = top;
                }
                vf sum = vf{}, above = vf{};
                if constexpr (F == SOFTMAX) {
                    for (int i = 0; i < n; i += VL) {
                        const vf e = exp2v<FAST>(load(x + i) - top);
                        put(i, e);
                        sum += e;
                    }
                } else {
                    const float em = exp2s(-top);
                    // near the line e^s − 1 has no digits; far above it the 1 is nothing beside the row's sum
                    const bool near = top < 80.0f;
                    for (int i = 0; i < n; i += VL) {
                        const vf y = load(x + i);
                        const vf v = near ? exp2m1v<FAST>(y) * em : exp2v<FAST>(y - top) - em;
                        const vf p = vmax(v, vf{});
                        put(i, p);
                        sum += vabs(v);
                        above += p;
                    }
                    // masked keys hold 0 and e^0 − 1 = 0, but for the far form's rounding
                    num[r] += hsum(above);
                }
                l[r] += hsum(sum);
            }
        }
        if constexpr (HALF) {
#if HALF_PRODUCTS
            gemm_half(rows.n, dvp, (width + 1) / 2, (const uint32_t*)P16, ldp / 2, 1, tile.v16, dvp, NR, Add{O, dvp});
#endif
        } else if (dots) {
            dot_values(c, keys, rows, tile.c0, tile.c1, S, lds, O, dvp);
        } else {
            gemm(rows.n, dvp, width, S, lds, 1, tile.v, tile.ldv, NR, Add{O, dvp});
        }
    });
    if (dots)  // a value that is not finite has reached every row's sum, seen or not: once more, with care
        for (int r = 0; r < rows.n; r++)
            if (!all_finite(O + (ptrdiff_t)r * dvp, c.dv)) return online_block<F, HALF, FAST>(c, keys, rows, w, lazy, false);

    bool some_bad = false;
    for (int j = rows.kmin; j < rows.kmax && !some_bad; j++) some_bad = (*keys.bad)[j];
    for (int r = 0; r < rows.n; r++) {
        float factor = 1.0f, stat = 0, stat2 = 0, mass = l[r];
        if constexpr (F == SOFTMAX) {
            const float z = c.head ? c.head[rows.head[r]] * LOG2E : -INF;
            const float total = l[r] + (z == -INF ? 0.0f : exp2s(z - m[r]));
            factor = total > 0 ? 1.0f / total : (total == 0 ? 0.0f : QNAN);
            if (m[r] == INF) factor = QNAN;
            mass = l[r] * factor;
            // two numbers rather than their log-sum-exp: at scores of 1e4 that has no digits left for a weight
            stat = total == 0 ? 0.0f : m[r];
            stat2 = factor;
        } else if constexpr (F == SOFTPICK) {
            const float total = l[r] + c.p0 * exp2s(-m[r]);
            factor = total > 0 ? 1.0f / total : (total == 0 ? 0.0f : QNAN);
            mass = num[r] * factor;
            stat = m[r] * LN2;
            stat2 = factor;
            if (c.kept) write_row(c.kept + rows.flat(c, r) * c.dv, F32, O + (ptrdiff_t)r * dvp, c.dv, factor);
        } else if constexpr (F == RELU) {
            factor = c.row ? 1.0f / row_value(c, rows, r) : 1.0f;
            mass = l[r] * factor;
        }
        finish_row(c, rows, r, O + (ptrdiff_t)r * dvp, factor, lost[r] || row_is_lost(c, rows, r, *keys.bad, some_bad),
                   stat, stat2, mass);
    }
}

// o[N vectors] = Σ over a list of weights times rows of values, in registers. `row(i)` is the i-th row, or null.
template <int N, class Row>
INLINE void gather(const Sparse& list, Row row, float* o) {
    vf acc[N];
    for (int e = 0; e < N; e++) acc[e] = vf{};
    for (int i = 0; i < list.n; i++) {
        const float* v = row(i);
        if (!v) continue;
        const float p = list.weight[i];
#pragma GCC unroll 8
        for (int e = 0; e < N; e++) acc[e] += p * load(v + e * VL);
    }
    for (int e = 0; e < N; e++) store(o + e * VL, acc[e]);
}

// Clipped softmax, top-k, entmax: the rows' scores are held whole, the value product runs over the keys with a weight.
template <int F>
void row_block(const Call& c, Keys& keys, const Rows& all, Worker& w, bool lazy) {
    const int d = c.d, dvp = keys.dvp;
    const int from = all.kmin / NR * NR, width = all.kmax - from, lds = round_up(width, NR) + 2 * VL;
    // as many rows at a time as leave the scores in the second-level cache
    const int fit = std::max(MR, std::min(BR, (int)((640 << 10) / ((size_t)lds * 4) / MR * MR)));
    float* qb = w.q.get((size_t)BR * d);
    float* S = w.s.get((size_t)fit * lds);
    float* O = w.o.get((size_t)fit * 2 * dvp);
    bool lost[BR];
    const float unit = unit_of(c);
    const bool dots = by_dots(c, all, lazy), half = in_half(c) && !dots;
    read_queries(c, all, qb, half ? 1.0f : c.scale * unit, lost);
#if HALF_PRODUCTS
    const int d2 = (d + 1) / 2;
    std::vector<uint32_t> q16(half ? (size_t)all.n * d2 : 0, 0u);
    if (half)
        for (int r = 0; r < all.n; r++) write_row(q16.data() + (size_t)r * d2, BF16, qb + (size_t)r * d, d, 1.0f);
#endif

    for (int r0 = 0; r0 < all.n; r0 += fit) {
        Rows rows;
        for (int r = r0; r < std::min(all.n, r0 + fit); r++) rows.add(c, all.b, all.head[r], all.query[r]);
        rows.close();
        const float none = -INF;
        tiles(c, keys, rows, w, lazy, dots, [&](const Tile& tile) {
            if (dots) return dot_scores(c, keys, rows, qb + (ptrdiff_t)r0 * d, tile.c0, tile.c1, S + (tile.c0 - from), lds);
#if HALF_PRODUCTS
            if (half) {
                gemm_half(rows.n, round_up(tile.c1 - tile.c0, NR), d2, q16.data() + (ptrdiff_t)r0 * d2, d2, 1, tile.kp16, NR,
                          (ptrdiff_t)d2 * NR, ScaledStore{S + (tile.c0 - from), lds, c.scale * unit});
                return;
            }
#endif
            gemm(rows.n, round_up(tile.c1 - tile.c0, NR), d, qb + (ptrdiff_t)r0 * d, d, 1, tile.kp, NR, (ptrdiff_t)d * NR,
                 Store{S + (tile.c0 - from), lds});
        });
        bool some_bad = false;
        for (int j = rows.kmin; j < rows.kmax && !some_bad; j++) some_bad = (*keys.bad)[j];
        for (int r = 0; r < rows.n; r++) {
            const int n = rows.kmax - from;
            float* x = S + (ptrdiff_t)r * lds;
            if (c.softcap != 0) softcap_row(x, n, c.softcap * unit);
            apply_mask(c, rows, r, from, rows.kmax, x, none, unit);
            rows.hide(r, from, rows.kmax, x, none);
            float stat = 0, stat2 = 0, mass = 1, gamma = 0;
            const int64_t at = rows.flat(c, r);
            if constexpr (F == ENTMAX) {
                stat = entmax_row(x, n, c.head[rows.head[r]], w.list);
                mass = stat == -INF ? 0.0f : 1.0f;
            } else if constexpr (F == TOPK) {
                stat = topk_row(x, n, c.k_of_row[at], c.p0, w.list, &stat2, &mass);
            } else {
                gamma = c.row ? -c.p1 / row_value(c, rows, r) : c.p1;
                stat = clipped_row(x, n, c.p0, gamma, w.list, &stat2, &mass);
            }
            float* o = O;
            fill(o, 2 * dvp, 0.0f);
            const bool direct = !half && (!lazy || keys.v_direct());
            auto row = [&](int i) __attribute__((always_inline)) -> const float* {
                const int j = from + w.list.index[i];
                if ((*keys.bad)[j]) return nullptr;
                if (direct) return lazy ? (const float*)keys.value(j) : keys.v + j * keys.ldv;
                float* x = w.extra.get(dvp);
                read_row(keys.value(j), c.dtype, x, c.dv, 1.0f);
                for (int e = c.dv; e < dvp; e++) x[e] = 0.0f;
                return x;
            };
            const bool keep = F == CLIPPED && c.kept;
            if (!keep && dvp == 4 * VL) gather<4>(w.list, row, o);
            else if (!keep && dvp == 8 * VL) gather<8>(w.list, row, o);
            else {
                const float spread = c.p0 - gamma;
                for (int i = 0; i < w.list.n; i++) {
                    const float* v = row(i);
                    if (!v) continue;
                    const float p = w.list.weight[i];
                    for (int e = 0; e < dvp; e += VL) store(o + e, load(o + e) + p * load(v + e));
                    if (keep && p < 1.0f) {
                        const float soft = (p - gamma) / spread;  // the softmax weight under the clip
                        for (int e = 0; e < dvp; e += VL) store(o + dvp + e, load(o + dvp + e) + soft * load(v + e));
                    }
                }
            }
            if (F == CLIPPED && c.kept) std::copy(o + dvp, o + dvp + c.dv, c.kept + at * c.dv);
            finish_row(c, rows, r, o, 1.0f, lost[r0 + r] || row_is_lost(c, rows, r, *keys.bad, some_bad), stat, stat2, mass);
        }
    }
}

INLINE void forward_block(const Call& c, Keys& keys, const Rows& rows, Worker& w, bool lazy) {
    constexpr bool H = HALF_PRODUCTS;
    if (in_half(c) && c.family != CLIPPED && !by_dots(c, rows, lazy)) {
        if (c.flags & FAST_EXP) switch (c.family) {
            case SOFTMAX: return online_block<SOFTMAX, H, H>(c, keys, rows, w, lazy);
            case SIGMOID: return online_block<SIGMOID, H, H>(c, keys, rows, w, lazy);
            case RELU: return online_block<RELU, H, H>(c, keys, rows, w, lazy);
            default: return online_block<SOFTPICK, H, H>(c, keys, rows, w, lazy);
        }
        switch (c.family) {
            case SOFTMAX: return online_block<SOFTMAX, H, false>(c, keys, rows, w, lazy);
            case SIGMOID: return online_block<SIGMOID, H, false>(c, keys, rows, w, lazy);
            case RELU: return online_block<RELU, H, false>(c, keys, rows, w, lazy);
            default: return online_block<SOFTPICK, H, false>(c, keys, rows, w, lazy);
        }
    }
    switch (c.family) {
        case SOFTMAX: return online_block<SOFTMAX, false, false>(c, keys, rows, w, lazy);
        case SIGMOID: return online_block<SIGMOID, false, false>(c, keys, rows, w, lazy);
        case RELU: return online_block<RELU, false, false>(c, keys, rows, w, lazy);
        case SOFTPICK: return online_block<SOFTPICK, false, false>(c, keys, rows, w, lazy);
        case CLIPPED: return row_block<CLIPPED>(c, keys, rows, w, lazy);
        case TOPK: return row_block<TOPK>(c, keys, rows, w, lazy);
        default: return row_block<ENTMAX>(c, keys, rows, w, lazy);
    }
}

// The query rows of one kv head that are computed, in blocks; heads of the group one after the other.
INLINE std::vector<Rows> blocks_of(const Call& c, int b, int hk) {
    const int group = c.heads / c.kv_heads;
    std::vector<Rows> blocks;
    auto add = [&](int h, int i) {
        if (blocks.empty() || blocks.back().n == BR) blocks.emplace_back();
        blocks.back().add(c, b, h, i);
    };
    for (int h = hk * group; h < (hk + 1) * group; h++) {
        if (c.open) {
            const int64_t at = (int64_t)b * c.heads + h;
            for (int64_t i = c.open_at[at]; i < c.open_at[at + 1]; i++) add(h, c.open[i]);
        } else {
            for (int i = 0; i < c.t; i++) add(h, i);
        }
    }
    for (auto& block : blocks) block.close();
    return blocks;
}

INLINE void forward(const Call& c) {
    const int units = c.batch * c.kv_heads, wave = std::max(1, std::min(c.threads, units));
    struct Unit {
        Keys keys;
        std::vector<Rows> blocks;
        std::vector<uint8_t> bad;
        Scratch kp, v;
        bool lazy = false;
        int used = 0;  // keys up to here are packed
    };
    std::vector<Unit> unit(wave);
    std::atomic<int> next{0};
    Barrier barrier;
    constexpr int CHUNK = 16 * NR;

    in_threads(c.threads, [&](int, int team) {
        Worker w;
        for (int u0 = 0; u0 < units; u0 += wave) {
            const int here = std::min(wave, units - u0);
            for (int u; (u = next++) < here;) {  // lay out
                Unit& x = unit[u];
                x.keys = Keys{&c, (u0 + u) / c.kv_heads, (u0 + u) % c.kv_heads};
                x.keys.dvp = round_up(c.dv, VL);
                x.blocks = blocks_of(c, x.keys.b, x.keys.hk);
                x.bad.assign(c.s, 0);
                x.keys.bad = &x.bad;
                x.lazy = x.blocks.size() <= 1;
                x.used = 0;
                for (auto& block : x.blocks) x.used = std::max(x.used, block.kmax);
#if HALF_PRODUCTS
                if (!x.lazy && in_half(c)) {
                    x.keys.kp16 = (uint32_t*)x.kp.get((size_t)round_up(x.used, NR) * x.keys.pairs());
                    x.keys.v16 = (uint32_t*)x.v.get((size_t)(x.used + 1) / 2 * x.keys.dvp);
                    continue;
                }
#endif
                if (!x.lazy) {
                    x.keys.kp = x.kp.get((size_t)round_up(x.used, NR) * c.d);
                    if (x.keys.v_direct()) {
                        x.keys.v = (const float*)x.keys.value(0);
                        x.keys.ldv = c.vs[2];
                    } else {
                        x.keys.vbuf = x.v.get((size_t)x.used * x.keys.dvp);
                        x.keys.v = x.keys.vbuf;
                        x.keys.ldv = x.keys.dvp;
                    }
                }
            }
            barrier.wait(team, [&] { next = 0; });
            int chunks = 0;
            for (int u = 0; u < here; u++) chunks = std::max(chunks, unit[u].lazy ? 0 : (unit[u].used + CHUNK - 1) / CHUNK);
            for (int i; (i = next++) < here * chunks;) {  // pack
                Unit& x = unit[i % here];
                const int j0 = i / here * CHUNK, j1 = std::min(j0 + CHUNK, x.used);
                if (x.lazy || j0 >= j1) continue;
#if HALF_PRODUCTS
                if (in_half(c)) {
                    x.keys.pack_half(j0, j1);
                    continue;
                }
#endif
                x.keys.pack_k(j0, j1, w.rows.get((size_t)NR * c.d));
                if (!x.keys.v_direct()) x.keys.convert_v(j0, j1);
                else if (!x.keys.finite_v(j0, j1))
                    for (int j = j0; j < j1; j++)
                        if (!all_finite((const float*)x.keys.value(j), c.dv)) x.bad[j] |= 2;
            }
            barrier.wait(team, [&] {
                next = 0;
                for (int u = 0; u < here; u++) {  // values that are read where they lie, but are not finite: a clean copy
                    Unit& x = unit[u];
                    if (x.lazy || !x.keys.v_direct() || std::find_if(x.bad.begin(), x.bad.end(), [](uint8_t b) { return b & 2; }) == x.bad.end()) continue;
                    x.keys.vbuf = x.v.get((size_t)x.used * x.keys.dvp);
                    x.keys.convert_v(0, x.used);
                    x.keys.v = x.keys.vbuf;
                    x.keys.ldv = x.keys.dvp;
                }
            });
            int most = 0;
            for (int u = 0; u < here; u++) most = std::max(most, (int)unit[u].blocks.size());
            for (int i; (i = next++) < here * most;) {  // compute, the long rows first
                Unit& x = unit[i % here];
                const int at = (int)x.blocks.size() - 1 - i / here;
                if (at < 0) continue;
                Keys keys = x.keys;
                forward_block(c, keys, x.blocks[at], w, x.lazy);
            }
            barrier.wait(team, [&] { next = 0; });
        }
    });
}
