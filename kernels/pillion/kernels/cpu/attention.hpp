// Paged attention of chunks and decodes with keys and values in bfloat16 or int8.
//
// Keys are taken in spans of 64 absolute positions, ascending, with a running maximum (arXiv 1805.02867). What
// a query gets depends on its own keys alone: rows are computed side by side, never together.
//
// Layout: a block has its heads one after the other, of each its keys, then its values. Sixteen positions are a
// group: of K [size / 2][16][2], of V [16 / 2][size][2], where size is the head size rounded up to 16 lanes. So both
// products read pairs, and what a sequence reads lies together. In int8 there is a scale for each position and head, of
// K and of V; a span is made bfloat16 before it is used, which holds an int8 exactly, and the scales come to the scores
// and to the weights.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "pool.hpp"
#include "rows.hpp"
#include "vector.hpp"

namespace pillion {

constexpr int kTogether = 16;  // positions of a group
constexpr int kSpan = 64;      // positions
constexpr int kTileRows = 48;  // query rows of one piece of work, unless one token has more
constexpr int kManyTiles = 16;  // from there on a piece has all KV heads of its tile
constexpr float kHidden = -1e38f;

struct Cache {
  char* all;  // [blocks][kv_heads] parts: keys, values, and of int8 their scales, float [2][block_size]
  int64_t block_size, kv_heads, head_size;
  int64_t number;  // bytes: 2 of bfloat16, 1 of int8

  bool scaled() const { return number == 1; }
  int64_t padded() const { return (head_size + kLanes - 1) / kLanes * kLanes; }
  int64_t to_values() const { return block_size * padded() * number; }  // bytes from a group of keys
  char* part(int64_t head, int64_t block) const {
    const int64_t bytes = 2 * to_values() + (scaled() ? 2 * block_size * static_cast<int64_t>(sizeof(float)) : 0);
    return all + (block * kv_heads + head) * bytes;
  }
  char* keys(int64_t head, int64_t block, int64_t offset) const {  // the group of this place in the block
    return part(head, block) + offset / kTogether * kTogether * padded() * number;
  }
  float* scales(int64_t head, int64_t block, int64_t offset) const {  // of keys; those of values block_size behind
    return reinterpret_cast<float*>(part(head, block) + 2 * to_values()) + offset;
  }
};

struct Batch {
  int64_t sequences;
  const int32_t* first_row;    // [sequences + 1]
  const int32_t* keys;         // [sequences], own rows included
  const int32_t* block_table;  // [sequences][table_width]
  int64_t table_width;
};

// The numbers as int8, handed to `put` one by one; returns their scale, which is no number where one of them is none.
template <class X, class Put>
inline float to_bytes(const X* from, int64_t size, const Put& put) {
  float top = 0.0f;
  for (int64_t i = 0; i < size; ++i) {
    const float absolute = std::fabs(read(from + i));
    if (!(absolute <= top)) top = absolute;
    if (absolute != absolute) return absolute;
  }
  const float by = top > 1e-30f ? 127.0f / top : 0.0f;
  for (int64_t i = 0; i < size; ++i) put(i, static_cast<int8_t>(std::nearbyint(read(from + i) * by)));
  return top * (1.0f / 127.0f);
}

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
      char* part_k = cache.keys(head, block, 0);
      if (offset == 0) {
        if (padded != size) memset(part_k, 0, cache.to_values());
        memset(part_k + cache.to_values(), 0, cache.to_values());  // a hidden key weighs 0, and 0 x NaN is NaN
        if (cache.scaled()) memset(cache.scales(head, block, 0), 0, 2 * cache.block_size * sizeof(float));
      }
      const int64_t lane = offset % kTogether, group = (offset - lane) * padded, column = lane / 2 * padded * 2 + lane % 2;
      const float* from_k = k + row * k_row + head * size;
      const uint16_t* from_v = v + row * v_row + head * size;
      if (cache.scaled()) {
        float* scales = cache.scales(head, block, offset);
        int8_t* to_k = reinterpret_cast<int8_t*>(part_k) + group + lane * 2;
        int8_t* to_v = reinterpret_cast<int8_t*>(part_k + cache.to_values()) + group + column;
        scales[0] = to_bytes(from_k, size, [=](int64_t i, int8_t x) { to_k[i / 2 * kTogether * 2 + i % 2] = x; });
        scales[cache.block_size] = to_bytes(from_v, size, [=](int64_t i, int8_t x) { to_v[i * 2] = x; });
        continue;
      }
      uint16_t* to_k = reinterpret_cast<uint16_t*>(part_k) + group + lane * 2;
      uint16_t* to_v = reinterpret_cast<uint16_t*>(part_k + cache.to_values()) + group + column;
      int64_t i = 0;
      for (; i + kLanes <= size; i += kLanes) {
        uint32_t pairs[kLanes / 2];
        const vhalf part = narrow(load(from_k + i));
        memcpy(pairs, &part, sizeof pairs);
        for (int pair = 0; pair < kLanes / 2; ++pair) memcpy(to_k + (i / 2 + pair) * kTogether * 2, pairs + pair, 4);
      }
      for (; i < size; ++i) to_k[i / 2 * kTogether * 2 + i % 2] = narrow(from_k[i]);
      for (i = 0; i < size; ++i) to_v[i * 2] = from_v[i];
    }
  });
}

// 64 keys of one KV head and their values, in groups of 16. `count` of them hold any key that is seen; those beyond
// repeat the last, so that what is read is there: their scores are hidden, and they are not weighed.
struct Span {
  const char *keys[4], *values[4];
  const float* scales[4];  // of int8 keys; those of values `to_scales` behind
  int64_t to_scales, group_bytes;
  int count;

  Span(const Cache& cache, const int32_t* blocks, int64_t head, int64_t first, int64_t end)
      : to_scales(cache.block_size),
        group_bytes(kTogether * cache.padded() * cache.number),
        count(static_cast<int>(std::min<int64_t>(kSpan, end - first) + kTogether - 1) / kTogether) {
    for (int g = 0; g < 4; ++g) {
      const int64_t at = first + std::min(g, count - 1) * kTogether;
      const int64_t block = blocks[at / cache.block_size], offset = at % cache.block_size;
      keys[g] = cache.keys(head, block, offset);
      values[g] = keys[g] + cache.to_values();
      scales[g] = cache.scaled() ? cache.scales(head, block, offset) : nullptr;
    }
  }

  // Makes int8 groups bfloat16 in `room`, 128 numbers for each of the padded head's.
  void widen(uint16_t* room) {
    const int64_t numbers = group_bytes;
    for (int g = 0; g < 4; ++g)
      for (const char** part : {&keys[g], &values[g]}) {
        const char* from = *part;
        *part = reinterpret_cast<const char*>(room);
        for (int64_t i = 0; i < numbers; i += 2 * kLanes, room += 2 * kLanes) {
          vbytes first, second;
          memcpy(&first, from + i, sizeof first);
          memcpy(&second, from + i + kLanes, sizeof second);
          store(room, narrow_pairs(to_floats(first), to_floats(second)));
        }
      }
  }

  static vfloat to_floats(vbytes x) { return __builtin_convertvector(__builtin_convertvector(x, vint), vfloat); }
};

inline const uint16_t* halves(const char* group) { return reinterpret_cast<const uint16_t*>(group); }

// Scores of R rows with a span's keys. `query` bfloat16 [R][2][padded], the number and what is lost of it;
// `scores` [R][64]. On the way `next` is fetched, if there is one: blocks lie anywhere in memory.
template <int R>
inline void score(const uint16_t* query, const Span& span, const Span* next, int64_t padded, float* scores) {
  vfloat sums[R][4] = {};
  for (int64_t pair = 0; pair < padded / 2; ++pair) {
    vpair keys[4];
    for (int g = 0; g < 4; ++g) {
      keys[g] = load_pairs(halves(span.keys[g]) + pair * kTogether * 2);
      if (next) __builtin_prefetch(next->keys[g] + pair * (next->group_bytes / (padded / 2)));
    }
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
inline void weigh(const uint16_t* weights, const float* scales, const Span& span, const Span* next, int64_t padded,
                  int64_t first, float* out) {
  vfloat sums[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sums[r][n] = load(out + r * padded + first + n * kLanes) * scales[r];
  for (int g = 0; g < span.count; ++g) {
    for (int pair = 0; pair < kTogether / 2; ++pair) {
      vpair values[N];
      for (int n = 0; n < N; ++n) {
        const int64_t at = (pair * padded + first + n * kLanes) * 2;
        values[n] = load_pairs(halves(span.values[g]) + at);
        if (next) __builtin_prefetch(next->values[g] + at * next->group_bytes / (kTogether * padded));
      }
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
inline void weigh_all(const uint16_t* weights, const float* scales, const Span& span, const Span* next, int64_t padded,
                      float* out) {
  int64_t at = 0;
  for (; at + 4 * kLanes <= padded; at += 4 * kLanes) weigh<R, 4>(weights, scales, span, next, padded, at, out);
  if (at + 2 * kLanes <= padded) weigh<R, 2>(weights, scales, span, next, padded, at, out), at += 2 * kLanes;
  if (at < padded) weigh<R, 1>(weights, scales, span, next, padded, at, out);
}

// What one thread needs for a piece; grows to the largest.
struct Scratch {
  std::vector<uint16_t> query, weights, widened;
  std::vector<float> out;
  std::vector<vfloat> total;
  std::vector<float> top;

  void grow(size_t rows, size_t padded) {
    if (out.size() < rows * padded) query.resize(2 * rows * padded), out.resize(rows * padded);
    if (widened.size() < 2 * kSpan * padded) widened.resize(2 * kSpan * padded);
    if (top.size() < rows) top.resize(rows), total.resize(rows), weights.resize(rows * kSpan);
  }
};

inline int64_t tile_tokens(int64_t share) { return std::max<int64_t>(1, kTileRows / share); }

// Some tokens of one sequence, the first of them at `position`, and its block table.
struct Tile {
  const int32_t* blocks;
  int64_t row, tokens, position;

  int64_t end() const { return position + tokens; }  // of the keys that any token sees
  int64_t begin(int64_t window) const { return std::max<int64_t>(0, position - window + 1) / kSpan * kSpan; }
  Span span(const Cache& cache, int64_t head, int64_t first) const { return {cache, blocks, head, first, end()}; }
};

// A tile's rows with one KV head. `then` is what is read after it, if that is known.
inline void attend_tile(const Cache& cache, const Tile& tile, int64_t kv_head, int64_t share, int64_t window,
                        const float* q, int64_t q_row, float scale, uint16_t* out, int64_t out_row, const Span* then) {
  static thread_local Scratch scratch;
  const int64_t size = cache.head_size, padded = cache.padded(), rows = tile.tokens * share;
  scratch.grow(static_cast<size_t>(rows), static_cast<size_t>(padded));
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = q + row / share * q_row + (kv_head * share + row % share) * size;
    uint16_t *to = scratch.query.data() + 2 * row * padded, *rest = to + padded;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      const vfloat value = load(from + i);
      const vhalf part = narrow(value);
      store(to + i, part);
      store(rest + i, narrow(value - widen(part)));
    }
    for (; i < size; ++i) {
      to[i] = narrow(from[i]);
      rest[i] = narrow(from[i] - widen(to[i]));
    }
    for (; i < padded; ++i) to[i] = rest[i] = 0;
  }
  std::fill_n(scratch.out.begin(), rows * padded, 0.0f);
  std::fill_n(scratch.total.begin(), rows, vfloat{});
  std::fill_n(scratch.top.begin(), rows, -1e30f);

  const vfloat lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const vpair ones = vpair{} + 0x3f803f80u;
  const float to_exp2 = scale * 1.44269504088896341f;
  const int64_t end = tile.end();
  alignas(64) float scores[kRows * kSpan];
  for (int64_t at = tile.begin(window); at < end; at += kSpan) {
    Span span = tile.span(cache, kv_head, at);
    const Span next = at + kSpan < end ? tile.span(cache, kv_head, at + kSpan) : then ? *then : span;
    if (cache.scaled()) span.widen(scratch.widened.data());
    for (int64_t first = 0; first < rows; first += kRows) {
      const int many = static_cast<int>(std::min<int64_t>(kRows, rows - first));
      with_rows(many, [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        score<R>(scratch.query.data() + 2 * first * padded, span, first ? nullptr : &next, padded, scores);
        alignas(64) float drop[kLanes] = {};
        for (int r = 0; r < R; ++r) {
          const int64_t last = tile.position + (first + r) / share;  // the last key that the row sees
          const int64_t from = last - window + 1;
          float* s = scores + r * kSpan;
          if (cache.scaled())
            for (int g = 0; g < 4; ++g) store(s + g * kLanes, load(s + g * kLanes) * load(span.scales[g]));
          if (last < at + kSpan - 1 || from > at) {
            const float upper = static_cast<float>(std::min<int64_t>(last - at, kSpan));
            const float lower = static_cast<float>(std::clamp<int64_t>(from - at, -1, kSpan));
            for (int g = 0; g < 4; ++g) {
              const vfloat key = lanes + static_cast<float>(g * kLanes);
              store(s + g * kLanes, (key > upper) | (key < lower) ? spread(kHidden) : load(s + g * kLanes));
            }
          }
          const vfloat pairs = larger(larger(load(s), load(s + kLanes)), larger(load(s + 2 * kLanes), load(s + 3 * kLanes)));
          const float before = scratch.top[first + r], top = std::max(before, largest(pairs)[0]);
          scratch.top[first + r] = top;
          drop[r] = (before - top) * to_exp2;
        }
        const vfloat kept = exp2_weight(load(drop));
        store(drop, kept);
        for (int r = 0; r < R; ++r) {
          const float* s = scores + r * kSpan;
          const vfloat top = spread(scratch.top[first + r] * -to_exp2), by = spread(to_exp2);
          vfloat total = scratch.total[first + r] * drop[r];
          for (int g = 0; g < 4; g += 2) {
            vfloat left = exp2_weight(fma(load(s + g * kLanes), by, top));
            vfloat right = exp2_weight(fma(load(s + (g + 1) * kLanes), by, top));
            total = dot(total, narrow_pairs(left, right), ones);
            if (cache.scaled()) {
              left *= load(span.scales[g] + span.to_scales);
              right *= load(span.scales[g + 1] + span.to_scales);
            }
            store(scratch.weights.data() + (first + r) * kSpan + g * kLanes, narrow_pairs(left, right));
          }
          scratch.total[first + r] = total;
        }
        weigh_all<R>(scratch.weights.data() + first * kSpan, drop, span, first ? nullptr : &next, padded,
                     scratch.out.data() + first * padded);
      });
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const float by = 1.0f / sum(scratch.total[row]);
    const float* from = scratch.out.data() + row * padded;
    uint16_t* to = out + row / share * out_row + (kv_head * share + row % share) * size;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(to + i, narrow(load(from + i) * by));
    for (; i < size; ++i) to[i] = narrow(from[i] * by);
  }
}

// q float [T][heads][head_size] with a row stride in elements; out bfloat16 [T][heads * head_size].
inline void attend(Pool& pool, const Cache& cache, const Batch& batch, int64_t heads, int64_t window, const float* q,
                   int64_t q_row, float scale, uint16_t* out) {
  const int64_t share = heads / cache.kv_heads, most = tile_tokens(share);
  static thread_local std::vector<Tile> tiles;
  tiles.clear();
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t end = batch.first_row[s + 1];
    for (int64_t row = batch.first_row[s]; row < end; row += most)
      tiles.push_back({batch.block_table + s * batch.table_width, row, std::min(most, end - row),
                       batch.keys[s] - (end - row)});
  }
  const Tile* all = tiles.data();
  const int64_t many = static_cast<int64_t>(tiles.size()), row_size = heads * cache.head_size;
  // What one thread reads lies together, where there is work enough for all.
  const int64_t together = many < kManyTiles ? 1 : cache.kv_heads, parts = cache.kv_heads / together;
  pool.run(many * parts, [&, all](int64_t piece) {
    const Tile& tile = all[piece / parts];
    const int64_t first = piece % parts * together;
    for (int64_t head = first; head < first + together; ++head) {
      const bool last = head + 1 == first + together;
      const Tile& then = last && piece >= parts ? all[piece / parts - 1] : tile;  // pieces are taken from the last on
      const Span next = then.span(cache, last ? first : head + 1, then.begin(window));
      attend_tile(cache, tile, head, share, window, q + tile.row * q_row, q_row, scale, out + tile.row * row_size,
                  row_size, &next);
    }
  });
}

}  // namespace pillion
