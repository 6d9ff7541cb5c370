// A lane's value depends on nothing but its own argument: not on its neighbours, which may send the pack down another path.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <situ/expr/math.hpp>

using namespace situ;

namespace {

template <class Isa, int N, class F>
SITU_INLINE void body(float const* x, float* out, int n) {
  using P = pack<float, N, Isa>;
  for (int i = 0; i + N <= n; i += N) F::value(P::load(x + i)).store(out + i);
}
template <class F, int N>
SITU_NOINLINE void baseline_kernel(float const* x, float* out, int n) {
  body<isa::baseline, N, F>(x, out, n);
}
#if SITU_X86
#if defined(__clang__)
#define SITU_TEST_WIDE __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define SITU_TEST_WIDE __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
template <class F, int N>
SITU_NOINLINE __attribute__((target("avx2,fma"))) void avx2_kernel(float const* x, float* out, int n) {
  body<isa::avx2, N, F>(x, out, n);
}
template <class F, int N>
SITU_NOINLINE SITU_TEST_WIDE void avx512_kernel(float const* x, float* out, int n) {
  body<isa::avx512, N, F>(x, out, n);
}
#endif

/// How many of the values differ, in bits, between a pack of copies and a pack among others.
template <class Kernel>
int differences(Kernel kernel, int lanes) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  std::vector<float> easy{0.f, -0.f, 1e-30f, 0.1f, -0.1f, 0.140625f, 0.2f, -0.7f,
                          0.99f, 1.3f, -1.6f, 2.7f, -3.1f, 5.483f, 5.485f, 7.5f};
  for (int k = 0; k < 200; ++k) easy.push_back(-3.5f + 0.0451f * static_cast<float>(k));
  std::vector<float> const hard{-3.5156252f, -3.6f, -8.f, -14.f, -86.9f, -87.f, -87.1f, -90.f, -103.f, -104.5f,
                                -1e4f, -1e30f, -inf, 9.5f, 15.f, 86.9f, 87.f, 87.1f, 104.f, 1e10f, inf, 1e-40f, -1e-40f};
  std::vector<float> all(easy);
  all.insert(all.end(), hard.begin(), hard.end());
  std::vector<float> x(static_cast<std::size_t>(lanes)), alone(x), among(x);
  int different = 0;
  for (float value : all) {
    for (float& lane : x) lane = value;
    kernel(x.data(), alone.data(), lanes);
    for (int offset = 0; offset < static_cast<int>(hard.size()); offset += 3) {
      for (int k = 0; k < lanes; ++k) {
        std::size_t const at = static_cast<std::size_t>(offset + k) % all.size();
        x[static_cast<std::size_t>(k)] = k % 2 ? hard[static_cast<std::size_t>(offset + k) % hard.size()] : easy[at];
      }
      std::size_t const place = static_cast<std::size_t>(offset) % x.size();
      x[place] = value;
      kernel(x.data(), among.data(), lanes);
      bool const same = std::memcmp(&alone[place], &among[place], sizeof(float)) == 0;
      if (!same && !(std::isnan(alone[place]) && std::isnan(among[place]))) ++different;
    }
  }
  return different;
}

template <class F>
void check(char const* name) {
  CAPTURE(name);
  CHECK(differences(baseline_kernel<F, 4>, 4) == 0);
#if SITU_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    CHECK(differences(avx2_kernel<F, 8>, 8) == 0);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq")) {
      CHECK(differences(avx512_kernel<F, 8>, 8) == 0);
      CHECK(differences(avx512_kernel<F, 16>, 16) == 0);
    }
  }
#endif
}

}  // namespace

#define SITU_TEST_FUNCTION(name)                  \
  struct lane_##name {                            \
    template <class P>                            \
    SITU_INLINE static P value(P const& x) {      \
      return math::name(x);                       \
    }                                             \
  };                                              \
  TEST_CASE("lanes of " #name " are independent") { check<lane_##name>(#name); }

namespace {
SITU_TEST_FUNCTION(exp)
SITU_TEST_FUNCTION(expm1)
SITU_TEST_FUNCTION(log)
SITU_TEST_FUNCTION(log1p)
SITU_TEST_FUNCTION(sigmoid)
SITU_TEST_FUNCTION(silu)
SITU_TEST_FUNCTION(softplus)
SITU_TEST_FUNCTION(tanh)
SITU_TEST_FUNCTION(erf)
SITU_TEST_FUNCTION(erfc)
SITU_TEST_FUNCTION(gelu)
SITU_TEST_FUNCTION(gelu_tanh)
}  // namespace
