// Calls one rung at a shape with tails, for compute-sanitizer: no framework in the process, every buffer an allocation
// of its own and of its exact size, the output left uninitialised. OPERATOR is 0 for attention, 1 for attention on
// quantised inputs, 2 for RMSNorm, 3 for scores of codes.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if OPERATOR == 0
    #include "attention/launch.h"
#elif OPERATOR == 1
    #include "quantised_attention/launch.h"
#elif OPERATOR == 2
    #include "rmsnorm/launch.h"
#else
    #include "qkt/launch.h"
#endif

namespace {

void check(cudaError_t status) {
    if (status == cudaSuccess) return;
    std::printf("%s\n", cudaGetErrorString(status));
    std::exit(2);
}

// Bytes of pseudo-random numbers; in every `every`-byte element the last byte is masked, so that floats stay small.
struct Buffer {
    Buffer(int64_t elements, int every, unsigned mask, bool filled = true) : bytes(elements * every) {
        check(cudaMalloc(&data, bytes));
        if (!filled) return;
        std::vector<uint8_t> values(bytes);
        uint32_t state = 12345;
        for (int64_t i = 0; i < bytes; ++i) {
            state = state * 1664525u + 1013904223u;
            values[i] = static_cast<uint8_t>((state >> 24) & (i % every == every - 1 ? mask : 0xffu));
        }
        check(cudaMemcpy(data, values.data(), bytes, cudaMemcpyHostToDevice));
    }
    ~Buffer() { cudaFree(data); }
    void read() const {
        std::vector<uint8_t> values(bytes);
        check(cudaMemcpy(values.data(), data, bytes, cudaMemcpyDeviceToHost));
    }
    void *data = nullptr;
    int64_t bytes;
};

int calls = 0, refused = 0;

template <typename Args>
void call(const Args &args, const Buffer &output) {
    const char *said = launch(args, nullptr);
    if (said != nullptr) {
        std::printf("refused: %s\n", said);
        ++refused;
        return;
    }
    check(cudaDeviceSynchronize());
    output.read();
    ++calls;
}

constexpr Placement kHere{true, 0};
[[maybe_unused]] constexpr unsigned kSmallHalf = 0xbb;  // of a 16-bit float: below 2 in float16, of either sign

#if OPERATOR <= 1
AttentionArgs attention(const Buffer &q, const Buffer &k, const Buffer &v, const Buffer &o, int64_t batch,
                        int64_t heads, int64_t key_heads, int64_t rows, int64_t keys, int64_t dim, bool causal,
                        Dtype dtype) {
    const Strides3 query{heads * rows * dim, rows * dim, dim}, key{key_heads * keys * dim, keys * dim, dim};
    const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
    return {q.data, k.data,    v.data, o.data, query, key,   key,    query, batch,
            heads,  key_heads, rows,   keys,   dim,   scale, causal, dtype, kHere};
}
#endif

void run() {
#if OPERATOR <= 1
    // Off every tile grid; more keys than queries, fewer, and enough for several rounds of every ring.
    const int64_t shapes[][2] = {{77, 133}, {130, 65}, {1, 1}, {300, 700}};
    for (const int64_t dim : {64, 128}) {
        for (const auto &shape : shapes) {
            const int64_t batch = 2, heads = 2, key_heads = 1, rows = shape[0], keys = shape[1];
    #if OPERATOR == 0
            const int size = 2;
            const unsigned mask = kSmallHalf;
    #else
            const int size = 1;
            const unsigned mask = 0xbf;  // of either codec: no NaN
    #endif
            const Buffer q(batch * heads * rows * dim, size, mask), k(batch * key_heads * keys * dim, size, mask),
                v(batch * key_heads * keys * dim, size, mask);
            for (const bool causal : {false, true}) {
    #if OPERATOR == 0
                for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
                    const Buffer o(batch * heads * rows * dim, 2, 0, false);
                    call(attention(q, k, v, o, batch, heads, key_heads, rows, keys, dim, causal, dtype), o);
                }
    #else
                const float one = 1.0f;
                const Buffer scale(1, 4, 0x3f);
                check(cudaMemcpy(scale.data, &one, sizeof one, cudaMemcpyHostToDevice));
                const float *s = static_cast<const float *>(scale.data);
                for (const Codec codec : {Codec::kSimFp8, Codec::kE4m3}) {
                    const Buffer o(batch * heads * rows * dim, 2, 0, false);
                    call(QuantisedAttentionArgs{attention(q, k, v, o, batch, heads, key_heads, rows, keys, dim, causal,
                                                          Dtype::kFloat16),
                                                s,
                                                s,
                                                s,
                                                {0, 0},
                                                {0, 0},
                                                {0, 0},
                                                codec},
                         o);
                }
    #endif
            }
        }
    }
#elif OPERATOR == 2
    for (const int64_t cols : {8, 1001, 4096, 20000}) {
        const Buffer x(17 * cols, 2, kSmallHalf), weight(cols, 2, kSmallHalf), y(17 * cols, 2, 0, false);
        for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
            call(RmsNormArgs{x.data, weight.data, y.data, cols, cols, 17, cols, 1e-6, dtype, kHere}, y);
        }
    }
#else
    const int64_t rows = 77, keys = 133, dim = 67;
    const Buffer q(2 * rows * dim, 1, 0xff), k(2 * keys * dim, 1, 0xff), scores(2 * rows * keys, 4, 0, false);
    const Buffer scale(2, 4, 0x3f);
    const float *s = static_cast<const float *>(scale.data);
    QktArgs args{};
    args.q = q.data, args.k = k.data;
    args.q_scale = s, args.k_scale = s, args.scores = static_cast<float *>(scores.data);
    args.q_stride = {2 * rows * dim, rows * dim, dim}, args.k_stride = {2 * keys * dim, keys * dim, dim};
    args.scores_stride = {2 * rows * keys, rows * keys, keys};
    args.q_scale_stride[1] = args.k_scale_stride[1] = 1;
    args.batch = 1, args.heads = 2, args.query_rows = rows, args.key_rows = keys, args.head_dim = dim,
    args.factor = 1.0;
    args.placement = kHere;
    call(args, scores);
#endif
}

}  // namespace

int main() {
    run();
    std::printf("%d calls, %d refused\n", calls, refused);
    return calls > 0 ? 0 : 3;
}
