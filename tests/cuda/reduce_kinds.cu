#include <doctest/doctest.h>

#include <cmath>

#include <cuda/compare.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

template <class X, class A>
void check_kinds(X const& x, A const& a, double tolerance, Shape const& axes) {
  CHECK(differs(any(x, axes), any(a, axes)) == "");
  CHECK(differs(all(x, axes), all(a, axes)) == "");
  CHECK(differs(count_nonzero(x, axes), count_nonzero(a, axes)) == "");
  CHECK(differs(var(x, axes), var(a, axes), tolerance) == "");
  CHECK(differs(stddev(x, axes, {.correction = 0}), stddev(a, axes, {.correction = 0}), tolerance) == "");
  CHECK(differs(logsumexp(x, axes), logsumexp(a, axes), tolerance) == "");
}

}  // namespace

TEST_CASE_TEMPLATE("the kinds of reductions are the same on a GPU as on the host", T, float, int8_t) {
  for (Shape const& s : {Shape{5, 1000}, Shape{1000, 5}, Shape{359, 10}, Shape{300, 301}}) {
    CAPTURE(to_string(s));
    Tensor<T> const a = numbers<T>(s);
    Tensor<T, Gpu> const x{a};
    check_kinds(x, a, 1e-4, Shape(0));
    check_kinds(x, a, 1e-4, Shape(1));
    check_kinds(x.t(), a.t(), 1e-4, Shape(0));
    check_kinds(x, a, 1e-4, Shape{0, 1});
    check_kinds(x.flip(1), a.flip(1), 1e-4, Shape(1));
  }
}

TEST_CASE("products and norms are the same on a GPU as on the host") {
  Tensor<float> const a = numbers<float>({20, 30, 17});
  Tensor<float, Gpu> const x{a};
  for (Shape const& axes : {Shape{0, 2}, Shape(1), Shape(2)}) {
    CHECK(differs(prod(1 + x * 0.01f, axes), prod(1 + a * 0.01f, axes), 1e-5) == "");
    for (double p : {0.0, 1.0, 2.0, 3.0, static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
      CHECK(differs(norm(x, axes, {.p = p}), norm(a, axes, {.p = p}), 1e-4) == "");
    }
  }
}

TEST_CASE("a large mean does not cancel, and infinities are kept") {
  Tensor<float> a = full({3'000'000}, 1e6f);
  for (int64_t i = 0; i < a.size(); i += 2) a.data()[i] += 1;
  Tensor<float, Gpu> const x{a};
  CHECK(std::abs(var(x).item() - 0.25f) < 1e-5f);
  CHECK(std::abs(logsumexp(x * 1e-3f).item() - logsumexp(a * 1e-3f).item()) < 1e-2f);
  a(7) = -INFINITY;
  CHECK(std::isfinite(logsumexp(Tensor<float, Gpu>{a}).item()));
  a(9) = INFINITY;
  CHECK(logsumexp(Tensor<float, Gpu>{a}).item() == INFINITY);
}

TEST_CASE("a variance calls a function for elements alone") {
  CHECK(situ_test::looks_up<Gpu>([](auto const& y) { return var(y, 1); }, 1e-5) == "");
}
