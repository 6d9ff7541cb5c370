#include <algorithm>
#include <cmath>
#include <cstring>

#include <expr/functions.hpp>

using namespace situ;

TEST_CASE_TEMPLATE("exponential functions of double agree with mpmath on every instruction set", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_exponential_functions<double, D>();
}

TEST_CASE_TEMPLATE("trigonometric functions of double agree with mpmath on every instruction set", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_trigonometric_functions<double, D>();
}

TEST_CASE_TEMPLATE("rounding, roots and signs of double agree with NumPy", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_simple_functions<double, D>();
}

TEST_CASE_TEMPLATE("functions of two doubles agree with NumPy", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_functions_of_two_operands<double, D>();
}

TEST_CASE_TEMPLATE("comparisons, logic and where of double agree with NumPy", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_comparisons<double, D>();
}

namespace {

/// Of exponents all over their range, of exponents close to each other, of products of whole numbers and their neighbours, and of whole numbers.
template <class T>
void dividends_and_divisors(std::vector<T>& x, std::vector<T>& y) {
  constexpr int digits = std::numeric_limits<T>::digits, highest = std::numeric_limits<T>::max_exponent - 1, lowest = std::numeric_limits<T>::min_exponent - digits;
  uint64_t state = 1;
  auto const random = [&](int64_t below) { return static_cast<int64_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) % below; };
  auto const mantissa = [&] { return (T(1) + static_cast<T>(random(int64_t{1} << 23)) * T(0x1p-23)) * (random(2) ? T(1) : T(-1)); };
  constexpr T inf = std::numeric_limits<T>::infinity();
  for (int k = 0; k < 40000; ++k) {
    int const exponent = lowest + static_cast<int>(random(highest - lowest));
    T const divisor = std::ldexp(mantissa(), exponent);
    T dividend = std::ldexp(mantissa(), lowest + static_cast<int>(random(highest - lowest)));
    if (k % 4 == 1) dividend = std::ldexp(mantissa(), std::min(highest, exponent - 2 + static_cast<int>(random(digits + 4))));
    if (k % 4 == 2) dividend = std::nextafter(divisor * (static_cast<T>(random(int64_t{1} << random(30))) + T(0.5) * static_cast<T>(random(2))), random(2) ? inf : -inf);
    x.push_back(k % 4 == 3 ? static_cast<T>(random(2001) - 1000) : dividend);
    y.push_back(k % 4 == 3 ? static_cast<T>(random(41) - 20) : divisor);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("floats divide with remainder exactly, whatever their exponents are", T, float, double) {
  std::vector<T> x, y;
  dividends_and_divisors(x, y);
  Tensor<T> const a(x), b(y);
  auto const same = [&](std::vector<T> const& results, auto expected) {
    std::size_t wrong = 0;
    for (std::size_t k = 0; k < x.size(); ++k) {
      T const e = expected(x[k], y[k]);
      bool equal = std::isnan(e) && std::isnan(results[k]);
      if (!equal) equal = std::memcmp(&e, &results[k], sizeof e) == 0;
      if (!equal && ++wrong == 1) MESSAGE(std::to_string(x[k]), " and ", std::to_string(y[k]), " gave ", std::to_string(results[k]), " instead of ", std::to_string(e));
    }
    return wrong == 0;
  };
  auto const moved = [](T p, T q) {
    T const rest = std::fmod(p, q);
    return rest == T(0) ? std::copysign(T(0), q) : (rest < T(0)) != (q < T(0)) ? rest + q : rest;
  };
  auto const times = [](T p, T q) {
    if (q == T(0)) return p / q;
    T const rest = std::fmod(p, q), n = (p - rest) / q - static_cast<T>(rest != T(0) && (rest < T(0)) != (q < T(0)));
    return n == T(0) ? std::copysign(T(0), std::signbit(p) != std::signbit(q) ? T(-1) : T(1)) : n - std::floor(n) > T(0.5) ? std::floor(n) + T(1) : std::floor(n);
  };
  situ_test::with_every_instruction_set<Cpu>([&] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    CHECK(same(eval(fmod(a, b)).to_vector(), [](T p, T q) { return std::fmod(p, q); }));
    CHECK(same(eval(a % b).to_vector(), moved));
    CHECK(same(eval(floor_divide(a, b)).to_vector(), times));
  });
}
