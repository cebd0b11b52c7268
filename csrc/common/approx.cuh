// Functions of the special function unit.
#pragma once

// 1 / x to 1 unit in the last place, without the branch for denormals that a division has.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
