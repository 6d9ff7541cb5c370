// exp, log, sigmoid, erf and pow families: accuracy on every instruction set, and special values.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <situ/expr/math/erf.hpp>
#include <situ/expr/math/exp.hpp>
#include <situ/expr/math/log.hpp>
#include <situ/expr/math/pow.hpp>
#include <situ/expr/math/sigmoid.hpp>

using namespace situ;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float undefined = std::numeric_limits<float>::quiet_NaN();

// ---- one kernel per instruction set and pack width ----

template <class Isa, int N, class F, class T>
SITU_INLINE void body(T const* x, T const* y, T* out, int n) {
  using P = pack<T, N, Isa>;
  for (int i = 0; i + N <= n; i += N) F::value(P::load(x + i), P::load(y + i)).store(out + i);
}
template <class F, int N, class T>
SITU_NOINLINE void baseline_kernel(T const* x, T const* y, T* out, int n) {
  body<isa::baseline, N, F>(x, y, out, n);
}
#if SITU_X86
#if defined(__clang__)
#define SITU_TEST_WIDE __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma"), min_vector_width(512)))
#else
#define SITU_TEST_WIDE __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma,prefer-vector-width=512")))
#endif
template <class F, int N, class T>
SITU_NOINLINE __attribute__((target("avx2,fma"))) void avx2_kernel(T const* x, T const* y, T* out, int n) {
  body<isa::avx2, N, F>(x, y, out, n);
}
template <class F, int N, class T>
SITU_NOINLINE SITU_TEST_WIDE void avx512_kernel(T const* x, T const* y, T* out, int n) {
  body<isa::avx512, N, F>(x, y, out, n);
}
#endif

template <class T>
struct path {
  std::string name;
  void (*run)(T const*, T const*, T*, int);
};

/// Every path that this processor has; N is the lanes of a 16-byte register, narrower packs than the register included.
template <class F, class T>
std::vector<path<T>> paths() {
  constexpr int n = 16 / static_cast<int>(sizeof(T));
  std::vector<path<T>> result{{"baseline", baseline_kernel<F, n, T>}};
#if SITU_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    result.push_back({"avx2", avx2_kernel<F, 2 * n, T>});
    result.push_back({"avx2, half a register", avx2_kernel<F, n, T>});
  } else {
    MESSAGE("not tested: this processor lacks AVX2");
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq")) {
    result.push_back({"avx512", avx512_kernel<F, 4 * n, T>});
    result.push_back({"avx512, half a register", avx512_kernel<F, 2 * n, T>});
  } else {
    MESSAGE("not tested: this processor lacks AVX-512");
  }
#endif
  return result;
}

// ---- references, in a wider type ----

using wide = long double;
#define SITU_TEST_UNARY(name, expression)                                \
  struct name##_ {                                                       \
    static constexpr char const* text = #name;                           \
    template <class P>                                                   \
    static SITU_INLINE P value(P const& x, P const&) {                   \
      return math::name(x);                                              \
    }                                                                    \
    template <class R>                                                   \
    static R reference(R x, R) {                                         \
      return expression;                                                 \
    }                                                                    \
    template <class T>                                                   \
    static T scalar(T x) {                                               \
      return math::name(x);                                              \
    }                                                                    \
  };
SITU_TEST_UNARY(exp, std::exp(x))
SITU_TEST_UNARY(exp2, std::exp2(x))
SITU_TEST_UNARY(expm1, std::expm1(x))
SITU_TEST_UNARY(log, std::log(x))
SITU_TEST_UNARY(log2, std::log2(x))
SITU_TEST_UNARY(log10, std::log10(x))
SITU_TEST_UNARY(log1p, std::log1p(x))
SITU_TEST_UNARY(tanh, std::tanh(x))
SITU_TEST_UNARY(erf, std::erf(x))
SITU_TEST_UNARY(erfc, std::erfc(x))
SITU_TEST_UNARY(sigmoid, x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)))
SITU_TEST_UNARY(silu, x < -2000 ? R(-0.0) : x < 0 ? x * (std::exp(x) / (1 + std::exp(x))) : x / (1 + std::exp(-x)))
SITU_TEST_UNARY(softplus, x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)))
SITU_TEST_UNARY(gelu, x < -100 ? R(-0.0) : R(0.5) * x * std::erfc(-x * R(0.707106781186547524400844362104849039L)))
SITU_TEST_UNARY(gelu_tanh,
                x < -100 ? R(-0.0)
                : x > 100 ? x
                          : static_cast<R>(x / (1 + std::exp(wide(x) * (1 + 0.044715L * x * x) * -1.59576912160573071175978423973752L))))
#undef SITU_TEST_UNARY
struct pow_ {
  static constexpr char const* text = "pow";
  template <class P>
  static SITU_INLINE P value(P const& x, P const& y) {
    return math::pow(x, y);
  }
  template <class R>
  static R reference(R x, R y) {
    return std::pow(x, y);
  }
};
struct elu_ {
  static constexpr char const* text = "elu";
  template <class P>
  static SITU_INLINE P value(P const& x, P const& alpha) {
    return math::elu(x, alpha);
  }
  template <class R>
  static R reference(R x, R alpha) {
    return x > 0 ? x : alpha * std::expm1(x);
  }
};

// ---- errors in units of the last place of the correctly rounded result ----

template <class T, class R>
double ulps(T got, R exact) {
  T const want = static_cast<T>(exact);
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : 1e30;
  if (got == want) return std::signbit(got) == std::signbit(want) ? 0 : 1e30;
  if (std::isinf(want) && std::isinf(got)) return 1e30;
  if (std::isinf(want) || std::isinf(got)) {  // beside the largest number stands infinity
    T const largest = std::numeric_limits<T>::max();
    T const other = std::isinf(want) ? got : want;
    return std::fabs(other) == largest ? 1 : 1e30;
  }
  int exponent;
  std::frexp(want, &exponent);
  int const digits = std::numeric_limits<T>::digits, least = std::numeric_limits<T>::min_exponent;
  T const unit = std::ldexp(T(1), (exponent > least ? exponent : least) - digits);
  return std::fabs(static_cast<double>((got - want) / unit));
}

template <class T>
T from_bits(std::uint64_t bits) {
  T result;
  if constexpr (sizeof(T) == 4) {
    auto const word = static_cast<std::uint32_t>(bits);
    std::memcpy(&result, &word, 4);
  } else {
    std::memcpy(&result, &bits, 8);
  }
  return result;
}

/// All of T in steps of its bits, the neighbourhood of where these functions change their ways, and ordinary numbers.
template <class T>
std::vector<T> arguments(std::uint64_t step) {
  std::vector<T> xs;
  for (std::uint64_t b = 0; sizeof(T) == 4 ? b < (std::uint64_t(1) << 32) : b <= ~step; b += step) xs.push_back(from_bits<T>(b));
  T const limit = std::numeric_limits<T>::infinity();
  for (double c : {0.0, 1.0, 0.5, 0.6, 0.75, 1.5, 0.92, 2.0, 88.72284, 87.33655, 103.97208, 128.0, 126.0, 149.0, 150.0,
                   709.782712893384, 745.1332191019411, 708.3964185322641, 10.06, 14.2, 26.5, 20.0, 9.0, 17.3, 1.17549435e-38, 1e-45,
                   2.2250738585072014e-308, 5e-324, 3.4028234e38, 1.7976931348623157e308, 0.34657359027997264, 1.0397207708399179, 36.7,
                   0.29289321881345243, 0.41421356237309503, 0.70709228515625, 1.414184570312, 22.5, 1023.5, 1074.5, 0x1p53, 0x1p60, 0x1p61}) {
    for (double s : {c, -c}) {
      T below = static_cast<T>(s), above = below;
      for (int k = 0; k < 8; ++k) {
        xs.push_back(below), xs.push_back(above);
        below = std::nextafter(below, -limit), above = std::nextafter(above, limit);
      }
    }
  }
  double const width = sizeof(T) == 4 ? 110 : 750;
  for (int k = 0; k < 4000; ++k) xs.push_back(static_cast<T>((k - 2000) * (width / 2000) + 0.0123456789));
  for (int k = 0; k < 4000; ++k) xs.push_back(static_cast<T>((k - 2000) * 0.0041 + 1.23e-5));
  for (T x : {limit, -limit, std::numeric_limits<T>::quiet_NaN()}) xs.push_back(x);
  while (xs.size() % 64 != 0) xs.push_back(T(1));
  return xs;
}

template <class F, class R, class T>
void check_accuracy(std::vector<T> const& xs, std::vector<T> const& ys, double bound) {
  int const n = static_cast<int>(xs.size());
  std::vector<R> exact(xs.size());
  for (std::size_t i = 0; i < xs.size(); ++i) exact[i] = F::reference(static_cast<R>(xs[i]), static_cast<R>(ys[i]));
  std::vector<T> out(xs.size());
  for (auto const& p : paths<F, T>()) {
    p.run(xs.data(), ys.data(), out.data(), n);
    double worst = -1;
    std::size_t at = 0;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      double const error = ulps(out[i], exact[i]);
      if (error > worst) worst = error, at = i;
    }
    INFO(F::text, " on ", p.name, " at ", xs[at], ", ", ys[at], ": got ", out[at], ", want ", static_cast<T>(exact[at]));
    CHECK(worst <= bound);
  }
}

template <class T>
struct example {
  T x, want;
};
template <class F>
void check_values(std::initializer_list<example<float>> table) {
  std::vector<float> xs, out(64), ys(64, 1.0f);
  std::vector<float> want;
  for (auto const& e : table) xs.push_back(e.x), want.push_back(e.want);
  std::size_t const n = xs.size();
  xs.resize(64, 0.5f);
  auto const same = [](auto a, auto b) { return std::isnan(b) ? std::isnan(a) : a == b && std::signbit(a) == std::signbit(b); };
  for (auto const& p : paths<F, float>()) {
    p.run(xs.data(), ys.data(), out.data(), 64);
    for (std::size_t i = 0; i < n; ++i) {
      INFO(F::text, "(", xs[i], ") on ", p.name, ": got ", out[i], ", want ", want[i]);
      CHECK(same(out[i], want[i]));
    }
  }
  std::vector<double> dx(xs.begin(), xs.end()), dy(64, 1.0), dout(64);
  for (auto const& p : paths<F, double>()) {
    p.run(dx.data(), dy.data(), dout.data(), 64);
    for (std::size_t i = 0; i < n; ++i) {
      INFO(F::text, "(", dx[i], ") in double on ", p.name, ": got ", dout[i], ", want ", want[i]);
      CHECK(same(dout[i], static_cast<double>(want[i])));
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    INFO(F::text, "(", xs[i], ") of a number: got ", F::scalar(xs[i]), ", want ", want[i]);
    CHECK(same(F::scalar(xs[i]), want[i]));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("float functions are within 2 ULP of the correctly rounded result on every path", F, exp_, exp2_,
                   expm1_, log_, log2_, log10_, log1p_, tanh_, erf_, erfc_, sigmoid_, silu_, softplus_, gelu_,
                   gelu_tanh_) {
  static std::vector<float> const xs = arguments<float>(9973);
  check_accuracy<F, double>(xs, xs, 2);
}

TEST_CASE_TEMPLATE("gelu and tanh are so densely where their steps round most", F, tanh_, gelu_, gelu_tanh_) {
  std::vector<float> xs{-1.86257231f, -4.91397047f};  // there, a quarter of an ULP more would be too much
  for (std::uint32_t bits = 0xbc800000u; bits < 0xc1100000u; bits += 211) xs.push_back(from_bits<float>(bits));  // down to -9
  while (xs.size() % 64 != 0) xs.push_back(1.0f);
  check_accuracy<F, double>(xs, xs, 2);
}

TEST_CASE_TEMPLATE("double functions are within 2 ULP of the correctly rounded result on every path", F, exp_, exp2_,
                   expm1_, log_, log2_, log10_, log1p_, tanh_, erf_, sigmoid_, silu_, softplus_, gelu_, gelu_tanh_) {
  static std::vector<double> const xs = arguments<double>(0x0003a1b2c3d4e5f1);
  check_accuracy<F, wide>(xs, xs, 2);
}

TEST_CASE("erfc of a double is within 4 ULP") {
  auto const xs = arguments<double>(0x0003a1b2c3d4e5f1);
  check_accuracy<erfc_, wide>(xs, xs, 4);
}

TEST_CASE_TEMPLATE("pow is within 2 ULP in float and 4 in double, special values as in C99 included", T, float, double) {
  using R = std::conditional_t<sizeof(T) == 4, double, wide>;
  T const limit = std::numeric_limits<T>::infinity(), none = std::numeric_limits<T>::quiet_NaN();
  T const special[] = {T(0),  T(-0.0), T(1),    T(-1),    T(2),    T(-2),  T(3),   T(-3),     T(0.5),
                       T(-0.5), T(1.5), T(-2.5), T(1e-40), T(-1e-40), T(1e30), T(-1e30), limit, -limit, none,
                       T(16777215), T(-16777215), T(33554432), T(0.99999994), T(1.0000001), T(150), T(-149),
                       std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest(), std::nextafter(T(1), T(2)), std::nextafter(T(1), T(0))};
  std::vector<T> xs, ys;
  for (T x : special) {
    for (T y : special) xs.push_back(x), ys.push_back(y);
  }
  std::uint64_t state = 88172645463325252u;
  auto const next = [&] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  };
  for (int k = 0; k < 30000; ++k) {  // any bits: mostly 0, 1 or infinity
    xs.push_back(from_bits<T>(next() >> (64 - 8 * sizeof(T))));
    ys.push_back(from_bits<T>(next() >> (64 - 8 * sizeof(T))));
  }
  for (int k = 0; k < 60000; ++k) {  // results that spread over the whole range
    T const x = std::exp(static_cast<T>(static_cast<double>(next() >> 11) * 0x1p-53 * 40 - 20) *
                         (k % 2 ? T(1) : T(0.001)));
    T const e = static_cast<T>((static_cast<double>(next() >> 11) * 0x1p-53 * 2 - 1) * (sizeof(T) == 4 ? 105 : 750));
    xs.push_back(x), ys.push_back(e / std::log(x));
  }
  while (xs.size() % 64 != 0) xs.push_back(T(1)), ys.push_back(T(1));
  check_accuracy<pow_, R>(xs, ys, sizeof(T) == 4 ? 2 : 4);
}

TEST_CASE_TEMPLATE("elu is the identity above 0 and alpha expm1(x) below", T, float, double) {
  auto const xs = arguments<T>(sizeof(T) == 4 ? 500009 : 0x0033a1b2c3d4e5f1);
  for (T alpha : {T(1), T(0.37), T(-2)}) {
    std::vector<T> const alphas(xs.size(), alpha);
    check_accuracy<elu_, std::conditional_t<sizeof(T) == 4, double, wide>>(xs, alphas, 2);
  }
}

TEST_CASE("special values are those of C99 and NumPy") {
  check_values<exp_>({{0, 1}, {-0.0f, 1}, {inf, inf}, {-inf, 0}, {undefined, undefined}, {1000, inf}, {-1000, 0}});
  check_values<exp2_>({{0, 1}, {-0.0f, 1}, {inf, inf}, {-inf, 0}, {undefined, undefined}, {10, 1024}, {-3, 0.125f}, {2000, inf}});
  check_values<expm1_>({{0, 0}, {-0.0f, -0.0f}, {inf, inf}, {-inf, -1}, {undefined, undefined}, {1000, inf}, {-1000, -1}, {1e-45f, 1e-45f}});
  check_values<log_>({{1, 0}, {0, -inf}, {-0.0f, -inf}, {inf, inf}, {-inf, undefined}, {-1, undefined}, {-1e-45f, undefined}, {undefined, undefined}});
  check_values<log2_>({{1, 0}, {8, 3}, {0.25f, -2}, {1e-45f, -149}, {0, -inf}, {-0.0f, -inf}, {inf, inf}, {-inf, undefined}, {-1, undefined}, {undefined, undefined}});
  check_values<log10_>({{1, 0}, {10, 1}, {1000, 3}, {0, -inf}, {-0.0f, -inf}, {inf, inf}, {-inf, undefined}, {-1, undefined}, {undefined, undefined}});
  check_values<log1p_>({{0, 0}, {-0.0f, -0.0f}, {-1, -inf}, {inf, inf}, {-inf, undefined}, {-1.5f, undefined}, {undefined, undefined}, {1e-45f, 1e-45f}});
  check_values<tanh_>({{0, 0}, {-0.0f, -0.0f}, {inf, 1}, {-inf, -1}, {undefined, undefined}, {1e-45f, 1e-45f}, {-100, -1}});
  check_values<erf_>({{0, 0}, {-0.0f, -0.0f}, {inf, 1}, {-inf, -1}, {undefined, undefined}, {30, 1}});
  check_values<erfc_>({{0, 1}, {-0.0f, 1}, {inf, 0}, {-inf, 2}, {undefined, undefined}, {-30, 2}, {100, 0}});
  check_values<sigmoid_>({{0, 0.5f}, {-0.0f, 0.5f}, {inf, 1}, {-inf, 0}, {undefined, undefined}, {100, 1}, {-1000, 0}});
  check_values<silu_>({{0, 0}, {-0.0f, -0.0f}, {inf, inf}, {undefined, undefined}, {100, 100}, {-3000, -0.0f}});
  check_values<softplus_>({{inf, inf}, {-inf, 0}, {undefined, undefined}, {1000, 1000}, {-1000, 0}});
  check_values<gelu_>({{0, 0}, {-0.0f, -0.0f}, {inf, inf}, {undefined, undefined}, {100, 100}, {-100, -0.0f}});
  check_values<gelu_tanh_>({{0, 0}, {-0.0f, -0.0f}, {inf, inf}, {undefined, undefined}, {100, 100}, {-100, -0.0f}});
}

TEST_CASE("tails keep their relative accuracy: values from mpmath") {
  auto const close = [](auto got, auto want) { return std::fabs(got - want) <= 2e-7f * std::fabs(want) + 1.5e-45f; };
  auto const lane = [](auto f, float x) {
    pack<float, 4, isa::baseline> y = f(pack<float, 4, isa::baseline>(x));
    return y[0];
  };
  CHECK(close(lane([](auto const& x) { return math::gelu(x); }, -10.0f), -7.6198530241605260e-23f));
  CHECK(close(lane([](auto const& x) { return math::gelu(x); }, -14.0f), -1.09109515468699e-43f));
  CHECK(close(lane([](auto const& x) { return math::sigmoid(x); }, -100.0f), 3.7200759760208356e-44f));
  CHECK(close(lane([](auto const& x) { return math::silu(x); }, -100.0f), -3.7200759760208356e-42f));
  CHECK(close(lane([](auto const& x) { return math::softplus(x); }, -100.0f), 3.7200759760208356e-44f));
  CHECK(close(lane([](auto const& x) { return math::erfc(x); }, 10.0f), 2.0884875837625446e-45f));
}
