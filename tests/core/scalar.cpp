#include <situ/core/scalar.hpp>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include <support/compare.hpp>

namespace {

using namespace situ;

template <class... Ts>
struct list {};
using b = bool;
using u8 = uint8_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;
using h = float16;
using bf = bfloat16;
using f = float;
using d = double;
using all_types = list<b, u8, i8, i16, i32, i64, h, bf, f, d>;

template <class T, class... Us, class... Results>
constexpr bool row(list<Us...>, list<Results...>) {
  return (std::is_same_v<promote_t<T, Us>, Results> && ...) && (std::is_same_v<promote_t<Us, T>, Results> && ...);
}

// What torch.promote_types gives, in the order of all_types.
static_assert(row<b>(all_types{}, list<b, u8, i8, i16, i32, i64, h, bf, f, d>{}));
static_assert(row<u8>(all_types{}, list<u8, u8, i16, i16, i32, i64, h, bf, f, d>{}));
static_assert(row<i8>(all_types{}, list<i8, i16, i8, i16, i32, i64, h, bf, f, d>{}));
static_assert(row<i16>(all_types{}, list<i16, i16, i16, i16, i32, i64, h, bf, f, d>{}));
static_assert(row<i32>(all_types{}, list<i32, i32, i32, i32, i32, i64, h, bf, f, d>{}));
static_assert(row<i64>(all_types{}, list<i64, i64, i64, i64, i64, i64, h, bf, f, d>{}));
static_assert(row<h>(all_types{}, list<h, h, h, h, h, h, h, f, f, d>{}));
static_assert(row<bf>(all_types{}, list<bf, bf, bf, bf, bf, bf, f, bf, f, d>{}));
static_assert(row<f>(all_types{}, list<f, f, f, f, f, f, f, f, f, d>{}));
static_assert(row<d>(all_types{}, list<d, d, d, d, d, d, d, d, d, d>{}));

// A number keeps the tensor's type unless it is of a higher kind.
template <class Number, class... Ts, class... Results>
constexpr bool weak_row(list<Ts...>, list<Results...>) {
  return (std::is_same_v<weak_t<Ts, Number>, Results> && ...);
}
static_assert(weak_row<bool>(all_types{}, all_types{}));
static_assert(weak_row<int>(all_types{}, list<i64, u8, i8, i16, i32, i64, h, bf, f, d>{}));
static_assert(weak_row<double>(all_types{}, list<f, f, f, f, f, f, h, bf, f, d>{}));
static_assert(weak_row<float>(all_types{}, list<f, f, f, f, f, f, h, bf, f, d>{}));

static_assert(element<float> && element<bool> && element<uint8_t> && element<bfloat16>);
static_assert(!element<long double> && !element<char32_t> && !element<uint32_t> && !element<int*> && !element<const float>);
static_assert(floating<float16> && !floating<int64_t> && !floating<bool>);
static_assert(integer<uint8_t> && !integer<bool> && !integer<float>);
static_assert(number<long double> && number<unsigned> && number<char> && !number<int*>);
static_assert(std::is_same_v<compute_t<float16>, float> && std::is_same_v<compute_t<int8_t>, int8_t>);
static_assert(std::is_same_v<floating_t<int64_t>, float> && std::is_same_v<floating_t<bfloat16>, bfloat16>);
static_assert(std::is_same_v<detail::canonical<long long>::type, int64_t>);
static_assert(std::is_same_v<detail::canonical<unsigned long>::type, int64_t>);
static_assert(std::is_same_v<detail::canonical<long double>::type, double>);

// Conversion is implicit only where nothing is lost by the promotion rules.
static_assert(implicitly_converts_to<int64_t, float> && implicitly_converts_to<float, double>);
static_assert(implicitly_converts_to<bool, uint8_t> && implicitly_converts_to<uint8_t, int16_t>);
static_assert(!implicitly_converts_to<double, float> && !implicitly_converts_to<float, int64_t>);
static_assert(!implicitly_converts_to<uint8_t, int8_t> && !implicitly_converts_to<int8_t, bool>);
static_assert(!implicitly_converts_to<float16, bfloat16> && !implicitly_converts_to<bfloat16, float16>);
static_assert(std::is_convertible_v<float16, float> && std::is_convertible_v<bfloat16, double>);
static_assert(!std::is_convertible_v<double, float16> && std::is_constructible_v<float16, double>);

/// The value of 16 bits by the definition of the formats, in double.
double half_by_definition(unsigned bits) {
  double const sign = bits & 0x8000u ? -1 : 1;
  int const exponent = static_cast<int>(bits >> 10 & 31u), fraction = static_cast<int>(bits & 0x3ffu);
  if (exponent == 31) return fraction ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}
double bfloat_by_definition(unsigned bits) {
  double const sign = bits & 0x8000u ? -1 : 1;
  int const exponent = static_cast<int>(bits >> 7 & 255u), fraction = static_cast<int>(bits & 0x7fu);
  if (exponent == 255) return fraction ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134));
}

template <class T>
T from_bits(unsigned bits) {
  T result;
  result.bits = static_cast<uint16_t>(bits);
  return result;
}

/// Every value converts to float and back; of the numbers between neighbours, those nearer to one become it, and the
/// one in the middle becomes the even one.
template <class T>
void check_every_value(double (*by_definition)(unsigned), unsigned infinity) {
  unsigned wrong = 0;
  for (unsigned bits = 0; bits < 65536u; ++bits) {
    T const x = from_bits<T>(bits);
    double const value = by_definition(bits);
    float const wide = x;
    if (value != value) {
      wrong += !(wide != wide) || !(static_cast<float>(T(wide)) != static_cast<float>(T(wide)));
      continue;
    }
    wrong += situ_test::ulps_between(static_cast<double>(wide), value) != 0;
    wrong += T(wide).bits != bits;
    unsigned const magnitude = bits & 0x7fffu, sign = bits & 0x8000u;
    if (magnitude >= infinity) continue;
    // Beyond the largest number the middle is where the next exponent would begin to round.
    double const next = magnitude + 1 == infinity ? 2 * value - by_definition(bits - 1) : by_definition(bits + 1);
    float const middle = static_cast<float>((value + next) / 2);
    unsigned const even = magnitude % 2 == 0 ? magnitude : magnitude + 1;
    wrong += T(middle).bits != (sign | even);
    float const out = sign ? -HUGE_VALF : HUGE_VALF;
    wrong += T(std::nextafterf(middle, 0.f)).bits != bits;
    wrong += T(std::nextafterf(middle, out)).bits != (sign | (magnitude + 1));
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("every float16 converts to float and back, and rounds to nearest even") {
  check_every_value<float16>(half_by_definition, 0x7c00u);
}

TEST_CASE("every bfloat16 converts to float and back, and rounds to nearest even") {
  check_every_value<bfloat16>(bfloat_by_definition, 0x7f80u);
}

TEST_CASE("16-bit floats round as in NumPy and PyTorch") {
  struct {
    float value;
    unsigned half, bfloat;
  } const table[] = {{0.f, 0x0, 0x0}, {-0.f, 0x8000, 0x8000}, {1.f / 3, 0x3555, 0x3eab}, {0.1f, 0x2e66, 0x3dcd},
                     {65504.f, 0x7bff, 0x4780}, {65519.996f, 0x7bff, 0x4780}, {65520.f, 0x7c00, 0x4780}, {-1e10f, 0xfc00, 0xd015},
                     {5.96e-8f, 0x1, 0x3380}, {2.9802322e-8f, 0x0, 0x3300}, {2.9802326e-8f, 0x1, 0x3300}, {6.1e-5f, 0x3ff, 0x3880},
                     {1.00048828125f, 0x3c00, 0x3f80}, {1.00146484375f, 0x3c02, 0x3f80}, {2049.f, 0x6800, 0x4500},
                     {2051.f, 0x6802, 0x4500}, {HUGE_VALF, 0x7c00, 0x7f80}, {3.4e38f, 0x7c00, 0x7f80},
                     {1.00390625f, 0x3c04, 0x3f80}, {1.01171875f, 0x3c0c, 0x3f82}, {1e-40f, 0x0, 0x1}};
  for (auto const& line : table) {
    CAPTURE(line.value);
    CHECK(float16(line.value).bits == line.half);
    CHECK(bfloat16(line.value).bits == line.bfloat);
  }
  static_assert(float16(1.5f).bits == 0x3e00 && static_cast<float>(float16(1.5f)) == 1.5f, "usable in constant expressions");
}

TEST_CASE("a double is rounded once on its way to 16 bits") {
  // numpy.float16 of the double; bfloat16 by comparison with the middles between its values, in exact fractions
  struct {
    double value;
    unsigned half, bfloat;
  } const table[] = {{1 + 0x1p-11, 0x3c00, 0x3f80},      {1 + 0x1p-11 + 0x1p-40, 0x3c01, 0x3f80},   {1 + 3 * 0x1p-11 - 0x1p-40, 0x3c01, 0x3f80},
                     {1 + 3 * 0x1p-11, 0x3c02, 0x3f80},  {-1 - 0x1p-11 - 0x1p-50, 0xbc01, 0xbf80},  {1 + 0x1p-8, 0x3c04, 0x3f80},
                     {1 + 0x1p-8 + 0x1p-40, 0x3c04, 0x3f81}, {1 + 3 * 0x1p-8 - 0x1p-52, 0x3c0c, 0x3f81}, {-1 - 3 * 0x1p-8, 0xbc0c, 0xbf82},
                     {0x1p-25, 0x0, 0x3300},             {0x1p-25 + 0x1p-60, 0x1, 0x3300},          {3 * 0x1p-25 - 0x1p-60, 0x1, 0x33c0},
                     {65520 - 0x1p-30, 0x7bff, 0x4780},  {65520, 0x7c00, 0x4780},                   {0x1p-134, 0x0, 0x0},
                     {0x1p-134 + 0x1p-180, 0x0, 0x1},    {0x1.ffp127 - 0x1p76, 0x7c00, 0x7f7f},     {0x1.ffp127, 0x7c00, 0x7f80},
                     {1e300, 0x7c00, 0x7f80},            {-1e300, 0xfc00, 0xff80},                  {-5e-324, 0x8000, 0x8000},
                     {0.1, 0x2e66, 0x3dcd},              {-HUGE_VAL, 0xfc00, 0xff80},               {-0., 0x8000, 0x8000}};
  for (auto const& line : table) {
    CAPTURE(line.value);
    CHECK(float16(line.value).bits == line.half);
    CHECK(bfloat16(line.value).bits == line.bfloat);
    CHECK(detail::convert_scalar<float16>(line.value).bits == line.half);
  }
  CHECK(float16(std::nan("")).bits == float16(std::nanf("")).bits);
  CHECK(bfloat16(-std::nan("")).bits == bfloat16(-std::nanf("")).bits);
  static_assert(float16(1 + 0x1p-11 + 0x1p-40).bits == 0x3c01 && bfloat16(1 + 0x1p-8 + 0x1p-40).bits == 0x3f81, "usable in constant expressions");
}

TEST_CASE("the limits of the 16-bit floats are those of NumPy and PyTorch") {
  // numpy.finfo(float16) and torch.finfo(torch.bfloat16), and the places of their exponents as in the table of IEEE 754
  using H = std::numeric_limits<float16>;
  using B = std::numeric_limits<bfloat16>;
  static_assert(H::is_specialized && H::is_signed && !H::is_integer && !H::is_exact && H::has_infinity && H::has_quiet_NaN && H::is_iec559 && H::radix == 2);
  static_assert(H::digits == 11 && H::digits10 == 3 && H::max_digits10 == 5 && B::digits == 8 && B::digits10 == 2 && B::max_digits10 == 4);
  static_assert(H::max_exponent == 16 && H::min_exponent == -13 && H::max_exponent10 == 4 && H::min_exponent10 == -4);
  using F = std::numeric_limits<float>;  // whose exponents bfloat16 has
  static_assert(B::max_exponent == F::max_exponent && B::min_exponent == F::min_exponent && B::max_exponent10 == F::max_exponent10 && B::min_exponent10 == F::min_exponent10);
  CHECK(H::max() == 65504.f);
  CHECK(H::lowest() == -65504.f);
  CHECK(H::min() == 6.103515625e-05f);
  CHECK(H::epsilon() == 0.0009765625f);
  CHECK(H::denorm_min() == 0x1p-24f);
  CHECK(B::max() == 0x1.fep+127f);
  CHECK(B::lowest() == -0x1.fep+127f);
  CHECK(B::min() == 0x1p-126f);
  CHECK(B::epsilon() == 0.0078125f);
  CHECK(B::denorm_min() == 0x1p-133f);
  CHECK(H::infinity() == HUGE_VALF);
  CHECK(B::infinity() == HUGE_VALF);
  CHECK(H::round_error() == 0.5f);
  CHECK(B::round_error() == 0.5f);
  CHECK(std::isnan(static_cast<float>(H::quiet_NaN())));
  CHECK(std::isnan(static_cast<float>(B::quiet_NaN())));
  CHECK(std::isnan(static_cast<float>(H::signaling_NaN())));
  CHECK(std::isnan(static_cast<float>(B::signaling_NaN())));
  CHECK(H::quiet_NaN().bits == float16(NAN).bits);
  CHECK(B::quiet_NaN().bits == bfloat16(NAN).bits);
  CHECK(H::signaling_NaN().bits != H::quiet_NaN().bits);
  static_assert(std::numeric_limits<float16 const>::max().bits == 0x7bff, "usable in constant expressions");
}

TEST_CASE_TEMPLATE("any number is assigned to a 16-bit float, and added to it", T, float16, bfloat16) {
  T x;
  x = 1.5;
  CHECK(x == 1.5f);
  x = 3;
  CHECK(x == 3.f);
  x = int64_t{-7};
  CHECK(x == -7.f);
  x = true;
  CHECK(x == 1.f);
  CHECK(&(x = 0.25L) == &x);
  CHECK(x == 0.25f);
  x += 1;
  CHECK(x == 1.25f);
  x -= 0.5;
  CHECK(x == 0.75f);
  x *= 2.f;
  CHECK(x == 1.5f);
  CHECK(&(x /= T(0.5f)) == &x);
  CHECK(x == 3.f);
  x += x;
  CHECK(x == 6.f);
  x -= bfloat16(2.f);
  CHECK(x == 4.f);
  // Rounded once: as a float the sum would be the middle between two values, and go to the even one.
  int const bits = std::numeric_limits<T>::digits;
  double const middle = std::ldexp(1.0, -bits);
  x = 1;
  x += middle + std::ldexp(1.0, -40);
  CHECK(x == 1.f + static_cast<float>(2 * middle));
  x = 1;
  x = 1 + middle + std::ldexp(1.0, -40);
  CHECK(x == 1.f + static_cast<float>(2 * middle));
  static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T> && sizeof(T) == 2);
  static_assert(std::is_same_v<decltype(x += 1), T&> && !std::is_assignable_v<T&, char const*>);
}

TEST_CASE("conversion of scalars saturates, wraps, and makes NaN 0") {
  using detail::convert_scalar;
  CHECK(convert_scalar<int8_t>(300.f) == 127);
  CHECK(convert_scalar<int8_t>(-300.f) == -128);
  CHECK(convert_scalar<uint8_t>(-1.f) == 0);
  CHECK(convert_scalar<uint8_t>(255.9f) == 255);
  CHECK(convert_scalar<int32_t>(2147483648.f) == 2147483647);
  CHECK(convert_scalar<int32_t>(-1e20) == -2147483647 - 1);
  CHECK(convert_scalar<int64_t>(9.3e18) == INT64_MAX);
  CHECK(convert_scalar<int64_t>(-HUGE_VAL) == INT64_MIN);
  CHECK(convert_scalar<int64_t>(std::nan("")) == 0);
  CHECK(convert_scalar<int32_t>(-2.9) == -2);
  CHECK(convert_scalar<uint8_t>(300) == 44);
  CHECK(convert_scalar<int8_t>(int64_t{200}) == -56);
  CHECK(convert_scalar<bool>(0.5f));
  CHECK(convert_scalar<bool>(std::nan("")));
  CHECK_FALSE(convert_scalar<bool>(-0.f));
  CHECK(convert_scalar<int64_t>(float16(7.9f)) == 7);
  CHECK(convert_scalar<float16>(int64_t{100000}).bits == 0x7c00);
}

TEST_CASE("element types have the names that NumPy prints") {
  CHECK(std::string(dtype_name<float>()) == "float32");
  CHECK(std::string(dtype_name<bfloat16>()) == "bfloat16");
  CHECK(std::string(name(dtype_of<uint8_t>)) == "uint8");
  CHECK(std::string(name(dtype_of<bool>)) == "bool");
  CHECK(std::string(name(dtype_of<double>)) == "float64");
  CHECK(dtype_of<float16> == dtype::float16);
}
