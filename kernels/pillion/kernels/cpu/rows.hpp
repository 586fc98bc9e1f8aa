// What is done to each row by itself: norm and rotary embedding.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "pool.hpp"
#include "vector.hpp"

namespace pillion {

// Rows in pieces that are worth a thread.
template <class F>
inline void by_rows(Pool& pool, int64_t rows, int64_t width, const F& f) {
  const int64_t height = std::max<int64_t>(1, kAlone / std::max<int64_t>(1, width));
  pool.run((rows + height - 1) / height, [&](int64_t piece) {
    const int64_t end = std::min(rows, (piece + 1) * height);
    for (int64_t row = piece * height; row < end; ++row) f(row);
  });
}

inline float read(const float* from) { return *from; }
inline float read(const uint16_t* from) { return widen(*from); }
inline void write(float* to, float x) { *to = x; }
inline void write(uint16_t* to, float x) { *to = narrow(x); }
inline vfloat read_lanes(const float* from) { return load(from); }
inline vfloat read_lanes(const uint16_t* from) { return widen(load_half(from)); }
inline void write_lanes(float* to, vfloat x) { store(to, x); }
inline void write_lanes(uint16_t* to, vfloat x) { store(to, narrow(x)); }

// to = from / sqrt(mean(from^2) + eps) * weight, over `width`; `to` may be `from`.
template <class X, class W>
inline void norm(const X* from, const W* weight, int64_t width, float eps, W* to) {
  vfloat squares[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    const vfloat a = read_lanes(from + i), b = read_lanes(from + i + kLanes);
    squares[0] = fma(a, a, squares[0]);
    squares[1] = fma(b, b, squares[1]);
  }
  float total = sum(squares[0] + squares[1]);
  for (; i < width; ++i) total += read(from + i) * read(from + i);
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(width) + eps);
  for (i = 0; i + kLanes <= width; i += kLanes)
    write_lanes(to + i, read_lanes(from + i) * scale * read_lanes(weight + i));
  for (; i < width; ++i) write(to + i, read(from + i) * scale * read(weight + i));
}

template <class X, class W>
inline void rms_norm(Pool& pool, const X* x, const W* weight, int64_t rows, int64_t width, float eps, W* out) {
  by_rows(pool, rows, width, [&](int64_t row) { norm(x + row * width, weight, width, eps, out + row * width); });
}

// The heads of x [rows][heads][size], with a row stride in elements, each by itself and in place.
inline void head_norm(Pool& pool, const uint16_t* weight, uint16_t* x, int64_t x_row, int64_t rows, int64_t heads,
                      int64_t size, float eps) {
  by_rows(pool, rows, heads * size, [&](int64_t row) {
    uint16_t* first = x + row * x_row;
    for (int64_t head = 0; head < heads; ++head)
      norm(first + head * size, weight, size, eps, first + head * size);
  });
}

// Turns elements 2i and 2i + 1 of each head by the angle whose (cos, sin) the table [rows][size / 2] has.
// `x` [rows][heads][size] with a row stride in elements; out float, dense.
template <class X>
inline void rope(Pool& pool, const X* x, int64_t x_row, const float* table, int64_t rows, int64_t heads, int64_t size,
                 float* out) {
  by_rows(pool, rows, heads * size, [&](int64_t row) {
    const float* angles = table + row * size;
    for (int64_t head = 0; head < heads; ++head) {
      const X* from = x + row * x_row + head * size;
      float* to = out + (row * heads + head) * size;
      for (int64_t i = 0; i < size; i += 2) {
        const float even = read(from + i), odd = read(from + i + 1), c = angles[i], s = angles[i + 1];
        to[i] = even * c - odd * s;
        to[i + 1] = even * s + odd * c;
      }
    }
  });
}

}  // namespace pillion
