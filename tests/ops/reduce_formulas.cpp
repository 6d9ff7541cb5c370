// Reductions of formulas of two operations and more, whose rows are reduced pack by pack: see RowsByPacks.
#include <situ/ops/reduce.hpp>
#include <situ/tensor/factories.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

using namespace situ;

namespace {

/// Small numbers, so that sums of products are exact in every type.
template <class T>
std::vector<T> numbers(int64_t count, int step) {
  std::vector<T> x;
  for (int64_t k = 0; k < count; ++k) x.push_back(static_cast<T>((k * step + 3) % 5 - 2));
  return x;
}
template <class T>
Tensor<T> tensor_of(std::vector<T> const& x, Shape const& shape) {
  auto result = Tensor<T>::uninitialized(shape, "test");
  for (std::size_t k = 0; k < x.size(); ++k) result.data()[k] = x[k];
  return result;
}

/// Lengths around packs and pairs of packs of every instruction set, and around the ends of blocks.
std::vector<int64_t> lengths() {
  std::vector<int64_t> result;
  for (int64_t n = 0; n <= 70; ++n) result.push_back(n);
  for (int64_t n : {127, 128, 129, 255, 257, 511, 512, 513, 527, 1023, 1024, 1025, 1040, 2047, 2079, 16383, 16385, 40001}) result.push_back(n);
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("sums and products of formulas of every length agree with plain loops", T, float, double, int32_t) {
  for (int64_t const n : lengths()) {
    auto const a = numbers<T>(n, 2), b = numbers<T>(n, 3), c = numbers<T>(n, 7);
    auto const x = tensor_of(a, {n}), y = tensor_of(b, {n}), z = tensor_of(c, {n});
    double sum_expected = 0, repeated = 0, alone = 0, product = 1;
    int64_t nonzero = 0;
    for (std::size_t k = 0; k < a.size(); ++k) {
      double const u = static_cast<double>(a[k]), v = static_cast<double>(b[k]), w = static_cast<double>(c[k]);
      sum_expected += u * v - w;
      repeated += (u - v) * (u - v) + 1;
      alone += u * u * u * u * u * u * u * u;
      if (k % 7 == 0) product *= 2;  // see below
      nonzero += u * v + w != 0;
    }
    CAPTURE(n);
    CHECK(static_cast<double>(sum(x * y - z).item()) == sum_expected);
    CHECK(static_cast<double>(sum((x - y) * (x - y) + T(1)).item()) == repeated);
    CHECK(static_cast<double>(sum(square(square(square(abs(x))))).item()) == alone);  // many operations on one tensor
    CHECK(static_cast<double>(sum(square(square(square(abs(x)))), 0).item()) == alone);  // evaluated first
    CHECK(count_nonzero(x * y + z).item() == nonzero);
    if (n < 300) {
      std::vector<T> twos(static_cast<std::size_t>(n), T(1));
      for (std::size_t k = 0; k < twos.size(); k += 7) twos[k] = T(2);
      auto const t = tensor_of(twos, {n});
      if (product < 1e9) CHECK(static_cast<double>(prod(t * T(1) + (x - x)).item()) == product);
    }
  }
}

TEST_CASE("rows of formulas of every length agree with plain loops, also beside repeated and strided operands") {
  for (int64_t const n : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 65, 100, 513, 1025}) {
    int64_t const rows = n % 2 == 0 ? 5 : 19;  // kernels take eight at once
    auto const a = numbers<float>(rows * n, 2), b = numbers<float>(rows * n, 3), column = numbers<float>(rows, 1), row = numbers<float>(n, 4);
    auto const x = tensor_of(a, {rows, n}), y = tensor_of(b, {n, rows}), c = tensor_of(column, {rows, 1}), r = tensor_of(row, {n});
    auto const plain = sum(x * r - x, {1}), repeated = sum((x - c) * r, {1}), strided = sum((x - y.transpose(0, 1)) * c, {1});
    for (int64_t i = 0; i < rows; ++i) {
      double first = 0, second = 0, third = 0;
      for (int64_t k = 0; k < n; ++k) {
        auto const at = [](auto const& v, int64_t place) { return static_cast<double>(v[static_cast<std::size_t>(place)]); };
        double const u = at(a, i * n + k);
        first += u * at(row, k) - u;
        second += (u - at(column, i)) * at(row, k);
        third += (u - at(b, k * rows + i)) * at(column, i);
      }
      CAPTURE(n);
      CAPTURE(i);
      CHECK(plain.data()[i] == first);
      CHECK(repeated.data()[i] == second);
      CHECK(strided.data()[i] == third);
    }
  }
}

TEST_CASE("lanes behind the last element do not count, whatever a formula makes of their inputs") {
  float const infinite = INFINITY;
  for (int64_t const n : {1, 5, 9, 17, 33, 65}) {
    // Padding repeats the last elements, which are the largest here: each must count once.
    std::vector<float> a(static_cast<std::size_t>(n), 0.f), b(static_cast<std::size_t>(n), 1.f);
    a.back() = 1024.f;
    auto const x = tensor_of(a, {n}), y = tensor_of(b, {n});
    CAPTURE(n);
    CHECK(sum(x * y + x).item() == 2048.f);
    CHECK(sum(x * y + infinite).item() == infinite);
  }
}

TEST_CASE("sums of formulas of a million floats are as near to the sum in double as sums of tensors") {
  int64_t const n = 1000003;
  std::vector<float> a(static_cast<std::size_t>(n));
  double expected = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    a[k] = 0.1f + static_cast<float>(k % 1000) * 1e-3f;
    expected += static_cast<double>(a[k] * 1.5f) + 0.25;
  }
  auto const x = tensor_of(a, {n}), y = full({n}, 1.5f), z = full({n}, 0.25f);
  CHECK(std::fabs(static_cast<double>(sum(x * y + z).item()) - expected) < 2e-7 * expected);
}

TEST_CASE("sums of a million equal floats, whose rounding errors all have one sign, are right to a millionth") {
  constexpr int64_t n = 1000000;
  for (int k = 1; k < 40; ++k) {
    float const v = 0.1f + 0.037f * static_cast<float>(k);
    Tensor<float> const x = full({n}, v);
    double const alone = static_cast<double>(v), eighth = static_cast<double>(std::pow(v, 8.f));
    CAPTURE(v);
    CHECK(std::abs(static_cast<double>(sum(x).item()) / (alone * n) - 1) < 1e-6);
    CHECK(std::abs(static_cast<double>(sum(square(square(square(abs(x))))).item()) / (eighth * n) - 1) < 1.3e-6);  // 3e-7 of the functions themselves
  }
}
