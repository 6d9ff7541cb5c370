#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {

using namespace situ;
__extension__ typedef __int128 wide;

/// What is left of a number in the bits of T.
template <class T>
T wrapped(wide x) {
  return static_cast<T>(static_cast<uint64_t>(x));
}
wide floor_quotient(wide a, wide b) {
  wide const q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

/// All numbers of 8 bits; of the wider types the ends, the neighbours of 0, powers of two and some others.
template <class T>
std::vector<T> numbers() {
  std::vector<T> result;
  if constexpr (sizeof(T) == 1) {
    for (int k = 0; k < 256; ++k) result.push_back(static_cast<T>(k));
  } else {
    constexpr T low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    for (int k : {-100, -7, -3, -2, -1, 0, 1, 2, 3, 7, 100}) result.push_back(static_cast<T>(k));
    for (int k : {0, 1, 2}) result.push_back(static_cast<T>(low + k)), result.push_back(static_cast<T>(high - k));
    for (int bit = 7; bit < static_cast<int>(8 * sizeof(T)) - 1; bit += 7) result.push_back(static_cast<T>(T(1) << bit));
    result.push_back(static_cast<T>(high / 3));
    if constexpr (sizeof(T) == 8) {  // up to 2^50 they divide in packs
      for (int64_t k : {-1, 0, 1}) result.push_back((T(1) << 50) + k), result.push_back(-(T(1) << 50) + k), result.push_back((T(1) << 53) + k);
    }
  }
  return result;
}

template <class T, class E, class F>
void check(E const& e, std::vector<T> const& a, std::vector<T> const& b, F expected, char const* what) {
  using R = value_of<E>;
  CAPTURE(what);
  std::vector<R> const results = [&] {
    auto const r = e.to_vector();
    return std::vector<R>(r.begin(), r.end());
  }();
  std::size_t wrong = results.size() == a.size() * b.size() ? 0 : 1, k = 0;
  for (T x : a) {
    for (T y : b) {
      if (results[k] != static_cast<R>(expected(x, y)) && ++wrong == 1) MESSAGE(std::to_string(x), " and ", std::to_string(y), " gave ", std::to_string(results[k]));
      ++k;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TYPE_TO_STRING(int8_t);
TYPE_TO_STRING(uint8_t);
TYPE_TO_STRING(int16_t);
TYPE_TO_STRING(int32_t);
TYPE_TO_STRING(int64_t);

TEST_CASE_TEMPLATE("integers wrap, divide by zero to 0, and % has the divisor's sign", T, int8_t, uint8_t, int16_t, int32_t, int64_t) {
  std::vector<T> const list = numbers<T>();
  int64_t const n = static_cast<int64_t>(list.size());
  Tensor<T> const row(list), a = row.unsqueeze(1).expand({n, n}).contiguous(), b = row.expand({n, n}).contiguous();
  situ_test::with_every_instruction_set<Cpu>([&] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    check(a + b, list, list, [](T x, T y) { return wrapped<T>(wide(x) + y); }, "+");
    check(a - b, list, list, [](T x, T y) { return wrapped<T>(wide(x) - y); }, "-");
    check(a * b, list, list, [](T x, T y) { return wrapped<T>(wide(x) * y); }, "*");
    check(a % b, list, list, [](T x, T y) { return y == 0 ? T(0) : wrapped<T>(x - y * floor_quotient(x, y)); }, "%");
    check(floor_divide(a, b), list, list, [](T x, T y) { return y == 0 ? T(0) : wrapped<T>(floor_quotient(x, y)); }, "floor_divide");
    check(fmod(a, b), list, list, [](T x, T y) { return y == 0 ? T(0) : wrapped<T>(wide(x) % y); }, "fmod");
    check(minimum(a, b), list, list, [](T x, T y) { return y < x ? y : x; }, "minimum");
    check(maximum(a, b), list, list, [](T x, T y) { return y > x ? y : x; }, "maximum");
    check((a & b) ^ (a | b), list, list, [](T x, T y) { return static_cast<T>(x ^ y); }, "& ^ |");
    check(((a < b) | (a > b)) & ((a <= b) ^ (a >= b)), list, list, [](T x, T y) { return x != y; }, "comparisons");
    check((a && b) ^ (a || b), list, list, [](T x, T y) { return (x != 0) != (y != 0); }, "logic");
    check(-a + abs(b), list, list, [](T x, T y) { return wrapped<T>((y < 0 ? -wide(y) : wide(y)) - x); }, "- and abs");
    check(sign(a) * square(b), list, list, [](T x, T y) { return wrapped<T>((x > 0 ? 1 : x < 0 ? -1 : 0) * (wide(y) * y)); }, "sign and square");
    check(~a ^ b, list, list, [](T x, T y) { return static_cast<T>(static_cast<T>(~x) ^ y); }, "~");
    check(where(a < b, a, b), list, list, [](T x, T y) { return x < y ? x : y; }, "where");
    check(a * 3 + 7 - b, list, list, [](T x, T y) { return wrapped<T>(wide(x) * 3 + 7 - y); }, "numbers");
    check(a % 7 + fmod(a, 7), list, list, [](T x, T) { return wrapped<T>(x - 7 * floor_quotient(x, 7) + wide(x) % 7); }, "% and fmod by a number");
    check(floor_divide(a, 7), list, list, [](T x, T) { return wrapped<T>(floor_quotient(x, 7)); }, "floor_divide by a number");
  });
}

TEST_CASE_TEMPLATE("integers compare with numbers that their type does not hold", T, int8_t, uint8_t, int16_t, int32_t) {
  std::vector<T> const list = numbers<T>();
  Tensor<T> const a(list);
  std::vector<int64_t> around{-1, 0, 1, 100, 127, 128, 255, 256, INT64_MIN, INT64_MAX};
  for (int64_t k : {-1, 0, 1}) around.push_back(std::numeric_limits<T>::min() + k), around.push_back(std::numeric_limits<T>::max() + k);
  situ_test::with_every_instruction_set<Cpu>([&] {
    for (int64_t const n : around) {
      CAPTURE(n);
      check<T>(a < n, list, {0}, [&](T x, T) { return x < n; }, "<");
      check<T>(a <= n, list, {0}, [&](T x, T) { return x <= n; }, "<=");
      check<T>(a > n, list, {0}, [&](T x, T) { return x > n; }, ">");
      check<T>(n <= a, list, {0}, [&](T x, T) { return n <= x; }, "of a number <=");
      check<T>(a == n, list, {0}, [&](T x, T) { return x == n; }, "==");
      check<T>(a != n, list, {0}, [&](T x, T) { return x != n; }, "!=");
    }
  });
}

namespace {
template <class T, class... Us>
void check_casts() {
  std::vector<T> list;
  if constexpr (std::is_integral_v<T>) list = numbers<T>();
  else list = {T(0), T(-0.75), T(1.5), T(-3.25), T(126.9), T(127.1), T(128.5), T(-128.9), T(-129.5), T(255.9), T(256), T(32767.5), T(-40000), T(1e9), T(-1e30)};
  for (std::size_t k = 0; list.size() % 16 != 5; ++k) list.push_back(list[k]);
  Tensor<T> const a(list);
  situ_test::with_every_instruction_set<Cpu>([&] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    (check<T>(cast<Us>(a), list, {T(0)}, [](T x, T) { return detail::convert_scalar<Us>(x); }, "cast"), ...);
  });
}
}  // namespace

TEST_CASE("lanes of every size convert to every other one as single numbers do") {
  check_casts<int8_t, bool, int16_t, int32_t, int64_t, float, double>();
  check_casts<uint8_t, int8_t, int32_t, float>();
  check_casts<int16_t, int8_t, int32_t, int64_t, float>();
  check_casts<int32_t, bool, int8_t, int16_t, int64_t, double>();
  check_casts<int64_t, uint8_t, int16_t, int32_t>();
  check_casts<float, bool, int8_t, uint8_t, int16_t, double>();
  check_casts<double, int8_t, float>();
  std::vector<bool> bits;
  for (int k = 0; k < 37; ++k) bits.push_back(k % 3 == 1);
  Tensor<bool> const mask(bits);
  situ_test::with_every_instruction_set<Cpu>([&] {
    check<bool>(cast<int8_t>(mask), bits, {false}, [](bool x, bool) { return x; }, "to int8");
    check<bool>(cast<float>(mask), bits, {false}, [](bool x, bool) { return x; }, "to float");
    check<bool>(cast<int64_t>(mask), bits, {false}, [](bool x, bool) { return x; }, "to int64");
  });
}

TEST_CASE_TEMPLATE("shifts and powers of integers", T, int8_t, uint8_t, int64_t) {
  std::vector<T> const list = numbers<T>();
  std::vector<T> counts;
  for (int k = std::is_signed_v<T> ? -3 : 0; k <= 70; ++k) counts.push_back(static_cast<T>(k));
  int64_t const n = static_cast<int64_t>(list.size()), m = static_cast<int64_t>(counts.size());
  Tensor<T> const a = Tensor<T>(list).unsqueeze(1).expand({n, m}), b = Tensor<T>(counts).expand({n, m});
  int const bits = static_cast<int>(8 * sizeof(T));
  check(a << b, list, counts, [&](T x, T y) { return y < 0 || y >= bits ? T(0) : wrapped<T>(wide(x) << y); }, "<<");
  check(a >> b, list, counts, [&](T x, T y) { return y < 0 || y >= bits ? T(x < 0 ? -1 : 0) : static_cast<T>(x >> y); }, ">>");
  check(pow(a, b), list, counts, [](T x, T y) {
    if (y < 0) return x == 1 ? T(1) : std::is_signed_v<T> && x == static_cast<T>(-1) ? T(y % 2 == 0 ? 1 : -1) : T(0);
    T result = 1;
    for (T k = 0; k < y; ++k) result = wrapped<T>(wide(result) * x);
    return result;
  }, "pow");
}

TEST_CASE("bools add as or, multiply as and, and count as 0 and 1 beside numbers") {
  Tensor<bool> const a{true, true, false, false}, b{true, false, true, false};
  using bools = std::vector<bool>;
  CHECK(eval(a + b).to_vector() == bools{true, true, true, false});
  CHECK(eval(a * b).to_vector() == bools{true, false, false, false});
  CHECK(eval(a & b).to_vector() == bools{true, false, false, false});
  CHECK(eval(a | b).to_vector() == bools{true, true, true, false});
  CHECK(eval(a ^ b).to_vector() == bools{false, true, true, false});
  CHECK(eval(~a).to_vector() == bools{false, false, true, true});
  CHECK(eval(!a && b).to_vector() == bools{false, false, true, false});
  CHECK(eval(a < b).to_vector() == bools{false, false, true, false});
  CHECK(eval(a >= b).to_vector() == bools{true, true, false, true});
  CHECK(eval(a == b).to_vector() == bools{true, false, false, true});
  CHECK(eval(minimum(a, b)).to_vector() == bools{true, false, false, false});
  CHECK(eval(maximum(a, b)).to_vector() == bools{true, true, true, false});
  CHECK(eval(where(a, b, !b)).to_vector() == bools{true, false, false, true});
  CHECK(eval(a + 1).to_vector() == std::vector<int64_t>{2, 2, 1, 1});
  CHECK(eval(a * 0.5).to_vector() == std::vector<float>{0.5, 0.5, 0, 0});
  CHECK(eval(a / b).to_vector()[0] == 1.f);
  CHECK(eval(abs(a)).to_vector() == a.to_vector());
  CHECK(eval(sign(a)).to_vector() == a.to_vector());
  CHECK(eval(isnan(a)).to_vector() == bools(4, false));
  CHECK(eval(isfinite(a)).to_vector() == bools(4, true));
}

TEST_CASE("integers are finite, and rounding leaves them as they are") {
  Tensor<int64_t> const x{INT64_MIN, -1, 0, INT64_MAX};
  CHECK(eval(isnan(x) | isinf(x) | !isfinite(x)).to_vector() == std::vector<bool>(4, false));
  CHECK(eval(floor(x)).to_vector() == x.to_vector());
  CHECK(eval(ceil(x)).to_vector() == x.to_vector());
  CHECK(eval(round(x)).to_vector() == x.to_vector());
  CHECK(eval(trunc(x)).to_vector() == x.to_vector());
  CHECK(eval(exp(Tensor<int32_t>{0, 1})).to_vector()[0] == 1.f);
}

TEST_CASE_TEMPLATE("integers compare with numbers of any type as the numbers do", T, int8_t, uint8_t, int16_t, int32_t, int64_t) {
  situ_test::with_every_instruction_set<Cpu>([] {
    Tensor<T> x = empty<T>({75});
    for (int64_t i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(i * 37 % 256 - 128);
    x.data()[0] = std::numeric_limits<T>::max(), x.data()[1] = std::numeric_limits<T>::lowest();
    auto const check = [&](auto number) {
      CAPTURE(number);
      Tensor<bool> const less = x < number, more = x > number, least = number <= x, equals = x == number, differs = x != number;
      int64_t wrong = 0;
      for (int64_t i = 0; i < x.size(); ++i) {
        long double const v = x(i), n = number;
        wrong += less(i) != (v < n) || more(i) != (v > n) || least(i) != (n <= v) || equals(i) != (v == n) || differs(i) != (v != n);
      }
      CHECK(wrong == 0);
    };
    for (int number : {0, 3, -3, 127, 128, -128, -129, 255, 256, 40000, -40000}) check(number);
    for (int64_t number : {int64_t{5}, int64_t{1} << 40, INT64_MIN}) check(number);
    for (float number : {0.5f, 3.5f, -3.5f, 1e30f, -1e30f, std::numeric_limits<float>::infinity()}) check(number);
    for (double number : {3.5, -127.5, 1e300}) check(number);
  });
}
