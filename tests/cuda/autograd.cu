#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/autograd.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

struct cubed {
  template <class X>
  SITU_HOST_DEVICE static auto value(X const& x) {
    return x * x * x;
  }
  template <class X, class Y>
  SITU_HOST_DEVICE static auto derivative(X const& x, Y const&) {
    return X(3) * x * x;
  }
};

/// The gradients of f(x, w), whose result is reduced by a weighted sum, on D.
template <class T, class D, class F>
auto gradients(F const& f, Tensor<T> const& x, Tensor<T> const& w) {
  Variable<T, D> a(x.to(D{})), b(w.to(D{}));
  Variable<T, D> const y(f(a, b));
  y.backward(numbers<T>(y.shape(), 9).to(D{}));
  return std::pair(a.grad(), b.grad());
}
/// Gradients of floats are compared with those of doubles, so that the tolerance is the GPU's alone.
template <class T, class F>
std::string differ(F const& f, Tensor<T> const& x, Tensor<T> const& w, double tolerance) {
  using Exact = std::conditional_t<std::is_same_v<T, float>, double, T>;
  auto const host = gradients<Exact, Cpu>(f, x.template to<Exact>(), w.template to<Exact>());
  auto const gpu = gradients<T, Gpu>(f, x, w);
  std::string const first = differs(gpu.first, host.first, tolerance);
  return first.empty() ? differs(gpu.second, host.second, tolerance) : first;
}

#define CHECK_GRADIENTS(TOLERANCE, X, W, ...)                                                        \
  {                                                                                                  \
    auto const f = [](auto const& x, auto const& w) { return __VA_ARGS__; };                         \
    CHECK_MESSAGE(differ(f, X, W, TOLERANCE).empty(), #__VA_ARGS__ ": ", differ(f, X, W, TOLERANCE)); \
  }

}  // namespace

TEST_CASE("gradients of formulas are on a GPU what they are on the host") {
  for (int64_t n : {1, 3, 4, 1000, 100003}) {
    Tensor<float> const x = numbers<float>({n}), w = numbers<float>({n}, 2);
    CHECK_GRADIENTS(1e-4, x, w, tanh(x * w + 0.5) * w);  // 2 ULP of CUDA's tanh, and a product and sum rounded once, times w², which is up to 100
    CHECK_GRADIENTS(1e-5, x, w, where(x > 0, clamp(x, -1, 5), w * w));
    CHECK_GRADIENTS(1e-5, x, w, gelu(x) / (1 + square(w)));
    CHECK_GRADIENTS(1e-5, x, w, map(cubed{}, x) - w);
    CHECK_GRADIENTS(1e-5, x, w, x * x * x + x * w);  // one memory for several slots
  }
}

TEST_CASE("gradients of formulas of other types") {
  Tensor<float> const x = numbers<float>({1003}), w = numbers<float>({1003}, 2);
  CHECK_GRADIENTS(1e-12, x.to<double>(), w.to<double>(), tanh(x * w) * x);
  CHECK_GRADIENTS(2e-3, x.to<float16>(), w.to<float16>(), tanh(x * w) * x);
  CHECK_GRADIENTS(2e-2, x.to<bfloat16>(), w.to<bfloat16>(), tanh(x * w) * x);
  CHECK_GRADIENTS(1e-5, x, w, cast<float>(cast<double>(x) * 2) * w);
}

TEST_CASE("gradients of strided and broadcast operands") {
  Tensor<float> const m = numbers<float>({63, 130}), row = numbers<float>({130}, 2), column = numbers<float>({63, 1}, 3);
  CHECK_GRADIENTS(1e-5, m, m.clone(), sigmoid(x) * w);
  CHECK_GRADIENTS(1e-5, numbers<float>({130, 63}).t(), m, sigmoid(x) * w);
  CHECK_GRADIENTS(1e-5, m.slice(1, 1, 130, 3), m.slice(1, 0, 129, 3).flip(0), sigmoid(x) * w);
  CHECK_GRADIENTS(1e-5, numbers<float>({130, 63}).t(), numbers<float>({130, 126}, 4).slice(1, 0, 126, 2).t(), sigmoid(x) * w);
  CHECK_GRADIENTS(1e-5, numbers<double>({37, 5, 130}).permute({2, 1, 0}), numbers<double>({130, 5, 37}, 4), sigmoid(x) * w);
  CHECK_GRADIENTS(1e-3, m, row, sigmoid(x) * w);
  CHECK_GRADIENTS(1e-3, m, column, sigmoid(x) * w);
}

TEST_CASE("gradients through sums and means, accumulated") {
  Tensor<float> const a = numbers<float>({257, 33});
  auto const run = [&]<class D>(D) {
    Variable<float, D> x(a.to(D{}));
    for (int k = 0; k < 2; ++k) sum(tanh(x) * x).backward();
    mean(square(x), {1}).backward(ones({257}, D{}));
    return x.grad();
  };
  CHECK(differs(run(Gpu{}), run(Cpu{}), 1e-5).empty());
}
