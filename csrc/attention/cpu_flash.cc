// Flash attention on a CPU: a block of keys at a time with online softmax, in register tiles, threaded over query rows.
#ifdef _OPENMP
    #include <omp.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

#include "../common/message.h"
#include "../common/simd.h"
#include "launch.h"

namespace {

constexpr int kRows = 6;                             // rows of a register tile
constexpr int kPanelVectors = kLanes == 16 ? 4 : 2;  // vectors across a register tile
constexpr int kPanel = kLanes * kPanelVectors;       // columns of a register tile
constexpr int kKeys = 256;                           // keys of a block
constexpr int kStripRows = 4 * kRows;                // query rows whose scores are alive at once
constexpr int kItemRows = 16 * kStripRows;           // query rows that share one packing of a block, at most
constexpr int kItemsPerThread = 4;                   // so that a slow thread costs little
constexpr double kLog2E = 1.4426950408889634;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

static_assert(kRows * kPanelVectors + kPanelVectors + 1 < (kLanes == 16 ? 32 : 16),
              "a register tile, a row of its right factor and one broadcast must fit in the vector registers");
static_assert(kKeys % kPanel == 0, "a block of keys is a whole number of panels");

constexpr int64_t round_up(int64_t size, int64_t step) {
    return (size + step - 1) / step * step;
}

// What one thread works in. Panels hold kPanel columns side by side so that a register tile reads them in order.
struct Workspace {
    float *k;        // [kKeys / kPanel, head_dim, kPanel]: a block of keys, transposed
    float *v;        // [padded_dim / kPanel, kKeys, kPanel]: a block of values, zeros beyond head_dim
    float *scores;   // [kStripRows, kKeys]: scores, then their weights
    float *o;        // [kItemRows, padded_dim]: weighted sums so far
    float *total;    // [kItemRows, kLanes]: sum of the weights so far, by lane
    float *highest;  // [kItemRows]: highest score so far
    int64_t padded_dim;
    int64_t capacity = 0;  // floats in memory
    std::unique_ptr<float, decltype(&std::free)> memory{nullptr, std::free};
};

bool allocate(Workspace &work, int64_t head_dim) {
    work.padded_dim = round_up(head_dim, kPanel);
    const int64_t sizes[] = {kKeys * head_dim,   kKeys * work.padded_dim,
                             kStripRows * kKeys, kItemRows * work.padded_dim,
                             kItemRows * kLanes, kItemRows};
    float **parts[] = {&work.k, &work.v, &work.scores, &work.o, &work.total, &work.highest};
    int64_t floats = 0;
    for (int64_t size : sizes) floats += round_up(size, 16);
    if (floats > work.capacity) {
        work.memory.reset(static_cast<float *>(std::aligned_alloc(64, floats * sizeof(float))));
        work.capacity = work.memory ? floats : 0;
    }
    float *next = work.memory.get();
    for (int i = 0; next != nullptr && i < 6; ++i) {
        *parts[i] = next;
        next += round_up(sizes[i], 16);
    }
    return next != nullptr;
}

// c = a b, or c = rescale c + a b, for kRows rows and kPanel columns.
template <bool kAccumulate>
inline void multiply(const float *const a[kRows],  // [kRows] rows of `depth`
                     const float *b,               // [depth, kPanel]
                     float *c,                     // [kRows, c_stride]
                     int64_t c_stride, int64_t depth, const float *rescale) {
    Vec sum[kRows][kPanelVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanelVectors; ++p) {
            sum[r][p] = kAccumulate ? load(c + r * c_stride + p * kLanes) * rescale[r] : Vec{};
        }
    }
    for (int64_t t = 0; t < depth; ++t) {
        Vec column[kPanelVectors];
#pragma GCC unroll 8
        for (int p = 0; p < kPanelVectors; ++p) column[p] = load(b + t * kPanel + p * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const Vec left = broadcast(a[r][t]);
#pragma GCC unroll 8
            for (int p = 0; p < kPanelVectors; ++p) sum[r][p] += left * column[p];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanelVectors; ++p) store(c + r * c_stride + p * kLanes, sum[r][p]);
    }
}

// Transposes `count` keys into panels, times `sign`; columns without a key become zeros.
void pack_keys(const float *k,  // [count, head_dim]
               int64_t stride, int64_t count, int64_t head_dim, float sign, float *packed) {
    for (int64_t j = 0; j < round_up(count, kPanel); j += kLanes) {
        float *panel = packed + j / kPanel * kPanel * head_dim + j % kPanel;
        int64_t d = 0;
        for (; j + kLanes <= count && d + kLanes <= head_dim; d += kLanes) {
            Vec tile[kLanes];
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) tile[i] = load(k + (j + i) * stride + d) * sign;
            transpose(tile);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) store(panel + (d + i) * kPanel, tile[i]);
        }
        for (; d < head_dim; ++d) {
            for (int i = 0; i < kLanes; ++i) {
                panel[d * kPanel + i] = j + i < count ? k[(j + i) * stride + d] * sign : 0.0f;
            }
        }
    }
}

void pack_values(const float *v,  // [count, head_dim]
                 int64_t stride, int64_t count, int64_t head_dim, float *packed) {
    for (int64_t d = 0; d < head_dim; d += kPanel) {
        const int64_t columns = std::min<int64_t>(kPanel, head_dim - d);
        float *panel = packed + d * kKeys;
        for (int64_t j = 0; j < count; ++j) {
            std::copy_n(v + j * stride + d, columns, panel + j * kPanel);
            std::fill(panel + j * kPanel + columns, panel + (j + 1) * kPanel, 0.0f);
        }
    }
}

float largest(Vec value) {
    float lane[kLanes];
    store(lane, value);
    for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) lane[i] = std::max(lane[i], lane[i + width]);
    }
    return lane[0];
}

// |scale| log2(e) as a sum of two floats: one alone, rounded, would bend every softmax the same way.
struct Scale {
    explicit Scale(double value) : high(static_cast<float>(value)), low(static_cast<float>(value - high)) {}
    float high;
    float low;
};

// Turns a row's scores against one block into weights 2^(scale (score - highest)); returns the factor by which what
// was summed so far shrinks because a higher score appeared.
float softmax_row(float *scores,  // [width], a whole number of vectors
                  int64_t visible, int64_t width, Scale scale, float &highest, float *total) {
    std::fill(scores + visible, scores + width, kMasked);
    Vec peak = load(scores);
    for (int64_t j = kLanes; j < width; j += kLanes) peak = maximum(peak, load(scores + j));
    const float before = highest;
    highest = std::max(before, largest(peak));
    if (highest == kMasked) {  // no key visible to this row yet
        std::fill(scores, scores + width, 0.0f);
        return 1.0f;
    }
    Vec sum{};
    for (int64_t j = 0; j < width; j += kLanes) {
        const Vec below = load(scores + j) - highest;
        const Vec weight = exp2_vec(below * scale.high, below * scale.low);
        store(scores + j, weight);
        sum += weight;
    }
    const float shrink = before == highest ? 1.0f : std::exp2((before - highest) * scale.high);
    store(total, load(total) * shrink + sum);
    return shrink;
}

// Query rows [first, first + rows) of one head.
struct Item {
    const float *q;  // [query_rows, head_dim]
    const float *k;  // [key_rows, head_dim]
    const float *v;  // [key_rows, head_dim]
    float *o;        // [query_rows, head_dim]
    int64_t first;
    int64_t rows;
};

// How many of the keys from `key` on, at most `count`, query row `i` sees.
int64_t visible_keys(const AttentionArgs &args, int64_t i, int64_t key, int64_t count) {
    if (!args.causal) return count;
    return std::clamp<int64_t>(i + args.key_rows - args.query_rows + 1 - key, 0, count);
}

// One strip of query rows against the first `count` keys of the packed block that starts at `key`.
void attend_strip(const AttentionArgs &args, const Item &item, Workspace &work, int64_t strip, int64_t rows,
                  int64_t key, int64_t count, Scale scale) {
    const int64_t width = round_up(count, kPanel);
    const int64_t last = args.query_rows - 1;
    float shrink[kStripRows];
    for (int64_t j = 0; j < width; j += kPanel) {
        for (int64_t r = 0; r < rows; r += kRows) {
            const float *q[kRows];  // a tile that hangs over the last row computes that row again
            for (int i = 0; i < kRows; ++i) {
                q[i] = item.q + std::min(item.first + strip + r + i, last) * args.q_stride.row;
            }
            multiply<false>(q, work.k + j * args.head_dim, work.scores + r * kKeys + j, kKeys, args.head_dim, nullptr);
        }
    }
    for (int64_t r = 0; r < round_up(rows, kRows); ++r) {
        const int64_t visible = visible_keys(args, item.first + strip + r, key, count);
        shrink[r] = softmax_row(work.scores + r * kKeys, visible, width, scale, work.highest[strip + r],
                                work.total + (strip + r) * kLanes);
    }
    for (int64_t d = 0; d < work.padded_dim; d += kPanel) {
        for (int64_t r = 0; r < rows; r += kRows) {
            const float *weights[kRows];
            for (int i = 0; i < kRows; ++i) weights[i] = work.scores + (r + i) * kKeys;
            multiply<true>(weights, work.v + d * kKeys, work.o + (strip + r) * work.padded_dim + d, work.padded_dim,
                           count, shrink + r);
        }
    }
}

void attend(const AttentionArgs &args, const Item &item, Workspace &work) {
    const Scale scale(args.scale == 0.0 ? 1.0 : std::fabs(args.scale) * kLog2E);
    const float sign = args.scale == 0.0 ? 0.0f : args.scale < 0.0 ? -1.0f : 1.0f;
    const int64_t tiled_rows = round_up(item.rows, kRows);
    std::fill_n(work.o, tiled_rows * work.padded_dim, 0.0f);
    std::fill_n(work.total, tiled_rows * kLanes, 0.0f);
    std::fill_n(work.highest, tiled_rows, kMasked);
    const int64_t end = visible_keys(args, item.first + item.rows - 1, 0, args.key_rows);
    for (int64_t key = 0; key < end; key += kKeys) {
        const int64_t count = std::min<int64_t>(kKeys, end - key);
        pack_keys(item.k + key * args.k_stride.row, args.k_stride.row, count, args.head_dim, sign, work.k);
        pack_values(item.v + key * args.v_stride.row, args.v_stride.row, count, args.head_dim, work.v);
        for (int64_t strip = 0; strip < item.rows; strip += kStripRows) {
            const int64_t rows = std::min<int64_t>(kStripRows, item.rows - strip);
            const int64_t seen = visible_keys(args, item.first + strip + rows - 1, key, count);
            if (seen > 0) attend_strip(args, item, work, strip, rows, key, seen, scale);
        }
    }
    for (int64_t r = 0; r < item.rows; ++r) {
        float total = 0.0f;
        for (int i = 0; i < kLanes; ++i) total += work.total[r * kLanes + i];
        const float *sum = work.o + r * work.padded_dim;
        float *o = item.o + (item.first + r) * args.o_stride.row;
        for (int64_t d = 0; d < args.head_dim; ++d) o[d] = total > 0.0f ? sum[d] / total : 0.0f;
    }
}

int threads() {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

}  // namespace

const char *launch(const AttentionArgs &args, void *) {
    if (args.placement.on_cuda) return "cpu_flash runs in host memory; the tensors are on a CUDA device";
    if (args.dtype != Dtype::kFloat32) return "cpu_flash takes float32 only";
    const int64_t heads = args.batch * args.query_heads;
    const int64_t wanted = std::clamp<int64_t>(heads * args.query_rows / (kItemsPerThread * threads()), 1, kItemRows);
    const int64_t parts = (args.query_rows + wanted - 1) / wanted;
    const int64_t item_rows = round_up((args.query_rows + parts - 1) / parts, kRows);
    bool out_of_memory = false;
#pragma omp parallel reduction(|| : out_of_memory)
    {
        static thread_local Workspace work;  // kept: page faults on fresh memory cost more than the memory
        out_of_memory = !allocate(work, args.head_dim);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < heads * parts; ++i) {
            // The last rows first: under a causal mask they see the most keys.
            const int64_t first = (parts - 1 - i / heads) * item_rows;
            if (out_of_memory || first >= args.query_rows) continue;
            const int64_t batch = i % heads / args.query_heads;
            const int64_t head = i % heads % args.query_heads;
            const int64_t key_head = head / (args.query_heads / args.key_heads);
            const auto at = [batch](const void *data, const Strides3 &stride, int64_t h) {
                return static_cast<const float *>(data) + batch * stride.batch + h * stride.head;
            };
            const Item item{at(args.q, args.q_stride, head),
                            at(args.k, args.k_stride, key_head),
                            at(args.v, args.v_stride, key_head),
                            const_cast<float *>(at(args.o, args.o_stride, head)),
                            first,
                            std::min(item_rows, args.query_rows - first)};
            attend(args, item, work);
        }
    }
    return out_of_memory ? message("cpu_flash could not allocate its workspace for head_dim %lld",
                                   static_cast<long long>(args.head_dim))
                         : nullptr;
}
