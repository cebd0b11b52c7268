// Vectors as wide as the machine the file is compiled for, through the GCC and Clang vector extension.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t VecInt __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Vec load(const float *from) {
    Vec value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store(float *to, Vec value) {
    std::memcpy(to, &value, sizeof value);
}

inline Vec broadcast(float value) {
    return value - Vec{};
}

inline Vec maximum(Vec a, Vec b) {
    return a > b ? a : b;
}

// 2^(y + rest) for y <= 127 and a rest too small to show in y, to about 1 unit in the last place; 0 for y < -126.
// Exact where y is a whole number and the rest 0.
inline Vec exp2_vec(Vec y, Vec rest) {
    constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest whole number in the low bits of the sum
    const Vec clamped = maximum(y, broadcast(-127.0f));
    const Vec shifted = clamped + kRound;
    const Vec f = clamped - (shifted - kRound) + rest;
    // Minimax polynomial of degree 6 on [-1/2, 1/2], relative error 2e-9.
    Vec power = f * 0x1.41d334p-13f + 0x1.5f4568p-10f;
    power = power * f + 0x1.3b2dbcp-7f;
    power = power * f + 0x1.c6aed4p-5f;
    power = power * f + 0x1.ebfbdap-3f;
    power = power * f + 0x1.62e430p-1f;
    power = power * f + 1.0f;
    VecInt whole, bits;
    std::memcpy(&whole, &shifted, sizeof whole);
    std::memcpy(&bits, &power, sizeof bits);
    bits += whole << 23;  // the bits of kRound itself are shifted out
    std::memcpy(&power, &bits, sizeof power);
    return y < -126.0f ? Vec{} : power;
}

// The kLanes x kLanes matrix in `rows` transposed: as many rounds of perfect shuffles as its side has bits.
inline void transpose(Vec rows[kLanes]) {
    VecInt low, high;
    for (int i = 0; i < kLanes; ++i) {
        low[i] = i / 2 + i % 2 * kLanes;
        high[i] = low[i] + kLanes / 2;
    }
#pragma GCC unroll 8
    for (int side = 1; side < kLanes; side *= 2) {
        Vec shuffled[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes / 2; ++i) {
            shuffled[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
            shuffled[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) rows[i] = shuffled[i];
    }
}
