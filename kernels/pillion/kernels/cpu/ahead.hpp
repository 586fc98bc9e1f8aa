// What is computed next comes from memory while something else is computed.

#pragma once

#include <algorithm>
#include <cstdint>

namespace pillion {

// Fetches the parts of a weight that lie together, of some bytes each, while rows pass in turns of six that are
// multiplied with what was fetched before. With two turns or less all wait for memory, which the processor reads ahead
// by itself once each part has begun.
struct Ahead {
  static constexpr int kBegin = 16;  // lines

  const char* at = nullptr;
  int64_t turns = 0, turn_bytes = 0;
  int lines = 0;  // at each step of a product's inner loop, which reads one line of each part

  Ahead() = default;
  Ahead(const char* weight, int64_t bytes, int64_t parts, int64_t row_turns) : at(weight) {
    if (row_turns <= 2) {
      for (int64_t part = 0; part < parts; ++part)
        for (int line = 0; line < kBegin; ++line) __builtin_prefetch(at + part * bytes + line * 64, 0, 2);
      return;
    }
    turns = std::min(parts, row_turns);
    lines = static_cast<int>((parts + turns - 1) / turns);
    turn_bytes = lines * bytes;
  }

  void step(int64_t index) const {
    const char* from = at + index * lines * 64;
    __builtin_prefetch(from, 0, 2);
    for (int i = 1; i < lines; ++i) __builtin_prefetch(from + i * 64, 0, 2);
  }

  void turn() {
    at += turn_bytes;
    if (--turns <= 0) lines = 0;
  }
};

struct Nothing {
  void step(int64_t) const {}
};

}  // namespace pillion
