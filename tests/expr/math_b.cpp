// Vector mathematics, second half: roots, rounding, division with remainder, trigonometric and hyperbolic functions,
// lgamma. Every function is run on packs of every instruction set that this CPU has, and as a number.
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <situ/expr/math/basic.hpp>
#include <situ/expr/math/gamma.hpp>
#include <situ/expr/math/hyperbolic.hpp>
#include <situ/expr/math/trig.hpp>

namespace {
using namespace situ;

#if defined(__clang__)
#define TARGET_512 target("avx512f,avx512vl,avx512bw,avx512dq,fma"), min_vector_width(512)
#else
#define TARGET_512 target("avx512f,avx512vl,avx512bw,avx512dq,fma,prefer-vector-width=512")
#endif

// One vector kernel per functor: out[i] = F(x[i]) or F(x[i], y[i]); `Share` divides the lanes of a whole register.
template <class F, class Isa, int Share, class T, class R>
SITU_INLINE void kernel(T const* x, T const* y, R* out, std::size_t n) {
  constexpr int N = Isa::bytes / static_cast<int>(sizeof(T)) / Share;
  using P = pack<T, N, Isa>;
  for (std::size_t i = 0; i + N <= n; i += N) {
    auto const r = [&]() __attribute__((always_inline)) {
      if constexpr (F::arity == 2)
        return F::value(P::load(x + i), P::load(y + i));
      else
        return F::value(P::load(x + i));
    }
    ();
    if constexpr (std::is_same_v<R, bool>) {
      for (int k = 0; k < N; ++k) out[i + static_cast<std::size_t>(k)] = r[k];
    } else {
      r.store(out + i);
    }
  }
}
#if SITU_X86
template <class F, class Isa, int Share, class T, class R>
  requires std::is_same_v<Isa, isa::avx512>
__attribute__((noinline, TARGET_512)) void run(T const* x, T const* y, R* out, std::size_t n) {
  kernel<F, Isa, Share>(x, y, out, n);
}
template <class F, class Isa, int Share, class T, class R>
  requires std::is_same_v<Isa, isa::avx2>
__attribute__((noinline, target("avx2,fma"))) void run(T const* x, T const* y, R* out, std::size_t n) {
  kernel<F, Isa, Share>(x, y, out, n);
}
#endif
template <class F, class Isa, int Share, class T, class R>
  requires std::is_same_v<Isa, isa::baseline>
__attribute__((noinline)) void run(T const* x, T const* y, R* out, std::size_t n) {
  kernel<F, Isa, Share>(x, y, out, n);
}

template <class Isa>
bool available() {
#if SITU_X86
  if constexpr (std::is_same_v<Isa, isa::avx512>) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  }
  if constexpr (std::is_same_v<Isa, isa::avx2>) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return true;
}

// Numbers stand beside the instruction sets: the same checks run on the scalar forms.
struct numbers {};
template <class Path>
bool skipped() {
  if constexpr (!std::is_same_v<Path, numbers>) {
    if (!available<Path>()) {
      MESSAGE("skipped: this CPU lacks the instruction set of ", Path::bytes, " bytes");
      return true;
    }
  }
  return false;
}

// Padded to whole packs of every size.
template <class T>
void pad(std::vector<T>& x, std::size_t n) {
  x.resize((n + 127) / 128 * 128, T(1));
}
template <class F, class Path, int Share = 1, class T>
auto results(std::vector<T> x, std::vector<T> y = {}) {
  using R = std::conditional_t<F::tests, bool, T>;
  std::size_t const n = x.size();
  pad(x, n);
  pad(y, n);
  std::unique_ptr<R[]> const out(new R[x.size()]);
  if constexpr (std::is_same_v<Path, numbers>) {
    for (std::size_t i = 0; i < n; ++i) {
      if constexpr (F::arity == 2)
        out[i] = F::value(x[i], y[i]);
      else
        out[i] = F::value(x[i]);
    }
  } else {
    run<F, Path, Share>(x.data(), y.data(), out.get(), x.size());
  }
  return std::vector<R>(out.get(), out.get() + n);
}

#define UNARY(name, exact)                        \
  struct name##_ {                                \
    static constexpr int arity = 1;               \
    static constexpr bool tests = false;          \
    static constexpr const char* label = #name;   \
    template <class X>                            \
    static SITU_INLINE auto value(X const& x) {   \
      return math::name(x);                       \
    }                                             \
    template <class X>                            \
    static X reference([[maybe_unused]] X x, X) { \
      return exact;                               \
    }                                             \
  };
#define BINARY(name, exact)                                          \
  struct name##_ {                                                   \
    static constexpr int arity = 2;                                  \
    static constexpr bool tests = false;                             \
    static constexpr const char* label = #name;                      \
    template <class X>                                               \
    static SITU_INLINE auto value(X const& x, X const& y) {          \
      return math::name(x, y);                                       \
    }                                                                \
    template <class X>                                               \
    static X reference([[maybe_unused]] X x, [[maybe_unused]] X y) { \
      return exact;                                                  \
    }                                                                \
  };
#define PREDICATE(name)                         \
  struct name##_ {                              \
    static constexpr int arity = 1;             \
    static constexpr bool tests = true;         \
    template <class X>                          \
    static SITU_INLINE auto value(X const& x) { \
      return math::name(x);                     \
    }                                           \
  };
UNARY(sin, std::sin(x))
UNARY(cos, std::cos(x))
UNARY(tan, std::tan(x))
UNARY(asin, std::asin(x))
UNARY(acos, std::acos(x))
UNARY(atan, std::atan(x))
UNARY(sinh, std::sinh(x))
UNARY(cosh, std::cosh(x))
UNARY(asinh, std::asinh(x))
UNARY(acosh, std::acosh(x))
UNARY(atanh, std::atanh(x))
UNARY(lgamma, std::lgamma(x))
UNARY(digamma, x)  // the library has no reference
UNARY(sqrt, std::sqrt(x))
UNARY(rsqrt, 1 / std::sqrt(x))
UNARY(reciprocal, 1 / x)
UNARY(abs, x)
UNARY(sign, x)
UNARY(floor, x)
UNARY(ceil, x)
UNARY(round, x)
UNARY(trunc, x)
BINARY(atan2, std::atan2(x, y))
BINARY(hypot, std::hypot(x, y))
BINARY(fmod, std::fmod(x, y))
BINARY(remainder, x)
BINARY(floor_divide, x)
BINARY(copysign, std::copysign(x, y))
BINARY(minimum, x)
BINARY(maximum, x)
PREDICATE(isnan)
PREDICATE(isinf)
PREDICATE(isfinite)
#undef UNARY
#undef BINARY
#undef PREDICATE

// The number of representable values between a and b; any two NaNs agree, zeros of different sign do not.
template <class T>
int64_t distance(T a, T b) {
  constexpr int64_t far = std::numeric_limits<int64_t>::max();
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0 : far;
  if (a == 0 && b == 0) return std::signbit(a) == std::signbit(b) ? 0 : far;
  using I = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  auto const place = [](T x) {
    I i;
    std::memcpy(&i, &x, sizeof(x));
    return static_cast<int64_t>(i < 0 ? static_cast<I>(std::numeric_limits<I>::min() - i) : i);
  };
  int64_t const d = static_cast<int64_t>(static_cast<uint64_t>(place(a)) - static_cast<uint64_t>(place(b)));
  return std::signbit(a) != std::signbit(b) && (a != 0 && b != 0) ? far : d < 0 ? -d : d;
}

template <class T>
constexpr T inf = std::numeric_limits<T>::infinity();
template <class T>
constexpr T undefined = std::numeric_limits<T>::quiet_NaN();

// Floats of every size and sign, those around the places where the algorithms change course, and special values.
std::vector<float> sampled_floats(uint32_t stride) {
  std::vector<float> x;
  auto const add = [&](uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    x.push_back(value);
  };
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += stride) add(static_cast<uint32_t>(bits));
  for (float const place : {0.f,    FLT_MIN,    0.25f,     0.41421f,   0.5f,       0.70710678f, 0.7853982f,
                            1.f,    1.5707964f, 2.f,       3.1415927f, 88.7f,      89.41599f,   6400.f,
                            8192.f, 100000.f,   4194304.f, 8388608.f,  16777216.f, 1.8e19f,     FLT_MAX}) {
    uint32_t bits;
    std::memcpy(&bits, &place, 4);
    for (int step = -300; step <= 300; ++step) {
      add(bits + static_cast<uint32_t>(step));
      add((bits + static_cast<uint32_t>(step)) ^ 0x80000000u);
    }
  }
  for (int k = 1; k < 5000; ++k) {
    float const place = static_cast<float>(k * 1.5707963267948966);
    for (float const value : {place, std::nextafter(place, 0.f), std::nextafter(place, 1e9f)}) x.push_back(value);
  }
  for (float const value : {inf<float>, -inf<float>, undefined<float>, 52516.4f, 1e10f, 1e22f, -3e38f})
    x.push_back(value);
  return x;
}

template <class T>
std::vector<T> reversed(std::vector<T> const& x) {
  return {x.rbegin(), x.rend()};
}

// The largest error of got, against a reference in a wider type.
template <class T, class Wide>
void check_errors(char const* function, std::vector<T> const& x, std::vector<T> const& y, std::vector<T> const& got,
                  Wide (*reference)(Wide, Wide), int64_t bound) {
  int64_t worst = -1;
  std::size_t where = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    int64_t const d = distance(got[i], static_cast<T>(reference(static_cast<Wide>(x[i]), static_cast<Wide>(y[i]))));
    if (d > worst) worst = d, where = i;
  }
  std::string const name = function;
  CAPTURE(name);
  CAPTURE(x[where]);
  CAPTURE(y[where]);
  CAPTURE(got[where]);
  CHECK(worst <= bound);
}

template <class Path, class F, int Share = 1>
void check_floats(std::vector<float> const& x, std::vector<float> const& y, int64_t bound) {
  check_errors<float, double>(F::label, x, y, results<F, Path, Share>(x, y), F::template reference<double>, bound);
}
template <class Path, class... Fs>
void check_all_floats(std::vector<float> const& x, int64_t bound) {
  (check_floats<Path, Fs>(x, reversed(x), bound), ...);
  if constexpr (!std::is_same_v<Path, numbers>) {  // fewer lanes than a register holds
    std::vector<float> const few = sampled_floats(200003);
    (check_floats<Path, Fs, 2>(few, reversed(few), bound), ...);
  }
}

// Doubles between low and high, of every size, and special ones, in pairs.
struct pairs {
  std::vector<double> x, y;
};
pairs sampled_doubles(double low, double high) {
  pairs p;
  uint64_t state = 88172645463325252u;
  auto const next = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  for (int i = 0; i < 4000; ++i) {
    p.x.push_back(low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53);
    p.y.push_back(low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53);
    uint64_t const bits[2] = {next(), next()};
    double value[2];
    std::memcpy(value, bits, 16);
    p.x.push_back(value[0]);
    p.y.push_back(i % 2 ? value[1] : value[0] * (0.5 + static_cast<double>(bits[1] >> 11) * 0x1p-53));
  }
  double const special[] = {0.0,     -0.0,   1.0,    -1.0, 0.5, 2.0, inf<double>, -inf<double>, undefined<double>,
                            DBL_MIN, 5e-324, DBL_MAX};
  for (double const a : special) {
    for (double const b : special) p.x.push_back(a), p.y.push_back(b);
  }
  return p;
}
template <class Path, class F>
void check_doubles(double low, double high, int64_t bound) {
  pairs const p = sampled_doubles(low, high);
  check_errors<double, long double>(F::label, p.x, p.y, results<F, Path>(p.x, p.y), F::template reference<long double>,
                                    bound);
}

// Doubles around the places where the algorithms change course, close to multiples of π/2, and of every moderate size; in
// pairs for atan2 of every octant.
pairs critical_doubles() {
  pairs p;
  auto const add = [&](double x) {
    for (double const value : {x, -x}) {
      std::size_t const i = p.x.size();
      p.x.push_back(value);
      p.y.push_back(i % 3 == 0 ? value : i % 3 == 1 ? -0.41 * value : 1.0 + 1e-9 * value);
    }
  };
  auto const around = [&](double place, int steps) {
    double below = place, above = place;
    for (int k = 0; k < steps; ++k) {
      add(below), add(above);
      below = std::nextafter(below, 0.0), above = std::nextafter(above, inf<double>);
    }
  };
  for (double const place : {5e-324,  DBL_MIN, 1e-8,  0.20710678118654752, 0.25, 0.41421356237309505, 0.5, 0.70709228515625, 0.7853981633974483,
                             1.0,     1.414184570312,  1.5707963267948966,  2.0,  2.414213562373095,   22.0, 709.782712893384, 710.4758600739439,
                             1638400.0, 0x1p26, 0x1p53, 0x1p54, 0x1p60, 0x1p61, 0x1p500, 0x1.6a09ep500, DBL_MAX}) {
    around(place, 200);
  }
  for (int k = 1; k < 3000; ++k) around(k * 1.5707963267948966, 2);
  for (int k = 1; k < 20000; ++k) add(static_cast<double>(k * 52.37L * 1.57079632679489661923132169163975144L));
  for (int k = 0; k < 2000; ++k) add(0x1.6c6cbc45dc8dep+5 * k);  // 29 π/2 − 6e-19, and its multiples
  for (int k = -2000; k < 2000; ++k) add(std::exp2(k * 0.0171));
  for (int k = 0; k < 2000; ++k) add(k * 0.00050013), add(1.0 + k * 0.0013);
  return p;
}
template <class Path, class... Fs>
void check_critical_doubles(int64_t bound) {
  pairs const p = critical_doubles();
  auto const check = [&]<class F>(F) {
    check_errors<double, long double>(F::label, p.x, p.y, results<F, Path>(p.x, p.y), F::template reference<long double>, bound);
    if constexpr (!std::is_same_v<Path, numbers>) {
      check_errors<double, long double>(F::label, p.x, p.y, results<F, Path, (Path::bytes > 16 ? 2 : 1)>(p.x, p.y),
                                        F::template reference<long double>, bound);
    }
  };
  (check(Fs{}), ...);
}

// f(x[i], y[i]) is wanted[i], sign of zero included.
template <class T>
void check_equal(char const* function, std::vector<T> const& x, std::vector<T> const& y, std::vector<T> const& got,
                 std::vector<T> const& wanted) {
  std::string const name = function;
  for (std::size_t i = 0; i < x.size(); ++i) {
    bool same = got[i] == wanted[i];
    if constexpr (std::is_floating_point_v<T>) same = distance(got[i], wanted[i]) == 0;
    if (same) continue;
    CAPTURE(name);
    CAPTURE(+x[i]);
    CAPTURE(i < y.size() ? +y[i] : 0);
    CAPTURE(+got[i]);
    CAPTURE(+wanted[i]);
    FAIL_CHECK("another value");
  }
  CHECK(got.size() == wanted.size());
}
template <class F, class Path, class T>
void check_values(std::vector<T> const& x, std::vector<T> const& y, std::vector<T> const& wanted) {
  check_equal<T>(F::label, x, y, results<F, Path>(x, y), wanted);
}

#if SITU_X86
#define PATHS numbers, isa::baseline, isa::avx2, isa::avx512
#define VECTOR_PATHS isa::baseline, isa::avx2, isa::avx512
#else
#define PATHS numbers, isa::baseline
#define VECTOR_PATHS isa::baseline
#endif
}  // namespace

TEST_CASE_TEMPLATE("float functions are within 2 ulps of the rounded value over the whole range", Path, VECTOR_PATHS) {
  if (skipped<Path>()) return;
  std::vector<float> const x = sampled_floats(20011);
  check_all_floats<Path, sin_, cos_, tan_, asin_, acos_, atan_, atan2_>(x, 2);
  check_all_floats<Path, sinh_, cosh_, asinh_, acosh_, atanh_, hypot_, rsqrt_>(x, 2);
  check_all_floats<Path, sqrt_, reciprocal_, copysign_>(x, 0);
  std::vector<float> const few = sampled_floats(100003);
  check_all_floats<Path, lgamma_>(few, 2);
  check_all_floats<Path, fmod_>(few, 0);
}

TEST_CASE("the scalar float functions are within 2 ulps") {
  std::vector<float> const x = sampled_floats(100003);
  check_all_floats<numbers, sin_, cos_, tan_, asin_, acos_, atan_, atan2_, sinh_, cosh_>(x, 2);
  check_all_floats<numbers, asinh_, acosh_, atanh_, lgamma_, hypot_, rsqrt_>(x, 2);
  check_all_floats<numbers, sqrt_, reciprocal_, fmod_>(x, 0);
}

TEST_CASE_TEMPLATE("double functions are within 2 ulps, lgamma within 4", Path, PATHS) {
  if (skipped<Path>()) return;
  check_doubles<Path, sin_>(-1e3, 1e3, 2);
  check_doubles<Path, cos_>(-1e3, 1e3, 2);
  check_doubles<Path, tan_>(-1e3, 1e3, 2);
  check_doubles<Path, asin_>(-1, 1, 2);
  check_doubles<Path, acos_>(-1, 1, 2);
  check_doubles<Path, atan_>(-5, 5, 2);
  check_doubles<Path, atan2_>(-5, 5, 2);
  check_doubles<Path, sinh_>(-30, 30, 2);
  check_doubles<Path, cosh_>(-30, 30, 2);
  check_doubles<Path, asinh_>(-5, 5, 2);
  check_doubles<Path, acosh_>(1, 5, 2);
  check_doubles<Path, atanh_>(-1, 1, 2);
  check_doubles<Path, lgamma_>(-20, 5, 4);
  check_doubles<Path, lgamma_>(-5, -2, 4);
  check_doubles<Path, lgamma_>(0, 6, 4);
  check_doubles<Path, lgamma_>(0.9, 1.5, 4);
  check_doubles<Path, lgamma_>(5, 1e3, 4);
  check_doubles<Path, hypot_>(-9, 9, 2);
  check_doubles<Path, rsqrt_>(0, 9, 2);
  check_doubles<Path, sqrt_>(0, 9, 1);  // the reference is rounded twice
  check_doubles<Path, reciprocal_>(0, 9, 1);
}

TEST_CASE_TEMPLATE("lgamma of whole numbers and halves, where its algorithm changes course", Path, PATHS) {
  if (skipped<Path>()) return;
  std::vector<double> x;
  for (int k = -41; k <= 120; k += k < 0 ? 2 : 1) x.push_back(k / 4.0), x.push_back(k / 2.0);
  check_errors<double, long double>("lgamma", x, x, results<lgamma_, Path>(x, x), lgamma_::reference<long double>, 4);
  std::vector<float> const y(x.begin(), x.end());
  check_errors<float, double>("lgamma", y, y, results<lgamma_, Path>(y, y), lgamma_::reference<double>, 2);
}

TEST_CASE_TEMPLATE("digamma has mpmath's values, in double to 1e-14 and in float rounded once", Path, PATHS) {
  if (skipped<Path>()) return;
  // mpmath 1.2: psi(0, x)
  std::vector<std::pair<double, double>> const table{
      {1e-300, -9.9999999999999997494e+299}, {-1e-20, 1.0000000000000000548e+20}, {3e-09, -333333333.91054899552}, {0.25, -4.2274535333762654081},
      {0.4999999, -1.9635105195017276921}, {0.5, -1.9635100260214234794}, {1.0, -0.57721566490153286061}, {1.4616321449683622, -9.2412655217294275168e-17},
      {1.5, 0.036489973978576520559}, {2.75, 0.81890102497543259228}, {9.5, 2.1977378764029495332}, {10.0, 2.2517525890667211076},
      {12.0, 2.4426616799758120167}, {300.0, 5.702114882064637268}, {1e10, 23.02585092989045684}, {1e300, 690.77552789821370526},
      {-0.25, 2.9141391202135278304}, {-0.5, 0.036489973978576520559}, {-0.75, -2.8941202000429320748}, {-1.0000001, 10000000.41694539884},
      {-3.5, 1.3888709263595289015}, {-9.999, -997.64505271205004488}, {-123.456, 5.2569791725822653171}, {-1000000.5, 13.815511557963815771}};
  auto const check = [&]<class T>(T tolerance) {
    std::vector<T> x{T(0), -T(0), T(-1), sizeof(T) == 4 ? T(-1e9) : T(-4503599627370497), inf<T>, -inf<T>, undefined<T>}, wanted{-inf<T>, inf<T>, undefined<T>, undefined<T>, inf<T>, undefined<T>, undefined<T>};
    for (auto const& [from, to] : table) {
      if (static_cast<double>(static_cast<T>(from)) == from) x.push_back(static_cast<T>(from)), wanted.push_back(static_cast<T>(to));
    }
    auto const got = results<digamma_, Path>(x, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      INFO(std::string(digamma_::label), " of ", x[i], " is ", got[i], ", expected ", wanted[i]);
      if (std::isnan(wanted[i]) || std::isinf(wanted[i])) CHECK(distance(got[i], wanted[i]) == 0);
      else CHECK(std::abs(got[i] - wanted[i]) <= tolerance * std::max(sizeof(T) == 4 ? T(0) : T(1), std::abs(wanted[i])));
    }
  };
  check(1e-14);
  check(1.2e-7f);
}

TEST_CASE_TEMPLATE("double functions are so where their algorithms change course", Path, PATHS) {
  if (skipped<Path>()) return;
  check_critical_doubles<Path, sin_, cos_, tan_, asin_, acos_, atan_, atan2_, sinh_, cosh_, asinh_, acosh_, atanh_>(2);
  check_critical_doubles<Path, lgamma_>(4);
}

TEST_CASE_TEMPLATE("a double next to a multiple of π/2 is reduced to all its digits", Path, PATHS) {
  if (skipped<Path>()) return;
  // The doubles are 29 and 58 times π/2, nearly, and 204551 times; of mpmath.
  std::vector<double> const x{0x1.6c6cbc45dc8dep+5, 0x1.6c6cbc45dc8dep+6, -0x1.39c6fd67805a7p+18};
  check_values<cos_, Path>(x, x, {-6.189806365883577e-19, -1.0, -4.429600834596129521e-17});
  check_values<sin_, Path>(x, x, {1.0, -1.2379612731767154e-18, 1.0});
}

TEST_CASE_TEMPLATE("so are doubles of any size", Path, VECTOR_PATHS) {
  if (skipped<Path>()) return;
  // The second is next to a multiple of π/2 as no other double is; of mpmath with 2000 bits.
  std::vector<double> const x{428224593349304.0, 0x1.6ac5b262ca1ffp+849, 0x1p+1023, -0x1.fffffffffffffp+1023, -0x1.176592e000000p+39};
  auto const check = [&]<class F>(F, std::vector<double> const& wanted) {
    auto const got = results<F, Path>(x, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      INFO(std::string(F::label), " of ", x[i], " is ", got[i]);
      CHECK(std::abs(got[i] - wanted[i]) <= 2 * std::abs(std::nextafter(wanted[i], 2 * wanted[i]) - wanted[i]));
    }
  };
  check(sin_{}, {5.187137041571002e-16, 1.0, 0.563127779850884, -0.004961954789184062, -0.7591864109375382});
  check(cos_{}, {-1.0, -4.687165924254628e-19, -0.826369834614148, -0.9999876894265599, 0.6508732545187114});
  check(tan_{}, {-5.187137041571002e-16, -2.133485385753704e+18, -0.6814476476066215, 0.004962015874444895, -1.1664120559062134});
}

TEST_CASE_TEMPLATE("rounding keeps the sign of zero and sends halves to even", Path, PATHS) {
  if (skipped<Path>()) return;
  auto const check = []<class T>(T) {
    T const large = sizeof(T) == 4 ? T(8388607.5) : T(4503599627370495.5), below = std::nextafter(T(0.5), T(0));
    std::vector<T> const x{T(-2.5), T(-1.5),      T(-0.5), -T(0),    T(0),
                           below,   T(0.5),       T(1.5),  T(2.5),   T(0.75),
                           T(-0.3), T(-1.7),      large,   -large,   inf<T>,
                           -inf<T>, undefined<T>, T(1e30), T(-1e30), std::numeric_limits<T>::denorm_min()};
    T const up = large + T(0.5), down = large - T(0.5);
    check_values<floor_, Path, T>(
        x, {},
        {-3, -2, -1, -T(0), 0, 0, 0, 1, 2, 0, -1, -2, down, -up, inf<T>, -inf<T>, undefined<T>, T(1e30), T(-1e30), 0});
    check_values<ceil_, Path, T>(x, {},
                                 {-2,    -1,     -T(0),   -T(0),        0,       1,        1, 2, 3, 1, -T(0), -1, up,
                                  -down, inf<T>, -inf<T>, undefined<T>, T(1e30), T(-1e30), 1});
    check_values<trunc_, Path, T>(x, {},
                                  {-2,    -1,     -T(0),   -T(0),        0,       0,        0, 1, 2, 0, -T(0), -1, down,
                                   -down, inf<T>, -inf<T>, undefined<T>, T(1e30), T(-1e30), 0});
    check_values<round_, Path, T>(x, {},
                                  {-2,  -2,     -T(0),   -T(0),        0,       0,        0, 2, 2, 1, -T(0), -2, up,
                                   -up, inf<T>, -inf<T>, undefined<T>, T(1e30), T(-1e30), 0});
  };
  check(float{});
  check(double{});
}

TEST_CASE_TEMPLATE("special values of one argument are those of C99", Path, PATHS) {
  if (skipped<Path>()) return;
  auto const check = []<class T>(T) {
    T const z = T(0), n = undefined<T>, i = inf<T>;
    std::vector<T> const x{z, -z, i, -i, n, 1, -1, 2, -2};
    T const half_pi = T(1.5707963267948966192), pi = T(3.1415926535897932385);
    auto const first = [&]<class F>(F, std::vector<T> wanted) {
      check_values<F, Path, T>(std::vector<T>(x.begin(), x.begin() + static_cast<long>(wanted.size())), {}, wanted);
    };
    first(sin_{}, {z, -z, n, n, n});
    first(cos_{}, {1, 1, n, n, n});
    first(tan_{}, {z, -z, n, n, n});
    first(asin_{}, {z, -z, n, n, n, half_pi, -half_pi, n, n});
    first(acos_{}, {half_pi, half_pi, n, n, n, z, pi, n, n});
    first(atan_{}, {z, -z, half_pi, -half_pi, n});
    first(sinh_{}, {z, -z, i, -i, n});
    first(cosh_{}, {1, 1, i, i, n});
    first(asinh_{}, {z, -z, i, -i, n});
    first(acosh_{}, {n, n, i, n, n, z, n});
    first(atanh_{}, {z, -z, n, n, n, i, -i, n, n});
    first(lgamma_{}, {i, i, i, i, n, z, i, z, i});
    first(sqrt_{}, {z, -z, i, n, n, 1, n});
    first(rsqrt_{}, {i, -i, z, n, n, 1, n});
    first(reciprocal_{}, {i, -i, z, -z, n, 1, -1, T(0.5), T(-0.5)});
    first(abs_{}, {z, z, i, i, n, 1, 1, 2, 2});
    first(sign_{}, {z, z, 1, -1, n, 1, -1, 1, -1});
    check_values<acos_, Path, T>({T(0.5), T(-0.5)}, {}, {T(1.0471975511965977462), T(2.0943951023931954923)});
  };
  check(float{});
  check(double{});
}

TEST_CASE_TEMPLATE("atan2 and hypot have the special values of C99", Path, PATHS) {
  if (skipped<Path>()) return;
  auto const check = []<class T>(T) {
    T const z = T(0), n = undefined<T>, i = inf<T>, pi = T(3.1415926535897932385), max = std::numeric_limits<T>::max();
    T const least = std::numeric_limits<T>::denorm_min();
    check_values<atan2_, Path, T>({z, -z, z, -z, z, -z, z, -z, 1, -1, 1, -1, 1, -1, i, -i, i, -i, i, -i, n, 1, n, z},
                                  {z, z, -z, -z, 1, 1, -1, -1, z, -z, -i, -i, i, i, 2, 2, i, i, -i, -i, 1, n, z, n},
                                  {z,
                                   -z,
                                   pi,
                                   -pi,
                                   z,
                                   -z,
                                   pi,
                                   -pi,
                                   pi / 2,
                                   -pi / 2,
                                   pi,
                                   -pi,
                                   z,
                                   -z,
                                   pi / 2,
                                   -pi / 2,
                                   pi / 4,
                                   -pi / 4,
                                   T(2.3561944901923449288),
                                   T(-2.3561944901923449288),
                                   n,
                                   n,
                                   n,
                                   n});
    check_values<atan2_, Path, T>({least, max, max, least}, {least, max, least, max}, {pi / 4, pi / 4, pi / 2, z});
    check_values<hypot_, Path, T>({i, n, -i, n, n, z, -z, 3, max, least, -least, T(0.6) * max},
                                  {n, i, 1, 1, n, -z, -z, -4, max, z, z, T(0.9) * max},
                                  {i, i, i, n, n, z, z, 5, i, least, least, i});
  };
  check(float{});
  check(double{});
}

TEST_CASE_TEMPLATE("sine and cosine of huge arguments are reduced with all digits of pi", Path, PATHS) {
  if (skipped<Path>()) return;
  // sin and cos of 2^100 and of 10^22, by multiple-precision arithmetic
  check_values<sin_, Path, float>({0x1p100f, -0x1p100f}, {}, {-0.8721836f, 0.8721836f});
  check_values<sin_, Path, double>({1e22}, {}, {-0.8522008497671888018});
  check_values<cos_, Path, double>({1e22}, {}, {0.52321478539513894549759442588});
}

TEST_CASE_TEMPLATE("fmod, remainder and floor_divide of floating numbers agree with NumPy", Path, PATHS) {
  if (skipped<Path>()) return;
  constexpr double in = inf<double>, na = undefined<double>;
  constexpr double value[10] = {0.0, -0.0, 5.5, -5.5, 2.0, -2.0, 1e-3, in, -in, na};
  constexpr double remainders[10][10] = {
      {na, na, 0.0, -0.0, 0.0, -0.0, 0.0, 0.0, -0.0, na},
      {na, na, 0.0, -0.0, 0.0, -0.0, 0.0, 0.0, -0.0, na},
      {na, na, 0.0, -0.0, 1.5, -0.5, 0.0009999999999998855, 5.5, -in, na},
      {na, na, 0.0, -0.0, 0.5, -1.5, 1.1449174941446927e-16, in, -5.5, na},
      {na, na, 2.0, -3.5, 0.0, -0.0, 0.0009999999999999584, 2.0, -in, na},
      {na, na, 3.5, -2.0, 0.0, -0.0, 4.163336342344337e-17, in, -2.0, na},
      {na, na, 0.001, -5.499, 0.001, -1.999, 0.0, 0.001, -in, na},
      {na, na, na, na, na, na, na, na, na, na},
      {na, na, na, na, na, na, na, na, na, na},
      {na, na, na, na, na, na, na, na, na, na},
  };
  constexpr double quotients[10][10] = {
      {na, na, 0.0, -0.0, 0.0, -0.0, 0.0, 0.0, -0.0, na},
      {na, na, -0.0, 0.0, -0.0, 0.0, -0.0, -0.0, 0.0, na},
      {in, -in, 1.0, -1.0, 2.0, -3.0, 5499.0, 0.0, -1.0, na},
      {-in, in, -1.0, 1.0, -3.0, 2.0, -5500.0, -1.0, 0.0, na},
      {in, -in, 0.0, -1.0, 1.0, -1.0, 1999.0, 0.0, -1.0, na},
      {-in, in, -1.0, 0.0, -1.0, 1.0, -2000.0, -1.0, 0.0, na},
      {in, -in, 0.0, -1.0, 0.0, -1.0, 1.0, 0.0, -1.0, na},
      {in, -in, na, na, na, na, na, na, na, na},
      {-in, in, na, na, na, na, na, na, na, na},
      {na, na, na, na, na, na, na, na, na, na},
  };
  constexpr double rests[10][10] = {
      {na, na, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, na},
      {na, na, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0, na},
      {na, na, 0.0, 0.0, 1.5, 1.5, 0.0009999999999998855, 5.5, 5.5, na},
      {na, na, -0.0, -0.0, -1.5, -1.5, -0.0009999999999998855, -5.5, -5.5, na},
      {na, na, 2.0, 2.0, 0.0, 0.0, 0.0009999999999999584, 2.0, 2.0, na},
      {na, na, -2.0, -2.0, -0.0, -0.0, -0.0009999999999999584, -2.0, -2.0, na},
      {na, na, 0.001, 0.001, 0.001, 0.001, 0.0, 0.001, 0.001, na},
      {na, na, na, na, na, na, na, na, na, na},
      {na, na, na, na, na, na, na, na, na, na},
      {na, na, na, na, na, na, na, na, na, na},
  };
  std::vector<double> x, y, wanted_remainder, wanted_quotient, wanted_rest;
  std::vector<float> xf, yf, wanted_remainder_f, wanted_quotient_f, wanted_rest_f;
  for (int i = 0; i < 10; ++i) {
    for (int j = 0; j < 10; ++j) {
      x.push_back(value[i]), y.push_back(value[j]);
      wanted_remainder.push_back(remainders[i][j]);
      wanted_quotient.push_back(quotients[i][j]);
      wanted_rest.push_back(rests[i][j]);
      if (i == 6 || j == 6) continue;  // 1e-3 is another number in float
      xf.push_back(static_cast<float>(value[i])), yf.push_back(static_cast<float>(value[j]));
      wanted_remainder_f.push_back(static_cast<float>(remainders[i][j]));
      wanted_quotient_f.push_back(static_cast<float>(quotients[i][j]));
      wanted_rest_f.push_back(static_cast<float>(rests[i][j]));
    }
  }
  check_values<remainder_, Path>(x, y, wanted_remainder);
  check_values<floor_divide_, Path>(x, y, wanted_quotient);
  check_values<fmod_, Path>(x, y, wanted_rest);
  check_values<remainder_, Path>(xf, yf, wanted_remainder_f);
  check_values<floor_divide_, Path>(xf, yf, wanted_quotient_f);
  check_values<fmod_, Path>(xf, yf, wanted_rest_f);
}

TEST_CASE_TEMPLATE("integers divide as in Python, by zero to 0, and wrap", Path, PATHS) {
  if (skipped<Path>()) return;
  auto const check = []<class T>(T) {
    T const low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    std::vector<T> const x{7, -7, 7, -7, 6, -6, 0, 5, low, low, high, low, 1, -1};
    std::vector<T> const y{3, 3, -3, -3, 3, -3, 4, 0, 0, -1, -1, low, low, high};
    T const negated = static_cast<T>(-high);
    check_values<floor_divide_, Path, T>(x, y, {2, -3, -3, 2, 2, 2, 0, 0, 0, low, negated, 1, -1, -1});
    check_values<remainder_, Path, T>(
        x, y, {1, 2, -2, -1, 0, 0, 0, 0, 0, 0, 0, 0, static_cast<T>(low + 1), static_cast<T>(high - 1)});
    check_values<fmod_, Path, T>(x, y, {1, -1, 1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 1, -1});
    check_values<abs_, Path, T>({3, -3, 0, low, high}, {}, {3, 3, 0, low, high});
    check_values<sign_, Path, T>({3, -3, 0, low, high}, {}, {1, -1, 0, -1, 1});
    check_values<minimum_, Path, T>(x, y, {3, -7, -3, -7, 3, -6, 0, 0, low, low, -1, low, low, -1});
    check_values<maximum_, Path, T>(x, y, {7, 3, 7, -3, 6, -3, 4, 5, 0, -1, high, low, 1, high});
  };
  check(int8_t{});
  check(int16_t{});
  check(int32_t{});
  check(int64_t{});
  check_values<floor_divide_, Path, uint8_t>({200, 7, 9, 255}, {3, 0, 255, 255}, {66, 0, 0, 1});
  check_values<remainder_, Path, uint8_t>({200, 7, 9, 255}, {3, 0, 255, 255}, {2, 0, 9, 0});
  check_values<fmod_, Path, uint8_t>({200, 7, 9, 255}, {3, 0, 255, 255}, {2, 0, 9, 0});
  check_values<abs_, Path, uint8_t>({0, 200}, {}, {0, 200});
  check_values<sign_, Path, uint8_t>({0, 200}, {}, {0, 1});
  check_values<minimum_, Path, uint8_t>({1, 200}, {200, 1}, {1, 1});
  check_values<maximum_, Path, uint8_t>({1, 200}, {200, 1}, {200, 200});
}

TEST_CASE_TEMPLATE("minimum and maximum pass a NaN on", Path, PATHS) {
  if (skipped<Path>()) return;
  auto const check = []<class T>(T) {
    T const n = undefined<T>, i = inf<T>;
    std::vector<T> const x{1, 2, n, 1, n, -i, i, n}, y{2, 1, 1, n, n, i, -i, i};
    check_values<minimum_, Path, T>(x, y, {1, 1, n, n, n, -i, -i, n});
    check_values<maximum_, Path, T>(x, y, {2, 2, n, n, n, i, i, n});
    check_values<copysign_, Path, T>({1, -1, i, T(0)}, {-T(0), T(0), -n, -1}, {-1, 1, -i, -T(0)});
  };
  check(float{});
  check(double{});
}

TEST_CASE_TEMPLATE("isnan, isinf and isfinite look at the bits", Path, PATHS) {
  if (skipped<Path>()) return;
  auto const check = []<class T>(T) {
    std::vector<T> const x{undefined<T>,
                           -undefined<T>,
                           inf<T>,
                           -inf<T>,
                           std::numeric_limits<T>::max(),
                           std::numeric_limits<T>::denorm_min(),
                           T(0),
                           -T(0)};
    CHECK(results<isnan_, Path>(x) == std::vector<bool>{true, true, false, false, false, false, false, false});
    CHECK(results<isinf_, Path>(x) == std::vector<bool>{false, false, true, true, false, false, false, false});
    CHECK(results<isfinite_, Path>(x) == std::vector<bool>{false, false, false, false, true, true, true, true});
  };
  check(float{});
  check(double{});
}
