// Hopper's own instructions (sm_90a), one function each: mbarriers, the tensor copy engine, wgmma, register budgets.
//
// A warpgroup is four consecutive warps, the first a multiple of 4. Lane l of warp w has group g = l / 4 and member
// t = l % 4. A 64 x N accumulator d[N / 2] holds, of each 8 columns b, row 16 w + g at columns 8 b + 2 t and + 1 in
// d[4 b] and d[4 b + 1], and row 16 w + g + 8 in d[4 b + 2] and d[4 b + 3]. Source: PTX ISA, wgmma and mbarrier.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

constexpr int kBlockRegisters = 64 * 1024;     // of a block alone on its multiprocessor
constexpr int kBlockSharedBytes = 227 * 1024;  // likewise
constexpr int kWarpgroupSize = 128;
constexpr int kWarpgroupWarps = 4;
constexpr int kWarpgroupRows = 64;        // of a wgmma
constexpr int kSwizzleBytes = 128;        // a row of a swizzled tile; its 16-byte units are permuted
constexpr int kSwizzleAlign = 1024;       // after this many bytes (8 rows) the permutation repeats
constexpr uint64_t kDescriptorUnit = 16;  // bytes an address in a matrix descriptor counts in

__device__ __forceinline__ uint32_t shared_address(const void *smem) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(smem));
}

// --- mbarrier: a phase ends when `arrivals` threads have arrived and every announced byte has been copied
// -------------

__device__ __forceinline__ void mbarrier_init(uint64_t *barrier_smem, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier_smem)), "r"(arrivals)
                 : "memory");
}

// Makes initialised barriers visible to the copy engine; a barrier of the block must follow.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier_smem) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier_smem)) : "memory");
}

// Arrives and announces that the copy engine will bring `bytes` in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t *barrier_smem, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier_smem)),
                 "r"(bytes)
                 : "memory");
}

// Whether the phase of this parity has ended; may sleep a while before it says no.
__device__ __forceinline__ bool mbarrier_try_wait(uint64_t *barrier_smem, uint32_t parity) {
    uint32_t ended;
    asm volatile(
        "{\n.reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n}"
        : "=r"(ended)
        : "r"(shared_address(barrier_smem)), "r"(parity)
        : "memory");
    return ended != 0;
}

// The first phase has parity 0. Waiting for parity 1 on a new barrier returns at once.
__device__ __forceinline__ void mbarrier_wait(uint64_t *barrier_smem, uint32_t parity) {
    while (!mbarrier_try_wait(barrier_smem, parity)) {
    }
}

// --- the tensor copy engine
// -------------------------------------------------------------------------------------------

__device__ __forceinline__ void tensor_map_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the box at [batch, head, row, column] of a 4D tensor, swizzled as its map says; zeros outside the tensor. The
// bytes of the whole box are counted by the barrier.
__device__ __forceinline__ void tensor_copy_4d(void *to_smem, const CUtensorMap *map, uint64_t *full_smem, int column,
                                               int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to_smem)),
        "l"(map), "r"(shared_address(full_smem)), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

// Orders this thread's ordinary accesses to shared memory before what wgmma and the copy engine do there next.
__device__ __forceinline__ void async_proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- warpgroups
// -------------------------------------------------------------------------------------------------------

// A thread's registers from here on; every warp of the warpgroup executes it. The launch must have a register cap.
template <int kRegisters>
__device__ __forceinline__ void registers_release() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "setmaxnreg takes 24, 32, ... 256");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void registers_claim() {
    static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0, "setmaxnreg takes 24, 32, ... 256");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barrier `id` (1 to 15; 0 is __syncthreads) of kThreads threads, whole warps: waits for the others.
template <int kThreads>
__device__ __forceinline__ void named_barrier_wait(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// The same, and whether `value` holds for any of the threads.
template <int kThreads>
__device__ __forceinline__ bool named_barrier_any(int id, bool value) {
    uint32_t any;
    asm volatile(
        "{\n.reg .pred own, any;\n"
        "setp.ne.u32 own, %3, 0;\n"
        "bar.red.or.pred any, %1, %2, own;\n"
        "selp.u32 %0, 1, 0, any;\n}"
        : "=r"(any)
        : "r"(id), "n"(kThreads), "r"(static_cast<uint32_t>(value))
        : "memory");
    return any != 0;
}

// Arrives without waiting.
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// --- wgmma
// ------------------------------------------------------------------------------------------------------------

// Describes a tile in shared memory whose rows are 128 bytes, swizzled, starting at a multiple of 1024 bytes. Groups of
// 8 rows follow each other. What a row is depends on how wgmma reads it:
// K-major: a row is one row of A or column of B, 64 elements of the sum; `columns_apart` is not used. The next 16
//          elements of the sum are 32 bytes further on.
// MN-major: a row is one element of the sum, 64 rows of A or columns of B; the next 64 are `columns_apart` bytes
//          further on. The next 16 elements of the sum are 16 rows further on.
__device__ __forceinline__ uint64_t swizzled_descriptor(const void *tile_smem, uint32_t columns_apart = 16) {
    const uint64_t start = (shared_address(tile_smem) & 0x3ffff) / kDescriptorUnit;
    return start | (columns_apart / kDescriptorUnit) << 16 | (kSwizzleAlign / kDescriptorUnit) << 32 |
           uint64_t{1} << 62;
}

// The descriptor of what lies `bytes` further on.
__device__ __forceinline__ uint64_t descriptor_advance(uint64_t descriptor, uint32_t bytes) {
    return descriptor + bytes / kDescriptorUnit;
}

// Before the first wgmma, and before one that reads registers written by other instructions since.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Tells the compiler that registers change here: it may not move an access to them across.
template <int kSize>
__device__ __forceinline__ void pin(float (&d)[kSize]) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Multiplies rows g and g + 8 of an accumulator, the first by by[0].
template <int kSize>
__device__ __forceinline__ void scale_rows(float (&o_rmem)[kSize], const float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) o_rmem[i] *= by[i / 2 % 2];
}

// Place it between arithmetic that a product in the background is to hide behind, and the wait for that product: ptxas
// moves such a wait up, in front of whatever does not need it, but not across this branch, which needs `value`, a
// result of that arithmetic. Below 2^127 it is not taken.
__device__ __forceinline__ void finish_before_wait(float value) {
    asm volatile(
        "{\n.reg .pred large;\n"
        "setp.ge.f32 large, %0, 0f7f000000;\n"
        "@large nanosleep.u32 0;\n}" ::"f"(value)
        : "memory");
}

// Waits until at most kPending groups are under way; `d` belongs to one of those that have ended.
template <int kPending, int kSize>
__device__ __forceinline__ void wgmma_wait(float (&d)[kSize]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
    pin(d);
}

// Operands of one wgmma: kSize accumulators, then what it multiplies. Inline assembly wants every register by name.
#define HOPPER_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define HOPPER_NAMES_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define HOPPER_NAMES_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define HOPPER_NAMES_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define HOPPER_NAMES_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define HOPPER_NAMES_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define HOPPER_NAMES_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define HOPPER_NAMES_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define HOPPER_NAMES_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define HOPPER_NAMES_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define HOPPER_NAMES_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define HOPPER_NAMES_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define HOPPER_D(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HOPPER_D16(i) HOPPER_D(i), HOPPER_D(i + 4), HOPPER_D(i + 8), HOPPER_D(i + 12)
#define HOPPER_D32(i) HOPPER_D16(i), HOPPER_D16(i + 16)
#define HOPPER_NAMES_N32 HOPPER_NAMES_0 ", " HOPPER_NAMES_1
#define HOPPER_NAMES_N64 HOPPER_NAMES_0 ", " HOPPER_NAMES_1 ", " HOPPER_NAMES_2 ", " HOPPER_NAMES_3
#define HOPPER_NAMES_N128                                                                                              \
    HOPPER_NAMES_0 ", " HOPPER_NAMES_1 ", " HOPPER_NAMES_2 ", " HOPPER_NAMES_3 ", " HOPPER_NAMES_4 ", " HOPPER_NAMES_5 \
                   ", " HOPPER_NAMES_6 ", " HOPPER_NAMES_7
#define HOPPER_NAMES_N192 \
    HOPPER_NAMES_N128 ", " HOPPER_NAMES_8 ", " HOPPER_NAMES_9 ", " HOPPER_NAMES_10 ", " HOPPER_NAMES_11
#define HOPPER_D_N32 HOPPER_D16(0)
#define HOPPER_D_N64 HOPPER_D32(0)
#define HOPPER_D_N128 HOPPER_D32(0), HOPPER_D32(32)
#define HOPPER_D_N192 HOPPER_D_N128, HOPPER_D32(64)

#define HOPPER_WGMMA_SS(N, type, a_name, b_name, keep_name, transposed_name)                            \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " keep_name                                    \
                 ", 0;\n"                                                                               \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" HOPPER_NAMES_N##N \
                 "}, " a_name ", " b_name ", keep, 1, 1, 0, " transposed_name ";\n}"                    \
                 : HOPPER_D_N##N                                                                        \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedB ? 1 : 0)         \
                 : "memory")

#define HOPPER_WGMMA_RS(N, type, a0, a1, a2, a3, b_name, keep_name, transposed_name)                      \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " keep_name                                      \
                 ", 0;\n"                                                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" HOPPER_NAMES_N##N   \
                 "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b_name ", keep, 1, 1, " transposed_name ";\n}"   \
                 : HOPPER_D_N##N                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), \
                   "n"(kTransposedB ? 1 : 0)                                                              \
                 : "memory")

#define HOPPER_WGMMA_BOTH(N, form, ...)              \
    if constexpr (std::is_same_v<T, __half>) {       \
        HOPPER_WGMMA_##form(N, "f16", __VA_ARGS__);  \
    } else {                                         \
        HOPPER_WGMMA_##form(N, "bf16", __VA_ARGS__); \
    }

// d = a b, or d += a b, for 64 rows, 2 kSize columns and a sum over 16: a K-major, b K-major or (kTransposedB)
// MN-major, both in shared memory, of 16-bit T. Runs in the background: commit and wait.
template <typename T, bool kTransposedB, int kSize>
__device__ __forceinline__ void wgmma_k16(float (&d)[kSize], uint64_t a, uint64_t b, bool accumulate) {
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>, "the k16 forms take 16-bit elements");
    if constexpr (kSize == 32) {
        HOPPER_WGMMA_BOTH(64, SS, "%32", "%33", "%34", "%35")
    } else if constexpr (kSize == 64) {
        HOPPER_WGMMA_BOTH(128, SS, "%64", "%65", "%66", "%67")
    } else if constexpr (kSize == 96) {
        HOPPER_WGMMA_BOTH(192, SS, "%96", "%97", "%98", "%99")
    } else {
        static_assert(kSize < 0, "no wgmma of this width has been written out above");
    }
}

// The same with a in registers: a[0] row g, elements 2 t and 2 t + 1 of the sum; a[1] row g + 8; a[2] and a[3] the same
// rows, elements + 8. They may not change before the wait. Two 8-column blocks of an accumulator, packed, are such an
// a.
template <typename T, bool kTransposedB, int kSize>
__device__ __forceinline__ void wgmma_k16(float (&d)[kSize], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>, "the k16 forms take 16-bit elements");
    if constexpr (kSize == 16) {
        HOPPER_WGMMA_BOTH(32, RS, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
    } else if constexpr (kSize == 32) {
        HOPPER_WGMMA_BOTH(64, RS, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
    } else if constexpr (kSize == 64) {
        HOPPER_WGMMA_BOTH(128, RS, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
    } else {
        static_assert(kSize < 0, "no wgmma of this width has been written out above");
    }
}
