// Sixteen floats, pairs of bfloat16, and what is done with them.
//
// Written with the compiler's vectors, which it lowers to what the target has; only the product of pairs has
// an instruction of its own. A row's results depend on the row alone: every function works lane by lane.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace pillion {

constexpr int kLanes = 16;
constexpr int kRows = 6;  // computed side by side: with four vectors each, 24 sums in registers

typedef float vfloat __attribute__((vector_size(64)));
typedef int32_t vint __attribute__((vector_size(64)));
typedef uint32_t vpair __attribute__((vector_size(64)));  // two bfloat16 a lane, the first in the low half
typedef uint16_t vhalf __attribute__((vector_size(32)));
typedef uint32_t vquad __attribute__((vector_size(64)));  // four bytes a lane
typedef int8_t vbytes __attribute__((vector_size(16)));

inline vfloat load(const float* from) {
  vfloat v;
  memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, vfloat v) { memcpy(to, &v, sizeof v); }

inline vpair load_pairs(const uint16_t* from) {
  vpair v;
  memcpy(&v, from, sizeof v);
  return v;
}

inline vfloat spread(float x) { return vfloat{} + x; }

// One pair in every lane.
inline vpair spread_pair(const uint16_t* from) {
  uint32_t pair;
  memcpy(&pair, from, sizeof pair);
#if defined(__AVX512F__)
  return reinterpret_cast<vpair>(_mm512_set1_epi32(static_cast<int>(pair)));
#else
  return vpair{} + pair;
#endif
}

inline vfloat low(vpair v) { return reinterpret_cast<vfloat>(v << 16); }
inline vfloat high(vpair v) { return reinterpret_cast<vfloat>(v & 0xffff0000u); }

// a * b + c, rounded once where the target can; the same for every lane and caller.
inline vfloat fma(vfloat a, vfloat b, vfloat c) {
#if defined(__AVX512F__)
  return reinterpret_cast<vfloat>(_mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b),
                                                  reinterpret_cast<__m512>(c)));
#else
  return a * b + c;
#endif
}

// sum + a.low * b.low + a.high * b.high
inline vfloat dot(vfloat sum, vpair a, vpair b) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<vfloat>(_mm512_dpbf16_ps(
      reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
#else
  return fma(high(a), high(b), fma(low(a), low(b), sum));
#endif
}

// Four bytes in every lane.
inline vquad spread_quad(const int8_t* from) {
  uint32_t quad;
  memcpy(&quad, from, sizeof quad);
#if defined(__AVX512F__)
  return reinterpret_cast<vquad>(_mm512_set1_epi32(static_cast<int>(quad)));
#else
  return vquad{} + quad;
#endif
}

// sum + the products of a's four bytes, unsigned, with b's, signed
inline vint dot(vint sum, vquad a, vquad b) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<vint>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#else
  for (int byte = 0; byte < 4; ++byte)
    sum += reinterpret_cast<vint>(a >> (8 * byte) & 255u) * (reinterpret_cast<vint>(b << (24 - 8 * byte)) >> 24);
  return sum;
#endif
}

inline float widen(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// To the nearest, ties to even; a NaN stays one.
inline uint16_t narrow(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Where the target has an instruction for it, what is below the normal numbers becomes 0, as in products of pairs.
inline vhalf narrow(vfloat x) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<vhalf>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(x)));
#else
  const vpair bits = reinterpret_cast<vpair>(x);
  const vpair rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const vpair quiet = bits >> 16 | 0x40u;
  const vpair is_nan = reinterpret_cast<vpair>((bits & 0x7fffffffu) > 0x7f800000u);
  return __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), vhalf);
#endif
}

inline vfloat widen(vhalf x) { return reinterpret_cast<vfloat>(__builtin_convertvector(x, vpair) << 16); }

// IEEE half floats. Of its numbers; it has no use for infinities.
inline vfloat widen_half(vhalf x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vfloat>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(x)));
#else
  const vpair bits = __builtin_convertvector(x, vpair);
  const vfloat size = reinterpret_cast<vfloat>((bits & 0x7fffu) << 13) * 0x1p112f;
  return reinterpret_cast<vfloat>(reinterpret_cast<vpair>(size) | (bits & 0x8000u) << 16);
#endif
}

inline vhalf load_half(const uint16_t* from) {
  vhalf v;
  memcpy(&v, from, sizeof v);
  return v;
}

inline void store(uint16_t* to, vhalf v) { memcpy(to, &v, sizeof v); }

// Two vectors' halves side by side: the first lanes of the result are the first two of `a`.
inline vpair narrow_pairs(vfloat a, vfloat b) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<vpair>(_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(a)));
#else
  const vhalf halves[2] = {narrow(a), narrow(b)};
  vpair v;
  memcpy(&v, halves, sizeof v);
  return v;
#endif
}

inline void store(uint16_t* to, vpair v) { memcpy(to, &v, sizeof v); }

inline vfloat larger(vfloat a, vfloat b) { return a > b ? a : b; }

template <int... I>
inline vfloat shuffled(vfloat v) {
  return __builtin_shufflevector(v, v, I...);
}

// The lanes folded as a tree, always the same; every lane has the result.
template <class F>
inline vfloat fold(vfloat v, F f) {
  v = f(v, shuffled<8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7>(v));
  v = f(v, shuffled<4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11>(v));
  v = f(v, shuffled<2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13>(v));
  return f(v, shuffled<1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14>(v));
}

inline float sum(vfloat v) {
  return fold(v, [](vfloat a, vfloat b) { return a + b; })[0];
}

inline vfloat largest(vfloat v) { return fold(v, larger); }

// To the nearest integer, ties to even. Of numbers below 2^22 in size.
inline vfloat nearest(vfloat x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vfloat>(_mm512_roundscale_ps(reinterpret_cast<__m512>(x), 8));
#else
  const vfloat shift = spread(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  return (x + shift) - shift;
#endif
}

// 2^x of x <= 0, 0 far below, within 3e-6 of it: of degree 4, the least largest relative error on [-0.5, 0.5]. Of 0 it
// is 1: what rows of no more keys are multiplied with. For weights that are rounded to bfloat16.
inline vfloat exp2_weight(vfloat x) {
#if defined(__AVX512F__)
  const vfloat whole = nearest(x), part = x - whole;
#else
  const vint zero = reinterpret_cast<vint>(x <= -126.0f);
  x = x < -126.0f ? spread(-126.0f) : x;  // a NaN stays one
  const vfloat whole = nearest(x), part = x - whole;
#endif
  vfloat y = spread(9.58285e-3f);
  y = fma(y, part, spread(5.590642e-2f));
  y = fma(y, part, spread(2.4024099e-1f));
  y = fma(y, part, spread(6.9312419e-1f));
  y = fma(y, part, spread(1.0f));
#if defined(__AVX512F__)
  return reinterpret_cast<vfloat>(_mm512_scalef_ps(reinterpret_cast<__m512>(y), reinterpret_cast<__m512>(whole)));
#else
  return reinterpret_cast<vfloat>(reinterpret_cast<vint>(y) + (__builtin_convertvector(whole, vint) << 23) & ~zero);
#endif
}

// 2^x; 0 from -126 down, 2^127 from 127 on. Cody-Waite to [-0.5, 0.5], then the minimax polynomial of degree 6 of
// Cephes' exp2f: within 2 units in the last place.
inline vfloat exp2(vfloat x) {
  const vint zero = reinterpret_cast<vint>(x <= -126.0f);
  x = x < -126.0f ? spread(-126.0f) : x;  // a NaN stays one
  x = x > 127.0f ? spread(127.0f) : x;
  const vfloat shift = spread(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const vfloat whole = (x + shift) - shift;
  const vfloat part = x - whole;
  vfloat y = spread(1.535336188319500e-4f);
  y = fma(y, part, spread(1.339887440266574e-3f));
  y = fma(y, part, spread(9.618437357674640e-3f));
  y = fma(y, part, spread(5.550332471162809e-2f));
  y = fma(y, part, spread(2.402264791363012e-1f));
  y = fma(y, part, spread(6.931472028550421e-1f));
  y = fma(y, part, spread(1.0f));
  const vint exponent = __builtin_convertvector(whole, vint) << 23;
  const vint bits = reinterpret_cast<vint>(y) + exponent;
  return reinterpret_cast<vfloat>(bits & ~zero);
}

// Calls f with the number of rows, 1 to 6, as a constant.
template <class F>
inline void with_rows(int rows, const F& f) {
  switch (rows) {
    case 1: return f(std::integral_constant<int, 1>{});
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    case 4: return f(std::integral_constant<int, 4>{});
    case 5: return f(std::integral_constant<int, 5>{});
    default: return f(std::integral_constant<int, 6>{});
  }
}

}  // namespace pillion
