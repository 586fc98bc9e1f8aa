// What Python calls: plain functions on raw pointers. Nothing here allocates what it returns, and nothing throws.

#include <cstdint>
#include <mutex>

#include "attention.hpp"
#include "blocks.hpp"
#include "head.hpp"
#include "linear.hpp"
#include "pack.hpp"
#include "pool.hpp"
#include "rows.hpp"
#include "sample.hpp"

using namespace pillion;

extern "C" {

const char* pillion_target() {
#if defined(__AVX512BF16__)
  return "AVX-512 with BF16";
#elif defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "portable";
#endif
}

// Null where the system gives no more threads.
Pool* pillion_pool(int threads) { return Pool::start(threads); }
void pillion_pool_free(Pool* pool) { delete pool; }

// `weight` bfloat16 [outputs][inputs]; `scales` null keeps it so, else it becomes int8.
void pillion_pack(const uint16_t* weight, int64_t outputs, int64_t inputs, int64_t step, void* packed,
                  uint16_t* scales) {
  scales ? pack_bytes(weight, outputs, inputs, step, static_cast<uint8_t*>(packed), scales)
         : pack_halves(weight, outputs, inputs, step, static_cast<uint16_t*>(packed));
}

// `weight` uint8 [outputs][inputs] of 4 bits, the other two half floats [outputs][inputs / 32].
void pillion_pack_nibbles(const uint8_t* weight, const uint16_t* scale, const uint16_t* lowest, int64_t outputs,
                          int64_t inputs, int64_t step, uint8_t* packed, uint16_t* scales, uint16_t* lowests) {
  pack_nibbles(weight, scale, lowest, outputs, inputs, step, packed, scales, lowests);
}

void pillion_linear(Pool* pool, const Packed* weight, const uint16_t* x, int64_t rows, uint16_t* out) {
  linear_write(*pool, *weight, x, rows, out);
}

void pillion_gate_up(Pool* pool, const Packed* weight, const uint16_t* x, int64_t rows, uint16_t* out) {
  linear_gate(*pool, *weight, x, rows, out);
}

// Of a weight in int8 or 4 bit. `parts`: of the activations, 1 or 2.
void pillion_scaled_logits(Pool* pool, const Packed* weight, const float* x, int64_t rows, float* out, int parts) {
  parts == 2 ? scaled_logits(*pool, *weight, x, rows, out)
             : linear(*pool, *weight, x, rows, Widen{out, weight->outputs});
}

void pillion_logits(Pool* pool, const uint16_t* weight, int64_t outputs, int64_t inputs, const float* x, int64_t rows,
                    float* out) {
  logits(*pool, weight, outputs, inputs, x, rows, out);
}

// Types: 0 float, 1 bfloat16; the result has the weight's.
void pillion_rms_norm(Pool* pool, int x_type, const void* x, int type, const void* weight, int64_t rows, int64_t width,
                      float eps, void* out) {
  const auto run = [&](auto* from, auto* by) {
    rms_norm(*pool, from, by, rows, width, eps, static_cast<std::remove_const_t<std::remove_pointer_t<decltype(by)>>*>(out));
  };
  const auto from = [&](auto* by) {
    x_type ? run(static_cast<const uint16_t*>(x), by) : run(static_cast<const float*>(x), by);
  };
  type ? from(static_cast<const uint16_t*>(weight)) : from(static_cast<const float*>(weight));
}

void pillion_rope(Pool* pool, int x_type, const void* x, int64_t x_row, const float* table, int64_t rows, int64_t heads,
                  int64_t size, float* out) {
  x_type ? rope(*pool, static_cast<const uint16_t*>(x), x_row, table, rows, heads, size, out)
         : rope(*pool, static_cast<const float*>(x), x_row, table, rows, heads, size, out);
}

// `k`, `q` float and `v` bfloat16, heads dense inside a row, row strides in elements.
void pillion_attention(Pool* pool, const Cache* cache, const Batch* batch, int64_t heads, int64_t window, const float* q,
                       int64_t q_row, const float* k, int64_t k_row, const uint16_t* v, int64_t v_row, float scale,
                       uint16_t* out) {
  write_kv(*pool, *cache, *batch, k, k_row, v, v_row);
  attend(*pool, *cache, *batch, heads, window, q, q_row, scale, out);
}

// `tokens` [rows] of `logits`, a row of `size` every `stride`.
void pillion_draw(Pool* pool, const float* logits, int64_t stride, int64_t size, const Wish* wishes, int64_t rows,
                  int64_t* tokens) {
  pool->run_if(rows > 1 && rows * size > kAlone, rows,
               [=](int64_t row) { tokens[row] = draw(logits + row * stride, size, wishes[row]); });
}

int64_t pillion_scratch(const Sizes* sizes) { return sizes->scratch(); }

// `scratch` has pillion_scratch bytes a row.
void pillion_blocks(Pool* pool, const Sizes* sizes, const Block* blocks, const Cache* caches, int64_t count,
                    const Batch* batch, const float* table, int64_t rows, float* hidden, void* scratch) {
  run_blocks(*pool, *sizes, blocks, caches, count, *batch, table, rows, hidden, scratch);
}

}  // extern "C"
