// Sizes around those of vectors and blocks, at every alignment: where kernels go from whole vectors to single elements.
#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <vector>

#include <situ/autograd.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

constexpr int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 255, 256, 257, 511, 513, 1000, 1023, 1025, 2047, 2049, 4099, 10007};
/// Sums of numbers of up to 100 whose order differs.
constexpr double sums = 2e-4;

/// `n` elements from `first` on, each one, each second one, or backwards.
template <class X>
auto cut(X const& x, int64_t n, int64_t first, int64_t step) {
  auto const forwards = x.slice(0, first, first + n * (step < 0 ? 1 : step), step < 0 ? 1 : step);
  return step < 0 ? forwards.flip(0) : forwards;
}

}  // namespace

TEST_CASE_TEMPLATE("formulas and reductions of every size and alignment are on a GPU what they are on the host", T, float, double, float16, bfloat16, uint8_t, int64_t) {
  double const tolerance = sizeof(T) == 2 ? 1e-2 : 1e-5;
  for (int64_t n : sizes) {
    Tensor<T> const a = numbers<T>({2 * n + 8}, 1), b = numbers<T>({2 * n + 8}, 2), c = numbers<T>({2 * n + 8}, 3);
    Tensor<T, Gpu> const x{a}, y{b}, z{c};
    for (int64_t first : {0, 1, 2, 3}) {
      for (int64_t step : {1, 2, -1}) {
        CAPTURE(n);
        CAPTURE(first);
        CAPTURE(step);
        auto const part = [&](auto const& whole) { return cut(whole, n, first, step); };
        CHECK(differs(part(x) * part(y) + part(z), part(a) * part(b) + part(c), tolerance) == "");
        CHECK(differs(sum(part(x) * part(y)), sum(part(a) * part(b)), sizeof(T) == 2 ? 1e-2 : sums) == "");
        CHECK(differs(max(part(x)), max(part(a))) == "");
        Tensor<T> here = a.clone();
        Tensor<T, Gpu> there = x.clone();
        part(here) = part(here) + b.slice(0, 0, n, 1);
        part(there) = part(there) + y.slice(0, 0, n, 1);
        CHECK(differs(there, here, tolerance) == "");
      }
    }
  }
}

TEST_CASE("rows and columns of every size are on a GPU what they are on the host") {
  for (int64_t rows : {1, 2, 3, 5, 17, 33}) {
    for (int64_t columns : {1, 2, 3, 4, 5, 7, 8, 31, 33, 100, 257, 1025}) {
      CAPTURE(rows);
      CAPTURE(columns);
      Tensor<float> const a = numbers<float>({rows, columns}, 1), row = numbers<float>({columns}, 2), column = numbers<float>({rows, 1}, 3), across = numbers<float>({columns, rows}, 4);
      Tensor<float, Gpu> const x{a}, gpu_row{row}, gpu_column{column}, gpu_across{across};
      CHECK(differs(x * gpu_row + gpu_column, a * row + column, 1e-6) == "");
      CHECK(differs(x + gpu_across.t(), a + across.t(), 1e-6) == "");
      CHECK(differs(sum(x * gpu_row, 0), sum(a * row, 0), sums) == "");
      CHECK(differs(sum(x + gpu_across.t(), 1), sum(a + across.t(), 1), sums) == "");
      CHECK(differs(argmax(x, 1), argmax(a, 1)) == "");
      Tensor<float> here = zeros<float>({rows, columns + 3});
      Tensor<float, Gpu> there = zeros<float>({rows, columns + 3}, Gpu{});
      here.slice(1, 1, columns + 1, 1) = a * 2;
      there.slice(1, 1, columns + 1, 1) = x * 2;
      CHECK(differs(there, here) == "");
    }
  }
}

namespace {

/// Gradients of a formula with a Variable that appears twice, one that is frozen, and one of a single element; added up twice.
template <class T, class D>
std::vector<Tensor<T>> gradients(D device, int64_t n, int64_t first, bool frozen, int passes) {
  auto const part = [&](unsigned seed) { return numbers<T>({n + first}, seed).to(device).slice(0, first, n + first, 1); };
  Variable<T, D> a(part(1)), b(part(2)), c(part(3)), one(numbers<T>({1}, 4).to(device));
  b.requires_grad(!frozen);
  for (int k = 0; k < passes; ++k) {
    Variable<T, D> y = a * b * one + c * a - 2 * c;
    y.backward(numbers<T>({n}, 5).to(device));
    sum(tanh(c) + a * a).backward();
  }
  std::vector<Tensor<T>> result{a.grad().cpu(), c.grad().cpu(), one.grad().cpu()};
  if (!frozen) result.push_back(b.grad().cpu());
  return result;
}

template <class D>
std::vector<Tensor<float>> broadcast_gradients(D device, int64_t rows, int64_t columns) {
  Variable<float, D> a(numbers<float>({rows, columns}, 1).to(device)), b(numbers<float>({columns}, 2).to(device)), c(numbers<float>({columns, rows}, 3).to(device));
  for (int k = 0; k < 2; ++k) sum(square(a * b + c.t()) * a).backward();
  return {a.grad().cpu(), b.grad().cpu(), c.grad().cpu()};
}

template <class T>
void compare(std::vector<Tensor<T>> const& there, std::vector<Tensor<T>> const& here) {
  for (std::size_t k = 0; k < here.size(); ++k) {
    CAPTURE(k);
    CHECK(differs(there[k], here[k], sums) == "");
  }
}

}  // namespace

TEST_CASE_TEMPLATE("gradients of every size and alignment are on a GPU what they are on the host", T, float, double) {
  for (int64_t n : sizes) {
    for (int64_t first : {0, 1}) {
      for (bool frozen : {false, true}) {
        for (int passes : {1, 2}) {
          CAPTURE(n);
          CAPTURE(first);
          CAPTURE(frozen);
          CAPTURE(passes);
          compare(gradients<T>(Gpu{}, n, first, frozen, passes), gradients<T>(Cpu{}, n, first, frozen, passes));
        }
      }
    }
  }
}

TEST_CASE("gradients of rows and columns of every size are on a GPU what they are on the host") {
  for (int64_t rows : {1, 2, 3, 17}) {
    for (int64_t columns : {1, 2, 3, 4, 5, 33, 257}) {
      CAPTURE(rows);
      CAPTURE(columns);
      compare(broadcast_gradients(Gpu{}, rows, columns), broadcast_gradients(Cpu{}, rows, columns));
    }
  }
}
