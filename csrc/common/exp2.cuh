// 2^x without the special function unit, which evaluates 4 exponentials a clock and scheduler while 32 multiply-adds
// fit.
#pragma once

#include <cstdint>

// 2^x for x < 128 to 2^-18.5 of its value; 2^-125 where x is less than -125; no number where x is none. x = n + f with
// n the nearest whole number: n is added to the exponent of 2^f. Adding kWhole rounds to n and leaves it in the low
// bits. The coefficients make the greatest relative error over |f| <= 1/2 the least (found by Remez's exchange in
// float64).
__device__ __forceinline__ float exp2_polynomial(float x) {
    constexpr float kWhole = 12582912.0f;                     // 1.5 * 2^23
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-125.0f));  // below, the exponent would run into the sign
    const float whole = x + kWhole;
    const float f = x - (whole - kWhole);
    float power = fmaf(f, 0.00957010221f, 0.0559178591f);
    power = fmaf(power, f, 0.240247443f);
    power = fmaf(power, f, 0.693121791f);
    power = fmaf(power, f, 0.999999285f);
    return __uint_as_float(__float_as_uint(power) + (__float_as_uint(whole) << 23));
}
