/// The vector functions of the hand-written loops: AVX-512 or AVX2, as the compiler is told.
///
/// They are as accurate as they should be for ordinary arguments (a few units in the last place; erf is the rational
/// approximation that Eigen has) and handle nothing else, no NaN and no overflow: this is how fast one can be.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace limit {

#if defined(__AVX512F__) && defined(__AVX512DQ__)
using V = __m512;
constexpr std::size_t width = 16;
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V x) { _mm512_storeu_ps(p, x); }
inline void stream(float* p, V x) { _mm512_stream_ps(p, x); }
inline V set(float x) { return _mm512_set1_ps(x); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V fms(V a, V b, V c) { return _mm512_fmsub_ps(a, b, c); }
inline V min(V a, V b) { return _mm512_min_ps(a, b); }
inline V max(V a, V b) { return _mm512_max_ps(a, b); }
inline V round(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V scale(V x, V exponent) { return _mm512_scalef_ps(x, exponent); }
/// x = m * 2^e with m in [0.75, 1.5).
inline void split(V x, V& m, V& e) {
  m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  e = _mm512_getexp_ps(_mm512_mul_ps(x, set(4.0f / 3.0f)));
}
inline float add_up(V x) { return _mm512_reduce_add_ps(x); }
inline float largest(V x) { return _mm512_reduce_max_ps(x); }
#else
using V = __m256;
constexpr std::size_t width = 8;
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, V x) { _mm256_storeu_ps(p, x); }
inline void stream(float* p, V x) { _mm256_stream_ps(p, x); }
inline V set(float x) { return _mm256_set1_ps(x); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V fms(V a, V b, V c) { return _mm256_fmsub_ps(a, b, c); }
inline V min(V a, V b) { return _mm256_min_ps(a, b); }
inline V max(V a, V b) { return _mm256_max_ps(a, b); }
inline V round(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V scale(V x, V exponent) {
  __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(exponent), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shift));
}
inline void split(V x, V& m, V& e) {
  const __m256i start = _mm256_set1_epi32(0x3F400000);  // 0.75
  __m256i high = _mm256_and_si256(_mm256_sub_epi32(_mm256_castps_si256(x), start), _mm256_set1_epi32(~0x7FFFFF));
  m = _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_castps_si256(x), high));
  e = _mm256_cvtepi32_ps(_mm256_srai_epi32(high, 23));
}
inline float add_up(V x) {
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
inline float largest(V x) {
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
#endif

/// x, which the compiler then keeps in its register instead of loading it again where it is used next.
inline V held(V x) {
  asm("" : "+v"(x));
  return x;
}

/// c0 + x (c1 + x (c2 + ...)).
template <class... More>
inline V polynomial(V x, float c0, More... more) {
  if constexpr (sizeof...(More) == 0) return set(c0);
  else return fma(x, polynomial(x, more...), set(c0));
}

/// x = (n + f) log 2 with n whole.
inline void reduce(V x, V& n, V& f) {
  n = round(x * set(1.44269504f));
  f = fma(x, set(1.92596299e-8f), fms(x, set(1.44269504f), n));
}

/// (2^f - 1) / f for |f| <= 1/2.
inline V exp2_minus_1_over(V f) {
  return polynomial(f, 0.6931471824645996f, 0.24022647738456726f, 0.055503323674201965f, 0.00961843691766262f,
                    0.0013398875016719103f, 0.00015353360504377633f);
}

inline V exp(V x) {
  V n, f;
  reduce(x, n, f);
  return scale(fma(f, exp2_minus_1_over(f), set(1.0f)), n);
}

inline V log(V x) {
  V m, e;
  split(x, m, e);
  V r = m - set(1.0f);
  V p = polynomial(r, -0.5f, 0.33333471417427063f, -0.24996361136436462f, 0.19982320070266724f, -0.16788822412490845f,
                   0.14904437959194183f, -0.12114088982343674f, 0.05559667944908142f);
  return fma(e, set(0.69314718f), fma(r * r, p, r));
}

/// t / (t + 2), t = exp(2x) - 1.
inline V tanh(V x) {
  V n, f;
  reduce(min(x + x, set(40.0f)), n, f);
  V power = scale(set(1.0f), n);
  V t = fma(power * f, exp2_minus_1_over(f), power - set(1.0f));
  return t / (t + set(2.0f));
}

inline V erf(V x) {
  x = max(min(x, set(4.0f)), set(-4.0f));
  V s = x * x;
  V p = polynomial(s, -1.60960333262415e-02f, -2.95459980854025e-03f, -7.34990630326855e-04f, -5.69250639462346e-05f,
                   -2.10102402082508e-06f, 2.77068142495902e-08f, -2.72614225801306e-10f);
  V q = polynomial(s, -1.42647390514189e-02f, -7.37332916720468e-03f, -1.68282697438203e-03f, -2.13374055278905e-04f,
                   -1.45660718464996e-05f);
  return x * p / q;
}

inline V sigmoid(V x) { return set(1.0f) / (set(1.0f) + exp(-x)); }

/// 1 + tanh(u) = 2 / (1 + exp(-2u)).
inline V gelu_tanh(V x) {
  V minus_2u = x * fma(x * x, set(-1.59576912f * 0.044715f), set(-1.59576912f));
  return x / (set(1.0f) + exp(minus_2u));
}

inline V gelu_erf(V x) {
  V half = x * set(0.5f);
  return fma(half, erf(x * set(0.70710678f)), half);
}

}  // namespace limit
