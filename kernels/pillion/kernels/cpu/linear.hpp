// Products of activations with a weight that is packed in panels of 16 outputs, of which there are an even number.
//
// In bfloat16 every output is one sum over the inputs in ascending order. With int8 and 4-bit weights activations are
// int8 with a scale for each group of inputs; a group's sum is exact, and the groups are added in ascending order. So
// a row's bits do not depend on the rows beside it.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ahead.hpp"
#include "pool.hpp"
#include "rows.hpp"
#include "vector.hpp"

namespace pillion {

constexpr int kGroup = 32;  // inputs that share a scale, as in GGUF files
constexpr int kQuads = kGroup / 4;

struct Packed {
  enum Form : int64_t { kHalves, kBytes, kNibbles };
  const void* weight;      // bfloat16 [panels][inputs / 2][16][2], or
                           // uint8 [panels][groups][8][16][4], 128 more than it stands for, or
                           // 4 bit [panels][groups][4][16][4], in a byte those of quads i and i + 4
  const uint16_t* scale;   // [panels][groups][16], bfloat16 of int8 and half floats of 4 bit
  const uint16_t* lowest;  // of 4 bit: half floats [panels][groups][16] that 0 stands for
  const float* bias;       // [panels][16], or null
  int64_t outputs, inputs, panels;
  Form form;

  int64_t panel_bytes() const {
    const int64_t lanes = (inputs + kGroup - 1) / kGroup * kGroup * kLanes;
    return form == kHalves ? inputs * kLanes * 2 : form == kBytes ? lanes : lanes / 2;
  }
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

// out float [rows][outputs] += the sums.
struct Accumulate {
  float* out;
  int64_t outputs;

  void operator()(int64_t row, int64_t panel, vfloat left, vfloat right) const {
    one(row, panel * kLanes, left);
    one(row, (panel + 1) * kLanes, right);
  }

  void one(int64_t row, int64_t first, vfloat value) const {
    float* to = out + row * outputs + first;
    if (first + kLanes <= outputs) return store(to, load(to) + value);
    for (int64_t i = 0; first + i < outputs; ++i) to[i] += value[i];
  }
};

// hidden float [rows][outputs] += what would be written, rounded as that is.
struct Add {
  float* hidden;
  int64_t outputs;

  void operator()(int64_t row, int64_t panel, vfloat left, vfloat right) const {
    Accumulate{hidden, outputs}(row, panel, widen(narrow(left)), widen(narrow(right)));
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

// The same of rows that come in pairs, which are two parts of one: out [rows / 2][outputs]. The first comes first.
struct WidenPairs {
  float* out;
  int64_t outputs;

  void operator()(int64_t row, int64_t panel, vfloat left, vfloat right) const {
    if (row % 2 == 0) return Widen{out, outputs}(row / 2, panel, left, right);
    Accumulate{out, outputs}(row / 2, panel, left, right);
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

  template <int R, int N, class Ahead>
  void add(const Packed& w, int64_t panel, int64_t row, vfloat (&sums)[R][N], const Ahead& ahead) const {
    const int64_t pairs = w.inputs / 2, stride = pairs * kLanes * 2;
    const uint16_t* weight = static_cast<const uint16_t*>(w.weight) + panel * stride;
    const uint16_t* from = x + row * w.inputs;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      vpair part[N];
      for (int n = 0; n < N; ++n) part[n] = load_pairs(weight + n * stride + pair * kLanes * 2);
      ahead.step(pair);
      for (int r = 0; r < R; ++r) {
        const vpair a = spread_pair(from + r * w.inputs + pair * 2);
        for (int n = 0; n < N; ++n) sums[r][n] = dot(sums[r][n], a, part[n]);
      }
    }
  }
};

// Rows of int8, six side by side, with what their groups' numbers are multiplied with and add up to.
struct Quantized {
  const int8_t* x;       // [rows / 6][groups][8][6][4]
  const float* scale;    // [rows / 6][groups][6]
  const int32_t* total;  // the same: of x, times -128
  int64_t groups;

  // The group of the first of some rows, which are less than six from it on.
  int64_t at(int64_t row, int64_t group) const { return row / kRows * groups + group; }
};

// Rows of int8 with an int8 weight.
struct Bytes : Quantized {
  static constexpr int kPanels = 2;  // each has an integer and a float sum

  template <int R, int N, class Ahead>
  void add(const Packed& w, int64_t panel, int64_t row, vfloat (&sums)[R][N], const Ahead& ahead) const {
    const uint8_t* weight = static_cast<const uint8_t*>(w.weight) + panel * groups * kLanes * kGroup;
    const uint16_t* scales = w.scale + panel * groups * kLanes;
    const int64_t many = groups;
    vfloat sum[R][N] = {};  // bytes may alias anything: what is not here would go to memory each time
    for (int64_t group = 0; group < many; ++group) {
      const int8_t* from = x + at(row, group) * kRows * kGroup;
      const float* rest = scale + at(row, group) * kRows;
      const int32_t* begin = total + at(row, group) * kRows;
      vint whole[R][N];
      for (int r = 0; r < R; ++r) whole[r][0] = vint{} + begin[r];
      for (int n = 1; n < N; ++n)
        for (int r = 0; r < R; ++r) whole[r][n] = whole[r][0];
      for (int quad = 0; quad < kQuads; ++quad) {
        vquad part[N];
        for (int n = 0; n < N; ++n)
          memcpy(&part[n], weight + ((n * many + group) * kQuads + quad) * kLanes * 4, sizeof part[n]);
        ahead.step(group * kQuads + quad);
        for (int r = 0; r < R; ++r) {
          const vquad a = spread_quad(from + (quad * kRows + r) * 4);
          for (int n = 0; n < N; ++n) whole[r][n] = dot(whole[r][n], part[n], a);
        }
      }
      for (int n = 0; n < N; ++n) {
        const vfloat by = widen(load_half(scales + (n * many + group) * kLanes));
        for (int r = 0; r < R; ++r)
          sum[r][n] = fma(__builtin_convertvector(whole[r][n], vfloat), by * rest[r], sum[r][n]);
      }
    }
    memcpy(&sums, &sum, sizeof sums);
  }
};

// Rows of int8 with a 4-bit weight.
struct Nibbles : Quantized {
  static constexpr int kPanels = 2;

  template <int R, int N, class Ahead>
  void add(const Packed& w, int64_t panel, int64_t row, vfloat (&sums)[R][N], const Ahead& ahead) const {
    constexpr int kBytes = kGroup * kLanes / 2, kPairs = kQuads / 2;
    const uint8_t* weight = static_cast<const uint8_t*>(w.weight) + panel * groups * kBytes;
    const uint16_t *scales = w.scale + panel * groups * kLanes, *lowest = w.lowest + panel * groups * kLanes;
    const int64_t many = groups;
    vfloat sum[R][N] = {};  // bytes may alias anything: what is not here would go to memory each time
    for (int64_t group = 0; group < many; ++group) {
      const int8_t* from = x + at(row, group) * kRows * kGroup;
      const float* rest = scale + at(row, group) * kRows;
      const int32_t* whole_row = total + at(row, group) * kRows;
      vint whole[R][N] = {};
      for (int pair = 0; pair < kPairs; ++pair) {
        vquad low[N], high[N];
        for (int n = 0; n < N; ++n) {
          vquad both;
          memcpy(&both, weight + (n * many + group) * kBytes + pair * kLanes * 4, sizeof both);
          low[n] = both & 0x0f0f0f0fu;
          high[n] = both >> 4 & 0x0f0f0f0fu;
        }
        ahead.step(group * kPairs + pair);
        for (int r = 0; r < R; ++r) {
          const vquad first = spread_quad(from + (pair * kRows + r) * 4);
          const vquad second = spread_quad(from + ((pair + kPairs) * kRows + r) * 4);
          for (int n = 0; n < N; ++n) whole[r][n] = dot(dot(whole[r][n], low[n], first), high[n], second);
        }
      }
      for (int n = 0; n < N; ++n) {
        const vfloat by = widen_half(load_half(scales + (n * many + group) * kLanes));
        const vfloat least = widen_half(load_half(lowest + (n * many + group) * kLanes)) * -0.0078125f;
        for (int r = 0; r < R; ++r) {
          sum[r][n] = fma(__builtin_convertvector(whole[r][n], vfloat), by * rest[r], sum[r][n]);
          sum[r][n] = fma(least, spread(rest[r] * static_cast<float>(whole_row[r])), sum[r][n]);
        }
      }
    }
    memcpy(&sums, &sum, sizeof sums);
  }
};

// A few rows times some panels.
template <class X, class Use, class Ahead>
inline void panels(const Packed& w, const X& x, int64_t first, int64_t last, int64_t row, int many, const Use& use,
                   const Ahead& ahead) {
  with_rows(many, [&](auto constant) {
    constexpr int R = decltype(constant)::value;
    for (int64_t panel = first; panel < last;) {
      if (X::kPanels == 4 && panel + 4 <= last) {
        vfloat sums[R][X::kPanels] = {};
        x.add(w, panel, row, sums, ahead);
        finish(w, sums, panel, row, use);
        panel += 4;
      } else {
        vfloat sums[R][2] = {};
        x.add(w, panel, row, sums, ahead);
        finish(w, sums, panel, row, use);
        panel += 2;
      }
    }
  });
}

// All rows times all panels. While a thread computes what it took, what it will take next comes from memory: pieces
// are taken from the last on, by all threads in turn.
template <class X, class Use>
inline void multiply(Pool& pool, const Packed& w, const X& x, int64_t rows, const Use& use) {
  const int64_t width = rows <= kRows ? 2 : 4;  // few rows are read once: smaller pieces
  const int64_t columns = (w.panels + width - 1) / width;
  const int64_t height = std::min<int64_t>(rows, columns < 16 ? 4 * kRows : 8 * kRows), chunks = (rows + height - 1) / height;
  pool.run(columns * chunks, [&](int64_t piece) {
    const int64_t first = piece / chunks * width, last = std::min(w.panels, first + width);
    const int64_t begin = piece % chunks * height, end = std::min(rows, begin + height);
    const int64_t next = std::max<int64_t>(0, piece - pool.threads()) / chunks * width;
    Ahead ahead;
    if (next != first)
      ahead = {static_cast<const char*>(w.weight) + next * w.panel_bytes(), w.panel_bytes(),
               std::min(width, w.panels - next), (end - begin + kRows - 1) / kRows};
    for (int64_t row = begin; row < end; row += kRows, ahead.turn()) {
      const int many = static_cast<int>(std::min<int64_t>(kRows, end - row));
      if (ahead.lines)
        panels(w, x, first, last, row, many, use, ahead);
      else
        panels(w, x, first, last, row, many, use, Nothing{});
    }
  });
}

// The larger; a NaN where one is.
inline vfloat larger_or_nan(vfloat a, vfloat b) { return (a > b) | (a != a) ? a : b; }

// `many` of a group of activations as int8, zeros behind them, four to every `to + 4 * kRows`; returns their scale,
// which is a NaN or infinite where one of them is. `total` is of them, times -128.
template <class X>
inline float quantize(const X* from, int64_t many, int8_t* to, int32_t* total) {
  static_assert(kGroup == 2 * kLanes);
  vfloat low, high;
  if (many == kGroup) {
    low = read_lanes(from);
    high = read_lanes(from + kLanes);
  } else {
    alignas(64) float values[kGroup] = {};
    for (int64_t i = 0; i < many; ++i) values[i] = read(from + i);
    low = load(values);
    high = load(values + kLanes);
  }
  const float top = fold(larger_or_nan(larger_or_nan(low, -low), larger_or_nan(high, -high)), larger_or_nan)[0];
  const float by = top > 1e-30f ? 127.0f / top : 0.0f;
  const vfloat shift = spread(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  low = (low * by + shift) - shift;
  high = (high * by + shift) - shift;
  alignas(64) int8_t bytes[kGroup];
  const vbytes first = __builtin_convertvector(__builtin_convertvector(low, vint), vbytes);
  const vbytes second = __builtin_convertvector(__builtin_convertvector(high, vint), vbytes);
  memcpy(bytes, &first, kLanes);
  memcpy(bytes + kLanes, &second, kLanes);
  for (int quad = 0; quad < kQuads; ++quad) memcpy(to + quad * kRows * 4, bytes + quad * 4, 4);
  const float all = sum(low + high);  // exact; where it is no number, neither is the scale
  *total = std::abs(all) < 1e6f ? static_cast<int32_t>(all) * -128 : 0;
  return top * (1.0f / 127.0f);
}

// All rows as int8. Valid until the next call by the same thread.
template <class X>
inline Quantized quantize_rows(Pool& pool, const X* x, int64_t rows, int64_t inputs) {
  static thread_local std::vector<int8_t> bytes;
  static thread_local std::vector<float> scales;
  static thread_local std::vector<int32_t> totals;
  const int64_t groups = (inputs + kGroup - 1) / kGroup;
  const size_t all = static_cast<size_t>((rows + kRows - 1) / kRows * groups * kRows);
  if (scales.size() < all) bytes.resize(all * kGroup), scales.resize(all), totals.resize(all);
  const Quantized made{bytes.data(), scales.data(), totals.data(), groups};
  int8_t* to = bytes.data();
  float* scale = scales.data();
  int32_t* total = totals.data();
  by_rows(pool, rows, inputs, [&](int64_t row) {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t at = made.at(row, group), lane = at * kRows + row % kRows, first = group * kGroup;
      const int64_t many = std::min<int64_t>(kGroup, inputs - first);
      scale[lane] = quantize(x + row * inputs + first, many, to + at * kRows * kGroup + row % kRows * 4, &total[lane]);
    }
  });
  return made;
}

// x bfloat16 or float [rows][inputs] times the weight, plus bias; float is for forms that make it int8.
template <class X, class Use>
inline void linear(Pool& pool, const Packed& w, const X* x, int64_t rows, const Use& use) {
  if (w.form == Packed::kBytes)
    return multiply(pool, w, Bytes{quantize_rows(pool, x, rows, w.inputs)}, rows, use);
  if (w.form == Packed::kNibbles)
    return multiply(pool, w, Nibbles{quantize_rows(pool, x, rows, w.inputs)}, rows, use);
  if constexpr (std::is_same_v<X, uint16_t>) multiply(pool, w, Halves{x}, rows, use);
}

// Float logits of a weight in int8 or 4 bit, of activations in two parts: as int8, and what that lost of them.
inline void scaled_logits(Pool& pool, const Packed& w, const float* x, int64_t rows, float* out) {
  static thread_local std::vector<float> parts;
  parts.resize(static_cast<size_t>(2 * rows * w.inputs));
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * w.inputs;
    float *to = parts.data() + 2 * row * w.inputs, *rest = to + w.inputs;
    for (int64_t first = 0; first < w.inputs; first += kGroup) {
      const int64_t many = std::min<int64_t>(kGroup, w.inputs - first);
      int8_t bytes[kQuads * kRows * 4];
      int32_t total;
      const float scale = quantize(from + first, many, bytes, &total);
      for (int64_t i = 0; i < many; ++i) {
        to[first + i] = from[first + i];
        rest[first + i] = from[first + i] - static_cast<float>(bytes[i / 4 * kRows * 4 + i % 4]) * scale;
      }
    }
  }
  linear(pool, w, parts.data(), 2 * rows, WidenPairs{out, w.outputs});
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
