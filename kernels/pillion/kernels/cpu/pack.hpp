// Weights in the order in which the products read them. Done once, when a model is loaded.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "linear.hpp"
#include "vector.hpp"

namespace pillion {

// A bfloat16 weight [outputs][inputs] to every `step`th panel [pairs][16][2]; zeros behind the last of either.
inline void pack_halves(const uint16_t* weight, int64_t outputs, int64_t inputs, int64_t step, uint16_t* packed) {
  const int64_t panels = (outputs + kLanes - 1) / kLanes, pairs = (inputs + 1) / 2;
  for (int64_t panel = 0; panel < panels; ++panel) {
    uint16_t* to = packed + panel * step * pairs * 2 * kLanes;
    for (int64_t pair = 0; pair < pairs; ++pair)
      for (int64_t lane = 0; lane < kLanes; ++lane)
        for (int64_t i = pair * 2; i < pair * 2 + 2; ++i, ++to) {
          const int64_t output = panel * kLanes + lane;
          *to = output < outputs && i < inputs ? weight[output * inputs + i] : 0;
        }
  }
}

// The same weight as int8, to panels [groups][8][16][4] of uint8 that are 128 more, and scales [groups][16].
inline void pack_bytes(const uint16_t* weight, int64_t outputs, int64_t inputs, int64_t step, uint8_t* packed,
                       uint16_t* scales) {
  const int64_t panels = (outputs + kLanes - 1) / kLanes, groups = (inputs + kGroup - 1) / kGroup;
  for (int64_t panel = 0; panel < panels; ++panel)
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t place = panel * step * groups + group;
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const int64_t output = panel * kLanes + lane, first = group * kGroup;
        const int64_t many = output < outputs ? std::min<int64_t>(kGroup, inputs - first) : 0;
        const uint16_t* from = weight + output * inputs + first;
        float top = 0.0f;
        for (int64_t i = 0; i < many; ++i) top = std::max(top, std::fabs(widen(from[i])));
        const uint16_t scale = narrow(top / 127.0f);
        const float by = widen(scale) > 1e-30f ? 1.0f / widen(scale) : 0.0f;
        scales[place * kLanes + lane] = scale;
        uint8_t* to = packed + place * kGroup * kLanes + lane * 4;
        for (int64_t i = 0; i < kGroup; ++i) {
          const float value = i < many ? std::clamp(std::nearbyint(widen(from[i]) * by), -127.0f, 127.0f) : 0.0f;
          to[i / 4 * kLanes * 4 + i % 4] = static_cast<uint8_t>(static_cast<int>(value) + 128);
        }
      }
    }
}

// 4-bit numbers, one a byte [outputs][inputs] with scales and lowest values half float [outputs][inputs / 32], to
// panels [groups][4][16][4] of pairs and [groups][16] of each of the two.
inline void pack_nibbles(const uint8_t* weight, const uint16_t* scale, const uint16_t* lowest, int64_t outputs,
                         int64_t inputs, int64_t step, uint8_t* packed, uint16_t* scales, uint16_t* lowests) {
  const int64_t panels = (outputs + kLanes - 1) / kLanes, groups = inputs / kGroup;
  for (int64_t output = 0; output < panels * kLanes; ++output)
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t place = output / kLanes * step * groups + group, lane = output % kLanes;
      const bool there = output < outputs;
      scales[place * kLanes + lane] = there ? scale[output * groups + group] : 0;
      lowests[place * kLanes + lane] = there ? lowest[output * groups + group] : 0;
      const uint8_t* from = weight + output * inputs + group * kGroup;
      uint8_t* to = packed + place * kGroup * kLanes / 2 + lane * 4;
      for (int i = 0; i < kGroup / 2; ++i)
        to[i / 4 * kLanes * 4 + i % 4] =
            there ? static_cast<uint8_t>(from[i] | from[i + kGroup / 2] << 4) : 0;
    }
}

}  // namespace pillion
