// A lane's value depends on nothing but its own argument: not on its neighbours, which may send the pack down another path.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <situ/expr/math.hpp>

using namespace situ;

namespace {

template <class Isa, int N, class F, class T>
SITU_INLINE void body(T const* x, T* out, int n) {
  using P = pack<T, N, Isa>;
  for (int i = 0; i + N <= n; i += N) F::value(P::load(x + i)).store(out + i);
}
template <class F, int N, class T>
SITU_NOINLINE void baseline_kernel(T const* x, T* out, int n) {
  body<isa::baseline, N, F>(x, out, n);
}
#if SITU_X86
#if defined(__clang__)
#define SITU_TEST_WIDE __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define SITU_TEST_WIDE __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
template <class F, int N, class T>
SITU_NOINLINE __attribute__((target("avx2,fma"))) void avx2_kernel(T const* x, T* out, int n) {
  body<isa::avx2, N, F>(x, out, n);
}
template <class F, int N, class T>
SITU_NOINLINE SITU_TEST_WIDE void avx512_kernel(T const* x, T* out, int n) {
  body<isa::avx512, N, F>(x, out, n);
}
#endif

/// Values for which packs go their usual way, and others.
template <class T>
struct arguments {
  std::vector<T> easy, hard;
};
arguments<float> arguments_of(float) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  std::vector<float> easy{0.f, -0.f, 1e-30f, 0.1f, -0.1f, 0.140625f, 0.2f, -0.7f,
                          0.99f, 1.3f, -1.6f, 2.7f, -3.1f, 5.483f, 5.485f, 7.5f};
  for (int k = 0; k < 200; ++k) easy.push_back(-3.5f + 0.0451f * static_cast<float>(k));
  return {easy, {-3.5156252f, -3.6f, -8.f, -14.f, -86.9f, -87.f, -87.1f, -90.f, -103.f, -104.5f,
                 -1e4f, -1e30f, -inf, 9.5f, 15.f, 86.9f, 87.f, 87.1f, 104.f, 1e10f, inf, 1e-40f, -1e-40f}};
}
arguments<double> arguments_of(double) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  std::vector<double> easy{0., 1e-30, 0.1, 0.2, 0.7, 0.99, 1.3, 7.5};
  for (int k = 0; k < 200; ++k) easy.push_back(0.0451 * k);
  return {easy, {-0., -0.7, -1., -1.5, -40., -709.5, -746., -1e4, -1e13, -1e300, -inf, 1., 1.0000000000000002, 709.5,
                 710.5, 1e6, 1638401., 1e13, 1e30, 1e160, 1e300, inf, 5e-324, -1e-310}};
}

/// How many of the values differ, in bits, between a pack of copies and a pack among others.
template <class T>
int differences(void (*kernel)(T const*, T*, int), int lanes) {
  auto const [easy, hard] = arguments_of(T{});
  std::vector<T> all(easy);
  all.insert(all.end(), hard.begin(), hard.end());
  std::vector<T> x(static_cast<std::size_t>(lanes)), alone(x), among(x);
  int different = 0;
  for (T value : all) {
    for (T& lane : x) lane = value;
    kernel(x.data(), alone.data(), lanes);
    for (int offset = 0; offset < static_cast<int>(hard.size()); offset += 3) {
      for (int k = 0; k < lanes; ++k) {
        std::size_t const at = static_cast<std::size_t>(offset + k) % all.size();
        x[static_cast<std::size_t>(k)] = k % 2 ? hard[static_cast<std::size_t>(offset + k) % hard.size()] : easy[at % easy.size()];
      }
      std::size_t const place = static_cast<std::size_t>(offset) % x.size();
      x[place] = value;
      kernel(x.data(), among.data(), lanes);
      bool const same = std::memcmp(&alone[place], &among[place], sizeof(T)) == 0;
      if (!same && !(std::isnan(alone[place]) && std::isnan(among[place]))) ++different;
    }
  }
  return different;
}

template <class F, class T>
void check(char const* name) {
  CAPTURE(name);
  constexpr int n = 16 / static_cast<int>(sizeof(T));
  CHECK(differences<T>(baseline_kernel<F, n, T>, n) == 0);
#if SITU_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    CHECK(differences<T>(avx2_kernel<F, 2 * n, T>, 2 * n) == 0);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq")) {
      CHECK(differences<T>(avx512_kernel<F, 2 * n, T>, 2 * n) == 0);
      CHECK(differences<T>(avx512_kernel<F, 4 * n, T>, 4 * n) == 0);
    }
  }
#endif
}

}  // namespace

#define SITU_TEST_FUNCTION(name, T)                                \
  struct lane_##name##_##T {                                       \
    template <class P>                                             \
    SITU_INLINE static P value(P const& x) {                       \
      return math::name(x);                                        \
    }                                                              \
  };                                                               \
  TEST_CASE("lanes of " #name " of " #T " are independent") { check<lane_##name##_##T, T>(#name); }

namespace {
SITU_TEST_FUNCTION(exp, float)
SITU_TEST_FUNCTION(expm1, float)
SITU_TEST_FUNCTION(log, float)
SITU_TEST_FUNCTION(log1p, float)
SITU_TEST_FUNCTION(sigmoid, float)
SITU_TEST_FUNCTION(silu, float)
SITU_TEST_FUNCTION(softplus, float)
SITU_TEST_FUNCTION(tanh, float)
SITU_TEST_FUNCTION(erf, float)
SITU_TEST_FUNCTION(erfc, float)
SITU_TEST_FUNCTION(gelu, float)
SITU_TEST_FUNCTION(gelu_tanh, float)
SITU_TEST_FUNCTION(exp2, double)
SITU_TEST_FUNCTION(expm1, double)
SITU_TEST_FUNCTION(log2, double)
SITU_TEST_FUNCTION(log10, double)
SITU_TEST_FUNCTION(log1p, double)
SITU_TEST_FUNCTION(softplus, double)
SITU_TEST_FUNCTION(gelu_tanh, double)
SITU_TEST_FUNCTION(sin, double)
SITU_TEST_FUNCTION(cos, double)
SITU_TEST_FUNCTION(tan, double)
SITU_TEST_FUNCTION(asin, double)
SITU_TEST_FUNCTION(acos, double)
SITU_TEST_FUNCTION(atan, double)
SITU_TEST_FUNCTION(sinh, double)
SITU_TEST_FUNCTION(cosh, double)
SITU_TEST_FUNCTION(asinh, double)
SITU_TEST_FUNCTION(acosh, double)
SITU_TEST_FUNCTION(atanh, double)
}  // namespace
