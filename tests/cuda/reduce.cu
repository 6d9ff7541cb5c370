#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::many;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

template <class X, class A, class... Axes>
void check_all(X const& x, A const& a, double tolerance, Axes const&... axes) {
  CHECK(differs(sum(x, axes...), sum(a, axes...), tolerance) == "");
  CHECK(differs(mean(x, axes...), mean(a, axes...), tolerance) == "");
  CHECK(differs(min(x, axes...), min(a, axes...)) == "");
  CHECK(differs(max(x, axes...), max(a, axes...)) == "");
  CHECK(differs(argmin(x, axes...), argmin(a, axes...)) == "");
  CHECK(differs(argmax(x, axes...), argmax(a, axes...)) == "");
  CHECK(differs(norm(x, axes...), norm(a, axes...), tolerance) == "");
}

}  // namespace

TEST_CASE_TEMPLATE("reductions of this type are the same on a GPU as on the host", T, float, float16, int8_t, bool) {
  double const tolerance = sizeof(T) == 2 ? 1e-2 : 1e-4;
  for (Shape const& s : {Shape{1, 1}, Shape{5, 1000}, Shape{1000, 5}, Shape{359, 10}, Shape{300, 301}}) {
    CAPTURE(to_string(s));
    Tensor<T> const a = numbers<T>(s);
    Tensor<T, Gpu> const x{a};
    check_all(x, a, tolerance);
    check_all(x, a, tolerance, Shape(0));
    check_all(x, a, tolerance, Shape(1));
    check_all(x.t(), a.t(), tolerance, Shape(0));
    check_all(x.t(), a.t(), tolerance);
    check_all(x.flip(1), a.flip(1), tolerance, Shape(1));
  }
}

TEST_CASE("reductions over several axes and of views are the same on a GPU as on the host") {
  Tensor<float> const a = numbers<float>({20, 30, 17});
  Tensor<float, Gpu> const x{a};
  check_all(x, a, 1e-4, Shape{0, 2});
  check_all(x, a, 1e-4, Shape{0, 1});
  check_all(x.permute({2, 0, 1}), a.permute({2, 0, 1}), 1e-4, Shape{0, 2});
  check_all(x(all(), range(1, 29, 3), range(1, end())), a(all(), range(1, 29, 3), range(1, end())), 1e-4, Shape{1, 2});
  CHECK(differs(sum(x, Shape{1}, keepdim), sum(a, Shape{1}, keepdim), 1e-4) == "");
}

TEST_CASE("a reduction fuses the expression that it reduces") {
  Tensor<float> const a = numbers<float>({359, 1, 64}), b = numbers<float>({1, 10, 64}, 2);
  Tensor<float, Gpu> const x{a}, y{b};
  CHECK(differs(sum(square(x - y), 2), sum(square(a - b), 2), 1e-5) == "");
  CHECK(differs(argmin(sum(square(x - y), 2), 1), argmin(sum(square(a - b), 2), 1)) == "");
}

TEST_CASE("large sums are accurate, and the same from run to run") {
  int64_t const n = many(30'000'000);
  Tensor<float, Gpu> const x = full<float>({n}, 0.1f, Gpu{});
  float const total = sum(x).item();
  CHECK(std::abs(total - static_cast<double>(0.1f) * static_cast<double>(n)) <= static_cast<double>(n) / 30e6);  // a plain chain of additions of 30 millions ends 13 % away
  Tensor<float, Gpu> const y{numbers<float>({n})};
  float const first = sum(y).item();
  for (int k = 0; k < 5; ++k) CHECK(sum(y).item() == first);
}

TEST_CASE("a NaN is the extremum, wherever it stands, and ties go to the first") {
  Tensor<float> a = numbers<float>({3, 5000});
  a(0, 4321) = NAN;
  a(1, 77) = 1e9f;
  a(1, 4000) = 1e9f;
  Tensor<float, Gpu> const x{a};
  check_all(x, a, 1e-4, Shape(1));
  CHECK(argmax(x, Shape(1)).item(1) == 77);
}

TEST_CASE("the sum of nothing is 0") {
  auto const x = zeros({0, 3}, Gpu{});
  CHECK(differs(sum(x, 0), zeros({3})) == "");
  CHECK(sum(x, 1).size() == 0);
  CHECK(sum(x).item() == 0);
}

TEST_CASE("a reduction calls a function for elements alone") {
  CHECK(situ_test::looks_up<Gpu>([](auto const& y) { return sum(y); }, 1e-6) == "");
  CHECK(situ_test::looks_up<Gpu>([](auto const& y) { return sum(y, 1); }, 1e-6) == "");
  CHECK(situ_test::looks_up<Gpu>([](auto const& y) { return argmax(y, 0); }, 0) == "");
}
