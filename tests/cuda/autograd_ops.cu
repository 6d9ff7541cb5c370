#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/autograd/conv2d.hpp>
#include <situ/autograd/linalg.hpp>
#include <situ/autograd/matmul.hpp>
#include <situ/autograd/pool2d.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

/// The gradients of f(x, w) on D.
template <class T, class D, class F>
auto gradients(F const& f, Tensor<T> const& x, Tensor<T> const& w) {
  Variable<T, D> a(x.to(D{})), b(w.to(D{}));
  Variable<T, D> const y(f(a, b));
  y.backward(Tensor<T, D>((numbers<T>(y.shape(), 9) * 0.1).to(D{})));
  return std::pair(a.grad(), b.grad());
}
template <class T, class F>
std::string differ(F const& f, Tensor<T> const& x, Tensor<T> const& w, double tolerance) {
  auto const host = gradients<T, Cpu>(f, x, w);
  auto const gpu = gradients<T, Gpu>(f, x, w);
  std::string const first = differs(gpu.first, host.first, tolerance);
  return first.empty() ? differs(gpu.second, host.second, tolerance) : first;
}

#define CHECK_GRADIENTS(TOLERANCE, X, W, ...)                                                         \
  {                                                                                                   \
    auto const f = [](auto const& x, auto const& w) { return __VA_ARGS__; };                          \
    CHECK_MESSAGE(differ(f, X, W, TOLERANCE).empty(), #__VA_ARGS__ ": ", differ(f, X, W, TOLERANCE)); \
  }

Tensor<float> small(Shape const& shape, unsigned seed = 1) { return numbers<float>(shape, seed) * 0.1f; }

}  // namespace

TEST_CASE("gradients of products are on a GPU what they are on the host") {
  CHECK_GRADIENTS(1e-4, small({65, 33}), small({33, 17}, 2), matmul(x, w));
  CHECK_GRADIENTS(1e-4, small({3, 1, 5, 4}), small({2, 4, 6}, 2), matmul(x, w));
  CHECK_GRADIENTS(1e-4, small({7, 5, 4}), small({4}, 2), matmul(x, w));
  CHECK_GRADIENTS(1e-4, small({70, 9}), small({9}, 2), linear(x, w));
  CHECK_GRADIENTS(1e-4, small({4, 17, 9}), small({33, 9}, 2), linear_relu(x, w, w.t()[0]));
  CHECK_GRADIENTS(1e-4, small({40}), small({30}, 2), outer(x, w));
  CHECK_GRADIENTS(1e-4, small({5, 5}), small({5, 7}, 2), einsum("ii,ij->j", x, w));
}

TEST_CASE("gradients of convolutions") {
  CHECK_GRADIENTS(1e-3, small({2, 3, 9, 11}), small({4, 3, 3, 3}, 2), conv2d(x, w, {.stride = 2, .padding = 1}));
  CHECK_GRADIENTS(1e-3, small({2, 4, 9, 11}), small({6, 2, 2, 3}, 2), conv2d(x, w, {.padding = {0, 2}, .dilation = 2, .groups = 2}));
  CHECK_GRADIENTS(1e-3, small({3, 8, 8}), small({5, 3, 1, 1}, 2), conv2d(x, w, {.bias = w.flatten().slice(0, 0, 5)}));
}

TEST_CASE("gradients of pooling") {
  CHECK_GRADIENTS(1e-5, small({2, 3, 9, 11}), small({1}, 2), max_pool2d(x, 2) * w);
  CHECK_GRADIENTS(1e-5, small({2, 3, 9, 11}), small({1}, 2), max_pool2d(tanh(x) + x, 3, {.stride = 2, .padding = 1}) * w);
  CHECK_GRADIENTS(1e-5, small({2, 3, 9, 11}), small({1}, 2), avg_pool2d(x, 3, {.stride = 2, .padding = 1, .ceil_mode = true}) * w);
  CHECK_GRADIENTS(1e-5, small({2, 3, 9, 11}), small({1}, 2), adaptive_avg_pool2d(x, {4, 3}) * w);
}

TEST_CASE("gradients of linear algebra") {
  auto const run = []<class D>(D) {
    Variable<double, D> const a(numbers<double>({2, 4, 4}).to(D{}));
    Variable<double, D> const m(a * 0.1 + eye<double>(4, D{}) * 4);
    Variable<double, D>(sum(inv(m)) + sum(det(m)) + sum(solve(m, ones<double>({4, 2}, D{}))) + sum(cholesky(matmul(m, m.transpose(-2, -1))))).backward();
    return a.grad();
  };
#if defined(SITU_WITH_LAPACK)
  CHECK(differs(run(Gpu{}), run(Cpu{}), 1e-8).empty());
#else
  CHECK(run(Gpu{}).shape() == Shape{2, 4, 4});
#endif
  // By hand: det A A^-T; -A^-T 1 1^T A^-T; -A^-T 1 x^T. The last one is PyTorch's.
  auto const slope = [](Tensor<double> const& at, auto const& f) {
    Variable<double, Gpu> const v(at.to(Gpu{}));
    f(v).backward();
    return v.grad();
  };
  Tensor<double> const a{{4, 1}, {2, 3}}, s{{4, 2}, {2, 5}};
  CHECK(differs(slope(a, [](auto const& v) { return det(v); }), Tensor<double>{{3, -2}, {-1, 4}}, 1e-12).empty());
  CHECK(differs(slope(a, [](auto const& v) { return sum(inv(v)); }), Tensor<double>{{-0.02, -0.02}, {-0.06, -0.06}}, 1e-12).empty());
  CHECK(differs(slope(a, [](auto const& v) { return sum(solve(v, ones<double>({2, 1}, Gpu{}))); }), Tensor<double>{{-0.02, -0.02}, {-0.06, -0.06}}, 1e-12).empty());
  CHECK(differs(slope(s, [](auto const& v) { return sum(cholesky(v)); }), Tensor<double>{{0.1875, 0.125}, {0.125, 0.25}}, 1e-12).empty());
}
