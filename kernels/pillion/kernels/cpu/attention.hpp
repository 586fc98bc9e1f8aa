// Paged attention of chunks and decodes with bfloat16 keys and values.
//
// Keys are taken in spans of 64 absolute positions, ascending, with a running maximum (arXiv 1805.02867). What
// a query gets depends on its own keys alone: rows are computed side by side, never together.
//
// Layout: sixteen positions of one KV head are a group, contiguous: of K as [size / 2][16][2], of V as
// [16 / 2][size][2], where size is the head size rounded up to 16 lanes. So both products read pairs.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "pool.hpp"
#include "vector.hpp"

namespace pillion {

constexpr int kTogether = 16;  // positions of a group
constexpr int kSpan = 64;      // positions
constexpr int kTileRows = 48;  // query rows of one piece of work, unless one token has more
constexpr float kHidden = -1e38f;

struct Cache {
  uint16_t* k;  // [kv_heads][blocks][block_size / 16] groups
  uint16_t* v;
  int64_t blocks, block_size, kv_heads, head_size;

  int64_t padded() const { return (head_size + kLanes - 1) / kLanes * kLanes; }
  int64_t group(int64_t head, int64_t block, int64_t offset) const {  // in elements
    return ((head * blocks + block) * block_size + offset / kTogether * kTogether) * padded();
  }
};

struct Batch {
  int64_t sequences;
  const int32_t* first_row;    // [sequences + 1]
  const int32_t* keys;         // [sequences], own rows included
  const int32_t* block_table;  // [sequences][table_width]
  int64_t table_width;
};

// Writes the rows' keys and values, `k` float and `v` bfloat16 [T][kv_heads][head_size], row strides in elements.
inline void write_kv(Pool& pool, const Cache& cache, const Batch& batch, const float* k, int64_t k_row,
                     const uint16_t* v, int64_t v_row) {
  const int64_t size = cache.head_size, padded = cache.padded();
  // A sequence's rows of a head by one thread: a block is cleared when its first position is written.
  const int64_t rows = batch.first_row[batch.sequences];
  pool.run_if(rows * cache.kv_heads * size > kAlone, batch.sequences * cache.kv_heads, [&](int64_t piece) {
    const int64_t sequence = piece / cache.kv_heads, head = piece % cache.kv_heads;
    const int32_t begin = batch.first_row[sequence], end = batch.first_row[sequence + 1];
    int64_t position = batch.keys[sequence] - (end - begin);
    for (int64_t row = begin; row < end; ++row, ++position) {
      const int64_t block = batch.block_table[sequence * batch.table_width + position / cache.block_size];
      const int64_t offset = position % cache.block_size;
      if (offset == 0) {
        const int64_t at = cache.group(head, block, 0), bytes = cache.block_size * padded * 2;
        if (padded != size) memset(cache.k + at, 0, bytes);
        memset(cache.v + at, 0, bytes);  // a hidden key weighs 0, and 0 x NaN is NaN
      }
      const int64_t at = cache.group(head, block, offset), lane = offset % kTogether;
      uint16_t* to_k = cache.k + at + lane * 2;
      uint16_t* to_v = cache.v + at + lane / 2 * padded * 2 + lane % 2;
      const float* from_k = k + row * k_row + head * size;
      const uint16_t* from_v = v + row * v_row + head * size;
      for (int64_t i = 0; i < size; ++i) {
        to_k[i / 2 * kTogether * 2 + i % 2] = narrow(from_k[i]);
        to_v[i * 2] = from_v[i];
      }
    }
  });
}

// Scores of R rows with 64 keys. `query` bfloat16 [R][2][padded], the number and what is lost of it;
// `scores` [R][64].
template <int R>
inline void score(const uint16_t* query, const uint16_t* const* groups, int64_t padded, float* scores) {
  vfloat sums[R][4] = {};
  for (int64_t pair = 0; pair < padded / 2; ++pair) {
    vpair keys[4];
    for (int g = 0; g < 4; ++g) keys[g] = load_pairs(groups[g] + pair * kTogether * 2);
    for (int r = 0; r < R; ++r) {
      const vpair q = spread_pair(query + 2 * r * padded + pair * 2);
      const vpair rest = spread_pair(query + (2 * r + 1) * padded + pair * 2);
      for (int g = 0; g < 4; ++g) sums[r][g] = dot(dot(sums[r][g], rest, keys[g]), q, keys[g]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < 4; ++g) store(scores + r * kSpan + g * kLanes, sums[r][g]);
}

// out = out * scale + weights x values, for R rows and N vectors of the head. `weights` bfloat16 [R][64].
template <int R, int N>
inline void weigh(const uint16_t* weights, const float* scales, const uint16_t* const* groups, int count,
                  int64_t padded, int64_t first, float* out) {
  vfloat sums[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sums[r][n] = load(out + r * padded + first + n * kLanes) * scales[r];
  for (int g = 0; g < count; ++g) {
    for (int pair = 0; pair < kTogether / 2; ++pair) {
      vpair values[N];
      for (int n = 0; n < N; ++n) values[n] = load_pairs(groups[g] + (pair * padded + first + n * kLanes) * 2);
      for (int r = 0; r < R; ++r) {
        const vpair w = spread_pair(weights + r * kSpan + g * kTogether + pair * 2);
        for (int n = 0; n < N; ++n) sums[r][n] = dot(sums[r][n], w, values[n]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(out + r * padded + first + n * kLanes, sums[r][n]);
}

template <int R>
inline void weigh_all(const uint16_t* weights, const float* scales, const uint16_t* const* groups, int count,
                      int64_t padded, float* out) {
  int64_t at = 0;
  for (; at + 4 * kLanes <= padded; at += 4 * kLanes) weigh<R, 4>(weights, scales, groups, count, padded, at, out);
  if (at + 2 * kLanes <= padded) weigh<R, 2>(weights, scales, groups, count, padded, at, out), at += 2 * kLanes;
  if (at < padded) weigh<R, 1>(weights, scales, groups, count, padded, at, out);
}

// What one thread needs for a piece; grows to the largest.
struct Scratch {
  std::vector<uint16_t> query, weights;
  std::vector<float> out;
  std::vector<vfloat> total;
  std::vector<float> top, scale;

  void grow(size_t rows, size_t padded) {
    if (out.size() < rows * padded) query.resize(2 * rows * padded), out.resize(rows * padded);
    if (top.size() < rows) top.resize(rows), scale.resize(rows), total.resize(rows), weights.resize(rows * kSpan);
  }
};

inline int64_t tile_tokens(int64_t share) { return std::max<int64_t>(1, kTileRows / share); }

// Query tokens [token, token + tokens) of one sequence with one KV head.
inline void attend_tile(const Cache& cache, const int32_t* blocks, int64_t kv_head, int64_t share, int64_t position,
                        int64_t tokens, int64_t window, const float* q, int64_t q_row, float scale, uint16_t* out,
                        int64_t out_row) {
  static thread_local Scratch scratch;
  const int64_t size = cache.head_size, padded = cache.padded(), rows = tokens * share;
  scratch.grow(static_cast<size_t>(rows), static_cast<size_t>(padded));
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = q + row / share * q_row + (kv_head * share + row % share) * size;
    uint16_t *to = scratch.query.data() + 2 * row * padded, *rest = to + padded;
    for (int64_t i = 0; i < size; ++i) {
      to[i] = narrow(from[i]);
      rest[i] = narrow(from[i] - widen(to[i]));
    }
    for (int64_t i = size; i < padded; ++i) to[i] = rest[i] = 0;
  }
  std::fill_n(scratch.out.begin(), rows * padded, 0.0f);
  std::fill_n(scratch.total.begin(), rows, vfloat{});
  std::fill_n(scratch.top.begin(), rows, -1e30f);

  const vfloat lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const float to_exp2 = scale * 1.44269504088896341f;
  const int64_t end = position + tokens;  // positions of keys that any row sees
  const int64_t begin = std::max<int64_t>(0, position - window + 1) / kSpan * kSpan;
  alignas(64) float scores[kRows * kSpan];
  for (int64_t span = begin; span < end; span += kSpan) {
    // Groups beyond the last key repeat it: their scores are hidden, and they are not weighed.
    const int count = static_cast<int>(std::min<int64_t>(kSpan, end - span) + kTogether - 1) / kTogether;
    const uint16_t *keys[4], *values[4];
    for (int g = 0; g < 4; ++g) {
      const int64_t at = span + std::min(g, count - 1) * kTogether;
      const int64_t place = cache.group(kv_head, blocks[at / cache.block_size], at % cache.block_size);
      keys[g] = cache.k + place;
      values[g] = cache.v + place;
    }
    for (int64_t first = 0; first < rows; first += kRows) {
      const int many = static_cast<int>(std::min<int64_t>(kRows, rows - first));
      with_rows(many, [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        score<R>(scratch.query.data() + 2 * first * padded, keys, padded, scores);
        for (int r = 0; r < R; ++r) {
          const int64_t last = position + (first + r) / share;  // the last key that the row sees
          const int64_t from = last - window + 1;
          vfloat s[4];
          for (int g = 0; g < 4; ++g) s[g] = load(scores + r * kSpan + g * kLanes) * to_exp2;
          if (last < span + kSpan - 1 || from > span) {
            const float upper = static_cast<float>(std::min<int64_t>(last - span, kSpan));
            const float lower = static_cast<float>(std::clamp<int64_t>(from - span, -1, kSpan));
            for (int g = 0; g < 4; ++g) {
              const vfloat at = lanes + static_cast<float>(g * kLanes);
              s[g] = (at > upper) | (at < lower) ? spread(kHidden) : s[g];
            }
          }
          const float before = scratch.top[first + r];
          const float top = std::max(
              before, largest(larger(larger(s[0], s[1]), larger(s[2], s[3])))[0]);
          const float kept = exp2(spread(before - top))[0];
          vfloat total = scratch.total[first + r] * kept;
          for (int g = 0; g < 4; ++g) {
            const vhalf weight = narrow(exp2(s[g] - top));
            total += widen(weight);
            store(scratch.weights.data() + (first + r) * kSpan + g * kLanes, weight);
          }
          scratch.total[first + r] = total;
          scratch.top[first + r] = top;
          scratch.scale[first + r] = kept;
        }
        weigh_all<R>(scratch.weights.data() + first * kSpan, scratch.scale.data() + first, values, count, padded,
                     scratch.out.data() + first * padded);
      });
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const float total = sum(scratch.total[row]);
    uint16_t* to = out + row / share * out_row + (kv_head * share + row % share) * size;
    for (int64_t i = 0; i < size; ++i) to[i] = narrow(scratch.out[row * padded + i] / total);
  }
}

// q float [T][heads][head_size] with a row stride in elements; out bfloat16 [T][heads * head_size].
inline void attend(Pool& pool, const Cache& cache, const Batch& batch, int64_t heads, int64_t window, const float* q,
                   int64_t q_row, float scale, uint16_t* out) {
  const int64_t share = heads / cache.kv_heads, most = tile_tokens(share);
  struct Tile {
    int32_t sequence, row, tokens;
    int64_t position;
  };
  static thread_local std::vector<Tile> tiles;
  tiles.clear();
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int32_t end = batch.first_row[s + 1];
    for (int32_t row = batch.first_row[s]; row < end; row += static_cast<int32_t>(most)) {
      const int32_t tokens = static_cast<int32_t>(std::min<int64_t>(most, end - row));
      tiles.push_back({static_cast<int32_t>(s), row, tokens, batch.keys[s] - (end - row)});
    }
  }
  const Tile* all = tiles.data();
  const int64_t row_size = heads * cache.head_size;
  pool.run(static_cast<int64_t>(tiles.size()) * cache.kv_heads, [&, all](int64_t piece) {
    const Tile& tile = all[piece / cache.kv_heads];
    attend_tile(cache, batch.block_table + tile.sequence * batch.table_width, piece % cache.kv_heads, share,
                tile.position, tile.tokens, window, q + tile.row * q_row, q_row, scale,
                out + tile.row * row_size, row_size);
  });
}

}  // namespace pillion
