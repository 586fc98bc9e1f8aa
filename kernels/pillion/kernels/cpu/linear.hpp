// Products of bfloat16 activations with a bfloat16 weight that is packed in panels.
//
// Every output is one sum over the inputs in ascending order, whatever rows are beside it.

#pragma once

#include <algorithm>
#include <cstdint>

#include "pool.hpp"
#include "vector.hpp"

namespace pillion {

// Outputs in panels of 16, of which there are an even number: [panels][inputs / 2][16][2], zeros behind the last.
inline int64_t panels_of(int64_t outputs) { return (outputs + 2 * kLanes - 1) / (2 * kLanes) * 2; }

// Packs a weight [outputs][inputs]; `step` is the number of panels from one of its panels to the next.
inline void pack(const uint16_t* weight, int64_t outputs, int64_t inputs, int64_t step, uint16_t* packed) {
  const int64_t panels = (outputs + kLanes - 1) / kLanes, size = inputs * kLanes;
  for (int64_t panel = 0; panel < panels; ++panel) {
    uint16_t* to = packed + panel * step * size;
    for (int64_t pair = 0; pair < inputs / 2; ++pair)
      for (int64_t lane = 0; lane < kLanes; ++lane, to += 2) {
        const int64_t output = panel * kLanes + lane;
        for (int64_t i = 0; i < 2; ++i) to[i] = output < outputs ? weight[output * inputs + pair * 2 + i] : 0;
      }
  }
}

struct Packed {
  const uint16_t* weight;
  const float* bias;  // one a lane of each panel, or null
  int64_t outputs, inputs;
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

// R rows times N panels.
template <int R, int N, class Use>
inline void multiply(const Packed& w, const uint16_t* x, int64_t panel, int64_t row, const Use& use) {
  const int64_t pairs = w.inputs / 2, stride = pairs * kLanes * 2;
  const uint16_t* weight = w.weight + panel * stride;
  vfloat sums[R][N] = {};
  for (int64_t pair = 0; pair < pairs; ++pair) {
    vpair part[N];
    for (int n = 0; n < N; ++n) part[n] = load_pairs(weight + n * stride + pair * kLanes * 2);
    for (int r = 0; r < R; ++r) {
      const vpair a = spread_pair(x + r * w.inputs + pair * 2);
      for (int n = 0; n < N; ++n) sums[r][n] = dot(sums[r][n], a, part[n]);
    }
  }
  for (int n = 0; n < N; n += 2) {
    vfloat left = {}, right = {};
    if (w.bias) {
      left = load(w.bias + (panel + n) * kLanes);
      right = load(w.bias + (panel + n + 1) * kLanes);
    }
    for (int r = 0; r < R; ++r) use(row + r, panel + n, sums[r][n] + left, sums[r][n + 1] + right);
  }
}

// x bfloat16 [rows][inputs] times the weight, plus bias; `panels` are the weight's.
template <class Use>
inline void linear(Pool& pool, const Packed& w, int64_t panels, const uint16_t* x, int64_t rows, const Use& use) {
  const int64_t width = rows <= kRows ? 2 : 4;  // few rows are read once: smaller pieces
  const int64_t height = std::min<int64_t>(rows, 8 * kRows);
  const int64_t columns = (panels + width - 1) / width, chunks = (rows + height - 1) / height;
  pool.run(columns * chunks, [&](int64_t piece) {
    const int64_t panel = piece / chunks * width, begin = piece % chunks * height;
    const int64_t end = std::min(rows, begin + height);
    for (int64_t row = begin; row < end; row += kRows) {
      with_rows(static_cast<int>(std::min<int64_t>(kRows, end - row)), [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        const uint16_t* from = x + row * w.inputs;
        if (width == 4 && panel + 4 <= panels) return multiply<R, 4>(w, from, panel, row, use);
        return multiply<R, 2>(w, from, panel, row, use);
      });
    }
  });
}

inline void linear_write(Pool& pool, const Packed& w, const uint16_t* x, int64_t rows, uint16_t* out) {
  linear(pool, w, panels_of(w.outputs), x, rows, Write{out, w.outputs});
}

inline void linear_add(Pool& pool, const Packed& w, const uint16_t* x, int64_t rows, float* hidden) {
  linear(pool, w, panels_of(w.outputs), x, rows, Add{hidden, w.outputs});
}

// `w.outputs` are the gate's, and as many are up's.
inline void linear_gate(Pool& pool, const Packed& w, const uint16_t* x, int64_t rows, uint16_t* out) {
  linear(pool, w, 2 * ((w.outputs + kLanes - 1) / kLanes), x, rows, Gate{out, w.outputs});
}

}  // namespace pillion
