#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <cuda/compare.hpp>
#include <situ/autograd.hpp>
#include <situ/ops/concat.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

struct scaled_sum {
  float scale;
  SITU_HOST_DEVICE float operator()(float x, float y) const { return scale * (x + y); }
};
struct cube {
  template <class X>
  SITU_HOST_DEVICE static auto value(X const& x) {
    return x * x * x;
  }
};

/// Numbers with the values among them at which functions have something special to say.
template <class T>
Tensor<T> special_numbers() {
  using limits = std::numeric_limits<T>;
  Tensor<T> x = numbers<T>({1000});
  T const special[] = {T(0), -T(0), T(1), T(-1), limits::infinity(), -limits::infinity(), limits::quiet_NaN(), limits::denorm_min(), limits::max(), limits::lowest()};
  int64_t at = 0;
  for (T s : special) x.data()[at++] = s;
  return x;
}

#define CHECK_FUNCTION(F, TOLERANCE) CHECK_MESSAGE(differs(F(x), F(a), TOLERANCE).empty(), #F ": ", differs(F(x), F(a), TOLERANCE))
#define CHECK_SAME(TOLERANCE, GOT, EXPECTED) CHECK_MESSAGE(differs(GOT, EXPECTED, TOLERANCE).empty(), #GOT ": ", differs(GOT, EXPECTED, TOLERANCE))

}  // namespace

TEST_CASE("every function of floats gives on a GPU what it gives on the host") {
  Tensor<float> const a = special_numbers<float>();
  Tensor<float, Gpu> const x{a};
  double const t = 1e-5;
  CHECK_FUNCTION(abs, 0);
  CHECK_FUNCTION(sign, 0);
  CHECK_FUNCTION(square, 0);
  CHECK_FUNCTION(reciprocal, t);
  CHECK_FUNCTION(exp, t);
  CHECK_FUNCTION(exp2, t);
  CHECK_FUNCTION(expm1, t);
  CHECK_FUNCTION(log, t);
  CHECK_FUNCTION(log2, t);
  CHECK_FUNCTION(log10, t);
  CHECK_FUNCTION(log1p, t);
  CHECK_FUNCTION(sqrt, t);
  CHECK_FUNCTION(rsqrt, t);
  CHECK_FUNCTION(sin, t);
  CHECK_FUNCTION(cos, t);
  CHECK_FUNCTION(tan, 1e-4);
  CHECK_FUNCTION(asin, t);
  CHECK_FUNCTION(acos, t);
  CHECK_FUNCTION(atan, t);
  CHECK_FUNCTION(sinh, t);
  CHECK_FUNCTION(cosh, t);
  CHECK_FUNCTION(tanh, t);
  CHECK_FUNCTION(asinh, t);
  CHECK_FUNCTION(acosh, t);
  CHECK_FUNCTION(atanh, t);
  CHECK_FUNCTION(erf, t);
  CHECK_FUNCTION(erfc, t);
  CHECK_FUNCTION(lgamma, 1e-4);
  CHECK_FUNCTION(sigmoid, t);
  CHECK_FUNCTION(relu, 0);
  CHECK_FUNCTION(silu, t);
  CHECK_FUNCTION(softplus, t);
  CHECK_FUNCTION(gelu, t);
  CHECK_FUNCTION(gelu_tanh, t);
  CHECK_FUNCTION(leaky_relu, t);
  CHECK_FUNCTION(elu, t);
  CHECK_FUNCTION(floor, 0);
  CHECK_FUNCTION(ceil, 0);
  CHECK_FUNCTION(round, 0);
  CHECK_FUNCTION(trunc, 0);
  CHECK_FUNCTION(isnan, 0);
  CHECK_FUNCTION(isinf, 0);
  CHECK_FUNCTION(isfinite, 0);
}

TEST_CASE("functions of several operands give on a GPU what they give on the host") {
  Tensor<float> const a = numbers<float>({777}), b = numbers<float>({777}, 2), c = numbers<float>({777}, 3);
  Tensor<float, Gpu> const x{a}, y{b}, z{c};
  CHECK_SAME(1e-6, x * y + z - 0.5f * x, a * b + c - 0.5f * a);
  CHECK_SAME(1e-6, x / y, a / b);
  CHECK_SAME(1e-5, x % y, a % b);
  CHECK_SAME(1e-5, fmod(x, y), fmod(a, b));
  CHECK_SAME(0, floor_divide(x, y), floor_divide(a, b));
  CHECK_SAME(0, minimum(x, y) + maximum(x, z), minimum(a, b) + maximum(a, c));
  CHECK_SAME(1e-5, pow(abs(x), y), pow(abs(a), b));
  CHECK_SAME(1e-5, atan2(x, y), atan2(a, b));
  CHECK_SAME(1e-5, hypot(x, y), hypot(a, b));
  CHECK_SAME(0, where(x < y, x, z), where(a < b, a, c));
  CHECK_SAME(0, clamp(x, -1, 1), clamp(a, -1, 1));
  CHECK_SAME(1e-6, lerp(x, y, z), lerp(a, b, c));
  CHECK_SAME(0, (x < y) && !(y >= z) || x == z, (a < b) && !(b >= c) || a == c);
}

TEST_CASE_TEMPLATE("arithmetic of this type is the same on a GPU as on the host", T, double, int8_t, uint8_t, int32_t, int64_t) {
  Tensor<T> const a = numbers<T>({1001}), b = numbers<T>({1001}, 2);
  Tensor<T, Gpu> const x{a}, y{b};
  CHECK_SAME(1e-12, x * y + x - y, a * b + a - b);
  CHECK_SAME(0, x % y, a % b);
  CHECK_SAME(0, floor_divide(x, y), floor_divide(a, b));
  CHECK_SAME(1e-6, x / (y + 20), a / (b + 20));
  CHECK_SAME(0, x < y, a < b);
  if constexpr (integer<T>) CHECK_SAME(0, (x & y) | (x ^ 3), (a & b) | (a ^ 3));
}

TEST_CASE_TEMPLATE("16-bit floats are computed in float and rounded when they are stored", T, float16, bfloat16) {
  Tensor<T> const a = numbers<T>({1003}), b = numbers<T>({1003}, 2);
  Tensor<T, Gpu> const x{a}, y{b};
  CHECK_SAME(0, x * y + x, a * b + a);
  CHECK_SAME(0, cast<float>(x) * 3, cast<float>(a) * 3);
  Tensor<float> const f = numbers<float>({1003}, 3) * 1.2345f;
  Tensor<float, Gpu> const g{f};
  CHECK_SAME(0, cast<T>(g), cast<T>(f));
  CHECK_SAME(0, cast<float>(cast<T>(g)) - g, cast<float>(cast<T>(f)) - f);
}

/// f, of a tensor on a GPU, of every 16-bit float errs by little more than half of its last place.
template <class T, class F, class E>
void check_every(F const& f, E const& exact_of) {
  Tensor<T> a = zeros<T>({65536});
  for (int64_t i = 0; i < a.size(); ++i) {
    auto const bits = static_cast<uint16_t>(i);
    std::memcpy(static_cast<void*>(a.data() + i), &bits, sizeof bits);
  }
  using limits = std::numeric_limits<T>;
  Tensor<T> const y = eval(f(Tensor<T, Gpu>(a))).cpu();
  double worst = 0, of = 0;
  int wrong = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    double const v = static_cast<double>(static_cast<float>(a.data()[i])), got = static_cast<double>(static_cast<float>(y.data()[i])), exact = exact_of(v);
    if (std::isnan(exact) || std::isinf(exact) || exact == 0) {
      wrong += std::isnan(exact) ? !std::isnan(got) : got != exact || std::signbit(got) != std::signbit(exact);
      continue;
    }
    int const place = std::max(std::ilogb(exact) + 1, limits::min_exponent) - limits::digits;
    double const error = std::ldexp(std::fabs(got - exact), -place);
    if (!(error <= worst)) worst = error, of = v;
  }
  CAPTURE(of);
  CHECK(wrong == 0);
  CHECK(worst < 0.51);
}

TEST_CASE_TEMPLATE("what has a shorter way for 16-bit floats errs by little more than half of their last place", T, float16, bfloat16) {
  check_every<T>([](auto const& x) { return gelu(x); }, [](double v) { return std::isinf(v) ? (v > 0 ? v : -0.0) : 0.5 * v * std::erfc(-v / std::sqrt(2.0)); });
  check_every<T>([](auto const& x) { return gelu(x, approximate_tanh); }, [](double v) {
    return std::isinf(v) ? (v > 0 ? v : -0.0) : v / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
  });
  check_every<T>([](auto const& x) { return log(x); }, [](double v) { return std::log(v); });
  check_every<T>([](auto const& x) { return log2(x); }, [](double v) { return std::log2(v); });
  check_every<T>([](auto const& x) { return log10(x); }, [](double v) { return std::log10(v); });
  check_every<T>([](auto const& x) { return log1p(x); }, [](double v) { return std::log1p(v); });
}

TEST_CASE("the slope of gelu on a GPU is that of the host, and keeps what is special") {
  Tensor<float> const a = eval(concat(special_numbers<float>(), linspace<float>(-16.0f, 8.0f, 4001)));
  auto const slope = [](auto const& x) {
    Variable<float, typename std::remove_cvref_t<decltype(x)>::device_type> v(x);
    sum(gelu(v)).backward();
    return v.grad();
  };
  Tensor<float, Gpu> const x{a};
  CHECK_SAME(1e-6, slope(x), slope(a));
  Tensor<float> const tail = linspace<float>(-13.0f, -3.0f, 1001);  // relative to what is small there
  CHECK_SAME(1e-5, slope(tail.to(Gpu{})) / (slope(tail).to(Gpu{})), ones<float>({1001}));
}

TEST_CASE("operands of several types promote on a GPU as on the host") {
  Tensor<float> const a = numbers<float>({50, 70});
  Tensor<int8_t> const b = numbers<int8_t>({50, 70}, 2);
  Tensor<double> const c = numbers<double>({70}, 3);
  Tensor<bool> const d = numbers<bool>({50, 1}, 4);
  Tensor<float, Gpu> const x{a};
  Tensor<int8_t, Gpu> const y{b};
  Tensor<double, Gpu> const z{c};
  Tensor<bool, Gpu> const w{d};
  CHECK_SAME(1e-12, x * y + z, a * b + c);
  CHECK_SAME(0, y * w, b * d);
  CHECK_SAME(0, cast<uint8_t>(x * 100), cast<uint8_t>(a * 100));
  CHECK_SAME(0, cast<int64_t>(x / 0.0f), cast<int64_t>(a / 0.0f));
}

TEST_CASE("sizes that end inside a vector, and pointers that no vector fits, are complete") {
  for (int64_t n : {1, 2, 3, 4, 5, 7, 8, 31, 1023, 1024, 1025, 2049, 100003}) {
    Tensor<float> const a = numbers<float>({n + 1}), b = numbers<float>({n + 1}, 2);
    Tensor<float, Gpu> const x{a}, y{b};
    CHECK_SAME(0, x + y, a + b);
    CHECK_SAME(0, x(range(1, end())) + y(range(0, n)), a(range(1, end())) + b(range(0, n)));
  }
}

TEST_CASE("broadcast, transposed, flipped and sliced operands are read where they lie") {
  for (Shape const& s : {Shape{64, 128}, Shape{33, 101}, Shape{1000, 3}, Shape{3, 1000}}) {
    Tensor<float> const a = numbers<float>(s), b = numbers<float>({s[1], s[0]}, 2), r = numbers<float>({s[1]}, 3), c = numbers<float>({s[0], 1}, 4);
    Tensor<float, Gpu> const x{a}, y{b}, u{r}, v{c};
    CHECK_SAME(0, x + y.t(), a + b.t());
    CHECK_SAME(0, x + u, a + r);
    CHECK_SAME(0, x * v, a * c);
    CHECK_SAME(0, v * u, c * r);
    CHECK_SAME(0, x.flip(0) + x.flip(1), a.flip(0) + a.flip(1));
    Tensor<float> p = a.clone();
    Tensor<float, Gpu> q = x.clone();
    p.t() = b;
    q.t() = y;
    p(all(), 0) = 7;
    q(all(), 0) = 7;
    CHECK_SAME(0, q, p);
  }
  Tensor<float> const a = numbers<float>({4, 3, 6, 5}), b = numbers<float>({6, 4, 5, 3}, 2);
  Tensor<float, Gpu> const x{a}, y{b};
  CHECK_SAME(0, x.permute({2, 0, 3, 1}) + y, a.permute({2, 0, 3, 1}) + b);
}

/// Formulas whose operands run across the rows of the output, by ways that depend on their types, extents and strides.
template <class T>
void check_across() {
  for (Shape const& s : {Shape{64, 128}, Shape{200, 65}, Shape{67, 300}, Shape{16, 1000}, Shape{500, 17}}) {
    Tensor<T> const a = numbers<T>({s[1], s[0]}), b = numbers<T>(s, 2), wide = numbers<T>({s[1], 2 * s[0]}, 3);
    Tensor<T, Gpu> const x{a}, y{b}, z{wide};
    CAPTURE(s);
    CHECK_SAME(0, -x.t(), -a.t());
    CHECK_SAME(0, x.t() + y, a.t() + b);
    CHECK_SAME(0, x.flip(0).t() + x.t().flip(0), a.flip(0).t() + a.t().flip(0));
    CHECK_SAME(0, z.t().slice(0, 0, 2 * s[0], 2) + y, wide.t().slice(0, 0, 2 * s[0], 2) + b);
    CHECK_SAME(0, z.slice(1, 1, s[0] + 1).t() + z.slice(1, 0, s[0]).t(), wide.slice(1, 1, s[0] + 1).t() + wide.slice(1, 0, s[0]).t());
    CHECK_SAME(0, cast<float>(x.t()) * 2 + cast<float>(numbers<uint8_t>(s).to(Gpu{})), cast<float>(a.t()) * 2 + cast<float>(numbers<uint8_t>(s)));
    CHECK_SAME(0, cast<double>(x.t()) + cast<double>(numbers<uint8_t>({s[1], s[0]}).to(Gpu{}).t()), cast<double>(a.t()) + cast<double>(numbers<uint8_t>({s[1], s[0]}).t()));
    Tensor<T> p = wide.clone();
    Tensor<T, Gpu> q = z.clone();
    p.t().slice(0, 0, s[0]) = b;  // written across the rows, and a view beside the rest
    q.t().slice(0, 0, s[0]) = y;
    p.slice(1, s[0], 2 * s[0]) = b.t();
    q.slice(1, s[0], 2 * s[0]) = y.t();
    CHECK_SAME(0, q, p);
  }
  Tensor<T> const c = numbers<T>({19, 5, 70}), row = numbers<T>({19}, 2);
  Tensor<T, Gpu> const u{c}, v{row};
  for (auto const& order : {std::vector<int>{0, 2, 1}, std::vector<int>{1, 0, 2}, std::vector<int>{1, 2, 0}, std::vector<int>{2, 0, 1}, std::vector<int>{2, 1, 0}}) {
    CHECK_SAME(0, -u.permute(order), -c.permute(order));
    CHECK_SAME(0, u.permute(order) + -u.permute(order), c.permute(order) + -c.permute(order));
  }
  CHECK_SAME(0, u.permute({2, 1, 0}) + v, c.permute({2, 1, 0}) + row);
  CHECK_SAME(0, u.permute({1, 2, 0}) + u.select(1, 3).t(), c.permute({1, 2, 0}) + c.select(1, 3).t());
  Tensor<T> const m = numbers<T>({40, 50});
  Tensor<T, Gpu> const n{m};
  CHECK_SAME(0, n.t() + n.flip(0).t() + n.flip(1).t() + n.flip(0).flip(1).t() + n.t().flip(0) + n.t(), m.t() + m.flip(0).t() + m.flip(1).t() + m.flip(0).flip(1).t() + m.t().flip(0) + m.t());
}

TEST_CASE("operands that run across the rows are what they are on the host") {
  check_across<uint8_t>();
  check_across<float16>();
  check_across<float>();
  check_across<double>();
  Tensor<float> const a = numbers<float>({90, 70, 33});
  Tensor<float, Gpu> const x{a};
  Generator one(7), other(7);
  CHECK_SAME(0, dropout(x.permute({2, 1, 0}), 0.5, true, one), dropout(a.permute({2, 1, 0}), 0.5, true, other));  // it counts elements
}

TEST_CASE("blocks that handle several rows") {
  int64_t const rows = situ_test::many(3001), columns = 1030;
  Tensor<float> const a = numbers<float>({rows, columns}), r = numbers<float>({columns}, 2), c = numbers<float>({rows, 1}, 3);
  Tensor<float, Gpu> const x{a}, u{r}, v{c};
  CHECK_SAME(0, x + u, a + r);
  CHECK_SAME(0, x * v, a * c);
  CHECK_SAME(0, v * u, c * r);
  CHECK_SAME(0, cast<float16>(v) * cast<float16>(u), cast<float16>(c) * cast<float16>(r));
  CHECK_SAME(0, x.slice(1, 1, 1028) + u.slice(0, 0, 1027), a.slice(1, 1, 1028) + r.slice(0, 0, 1027));
}

TEST_CASE("in place, a GPU writes what the host would") {
  Tensor<float> a = numbers<float>({100, 100});
  Tensor<float, Gpu> x{a};
  a += a.t().clone();
  x += x.t();
  a *= 3;
  x *= 3;
  CHECK_SAME(0, x, a);
}

TEST_CASE("map takes function objects, entries and extended lambdas to a GPU") {
  Tensor<float> const a = numbers<float>({999}), b = numbers<float>({999}, 2);
  Tensor<float, Gpu> const x{a}, y{b};
  CHECK_SAME(0, map(scaled_sum{2}, x, y), 2 * (a + b));
  CHECK_SAME(1e-6, map(cube{}, x), a * a * a);
#if defined(__CUDACC_EXTENDED_LAMBDA__)
  float const k = 3;
  CHECK_SAME(0, map([k] __host__ __device__(float v) { return v * k; }, x), a * k);
#endif
}

TEST_CASE("factories fill a GPU with what they fill the host with") {
  CHECK_SAME(0, zeros({5, 7}, Gpu{}), zeros({5, 7}));
  CHECK_SAME(0, (full({300}, 2.5f, Gpu{})), (full({300}, 2.5f)));
  CHECK_SAME(0, (arange<int64_t>(3, 1000, 7, Gpu{})), (arange<int64_t>(3, 1000, 7)));
  CHECK_SAME(1e-6, (linspace(0, 1, 101, Gpu{})), (linspace(0, 1, 101)));
  CHECK_SAME(0, eye(9, Gpu{}), eye(9));
  CHECK_SAME(0, (empty<float, Gpu>({0, 3})), (empty<float>({0, 3})));
}
