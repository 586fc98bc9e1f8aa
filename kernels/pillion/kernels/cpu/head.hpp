// The output head: float32 products with a bfloat16 weight that lies as the embedding does.
//
// An activation is taken as two bfloat16 numbers, itself and what is lost of it, which leaves an error of 2^-17 at
// most; sums are float32, each over the inputs in ascending order, lane by lane.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pool.hpp"
#include "vector.hpp"

namespace pillion {

constexpr int kHeadOutputs = 4;
constexpr int kHeadPiece = 16 * kHeadOutputs;  // its weights stay in the cache while the rows pass

// Four vectors to one: quarter i of the result has the sums of vector i, not folded to the end.
inline vfloat gather4(vfloat a, vfloat b, vfloat c, vfloat d) {
  // Halves of two, then quarters of four.
  const vfloat ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                    __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  const vfloat cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                    __builtin_shufflevector(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  return __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// The sums of four vectors, one a quarter's first lane.
inline vfloat sums4(const vfloat* v) {
  vfloat s = gather4(v[0], v[1], v[2], v[3]);
  s += shuffled<2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13>(s);
  return s + shuffled<1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14>(s);
}

// R rows times four outputs. `x` [rows][2][inputs], the number and what is lost of it.
template <int R>
inline void multiply_head(const uint16_t* x, const uint16_t* const* weight, int64_t inputs, float* out, int64_t out_row,
                          int64_t many) {
  vfloat sums[R][kHeadOutputs] = {};
  for (int64_t at = 0; at < inputs; at += 2 * kLanes) {
    vpair part[kHeadOutputs];
    for (int o = 0; o < kHeadOutputs; ++o) {
      part[o] = load_pairs(weight[o] + at);
      __builtin_prefetch(weight[o] + at + 2 * kHeadOutputs * inputs);  // the streams are short, and four at once
    }
    for (int r = 0; r < R; ++r) {
      const vpair a = load_pairs(x + 2 * r * inputs + at), rest = load_pairs(x + (2 * r + 1) * inputs + at);
      for (int o = 0; o < kHeadOutputs; ++o) sums[r][o] = dot(dot(sums[r][o], rest, part[o]), a, part[o]);
    }
  }
  for (int r = 0; r < R; ++r) {
    const vfloat s = shuffled<0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12>(sums4(sums[r]));
    float* to = out + r * out_row;
    if (many == kHeadOutputs)
      memcpy(to, &s, kHeadOutputs * sizeof(float));
    else
      memcpy(to, &s, many * sizeof(float));
  }
}

// out float [rows][outputs] = x float [rows][inputs] times weight bfloat16 [outputs][inputs];
// inputs are a multiple of 32.
inline void logits(Pool& pool, const uint16_t* weight, int64_t outputs, int64_t inputs, const float* x, int64_t rows,
                   float* out) {
  static thread_local std::vector<uint16_t> split;
  split.resize(static_cast<size_t>(2 * rows * inputs));
  for (int64_t row = 0; row < rows; ++row) {
    uint16_t *to = split.data() + 2 * row * inputs, *rest = to + inputs;
    for (int64_t i = 0; i < inputs; i += kLanes) {
      const vfloat value = load(x + row * inputs + i);
      const vhalf part = narrow(value);
      store(to + i, part);
      store(rest + i, narrow(value - widen(part)));
    }
  }
  const uint16_t* all = split.data();
  pool.run((outputs + kHeadPiece - 1) / kHeadPiece, [&, all](int64_t piece) {
    const int64_t begin = piece * kHeadPiece, end = std::min(outputs, begin + kHeadPiece);
    for (int64_t row = 0; row < rows; row += kRows) {
      with_rows(static_cast<int>(std::min<int64_t>(kRows, rows - row)), [&](auto constant) {
        for (int64_t output = begin; output < end; output += kHeadOutputs) {
          const int64_t many = std::min<int64_t>(kHeadOutputs, end - output);
          const uint16_t* from[kHeadOutputs];
          for (int64_t o = 0; o < kHeadOutputs; ++o) from[o] = weight + (output + std::min(o, many - 1)) * inputs;
          multiply_head<decltype(constant)::value>(all + 2 * row * inputs, from, inputs,
                                                   out + row * outputs + output, outputs, many);
        }
      });
    }
  });
}

}  // namespace pillion
