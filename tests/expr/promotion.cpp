#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {

using namespace situ;
using situ_test::difference;

template <class T>
Tensor<T> const& of() {
  static Tensor<T> const tensor{1};
  return tensor;
}
template <class E, class T>
inline constexpr bool gives = std::is_same_v<value_of<E>, T>;
#define SITU_GIVES(EXPRESSION, T) static_assert(gives<decltype(EXPRESSION), T>)

using f = float;
using d = double;
using h = float16;

// Tensors promote by the array API's table, numbers are weak.
SITU_GIVES(of<f>() + of<d>(), d);
SITU_GIVES(of<int64_t>() * of<f>(), f);
SITU_GIVES(of<int64_t>() * of<h>(), h);
SITU_GIVES(of<h>() - of<bfloat16>(), f);
SITU_GIVES(of<uint8_t>() + of<int8_t>(), int16_t);
SITU_GIVES(of<bool>() + of<uint8_t>(), uint8_t);
SITU_GIVES(of<bool>() + of<bool>(), bool);
SITU_GIVES(minimum(of<int8_t>(), of<int32_t>()), int32_t);
SITU_GIVES(of<int32_t>() % of<int64_t>(), int64_t);
SITU_GIVES(of<f>() * 0.5, f);
SITU_GIVES(of<h>() * 0.5, h);
SITU_GIVES(1LL + of<int8_t>(), int8_t);
SITU_GIVES(of<int8_t>() * 0.5, f);
SITU_GIVES(of<bool>() + 1, int64_t);
SITU_GIVES(of<bool>() + true, bool);
SITU_GIVES(of<bool>() * 2.5, f);
SITU_GIVES(of<f>() + float16(1.f), f);
SITU_GIVES(pow(of<int32_t>(), 2), int32_t);
SITU_GIVES(pow(of<int32_t>(), 0.5), f);
SITU_GIVES(pow(2, of<d>()), d);
// `/` and real functions give a floating type, comparisons and predicates bool.
SITU_GIVES(of<int32_t>() / of<int64_t>(), f);
SITU_GIVES(of<int32_t>() / 2, f);
SITU_GIVES(of<h>() / of<int64_t>(), h);
SITU_GIVES(of<d>() / 2, d);
SITU_GIVES(exp(of<int64_t>()), f);
SITU_GIVES(exp(of<bool>()), f);
SITU_GIVES(exp(of<bfloat16>()), bfloat16);
SITU_GIVES(atan2(of<int32_t>(), of<d>()), d);
SITU_GIVES(floor(of<int32_t>()), int32_t);
SITU_GIVES(floor_divide(of<int32_t>(), 2), int32_t);
SITU_GIVES(sign(of<uint8_t>()), uint8_t);
SITU_GIVES(of<f>() < of<int32_t>(), bool);
SITU_GIVES(of<d>() == 1, bool);
SITU_GIVES(isnan(of<h>()), bool);
SITU_GIVES(of<f>() && of<int32_t>(), bool);
SITU_GIVES(!of<d>(), bool);
SITU_GIVES(of<uint8_t>() & of<int16_t>(), int16_t);
SITU_GIVES(of<int32_t>() << 2, int32_t);
SITU_GIVES(where(of<bool>(), of<f>(), of<int32_t>()), f);
SITU_GIVES(where(of<bool>(), of<int8_t>(), 1), int8_t);
SITU_GIVES(where(of<bool>(), of<int8_t>(), 1.5), f);
SITU_GIVES(where(of<bool>(), 1, 0), int64_t);
SITU_GIVES(where(of<bool>(), 1., 0), f);
SITU_GIVES(clamp(of<int32_t>(), 0, 5), int32_t);
SITU_GIVES(clamp(of<h>(), 0, 1), h);
SITU_GIVES(lerp(of<int32_t>(), 2, 0.5), f);
SITU_GIVES(cast<int8_t>(of<d>()), int8_t);
SITU_GIVES(leaky_relu(of<int32_t>()), f);
SITU_GIVES(gelu(of<bfloat16>()), bfloat16);

template <class X>
concept bitwise_and_with_itself = requires(X x) { x & x; };

struct by_definition {
  static double half(unsigned bits) {
    double const sign = bits & 0x8000u ? -1 : 1;
    int const exponent = static_cast<int>(bits >> 10 & 31u), fraction = static_cast<int>(bits & 0x3ffu);
    if (exponent == 31) return fraction ? std::nan("") : sign * HUGE_VAL;
    return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
  }
};

template <class T>
std::vector<unsigned> bits_of(Tensor<T> const& x) {
  std::vector<unsigned> result;
  for (T const& value : x.to_vector()) result.push_back(value.bits);
  return result;
}

}  // namespace

TEST_CASE("numbers beside tensors take the tensor's type") {
  Tensor<uint8_t> const bytes{200, 100};
  CHECK(eval(bytes + 100).to_vector() == std::vector<uint8_t>{44, 200});
  CHECK(eval(bytes < 300).to_vector() == std::vector<bool>{true, true});  // compared as what it says
  CHECK(eval(bytes > -1).to_vector() == std::vector<bool>{true, true});
  CHECK(eval(-1 < bytes).to_vector() == std::vector<bool>{true, true});
  CHECK(eval(bytes == 456).to_vector() == std::vector<bool>{false, false});
  CHECK(eval(bytes < 4294967295u).to_vector() == std::vector<bool>{true, true});
  CHECK(eval(Tensor<int32_t>{5, -1} < 3000000000u).to_vector() == std::vector<bool>{true, true});
  CHECK(eval(Tensor<int32_t>{-1, 7} == 4294967295u).to_vector() == std::vector<bool>{false, false});
  CHECK(eval(Tensor<int64_t>{-1, 7} == 18446744073709551615u).to_vector() == std::vector<bool>{false, false});
  CHECK(eval(Tensor<int64_t>{-1, 7} < 9223372036854775808u).to_vector() == std::vector<bool>{true, true});
  CHECK(eval(18446744073709551615u > bytes).to_vector() == std::vector<bool>{true, true});
  CHECK(eval(uint16_t{65535} > Tensor<int16_t>{5, -1}).to_vector() == std::vector<bool>{true, true});
  CHECK(eval(Tensor<int64_t>{5, -1} < std::size_t{7}).to_vector() == std::vector<bool>{true, true});
  CHECK(eval(bytes * 0.5).to_vector() == std::vector<float>{100, 50});
  CHECK(eval(1 / Tensor<int32_t>{2, 0}).to_vector() == std::vector<float>{0.5, HUGE_VALF});
  CHECK(eval(2.5 > Tensor<int32_t>{2, 3}).to_vector() == std::vector<bool>{true, false});
  CHECK(eval(Tensor<float>{1} + 1e-30).to_vector() == std::vector<float>{1});
  CHECK(eval(Tensor<double>{1} / 3).to_vector() == std::vector<double>{1. / 3});
  CHECK(eval(Tensor<bool>{true} + 1).to_vector() == std::vector<int64_t>{2});
}

TEST_CASE("+x is x") {
  Tensor<int8_t> const x{1, -2};
  auto const same = +x;
  static_assert(std::is_same_v<decltype(same), Tensor<int8_t> const>);
  CHECK(same.data() == x.data());
  CHECK(eval(+(x * int8_t(2)) - +x).to_vector() == std::vector<int8_t>{1, -2});
  static_assert(std::is_same_v<decltype(+(x * x)), decltype(x * x)>);
}

TEST_CASE("types that promote are compared and combined as their common type") {
  CHECK(eval(Tensor<uint8_t>{200} + Tensor<int8_t>{-100}).to_vector() == std::vector<int16_t>{100});
  CHECK(eval(Tensor<uint8_t>{200} > Tensor<int8_t>{-100}).to_vector() == std::vector<bool>{true});
  CHECK(eval(Tensor<int32_t>{INT32_MAX} + Tensor<int64_t>{1}).to_vector() == std::vector<int64_t>{2147483648});
  CHECK(eval(Tensor<int8_t>{127} + Tensor<bool>{true}).to_vector() == std::vector<int8_t>{-128});
  CHECK(eval(Tensor<int64_t>{3} * Tensor<float>{0.5f}).to_vector() == std::vector<float>{1.5f});
  CHECK(eval(Tensor<int32_t>{7} / Tensor<int32_t>{2}).to_vector() == std::vector<float>{3.5f});
}

TEST_CASE("% and remainder take the divisor's sign, fmod the dividend's, round goes half to even") {
  Tensor<float> const a{7, -7, 7, -7}, b{3, 3, -3, -3};
  CHECK(eval(a % b).to_vector() == std::vector<float>{1, 2, -2, -1});
  CHECK(eval(remainder(a, b)).to_vector() == std::vector<float>{1, 2, -2, -1});
  CHECK(eval(fmod(a, b)).to_vector() == std::vector<float>{1, -1, 1, -1});
  CHECK(eval(floor_divide(a, b)).to_vector() == std::vector<float>{2, -3, -3, 2});
  CHECK(eval(cast<int32_t>(a) % 3).to_vector() == std::vector<int32_t>{1, 2, 1, 2});
  CHECK(eval(-7 % cast<int32_t>(b)).to_vector() == std::vector<int32_t>{2, 2, -1, -1});
  CHECK(eval(round(Tensor<float>{0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998f})).to_vector() == std::vector<float>{0, 2, 2, -0.f, -2, 2});
}

TEST_CASE_TEMPLATE("a number too large for a conversion in fewer bits is converted among others that are not", T, float, double) {
  T const inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  for (double number : {2147483520., 2147483647.5, 2147483648., 2147483904., 2147483649.5, -2147483648., -2147483648.5, -2147483904., 4294967296.5, 2251799813685247.5,
                        2251799813685248., -2251799813685247.5, -2251799813685250., 4503599627370497., 9e18, 1e19, -1e19, 0.5, -0.9999999, 0x1p-140}) {
    for (int at = 0; at < 16; ++at) {
      Tensor<T> x = full<T>({16}, T(-3.75));
      T const value = static_cast<T>(number);
      x.data()[at] = value;
      std::vector<int64_t> expected(16, -3);
      expected[static_cast<std::size_t>(at)] = value >= T(0x1p63) ? INT64_MAX : value < T(-0x1p63) ? INT64_MIN : static_cast<int64_t>(value);
      CAPTURE(number);
      CHECK(eval(cast<int64_t>(x)).to_vector() == expected);
    }
  }
  Tensor<T> x = full<T>({16}, T(2.5));
  x.data()[2] = nan, x.data()[7] = inf, x.data()[13] = -inf;
  CHECK(eval(cast<int64_t>(x)).to_vector() == std::vector<int64_t>{2, 2, 0, 2, 2, 2, 2, INT64_MAX, 2, 2, 2, 2, 2, INT64_MIN, 2, 2});
}

TEST_CASE_TEMPLATE("floats become integers by truncation, saturate, and NaN becomes 0", T, float, double) {
  T const inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  Tensor<T> const x{0.9, -0.9, 1.5, -1.5, 127.5, 128, -128.9, -129, 255.5, 256, 32767.5, 32768, -32769, 1e6, -1e6, 2147483520., 2147483648.,
                    -2147483648., -2147483904., 9e18, 1e19, -1e19, inf, -inf, nan, -0.0, 1e-40};
  auto const saturated = [&]<class U>(U) {
    std::vector<double> result;
    for (T v : x.to_vector()) {
      long double const t = std::trunc(static_cast<long double>(v));
      long double const low = static_cast<long double>(std::numeric_limits<U>::min()), high = static_cast<long double>(std::numeric_limits<U>::max());
      result.push_back(static_cast<double>(v != v ? 0 : t < low ? low : t > high ? high : t));
    }
    return result;
  };
  situ_test::with_every_instruction_set<Cpu>([&] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    CHECK(difference(eval(cast<int8_t>(x)).to_vector(), saturated(int8_t{})) == "");
    CHECK(difference(eval(cast<uint8_t>(x)).to_vector(), saturated(uint8_t{})) == "");
    CHECK(difference(eval(cast<int16_t>(x)).to_vector(), saturated(int16_t{})) == "");
    CHECK(difference(eval(cast<int32_t>(x)).to_vector(), saturated(int32_t{})) == "");
    CHECK(difference(eval(cast<int64_t>(x)).to_vector(), saturated(int64_t{})) == "");
    std::vector<bool> truth;
    for (T v : x.to_vector()) truth.push_back(v != 0);
    CHECK(eval(cast<bool>(x)).to_vector() == truth);
  });
}

TEST_CASE("integers wrap when they become narrower, and round when they become floats") {
  Tensor<int64_t> const x{300, -129, 65536 + 7, INT64_MIN, INT64_MAX, 16777217, 9007199254740993};
  CHECK(eval(cast<int8_t>(x)).to_vector() == std::vector<int8_t>{44, 127, 7, 0, -1, 1, 1});
  CHECK(eval(cast<uint8_t>(x)).to_vector() == std::vector<uint8_t>{44, 127, 7, 0, 255, 1, 1});
  CHECK(eval(cast<int32_t>(x)).to_vector() == std::vector<int32_t>{300, -129, 65543, 0, -1, 16777217, 1});
  CHECK(eval(cast<float>(x)).to_vector() == std::vector<float>{300, -129, 65543, -0x1p63f, 0x1p63f, 16777216, 0x1p53f});
  CHECK(eval(cast<double>(x)).to_vector() == std::vector<double>{300, -129, 65543, -0x1p63, 0x1p63, 16777217, 0x1p53});
  CHECK(eval(cast<bool>(x)).to_vector() == std::vector<bool>(7, true));
  CHECK(eval(cast<int8_t>(Tensor<bool>{true, false})).to_vector() == std::vector<int8_t>{1, 0});
}

TEST_CASE("all float16 and bfloat16 values pass through kernels unchanged, and what lies between rounds to nearest even") {
  Tensor<float16> halves = empty<float16>({65536});
  Tensor<bfloat16> brains = empty<bfloat16>({65536});
  std::vector<double> expected;
  std::vector<unsigned> same;
  std::vector<float> between;
  std::vector<unsigned> rounded_half, rounded_brain;
  for (unsigned k = 0; k < 65536u; ++k) {
    halves(k).bits = brains(k).bits = static_cast<uint16_t>(k);
    expected.push_back(by_definition::half(k));
    same.push_back(k);
  }
  // Floats around every half and around every bfloat16; the scalar conversion is tested in core/scalar.cpp.
  for (uint64_t k = 0; k < 0x100000000u; k += 0x7ff3u) {
    float const v = detail::bits_to<float>(static_cast<uint32_t>(k));
    between.push_back(v);
    rounded_half.push_back(float16(v).bits);
    rounded_brain.push_back(bfloat16(v).bits);
  }
  Tensor<float> const floats(between);
  situ_test::with_every_instruction_set<Cpu>([&] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    Tensor<float> const wide = cast<float>(halves);
    CHECK(difference(wide.to_vector(), expected) == "");
    std::vector<unsigned> const back = bits_of(eval(cast<float16>(wide))), back_brain = bits_of(eval(cast<bfloat16>(cast<float>(brains))));
    int wrong = 0;
    for (unsigned k = 0; k < 65536u; ++k) {
      bool const half_nan = (k & 0x7fffu) > 0x7c00u, brain_nan = (k & 0x7fffu) > 0x7f80u;
      wrong += half_nan ? (back[k] & 0x7fffu) <= 0x7c00u : back[k] != k;
      wrong += brain_nan ? (back_brain[k] & 0x7fffu) <= 0x7f80u : back_brain[k] != k;
    }
    CHECK(wrong == 0);
    CHECK(bits_of(eval(cast<float16>(floats))) == rounded_half);
    CHECK(bits_of(eval(cast<bfloat16>(floats))) == rounded_brain);
  });
}

TEST_CASE("doubles are rounded once on their way to 16 bits") {
  std::vector<double> near;  // the middles between two halves, or two bfloat16, and what lies beside them
  std::vector<unsigned> half, brain;
  for (double low : {1 + 0x1p-10, 0x1p-24, 3 * 0x1p-14, 1024., 65504., 0x1.02p0, 0x1p-133, 0x1.4p-130, 0x1.fcp-127, 0x1p-126, 0x1.fep127, 0x1.8p60}) {
    for (double step : {0x1p-10, 0x1p-24, 0x1p-7, 0x1p-133, 32., 0x1p120, 0x1p53}) {
      double const middle = low + step / 2;
      for (double x : {middle, std::nextafter(middle, 0.), std::nextafter(middle, HUGE_VAL), -middle, -std::nextafter(middle, HUGE_VAL)}) near.push_back(x);
    }
  }
  for (double x : {HUGE_VAL, -HUGE_VAL, 0., -0., 1e300, -1e300, 5e-324, -5e-324}) near.push_back(x);
  for (double x : near) {  // the scalar conversion is tested in core/scalar.cpp
    half.push_back(float16(x).bits);
    brain.push_back(bfloat16(x).bits);
  }
  Tensor<double> const doubles(near);
  situ_test::with_every_instruction_set<Cpu>([&] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    CHECK(bits_of(eval(cast<float16>(doubles))) == half);
    CHECK(bits_of(eval(cast<bfloat16>(doubles))) == brain);
    CHECK(bits_of(doubles.to<float16>()) == half);
    Tensor<double> rounded = zeros<double>(doubles.shape());
    rounded = cast<bfloat16>(doubles);  // not stored as such, but rounded
    for (int64_t i = 0; i < doubles.size(); ++i) CHECK(rounded.data()[i] == static_cast<double>(bfloat16(near[static_cast<std::size_t>(i)])));
    CHECK(static_cast<float>(eval(cast<float16>(full<double>({1}, 1 + 0x1p-11 + 0x1p-40)) - 1).item()) == 0x1p-10f);
    CHECK(bits_of(eval(cast<bfloat16>(full<double>({9}, std::nan(""))))) == std::vector<unsigned>(9, bfloat16(std::nanf("")).bits));
  });
  double const x = 1 + 0x1p-11 + 0x1p-40;
  Tensor<float16> y = zeros<float16>({2});
  y[0] = x;
  CHECK(bits_of(y) == std::vector<unsigned>{0x3c01, 0});
  CHECK(bits_of(Tensor<float16>{x, -x}) == std::vector<unsigned>{0x3c01, 0xbc01});
  CHECK(bits_of(full<float16>({1}, x)) == std::vector<unsigned>{0x3c01});
  CHECK(bits_of(arange<float16>(x, 2, 4)) == std::vector<unsigned>{0x3c01});
}

TEST_CASE("16-bit floats compute in float and round when they are stored, or cast") {
  Tensor<float16> const x{1, 0.1f, 65504};
  // 1 + 2^-11 is lost in float16, but not inside an expression.
  CHECK(static_cast<float>(eval(x[0] + 0x1p-11 - 1).item()) == 0x1p-11f);
  CHECK(static_cast<float>(eval(cast<float16>(x[0] + 0x1p-11) - 1).item()) == 0.f);
  CHECK(static_cast<float>(eval(x * 2).item(2)) == HUGE_VALF);
  CHECK(static_cast<float>(eval(x * 2 / 2).item(2)) == 65504.f);
  CHECK(eval(cast<float>(x)).item(1) == 0.0999755859375f);
  // NumPy: numpy.float16(0.1) + numpy.float16(0.2), 0.1 * 3
  CHECK(static_cast<float>(eval(x[1] + Tensor<float16>{0.2f}[0]).item()) == 0.2998046875f);
  CHECK(static_cast<float>(eval(Tensor<bfloat16>{0.1f} * 3).item()) == 0.30078125f);
  CHECK(eval(x == 0.1).to_vector() == std::vector<bool>{false, true, false});  // numbers are compared as the tensor would hold them
  CHECK(eval(x < 0.1).to_vector() == std::vector<bool>(3, false));
}
