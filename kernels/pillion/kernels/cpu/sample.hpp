// One token a row of logits: the likeliest, or one drawn of those that temperature, top-k, top-p and min-p leave.
//
// Nothing sorts the vocabulary. Each filter finds a border, the smallest logit that it keeps, by halving the floats
// between two that it knows; what lies below leaves the list. Weights are float, sums double and in one order, so that
// a row's token depends on the row and its wish alone.

#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

#include "pool.hpp"
#include "vector.hpp"

namespace pillion {

struct Wish {
  double temperature;  // 0: the likeliest
  double top_p, min_p;
  double uniform;
  int64_t top_k;
};

constexpr int64_t kPart = 16 * kLanes;  // logits, of whose sixteen in each lane the largest is known
constexpr int64_t kRun = 64 * kLanes;   // weights that one sum goes over

typedef double vdouble __attribute__((vector_size(64)));

class Sum {
 public:
  void add(vfloat v) {
    typedef float vpart __attribute__((vector_size(32)));
    vpart part[2];
    memcpy(part, &v, sizeof v);
    low_ += __builtin_convertvector(part[0], vdouble);
    high_ += __builtin_convertvector(part[1], vdouble);
  }

  double total() const {
    const vdouble v = low_ + high_;
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
  }

 private:
  vdouble low_{}, high_{};
};

// Calls f(vector, its first index) for all of x [n]; the lanes beyond hold minus infinity, which weighs nothing.
template <class F>
inline void each(const float* x, int64_t n, const F& f) {
  int64_t at = 0;
  for (; at + kLanes <= n; at += kLanes) f(load(x + at), at);
  if (at == n) return;
  float rest[kLanes];
  std::fill_n(std::copy(x + at, x + n, rest), kLanes - (n - at), -INFINITY);
  f(load(rest), at);
}

// A bit a lane.
inline uint32_t at_least(vfloat v, float least) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(v), _mm512_set1_ps(least), _CMP_GE_OQ);
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= static_cast<uint32_t>(v[lane] >= least) << lane;
  return bits;
#endif
}

// Floats in their order as integers, and back.
inline int32_t place(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  return bits ^ (bits >> 31 & 0x7fffffff);
}
inline float at_place(int64_t place) {
  const auto bits = static_cast<int32_t>(place);
  return std::bit_cast<float>(bits ^ (bits >> 31 & 0x7fffffff));
}

// exp((x - peak) / temperature)
class Weights {
 public:
  Weights(float peak, double temperature)
      : peak_(peak),
        temperature_(temperature),
        scale_(static_cast<float>(M_LOG2E / temperature)) {}

  vfloat operator()(vfloat x) const { return exp2((x - peak_) * scale_); }

  double sum(const float* x, int64_t n) const {
    Sum sum;
    each(x, n, [&](vfloat v, int64_t) { sum.add((*this)(v)); });
    return sum.total();
  }

  // The smallest logit that weighs so much.
  float logit(double weight) const {
    const double exact = std::max<double>(peak_ + temperature_ * std::log(weight), -FLT_MAX);
    const float near = static_cast<float>(exact);
    return near < exact ? std::nextafter(near, INFINITY) : near;
  }

 private:
  float peak_;
  double temperature_;
  float scale_;
};

// A row's logits, or those of them that are left, in order of id.
class Candidates {
 public:
  // Those of a row [size]. Valid until the thread makes the next.
  Candidates(const float* row, int64_t size) : x_(row), size_(size), memory_(memory()) {
    memory_.tops.resize(static_cast<size_t>((size + kPart - 1) / kPart * kLanes));
    vint broken{};
    vfloat all = spread(-INFINITY);
    for (int64_t at = 0, group = 0; at < size; at += kPart, ++group) {
      vfloat top = spread(-INFINITY);
      each(row + at, std::min(kPart, size - at), [&](vfloat v, int64_t) {
        top = larger(v, top);
        broken |= v != v;
      });
      store(&memory_.tops[group * kLanes], top);
      all = larger(top, all);
    }
    peak_ = largest(all)[0] + 0.0f;  // of the two zeros the one that is the larger by place
    for (int lane = 0; lane < kLanes; ++lane)
      if (broken[lane]) peak_ = NAN;
  }

  float peak() const { return peak_; }

  // Of a whole row, the first with the largest logit.
  int64_t likeliest() const {
    const auto& tops = memory_.tops;
    const int64_t group = (std::find(tops.begin(), tops.end(), peak_) - tops.begin()) / kLanes;
    return std::find(x_ + group * kPart, x_ + size_, peak_) - x_;
  }

  // Keeps the k largest of a whole row; of equal ones the first.
  void top_k(int64_t k) {
    if (k >= size_) return;
    const auto kth = [&](const float* x, int64_t n, float least) {
      std::fill_n(grown(memory_.weights, n), n, 1.0f);
      return border(x, n, static_cast<double>(k), least);
    };
    // The k-th of the largest in some parts of the row is no larger than the k-th of the row.
    const float rough = kth(memory_.tops.data(), static_cast<int64_t>(memory_.tops.size()), -FLT_MAX).least;
    keep(rough, size_);
    if (size_ <= k) return;
    const Border found = kth(x_, size_, rough);
    keep(found.least, k - static_cast<int64_t>(found.above));
  }

  // Keeps the fewest likeliest that hold this share of the weight; of equal ones the first.
  void top_p(double share, const Weights& weights) {
    const double total = weights.sum(x_, size_), target = share * total;
    // All below this weight together hold less than the rest. Half of it, so that it does not hang on the last bit.
    const float rough = weights.logit(0.5 * (1 - share) * total / static_cast<double>(size_));
    keep(rough, size_);
    float* known = grown(memory_.weights, size_);
    each(x_, size_, [&](vfloat v, int64_t at) { store(known + at, weights(v)); });
    const Border found = border(x_, size_, target, rough);
    const double lacks = target - found.above, equal = weights(spread(found.least))[0];
    keep(found.least, lacks < equal * static_cast<double>(size_)
                          ? static_cast<int64_t>(std::ceil(std::max(lacks / equal, 1.0)))
                          : size_);
  }

  // Keeps those from this logit on, of equal ones no more than `ties`.
  void keep(float least, int64_t ties) {
    const float* from = x_;
    const bool whole = !ids_;
    float* x = grown(memory_.x, size_);
    int32_t* ids = grown(memory_.ids, size_);
    int64_t kept = 0;
    each(from, size_, [&](vfloat v, int64_t at) {
      for (uint32_t bits = at_least(v, least); bits; bits &= bits - 1) {
        const int64_t place = at + std::countr_zero(bits);
        if (from[place] == least && ties-- <= 0) continue;
        ids[kept] = whole ? static_cast<int32_t>(place) : ids[place];
        x[kept++] = from[place];
      }
    });
    x_ = x, ids_ = ids, size_ = kept;
  }

  // The id at which the running sum of weights passes `uniform` times their total. That is less than the total, but a
  // run's weights one by one may give a last bit less than its sum: then the run's last that weighs anything.
  int64_t draw(double uniform, const Weights& weights) const {
    auto& sums = memory_.sums;
    sums.clear();
    double total = 0;
    for (int64_t at = 0; at < size_; at += kRun) {
      sums.push_back(weights.sum(x_ + at, std::min(kRun, size_ - at)));
      total += sums.back();
    }
    const double target = uniform * total;
    double passed = 0;
    int64_t first = 0;
    for (const double sum : sums) {
      if (passed + sum > target) break;
      passed += sum, first += kRun;
    }
    alignas(64) float run[kRun];
    const int64_t length = std::min(kRun, size_ - first);
    each(x_ + first, length, [&](vfloat v, int64_t at) { store(run + at, weights(v)); });
    int64_t found = first;
    for (int64_t i = 0; i < length && passed <= target; ++i) {
      if (run[i] > 0) found = first + i;
      passed += run[i];
    }
    return ids_ ? ids_[found] : found;
  }

 private:
  struct Memory {
    std::vector<float> tops, x, weights, near;
    std::vector<int32_t> ids;
    std::vector<double> sums;
  };

  struct Border {
    float least;
    double above;  // what the larger ones weigh
  };

  static Memory& memory() {
    static thread_local Memory memory;
    return memory;
  }

  // With room for so many, in whole vectors.
  template <class T>
  static T* grown(std::vector<T>& vector, int64_t n) {
    const size_t room = static_cast<size_t>(n + kLanes);
    if (vector.size() < room) vector.resize(room);
    return vector.data();
  }

  // The largest logit from which on x [n] weighs `target`, or `least` where it does not; memory's weights, which are
  // spoiled, are theirs.
  Border border(const float* x, int64_t n, double target, float least) {
    float *near = grown(memory_.near, n), *weights = memory_.weights.data();
    double above = 0;  // what weigh those from `high` on, which x lacks after a while, as it does those before `low`
    int64_t low = place(least), high = place(peak_) + int64_t{1};
    for (int turn = 0; high - low > 1; ++turn) {
      // By place and by value in turn: one is good at what is far apart, the other near zero.
      const float from = at_place(low), to = at_place(high);
      const int64_t middle =
          turn % 2 ? std::clamp<int64_t>(place(0.5f * from + 0.5f * to), low + 1, high - 1) : low + (high - low) / 2;
      const float at = at_place(middle);
      Sum sum;
      each(x, n, [&](vfloat v, int64_t i) {
        sum.add((v >= at) & (v < to) ? load(weights + i) : vfloat{});
      });
      const double more = above + sum.total();
      if (more >= target)
        low = middle;
      else
        high = middle, above = more;
      if (turn % 4 < 3) continue;
      int64_t kept = 0;
      each(x, n, [&](vfloat v, int64_t i) {
        for (uint32_t bits = at_least(v, at_place(low)) & ~at_least(v, at_place(high)); bits; bits &= bits - 1) {
          const int64_t lane = i + std::countr_zero(bits);
          weights[kept] = weights[lane];
          near[kept++] = x[lane];
        }
      });
      x = near, n = kept;
    }
    return {at_place(low), above};
  }

  const float* x_;
  const int32_t* ids_ = nullptr;
  int64_t size_;
  float peak_;
  Memory& memory_;
};

// The token of one row [size]; -1 without a finite largest logit, of which a NaN is the largest.
inline int64_t draw(const float* row, int64_t size, const Wish& wish) {
  Candidates left(row, size);
  if (!std::isfinite(left.peak())) return -1;
  if (wish.temperature == 0) return left.likeliest();
  const Weights weights(left.peak(), wish.temperature);
  if (wish.top_k > 0) left.top_k(wish.top_k);
  if (wish.top_p < 1) left.top_p(wish.top_p, weights);
  if (wish.min_p > 0) left.keep(weights.logit(wish.min_p), size);
  return left.draw(wish.uniform, weights);
}

}  // namespace pillion
