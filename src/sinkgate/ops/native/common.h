// What a call carries, how threads share it, and how keys and values are laid out for the products.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#if defined(_OPENMP)
#include <omp.h>
#endif
#include <vector>

#include "vec.h"

enum Family { SOFTMAX = 0, SIGMOID = 1, RELU = 2, SOFTPICK = 3, CLIPPED = 4, TOPK = 5, ENTMAX = 6 };
enum Flag { SQUARED = 1, FAST_EXP = 2, NO_BACKWARD = 4 };
enum MaskType { NO_MASK = 0, BOOL_MASK = 1, FLOAT_MASK = 2 };

extern "C" {
// The same fields, in the same order, as `Call` in ops/native/__init__.py. Strides count elements; the last is 1.
struct Call {
    int32_t dtype, batch, heads, kv_heads, t, s, d, dv;
    int32_t family, flags, threads, mask_type;
    const void *q, *k, *v;
    int64_t qs[3], ks[3], vs[3];     // batch, head, row
    float scale, softcap;            // softcap 0: none
    // Query i of batch b sees keys [first_lo, first_hi) and [lo, hi); arrays [batch or 1, t].
    const int32_t *lo, *hi, *first_lo, *first_hi;
    int64_t band_stride;             // from one batch to the next, 0 when shared
    const void* mask;
    int64_t ms[4];
    const float* head;               // [heads]: z, bias or alpha
    const float* row;                // [batch or 1, heads or 1, t]: the count n of a row, or its bias −ln n
    int64_t rs[2];                   // batch, head; 0 when shared
    const int32_t* k_of_row;         // [batch, heads, t]: k of topk
    float p0, p1;                    // eps; zeta and gamma or strength; delta
    // The queries that are computed, per (batch, head) open[open_at[i] … open_at[i+1]); null: all of them.
    const int32_t* open;
    const int64_t* open_at;
    void* out;                       // [batch, heads, t, dv], contiguous, zeroed
    float *stat, *stat2, *mass;      // [batch, heads, t]; mass may be null
    float* kept;                     // clipped: Σ p_j v_j over keys between the clips; softpick in half precision: the output
                                     // in float32; [batch, heads, t, dv], or null
    const void* dout;                // as out
    const float* delta;              // [batch, heads, t]: do·o, or what stands in its place
    void *dq, *dk, *dvalue;          // contiguous, zeroed
    float* dhead;                    // [batch, heads]
};
}

constexpr float HIDDEN = -9999.0f;  // an additive mask at or under this hides its key (as in masks.py)

// ---- threads -----------------------------------------------------------------------------------------------------

// Threads come from the OpenMP runtime that torch has loaded already: a second pool would fight with its workers, which
// spin for a while after each of torch's own operations. A team may be smaller than asked for (nested in another one).
class Barrier {
  public:
    // `last` runs in the last thread of the team that arrives, before any leaves.
    template <class F>
    void wait(int team, F last) {
        std::unique_lock<std::mutex> lock(mutex_);
        const int round = round_;
        if (++here_ == team) {
            last();
            here_ = 0;
            round_++;
            all_.notify_all();
        } else {
            all_.wait(lock, [&] { return round_ != round; });
        }
    }

  private:
    std::mutex mutex_;
    std::condition_variable all_;
    int here_ = 0, round_ = 0;
};

// work(i, team) in each thread i of a team of at most n.
template <class F>
void in_threads(int n, F work) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(n)
    work(omp_get_thread_num(), omp_get_num_threads());
#else
    std::vector<std::thread> others;
    for (int i = 1; i < n; i++) others.emplace_back([&, i] { work(i, n); });
    work(0, n);
    for (auto& thread : others) thread.join();
#endif
}

// Scratch that is not initialised, on cache lines of its own.
class Scratch {
  public:
    float* get(size_t n) {
        if (n > size_) {
            data_.reset((float*)std::aligned_alloc(64, (n * 4 + 127) / 64 * 64));
            if (!data_) throw std::bad_alloc();
            size_ = n;
        }
        return data_.get();
    }

  private:
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    std::unique_ptr<float, Free> data_;
    size_t size_ = 0;
};

// ---- keys and values of one kv head ------------------------------------------------------------------------------

INLINE int round_up(int n, int m) { return (n + m - 1) / m * m; }

struct Keys {
    const Call* c;
    int b = 0, hk = 0;
    int dp = 0, dvp = 0;     // dv padded to whole vectors; keys are packed, so d needs no padding
    float* kp = nullptr;     // packed panels [s/NR][d][NR] of the keys from `origin` on
    const float* v = nullptr;  // rows of dvp from `origin` on
    ptrdiff_t ldv = 0;
    float* vbuf = nullptr;   // where v is converted to, when it has to be
    int origin = 0;
    std::vector<uint8_t>* bad = nullptr;  // per key: holds something that is not finite

    // bfloat16 with products of pairs: keys as panels [s/NR][⌈d/2⌉][NR] of pairs along d, values as rows of pairs of keys
    uint32_t *kp16 = nullptr, *v16 = nullptr;

    const char* key(int j) const {
        return (const char*)c->k + (b * c->ks[0] + hk * c->ks[1] + j * c->ks[2]) * item_size(c->dtype);
    }
    const char* value(int j) const {
        return (const char*)c->v + (b * c->vs[0] + hk * c->vs[1] + j * c->vs[2]) * item_size(c->dtype);
    }
    bool v_direct() const { return c->dtype == F32 && c->dv % VL == 0; }

    // Pack keys j0:j1 (j0 − origin a multiple of NR). Numbers that are not finite become 0 and mark their key as bad.
    void pack_k(int j0, int j1, float* rows) const {
        const int d = c->d;
        for (int p = j0; p < j1; p += NR) {
            const int m = std::min(NR, j1 - p);
            const float* x;
            ptrdiff_t ldx;
            bool fine = true;
            if (c->dtype == F32) {
                x = (const float*)key(p);
                ldx = c->ks[2];
                for (int i = 0; i < m; i++) fine = all_finite(x + i * ldx, d) && fine;
            } else {
                for (int i = 0; i < m; i++) read_row(key(p + i), c->dtype, rows + i * d, d, 1.0f);
                x = rows;
                ldx = d;
                fine = all_finite(rows, m * d);
            }
            if (!fine) {
                if (x != rows)
                    for (int i = 0; i < m; i++) std::copy(x + i * ldx, x + i * ldx + d, rows + i * d);
                for (int i = 0; i < m; i++)
                    if (!all_finite(rows + i * d, d)) {
                        (*bad)[p + i] = 1;
                        std::fill(rows + i * d, rows + i * d + d, 0.0f);
                    }
                x = rows;
                ldx = d;
            }
            pack_transposed(x, ldx, m, d, kp + (ptrdiff_t)((p - origin) / NR) * d * NR);
        }
    }
#if HALF_PRODUCTS
    int pairs() const { return (c->d + 1) / 2; }
    static bool finite_half(const uint16_t* x, int n) {
        int bad = 0;
        for (int i = 0; i < n; i++) bad |= (x[i] & 0x7f80) == 0x7f80;
        return !bad;
    }
    // As pack_k and convert_v, into pairs.
    void pack_half(int j0, int j1) const {
        const int d = c->d, d2 = pairs();
        std::vector<uint32_t> rows((size_t)NR * d2);
        for (int p = j0; p < j1; p += NR) {
            const int m = std::min(NR, j1 - p);
            std::fill(rows.begin(), rows.end(), 0u);
            for (int i = 0; i < m; i++) {
                const uint16_t* x = (const uint16_t*)key(p + i);
                if (finite_half(x, d)) std::memcpy(rows.data() + (size_t)i * d2, x, d * 2);
                else (*bad)[p + i] = 1;
            }
            uint32_t* out = kp16 + (ptrdiff_t)((p - origin) / NR) * d2 * NR;
            for (int e = 0; e < d2; e++)
                for (int i = 0; i < NR; i++) out[e * NR + i] = rows[(size_t)i * d2 + e];
        }
        for (int j = j0; j < j1; j += 2) {  // j0 is even
            uint32_t* out = v16 + (ptrdiff_t)((j - origin) / 2) * dvp;
            const uint16_t* a = (const uint16_t*)value(j);
            const uint16_t* b = j + 1 < j1 ? (const uint16_t*)value(j + 1) : nullptr;
            const bool fine_a = finite_half(a, c->dv), fine_b = b && finite_half(b, c->dv);
            if (!fine_a) (*bad)[j] = 1;
            if (b && !fine_b) (*bad)[j + 1] = 1;
            for (int e = 0; e < c->dv; e++) out[e] = (fine_a ? a[e] : 0u) | ((uint32_t)(fine_b ? b[e] : 0u) << 16);
            for (int e = c->dv; e < dvp; e++) out[e] = 0;
        }
    }
#endif
    // Whether values j0:j1 are finite.
    bool finite_v(int j0, int j1) const {
        for (int j = j0; j < j1; j++)
            if (!all_finite((const float*)value(j), c->dv)) return false;
        return true;
    }
    void convert_v(int j0, int j1) const {
        for (int j = j0; j < j1; j++) {
            float* out = vbuf + (ptrdiff_t)(j - origin) * dvp;
            read_row(value(j), c->dtype, out, c->dv, 1.0f);
            if (!all_finite(out, c->dv)) {
                (*bad)[j] = 1;
                std::fill(out, out + c->dv, 0.0f);
            }
            std::fill(out + c->dv, out + dvp, 0.0f);
        }
    }
};

// ---- a block of query rows ---------------------------------------------------------------------------------------

constexpr int BR = 8 * MR;  // rows of a block
constexpr int KB = 256;     // keys of a tile

struct Rows {
    int n = 0, b = 0;
    int head[BR], query[BR];
    int lo[BR], hi[BR], flo[BR], fhi[BR];
    int kmin = 0, kmax = 0;  // the keys that some row sees lie in here

    void add(const Call& c, int batch, int h, int i) {
        b = batch;
        head[n] = h;
        query[n] = i;
        const int64_t at = batch * c.band_stride + i;
        lo[n] = c.lo[at];
        hi[n] = c.hi[at];
        flo[n] = c.first_lo ? c.first_lo[at] : 0;
        fhi[n] = c.first_lo ? c.first_hi[at] : 0;
        n++;
    }
    void close() {
        kmin = INT32_MAX;
        kmax = 0;
        for (int r = 0; r < n; r++) {
            if (lo[r] < hi[r]) kmin = std::min(kmin, lo[r]), kmax = std::max(kmax, hi[r]);
            if (flo[r] < fhi[r]) kmin = std::min(kmin, flo[r]), kmax = std::max(kmax, fhi[r]);
        }
        if (kmin > kmax) kmin = kmax = 0;
    }
    bool any(int c0, int c1) const {
        for (int r = 0; r < n; r++)
            if ((lo[r] < c1 && hi[r] > c0 && lo[r] < hi[r]) || (flo[r] < c1 && fhi[r] > c0 && flo[r] < fhi[r])) return true;
        return false;
    }
    bool full(int c0, int c1) const {
        for (int r = 0; r < n; r++)
            if (lo[r] > c0 || hi[r] < c1) return false;
        return true;
    }
    bool sees(int r, int j) const { return (j >= lo[r] && j < hi[r]) || (j >= flo[r] && j < fhi[r]); }
    int64_t flat(const Call& c, int r) const { return ((int64_t)b * c.heads + head[r]) * c.t + query[r]; }

    // x[j − c0] = value wherever row r does not see key j of [c0, c1)
    void hide(int r, int c0, int c1, float* x, float value) const {
        int at = c0;
        const int spans[2][2] = {{flo[r], fhi[r]}, {lo[r], hi[r]}};
        for (auto& span : spans) {
            const int from = std::max(span[0], at), to = std::min(span[1], c1);
            if (from >= to) continue;
            fill(x + (at - c0), from - at, value);
            at = to;
        }
        fill(x + (at - c0), c1 - at, value);
    }
    // The same with bfloat16 zeros, up to a padded width.
    void hide_half(int r, int c0, int c1, uint16_t* x, int padded) const {
        int at = c0;
        const int spans[2][2] = {{flo[r], fhi[r]}, {lo[r], hi[r]}};
        for (auto& span : spans) {
            const int from = std::max(span[0], at), to = std::min(span[1], c1);
            if (from >= to) continue;
            std::fill(x + (at - c0), x + (from - c0), (uint16_t)0);
            at = to;
        }
        std::fill(x + (at - c0), x + padded, (uint16_t)0);
    }
};

// A mask tensor over row r and keys [c0, c1): hidden keys get `value`, an additive one is added times `unit`.
INLINE void apply_mask(const Call& c, const Rows& rows, int r, int c0, int c1, float* x, float value, float unit) {
    if (c.mask_type == NO_MASK) return;
    const int64_t at = rows.b * c.ms[0] + rows.head[r] * c.ms[1] + rows.query[r] * c.ms[2];
    if (c.mask_type == BOOL_MASK) {
        const uint8_t* m = (const uint8_t*)c.mask + at;
        for (int j = c0; j < c1; j++)
            if (!m[j * c.ms[3]]) x[j - c0] = value;
    } else {
        const float* m = (const float*)c.mask + at;
        for (int j = c0; j < c1; j++) {
            const float bias = m[j * c.ms[3]];
            x[j - c0] = bias > HIDDEN ? x[j - c0] + bias * unit : (bias != bias ? bias : value);
        }
    }
}
INLINE bool mask_hides(const Call& c, const Rows& rows, int r, int j) {
    if (c.mask_type == NO_MASK) return false;
    const int64_t at = rows.b * c.ms[0] + rows.head[r] * c.ms[1] + rows.query[r] * c.ms[2] + j * c.ms[3];
    return c.mask_type == BOOL_MASK ? !((const uint8_t*)c.mask)[at] : !(((const float*)c.mask)[at] > HIDDEN);
}

// Scores are kept in units where 2^s is wanted, but for the families that never exponentiate.
INLINE bool base2(int family) { return family != RELU && family != ENTMAX; }
INLINE float unit_of(const Call& c) { return base2(c.family) ? LOG2E : 1.0f; }
