// sinkgate's CPU kernels behind a plain C interface. Compiled on the user's machine, for its own processor, by the
// compiler that is found there; see ops/native/build.py.
#include "backward.h"
#include "read.h"

extern "C" {

int sinkgate_abi(void) { return (int)sizeof(Call); }
int sinkgate_vector(void) { return VL; }

void sinkgate_forward(const Call* call) { forward(*call); }
void sinkgate_backward(const Call* call) { backward(*call); }
void sinkgate_read(const Call* call, const Reading* out) { read(*call, *out); }

// Rows of scores [rows, n] (−inf: hidden) → entmax weights; alpha one per row.
void sinkgate_entmax_rows(const float* x, float* out, int64_t rows, int32_t n, const float* alpha, int32_t threads) {
    std::atomic<int64_t> next{0};
    in_threads(threads, [&](int, int) {
        Sparse list;
        for (int64_t r0; (r0 = next.fetch_add(16)) < rows;)
            for (int64_t r = r0; r < std::min(r0 + 16, rows); r++) {
                const float* row = x + r * n;
                float* y = out + r * n;
                vi odd = vi{};
                int j = 0;
                for (; j + VL <= n; j += VL) odd |= (load(row + j) != load(row + j)) | (load(row + j) == INF);
                bool broken = false;
                for (int i = 0; i < VL; i++) broken |= odd[i] != 0;
                for (; j < n; j++) broken |= row[j] != row[j] || row[j] == INF;
                fill(y, n, broken ? QNAN : 0.0f);
                if (broken) continue;
                entmax_row((float*)row, n, alpha[r], list);  // reads only
                if (list.n)
                    for (int i = 0; i < list.n; i++) y[list.index[i]] = list.weight[i];
            }
    });
}
// dS from weights and their gradients; dalpha [rows] or null.
void sinkgate_entmax_rows_backward(const float* p, const float* g, float* out, int64_t rows, int32_t n, const float* alpha,
                                  float* dalpha, int32_t threads) {
    std::atomic<int64_t> next{0};
    in_threads(threads, [&](int, int) {
        Sparse list;
        for (int64_t r0; (r0 = next.fetch_add(16)) < rows;)
            for (int64_t r = r0; r < std::min(r0 + 16, rows); r++) {
                const float *w = p + r * n, *dw = g + r * n, a = alpha[r];
                float* y = out + r * n;
                list.reserve(n);
                collect(w, n, 0.0f, false, list);
                double su = 0, sud = 0, entropy = 0;
                for (int i = 0; i < list.n; i++) {
                    const float x = list.weight[i];
                    const float slope = a == 2.0f ? 1.0f : a == 1.5f ? std::sqrt(x) : std::pow(x, 2.0f - a);
                    list.work[i] = slope;
                    su += slope;
                    sud += (double)slope * dw[list.index[i]];
                    if (dalpha) entropy += (double)x * std::log(x);
                }
                fill(y, n, 0.0f);
                const float mean = su > 0 ? (float)(sud / su) : 0.0f;
                double da = 0;
                const double a1 = a - 1.0;
                for (int i = 0; i < list.n; i++) {
                    const int j = list.index[i];
                    y[j] = list.work[i] * (dw[j] - mean);
                    if (dalpha) {
                        const double x = list.weight[i], share = list.work[i] / su;
                        da += dw[j] * ((x - share) / (a1 * a1) - (x * std::log(x) - share * entropy) / a1);
                    }
                }
                if (dalpha) dalpha[r] = (float)da;
            }
    });
}
}
