#include "matmul_support.hpp"

#include <situ/tensor/indexing.hpp>

#include <support/devices.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace situ;
using situ_test::numbers;
using situ_test::plain_product;
using situ_test::wrong_elements;

namespace {

/// A batch of small matrices that lie in memory in different ways.
template <class T, class D>
Tensor<T, D> small_matrices(int form, int64_t count, int64_t rows, int64_t columns, int64_t seed) {
  auto const on = [&](Shape const& shape) { return numbers<T>(shape, seed).to(D{}); };
  switch (form) {
    case 1: return on({count, columns, rows}).transpose(1, 2);
    case 2: return on({columns, rows, count}).permute({2, 1, 0});
    case 3: return on({2 * count, rows + 1, 2 * columns})(range(1, end(), 2), range(1, end()), range(0, end(), 2));
    case 4: return on({count, rows, columns}).flip(0).flip(1).flip(2);
    case 5: return on({1, rows, columns}).expand({count, rows, columns});
    default: return on({count, rows, columns});
  }
}

template <class T, class D>
int64_t wrong_batches(int64_t count, int64_t m, int64_t n, int64_t k, int f, int g) {
  auto const a = small_matrices<T, D>(f, count, m, k, 1), b = small_matrices<T, D>(g, count, k, n, 2);
  auto const c = matmul(a, b).cpu();
  auto const on_host = [](auto const& x) { return x.cpu(); };
  Tensor<T> const x = on_host(a), y = on_host(b);
  int64_t wrong = 0;
  for (int64_t t = 0; t < count; ++t) wrong += wrong_elements(c[t].to_vector(), plain_product<T>(x[t], y[t]), k) != 0;
  return wrong;
}

template <class T, class D>
void check_small_batches(int64_t largest, int forms) {
  for (int64_t m = 1; m <= largest; ++m) {
    for (int64_t n = 1; n <= largest; ++n) {
      for (int64_t k = 1; k <= largest; k += m > 4 ? 2 : 1) {
        int const f = static_cast<int>((m + n) % forms), g = static_cast<int>((n + k) % forms);
        INFO(std::string(dtype_name<T>()), " ", m, " ", n, " ", k, ", forms ", f, " ", g);
        CHECK(wrong_batches<T, D>(11, m, n, k, f, g) == 0);
      }
    }
  }
  for (int f = 0; f < forms; ++f) {
    for (int g = 0; g < forms; ++g) {
      for (int64_t n : {2, 3, 4, 17}) {
        INFO(std::string(dtype_name<T>()), " ", n, ", forms ", f, " ", g);
        CHECK(wrong_batches<T, D>(7, n, n, n, f, g) == 0);
        CHECK(wrong_batches<T, D>(5, n, 1, n, f, g) == 0);
      }
    }
  }
}

/// Products whose rows lie `gap` elements apart, with other elements around them: those must stay.
void check_bounds(int64_t m, int64_t n, int64_t k, int64_t batches, int64_t gap) {
  auto const a = numbers<float>({batches, m, k}, 1), b = numbers<float>({batches, k, n}, 2);
  int64_t const next_a = m * k, next_b = k * n, c_i = n + gap, next_c = m * c_i + gap;
  std::vector<float> memory(static_cast<std::size_t>(batches * next_c + 32), 77.f);
  detail::cpu::Product<float> one{m, n, k, a.data(), k, 1, b.data(), n, 1, memory.data() + 16, c_i, 1};
  detail::cpu::run_product<Cpu>(one, batches > 1 ? 1 : 0, &batches, &next_a, &next_b, &next_c);
  INFO(m, " ", n, " ", k, " ", batches, ", gap ", gap);
  for (int64_t t = 0; t < batches; ++t) {
    std::vector<float> product;
    for (int64_t i = 0; i < m; ++i) {
      auto const first = memory.begin() + 16 + t * next_c + i * c_i;
      product.insert(product.end(), first, first + n);
      std::fill(first, first + n, 77.f);
    }
    CHECK(wrong_elements(product, plain_product<float>(a[t], b[t]), k) == 0);
  }
  CHECK(std::count(memory.begin(), memory.end(), 77.f) == static_cast<std::ptrdiff_t>(memory.size()));
}

}  // namespace

TEST_CASE("batches of small products are the plain sums, for every layout and instruction set") {
  situ_test::with_every_instruction_set<Cpu>([] {
    check_small_batches<float, Cpu>(9, 6);
    check_small_batches<double, Cpu>(5, 6);
    check_small_batches<int32_t, Cpu>(3, 6);
    check_small_batches<bfloat16, Cpu>(2, 6);
  });
  check_small_batches<float, Emulated<0>>(2, 6);
  auto const a = numbers<float>({3, 1, 5, 2, 2}, 1), b = numbers<float>({4, 5, 2, 2}, 2), c = matmul(a, b);  // two axes of batches, and one
  CHECK(c.shape() == Shape{3, 4, 5, 2, 2});
  CHECK(c[2][3].to_vector() == matmul(a[2][0], b[3]).to_vector());
  CHECK(matmul(numbers<float>({0, 3, 3}, 1), numbers<float>({0, 3, 3}, 2)).shape() == Shape{0, 3, 3});
  CHECK(matmul(numbers<double>({4, 3, 0}, 1), numbers<double>({4, 0, 3}, 2)).to_vector() == std::vector<double>(36, 0));
}

TEST_CASE("nothing but the product is written, and sums of infinity are not spread") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t m : {1, 2, 3, 4, 5, 12, 13}) {
      for (int64_t n : {1, 2, 3, 4, 5, 8, 10, 16, 18, 31, 33, 50}) {
        for (int64_t k : {2, 3, 4, 9, 400}) {
          for (int64_t batches : {1, 3}) {
            for (int64_t gap : {0, 3}) check_bounds(m, n, k, batches, gap);
          }
        }
      }
    }
    Tensor<float> x = zeros({3, 3, 3});
    x(1, 1, 1) = INFINITY;
    auto const y = matmul(x, full({3, 3, 3}, 1.f)).to_vector();
    for (std::size_t l = 0; l < 27; ++l) CHECK(y[l] == (l / 3 == 4 ? INFINITY : 0.f));
  });
}
