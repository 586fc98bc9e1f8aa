// All transformer blocks of a model in one call: the operators of a step with nothing between them.
//
// The same operators in the same order as the model calls one by one, so with the same bits.

#pragma once

#include <cstdint>

#include "attention.hpp"
#include "linear.hpp"
#include "pool.hpp"
#include "rows.hpp"

namespace pillion {

struct Block {
  const uint16_t *input_norm, *mlp_norm;   // bfloat16 [hidden]
  const uint16_t *query_norm, *key_norm;   // bfloat16 [head_size], or null
  Packed qkv, output, gate_up, down;
  int64_t window;
};

struct Sizes {
  int64_t hidden, heads, kv_heads, head_size, mlp;
  float eps, scale;

  int64_t turned() const { return (heads + kv_heads) * head_size; }
  int64_t qkv() const { return (heads + 2 * kv_heads) * head_size; }
  // Bytes of scratch a row: float turned; bfloat16 normed, qkv, attended, gated.
  int64_t scratch() const { return turned() * 4 + (hidden + qkv() + heads * head_size + mlp) * 2; }
};

// hidden float [rows][hidden] += what the blocks give; `table` [rows][head_size / 2][2] are rope's angles.
inline void run_blocks(Pool& pool, const Sizes& sizes, const Block* blocks, const Cache* caches, int64_t count,
                       const Batch& batch, const float* table, int64_t rows, float* hidden, void* scratch) {
  const int64_t size = sizes.head_size, queries = sizes.heads * size;
  float* turned = static_cast<float*>(scratch);
  uint16_t* normed = reinterpret_cast<uint16_t*>(turned + rows * sizes.turned());
  uint16_t* qkv = normed + rows * sizes.hidden;
  uint16_t* attended = qkv + rows * sizes.qkv();
  uint16_t* gated = attended + rows * queries;
  memset(attended, 0, static_cast<size_t>(rows * queries) * 2);  // rows of padding are attended by nobody
  for (int64_t i = 0; i < count; ++i) {
    const Block& block = blocks[i];
    rms_norm(pool, hidden, block.input_norm, rows, sizes.hidden, sizes.eps, normed);
    linear_write(pool, block.qkv, normed, rows, qkv);
    if (block.query_norm) {
      head_norm(pool, block.query_norm, qkv, sizes.qkv(), rows, sizes.heads, size, sizes.eps);
      head_norm(pool, block.key_norm, qkv + queries, sizes.qkv(), rows, sizes.kv_heads, size, sizes.eps);
    }
    rope(pool, qkv, sizes.qkv(), table, rows, sizes.heads + sizes.kv_heads, size, turned);
    write_kv(pool, caches[i], batch, turned + queries, sizes.turned(), qkv + sizes.turned(), sizes.qkv());
    attend(pool, caches[i], batch, sizes.heads, block.window, turned, sizes.turned(), sizes.scale, attended);
    linear_add(pool, block.output, attended, rows, hidden);
    rms_norm(pool, hidden, block.mlp_norm, rows, sizes.hidden, sizes.eps, normed);
    linear_gate(pool, block.gate_up, normed, rows, gated);
    linear_add(pool, block.down, gated, rows, hidden);
  }
}

}  // namespace pillion
