// Functions of the special function unit, and one in its place.
#pragma once

// 1 / x to 1 unit in the last place, without the branch for denormals that a division has.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2^x for x in [-126, 127] to 7.5e-5 of it, on the multiply-add pipes: 2^(x - n) by the polynomial of third degree with
// the least relative error in [-1/2, 1/2] (by Remez' condition), n the nearest whole number, times 2^n. Below, 2^-126;
// above, or where x is no number, nearly 2^127 or more.
__device__ __forceinline__ float exp2_polynomial(float x) {
    constexpr float kWhole = 0x1.8p23f;  // added, it leaves no place for a fraction
    float clamped;
    asm("{\n.reg .f32 least;\nmax.NaN.f32 least, %1, 0fC2FC0000;\nmin.NaN.f32 %0, least, 0f42FE0000;\n}"
        : "=f"(clamped)
        : "f"(x));
    const float whole = clamped + kWhole, rest = clamped - (whole - kWhole);
    const float power = fmaf(fmaf(fmaf(0.05517156f, rest, 0.24261106f), rest, 0.69326100f), rest, 0.99992808f);
    return __int_as_float(__float_as_int(power) + (__float_as_int(whole) << 23));
}
