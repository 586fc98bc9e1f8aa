// Products of activations with weights: bfloat16 layers with a packed weight, and the output head in float32.
//
// Every output is one sum over the inputs in ascending order, whatever rows are beside it.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "pool.hpp"
#include "vector.hpp"

namespace pillion {

// A weight [outputs][inputs] as panels of 16 outputs: [panels][inputs / 2][16][2], zeros behind the last output.
inline void pack(const uint16_t* weight, int64_t outputs, int64_t inputs, uint16_t* packed) {
  const int64_t panels = (outputs + kLanes - 1) / kLanes;
  for (int64_t panel = 0; panel < panels; ++panel)
    for (int64_t pair = 0; pair < inputs / 2; ++pair)
      for (int64_t lane = 0; lane < kLanes; ++lane, packed += 2) {
        const int64_t output = panel * kLanes + lane;
        for (int64_t i = 0; i < 2; ++i) packed[i] = output < outputs ? weight[output * inputs + pair * 2 + i] : 0;
      }
}

struct Packed {
  const uint16_t* panels;
  const uint16_t* bias;  // bfloat16 [outputs], or null
  int64_t outputs, inputs;
};

// R rows times N panels.
template <int R, int N>
inline void multiply(const Packed& w, const uint16_t* x, int64_t panel, uint16_t* out) {
  const int64_t pairs = w.inputs / 2, stride = pairs * kLanes * 2;
  const uint16_t* weights = w.panels + panel * stride;
  vfloat sums[R][N] = {};
  for (int64_t pair = 0; pair < pairs; ++pair) {
    vpair part[N];
    for (int n = 0; n < N; ++n) part[n] = load_pairs(weights + n * stride + pair * kLanes * 2);
    for (int r = 0; r < R; ++r) {
      const vpair a = spread_pair(x + r * w.inputs + pair * 2);
      for (int n = 0; n < N; ++n) sums[r][n] = dot(sums[r][n], a, part[n]);
    }
  }
  for (int n = 0; n < N; ++n) {
    const int64_t first = (panel + n) * kLanes;
    const int64_t many = std::min<int64_t>(kLanes, w.outputs - first);
    vfloat bias = {};
    if (w.bias)
      for (int64_t i = 0; i < many; ++i) bias[i] = widen(w.bias[first + i]);
    for (int r = 0; r < R; ++r) {
      const vhalf result = narrow(sums[r][n] + bias);
      memcpy(out + r * w.outputs + first, &result, many * 2);
    }
  }
}

// out bfloat16 [rows][outputs] = x bfloat16 [rows][inputs] times the weight, plus bias.
inline void linear(Pool& pool, const Packed& w, const uint16_t* x, int64_t rows, uint16_t* out) {
  const int64_t panels = (w.outputs + kLanes - 1) / kLanes;
  const int64_t width = rows <= kRows ? 2 : 4;       // few rows are read once: smaller pieces
  const int64_t height = std::min<int64_t>(rows, 8 * kRows);
  const int64_t columns = (panels + width - 1) / width, chunks = (rows + height - 1) / height;
  pool.run(columns * chunks, [&](int64_t piece) {
    const int64_t panel = piece / chunks * width, begin = piece % chunks * height;
    const int64_t end = std::min(rows, begin + height);
    const int64_t many = std::min(width, panels - panel);
    for (int64_t row = begin; row < end; row += kRows) {
      with_rows(static_cast<int>(std::min<int64_t>(kRows, end - row)), [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        const uint16_t* from = x + row * w.inputs;
        uint16_t* to = out + row * w.outputs;
        switch (many) {
          case 1: return multiply<R, 1>(w, from, panel, to);
          case 2: return multiply<R, 2>(w, from, panel, to);
          case 3: return multiply<R, 3>(w, from, panel, to);
          default: return multiply<R, 4>(w, from, panel, to);
        }
      });
    }
  });
}

constexpr int kHeadRows = 4, kHeadOutputs = 4;

// R rows times O outputs. `x` float, sixteen even elements before their sixteen odd ones.
template <int R, int O>
inline void multiply_wide(const float* x, int64_t padded, const uint16_t* weight, int64_t inputs, float* out,
                          int64_t out_row) {
  vfloat sums[R][O] = {};
  for (int64_t at = 0; at < padded; at += 2 * kLanes) {
    vpair part[O];
    for (int o = 0; o < O; ++o) {
      const uint16_t* from = weight + o * inputs + at;
      if (at + 2 * kLanes <= inputs) {
        part[o] = load_pairs(from);
      } else {
        part[o] = vpair{};
        memcpy(&part[o], from, (inputs - at) * 2);
      }
    }
    for (int r = 0; r < R; ++r) {
      const vfloat even = load(x + r * padded + at), odd = load(x + r * padded + at + kLanes);
      for (int o = 0; o < O; ++o) sums[r][o] = fma(odd, high(part[o]), fma(even, low(part[o]), sums[r][o]));
    }
  }
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o) out[r * out_row + o] = sum(sums[r][o]);
}

// out float [rows][outputs] = x float [rows][inputs] times weight bfloat16 [outputs][inputs].
inline void logits(Pool& pool, const uint16_t* weight, int64_t outputs, int64_t inputs, const float* x, int64_t rows,
                   float* out) {
  static thread_local std::vector<float> arranged;
  const int64_t padded = (inputs + 2 * kLanes - 1) / (2 * kLanes) * 2 * kLanes;
  arranged.assign(static_cast<size_t>(rows * padded), 0.0f);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < inputs; ++i)
      arranged[row * padded + i / 32 * 32 + i % 2 * kLanes + i % 32 / 2] = x[row * inputs + i];
  const float* all = arranged.data();
  constexpr int64_t kPiece = 32 * kHeadOutputs;
  pool.run((outputs + kPiece - 1) / kPiece, [&, all](int64_t piece) {
    const int64_t end = std::min(outputs, (piece + 1) * kPiece);
    for (int64_t output = piece * kPiece; output < end; output += kHeadOutputs) {
      const int64_t many = std::min<int64_t>(kHeadOutputs, end - output);
      for (int64_t row = 0; row < rows; row += kHeadRows) {
        const float* from = all + row * padded;
        float* to = out + row * outputs + output;
        with_rows(static_cast<int>(std::min<int64_t>(kHeadRows, rows - row)), [&](auto constant) {
          constexpr int R = std::min(decltype(constant)::value, kHeadRows);
          if (many == kHeadOutputs) {
            multiply_wide<R, kHeadOutputs>(from, padded, weight + output * inputs, inputs, to, outputs);
          } else {
            for (int64_t o = 0; o < many; ++o)
              multiply_wide<R, 1>(from, padded, weight + (output + o) * inputs, inputs, to + o, outputs);
          }
        });
      }
    }
  });
}

}  // namespace pillion
