#include <situ/expr/functions.hpp>

#include <expr/functions.hpp>

using namespace situ;

TEST_CASE_TEMPLATE("exponential functions of float agree with mpmath on every instruction set", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_exponential_functions<float, D>();
}

TEST_CASE_TEMPLATE("trigonometric functions of float agree with mpmath on every instruction set", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_trigonometric_functions<float, D>();
}

TEST_CASE_TEMPLATE("rounding, roots and signs of float agree with NumPy", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_simple_functions<float, D>();
}

TEST_CASE_TEMPLATE("functions of two floats agree with NumPy", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_functions_of_two_operands<float, D>();
}

TEST_CASE_TEMPLATE("comparisons, logic and where of float agree with NumPy", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_comparisons<float, D>();
}

TEST_CASE("a number that where, clamp, minimum or maximum picks is rounded once") {
  Tensor<bool> const both{true, false};
  double const above_middle = 1 + 0x1p-11 + 0x1p-40;  // to float: 1 + 2^-11, which would be rounded down to 1
  CHECK(eval(where(both, above_middle, Tensor<float16>{0.f, 0.f})).to_vector()[0] == float16(1 + 0x1p-10f));
  CHECK(eval(where(both, Tensor<bfloat16>{0.f, 0.f}, 1 + 0x1p-8 + 0x1p-40)).to_vector()[1] == bfloat16(1 + 0x1p-7f));
  CHECK(eval(clamp(Tensor<float16>{0.f, 4.f}, above_middle, 2)).to_vector()[0] == float16(1 + 0x1p-10f));
  CHECK(eval(minimum(Tensor<float16>{4.f}, above_middle)).item() == float16(1 + 0x1p-10f));
  CHECK(eval(maximum(1 + 0x1p-8 + 0x1p-40, Tensor<bfloat16>{0.f})).item() == bfloat16(1 + 0x1p-7f));
  CHECK(eval(where(both, 0.1, Tensor<float>{0.f, 0.f})).to_vector()[0] == 0.1f);
}

TEST_CASE("relu keeps NaN and positive numbers") {
  double const nan = situ_test::tables::nan, inf = situ_test::tables::inf;
  Tensor<double> const x{-1., 2., nan, inf, -inf, 1e-300};
  CHECK(situ_test::difference(eval(relu(x)).to_vector(), std::vector<double>{0., 2., nan, inf, 0., 1e-300}) == "");
  Tensor<int32_t> const i{-1, 2};
  CHECK(eval(relu(i)).to_vector() == std::vector<int32_t>{0, 2});
}

// numpy.clip and torch.lerp
TEST_CASE("clamp limits, lerp interpolates and is exact at its ends") {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  Tensor<float> const x{-2, -0.5, 0.25, 3, nan};
  CHECK(situ_test::difference(eval(clamp(x, -1, 1)).to_vector(), std::vector<float>{-1, -0.5, 0.25, 1, nan}) == "");
  CHECK(situ_test::difference(eval(clamp(x, 2, 1)).to_vector(), std::vector<float>{1, 1, 1, 1, nan}) == "");
  Tensor<int64_t> const i{-5, 0, 5};
  CHECK(eval(clamp(i, -1, 1)).to_vector() == std::vector<int64_t>{-1, 0, 1});
  CHECK(eval(clamp(i, i - 1, i - 1)).to_vector() == std::vector<int64_t>{-6, -1, 4});
  Tensor<float> const a{0.1f, 0.1f, 0.1f, 1e8f}, b{0.7f, 0.7f, 0.7f, -1e8f}, t{0, 1, 0.5, 0.5};
  CHECK(situ_test::difference(eval(lerp(a, b, t)).to_vector(), std::vector<float>{0.1f, 0.7f, 0.4f, 0.f}, 1) == "");
  CHECK(eval(lerp(Tensor<int32_t>{0, 10}, 20, 0.5)).to_vector() == std::vector<float>{10, 15});
}

TEST_CASE("truth values of operands of different sizes are compared and combined") {
  Tensor<int64_t> const a{-1, 1, -1, 1, -1};
  Tensor<float> const b{-1, -1, 1, 1, 1};
  Tensor<int16_t> const c{1, 1, 1, -1, -1};
  auto const p = a > 0;
  auto const q = b > 0;
  auto const r = c > 0;
  using Bools = std::vector<bool>;
  CHECK(eval(p < q).to_vector() == Bools{false, false, true, false, true});
  CHECK(eval(q < p).to_vector() == Bools{false, true, false, false, false});
  CHECK(eval(p <= r).to_vector() == Bools{true, true, true, false, true});
  CHECK(eval(r > q).to_vector() == Bools{true, true, false, false, false});
  CHECK(eval(q >= r).to_vector() == Bools{false, false, true, true, true});
  CHECK(eval(p == q).to_vector() == Bools{true, false, false, true, false});
  CHECK(eval(p ^ r).to_vector() == Bools{true, false, true, true, false});
  CHECK(eval(where(q, p, r)).to_vector() == Bools{true, true, false, true, false});
}

TEST_CASE_TEMPLATE("powers to one small exponent are those of libm, for numbers of every size and sign", T, float, double) {
  T const inf = std::numeric_limits<T>::infinity();
  std::vector<T> numbers{T(0), T(-0.0), T(1), T(-1), inf, -inf, std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest(),
                         std::numeric_limits<T>::min(), std::numeric_limits<T>::denorm_min(), -std::numeric_limits<T>::denorm_min()};
  for (int k = 0; k < 3000; ++k) {  // from 2^-300, or from 2^-149, up to where powers are infinite
    numbers.push_back(std::ldexp((T(1) + static_cast<T>(k * 7919 % 1000) / T(1000)) * (k % 2 ? T(-1) : T(1)), k % 600 - 300));
  }
  Tensor<T> x = zeros<T>({static_cast<int64_t>(numbers.size())});
  std::copy(numbers.begin(), numbers.end(), x.data());
  situ_test::with_every_instruction_set<Cpu>([&] {
    for (double n : {2.0, 1.0, 3.0, 4.0, -1.0, 0.5, 0.0, -2.0, 5.0, 8.0, 2.5}) {
      Tensor<T> const by_number = pow(x, static_cast<T>(n)), by_tensor = pow(x, full<T>(x.shape(), static_cast<T>(n)));
      int wrong = 0;
      for (std::size_t k = 0; k < numbers.size(); ++k) {
        T const expected = std::pow(numbers[k], static_cast<T>(n));
        for (T found : {by_number.data()[k], by_tensor.data()[k]}) {
          bool const same = std::isnan(expected) ? std::isnan(found) : found == expected && std::signbit(found) == std::signbit(expected);
          wrong += !same && !(std::isfinite(expected) && std::fabs(found - expected) <= 2 * (std::nextafter(std::fabs(expected), inf) - std::fabs(expected)));
        }
      }
      CAPTURE(n);
      CHECK(wrong == 0);
    }
  });
  // Exponents that differ from lane to lane, of which the first is a small one.
  Tensor<T> exponents = full<T>({64}, T(2)), bases = full<T>({64}, T(3));
  exponents(5) = 3, exponents(40) = -1;
  Tensor<T> const mixed = pow(bases, exponents);
  CHECK(mixed(0) == doctest::Approx(9));
  CHECK(mixed(5) == doctest::Approx(27));
  CHECK(mixed(40) == doctest::Approx(1.0 / 3));
}
