// Products of activations with a weight that is packed in panels of 16 outputs, of which there are an even number.
//
// In bfloat16 every output is one sum over the inputs in ascending order. In int8 weights and activations have a
// scale for each group of 64 inputs; a group's sum is exact, and the groups are added in ascending order. So a
// row's bits do not depend on the rows beside it.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pool.hpp"
#include "rows.hpp"
#include "vector.hpp"

namespace pillion {

constexpr int kScaled = 64;  // inputs that share a scale
constexpr int kQuads = kScaled / 4;

struct Packed {
  const void* weight;     // bfloat16 [panels][inputs / 2][16][2], or uint8 [panels][groups][16][16][4], 128 more
  const uint16_t* scale;  // of int8: bfloat16 [panels][groups][16]; else null
  const float* bias;      // [panels][16], or null
  int64_t outputs, inputs, panels;

  int64_t groups() const { return (inputs + kScaled - 1) / kScaled; }
};

// What is done with R sums of two neighbouring panels.

// out bfloat16 [rows][outputs]
struct Write {
  uint16_t* out;
  int64_t outputs;

  void operator()(int64_t row, int64_t panel, vfloat left, vfloat right) const {
    one(row, panel * kLanes, left);
    one(row, (panel + 1) * kLanes, right);
  }

  void one(int64_t row, int64_t first, vfloat value) const {
    const vhalf result = narrow(value);
    const int64_t many = std::clamp<int64_t>(outputs - first, 0, kLanes);
    memcpy(out + row * outputs + first, &result, many * 2);
  }
};

// hidden float [rows][outputs] += what would be written, rounded as that is.
struct Add {
  float* hidden;
  int64_t outputs;

  void operator()(int64_t row, int64_t panel, vfloat left, vfloat right) const {
    one(row, panel * kLanes, left);
    one(row, (panel + 1) * kLanes, right);
  }

  void one(int64_t row, int64_t first, vfloat value) const {
    float* to = hidden + row * outputs + first;
    const vfloat rounded = widen(narrow(value));
    if (first + kLanes <= outputs) return store(to, load(to) + rounded);
    for (int64_t i = 0; first + i < outputs; ++i) to[i] += rounded[i];
  }
};

// out bfloat16 [rows][outputs] = silu(gate) * up, of panels that alternate and are rounded as if written.
struct Gate {
  uint16_t* out;
  int64_t outputs;  // of each of the two

  void operator()(int64_t row, int64_t panel, vfloat left, vfloat right) const {
    const vfloat gate = widen(narrow(left)), up = widen(narrow(right));
    Write{out, outputs}.one(row, panel / 2 * kLanes, gate / (exp2(gate * -1.44269504088896341f) + 1.0f) * up);
  }
};

// The same as float: out [rows][outputs].
struct Widen {
  float* out;
  int64_t outputs;

  void operator()(int64_t row, int64_t panel, vfloat left, vfloat right) const {
    one(row, panel * kLanes, left);
    one(row, (panel + 1) * kLanes, right);
  }

  void one(int64_t row, int64_t first, vfloat value) const {
    const int64_t many = std::clamp<int64_t>(outputs - first, 0, kLanes);
    memcpy(out + row * outputs + first, &value, many * 4);
  }
};

// Hands the sums of R rows and N panels on, two panels at a time.
template <int R, int N, class Use>
inline void finish(const Packed& w, vfloat (&sums)[R][N], int64_t panel, int64_t row, const Use& use) {
  for (int n = 0; n < N; n += 2) {
    vfloat left = {}, right = {};
    if (w.bias) {
      left = load(w.bias + (panel + n) * kLanes);
      right = load(w.bias + (panel + n + 1) * kLanes);
    }
    for (int r = 0; r < R; ++r) use(row + r, panel + n, sums[r][n] + left, sums[r][n + 1] + right);
  }
}

// Rows of bfloat16 with a bfloat16 weight.
struct Halves {
  static constexpr int kPanels = 4;  // at once
  const uint16_t* x;

  template <int R, int N>
  void sum(const Packed& w, int64_t panel, int64_t row, vfloat (&sums)[R][N]) const {
    const int64_t pairs = w.inputs / 2, stride = pairs * kLanes * 2;
    const uint16_t* weight = static_cast<const uint16_t*>(w.weight) + panel * stride;
    const uint16_t* from = x + row * w.inputs;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      vpair part[N];
      for (int n = 0; n < N; ++n) part[n] = load_pairs(weight + n * stride + pair * kLanes * 2);
      for (int r = 0; r < R; ++r) {
        const vpair a = spread_pair(from + r * w.inputs + pair * 2);
        for (int n = 0; n < N; ++n) sums[r][n] = dot(sums[r][n], a, part[n]);
      }
    }
  }
};

// Rows of int8 with an int8 weight.
struct Bytes {
  static constexpr int kPanels = 2;  // each has an integer and a float sum
  const int8_t* x;                   // [rows][groups][64]
  const float* scale;                // [rows][groups]
  const int32_t* offset;             // [rows][groups]: what the weight's 128 add to a group's sum, negated
  int64_t groups;

  template <int R, int N>
  void sum(const Packed& w, int64_t panel, int64_t row, vfloat (&sums)[R][N]) const {
    const uint8_t* weight = static_cast<const uint8_t*>(w.weight) + panel * groups * kLanes * kScaled;
    const uint16_t* scales = w.scale + panel * groups * kLanes;
    for (int64_t group = 0; group < groups; ++group) {
      const int8_t* from = x + (row * groups + group) * kScaled;
      vint whole[R][N];
      for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) whole[r][n] = vint{} + offset[(row + r) * groups + group];
      for (int quad = 0; quad < kQuads; ++quad) {
        vquad part[N];
        for (int n = 0; n < N; ++n)
          memcpy(&part[n], weight + ((n * groups + group) * kQuads + quad) * kLanes * 4, sizeof part[n]);
        for (int r = 0; r < R; ++r) {
          const vquad a = spread_quad(from + r * groups * kScaled + quad * 4);
          for (int n = 0; n < N; ++n) whole[r][n] = dot(whole[r][n], part[n], a);
        }
      }
      for (int n = 0; n < N; ++n) {
        const vfloat by = widen(load_half(scales + (n * groups + group) * kLanes));
        for (int r = 0; r < R; ++r) {
          const vfloat both = by * scale[(row + r) * groups + group];
          sums[r][n] = fma(__builtin_convertvector(whole[r][n], vfloat), both, sums[r][n]);
        }
      }
    }
  }
};

// All rows times all panels.
template <class X, class Use>
inline void multiply(Pool& pool, const Packed& w, const X& x, int64_t rows, const Use& use) {
  const int64_t width = rows <= kRows ? 2 : 4;  // few rows are read once: smaller pieces
  const int64_t height = std::min<int64_t>(rows, 8 * kRows);
  const int64_t columns = (w.panels + width - 1) / width, chunks = (rows + height - 1) / height;
  pool.run(columns * chunks, [&](int64_t piece) {
    const int64_t first = piece / chunks * width, last = std::min(w.panels, first + width);
    const int64_t begin = piece % chunks * height, end = std::min(rows, begin + height);
    for (int64_t row = begin; row < end; row += kRows) {
      with_rows(static_cast<int>(std::min<int64_t>(kRows, end - row)), [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        for (int64_t panel = first; panel < last;) {
          if (X::kPanels == 4 && panel + 4 <= last) {
            vfloat sums[R][X::kPanels] = {};
            x.sum(w, panel, row, sums);
            finish(w, sums, panel, row, use);
            panel += 4;
          } else {
            vfloat sums[R][2] = {};
            x.sum(w, panel, row, sums);
            finish(w, sums, panel, row, use);
            panel += 2;
          }
        }
      });
    }
  });
}

// A group of 64 activations, or the last ones of a row: `to` int8 with this scale; returns it. `sum` is of `to`.
template <class X>
inline float quantize(const X* from, int64_t many, int8_t* to, int32_t* sum) {
  alignas(64) float values[kScaled] = {};
  for (int64_t i = 0; i < many; ++i) values[i] = read(from + i);
  vfloat most = {}, finite = {};
  for (int i = 0; i < kScaled; i += kLanes) {
    const vfloat v = load(values + i);
    most = larger(most, larger(v, -v));
    finite += v * 0.0f;  // a NaN where one is no number: it goes on in the scale
  }
  const float top = largest(most)[0];
  const float by = top > 1e-30f ? 127.0f / top : 0.0f;
  const vfloat shift = spread(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  vint total = {};
  for (int i = 0; i < kScaled; i += kLanes) {
    const vint whole = __builtin_convertvector((load(values + i) * by + shift) - shift, vint);
    total += whole;
    const vbytes bytes = __builtin_convertvector(whole, vbytes);
    memcpy(to + i, &bytes, sizeof bytes);
  }
  *sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) *sum += total[lane];
  return top / 127.0f + pillion::sum(finite);
}

// x bfloat16 or float [rows][inputs] times the weight, plus bias.
template <class X, class Use>
inline void linear(Pool& pool, const Packed& w, const X* x, int64_t rows, const Use& use) {
  if constexpr (std::is_same_v<X, uint16_t>)
    if (!w.scale) return multiply(pool, w, Halves{x}, rows, use);
  static thread_local std::vector<int8_t> bytes;
  static thread_local std::vector<float> scales;
  static thread_local std::vector<int32_t> offsets;
  const int64_t groups = w.groups();
  const size_t all = static_cast<size_t>(rows * groups);
  if (scales.size() < all) bytes.resize(all * kScaled), scales.resize(all), offsets.resize(all);
  int8_t* to = bytes.data();
  float* scale = scales.data();
  int32_t* offset = offsets.data();
  by_rows(pool, rows, w.inputs, [&](int64_t row) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t at = row * groups + group, first = group * kScaled;
      const int64_t many = std::min<int64_t>(kScaled, w.inputs - first);
      scale[at] = quantize(x + row * w.inputs + first, many, to + at * kScaled, &offset[at]);
      offset[at] *= -128;
    }
  });
  multiply(pool, w, Bytes{to, scale, offset, groups}, rows, use);
}

inline void linear_write(Pool& pool, const Packed& w, const uint16_t* x, int64_t rows, uint16_t* out) {
  linear(pool, w, x, rows, Write{out, w.outputs});
}

inline void linear_add(Pool& pool, const Packed& w, const uint16_t* x, int64_t rows, float* hidden) {
  linear(pool, w, x, rows, Add{hidden, w.outputs});
}

// `w.outputs` are the gate's, and as many are up's.
inline void linear_gate(Pool& pool, const Packed& w, const uint16_t* x, int64_t rows, uint16_t* out) {
  linear(pool, w, x, rows, Gate{out, w.outputs});
}

}  // namespace pillion
