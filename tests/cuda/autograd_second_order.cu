#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/autograd/backward.hpp>
#include <situ/autograd/batch_norm.hpp>
#include <situ/autograd/conv2d.hpp>
#include <situ/autograd/pool2d.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/nn/losses.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

/// The Hessian of f at x, times v.
template <class F, class T, class D>
Tensor<T, D> product(F const& f, Tensor<T, D> const& at, Tensor<T, D> const& v) {
  Variable<T, D> x(at);
  Variable<T, D> const g = grad(f(x), x, create_graph);
  return grad(sum(g * v), x);
}

}  // namespace

TEST_CASE("Hessian-vector products are the same on a GPU as on the host") {
  Tensor<float> const a = numbers<float>({33, 20}), v = numbers<float>({33, 20}, 2);
  Tensor<float, Gpu> const x{a}, w{v};
  auto const same = [&](auto const& f) { return differs(product(f, x, w), product(f, a, v), 5e-5); };
  CHECK(same([](auto const& e) { return sum(tanh(e * 2) / (1 + e * e)); }) == "");
  CHECK(same([](auto const& e) { return mean(where(e > 0, e * e * e, exp(e))); }) == "");
  CHECK(same([](auto const& e) { return sum(logsumexp(e, 1)); }) == "");
  CHECK(same([](auto const& e) { return norm(e); }) == "");
}

TEST_CASE("Hessian-vector products of convolutional networks are the same on a GPU as on the host") {
  Tensor<double> const a = numbers<double>({2, 2, 6, 5}), v = numbers<double>({2, 2, 6, 5}, 2), w = numbers<double>({3, 2, 2, 2}, 3);
  Tensor<int64_t> const labels{2, 0};
  auto const loss = [&](auto const& e) {
    using D = device_of<decltype(e)>;
    auto const h = conv2d(e, w.to(D{}), {.padding = 1});
    auto const n = tanh(batch_norm(h, Tensor<double, D>(), Tensor<double, D>(), {.training = true}) + h);
    auto const scores = sum(max_pool2d(n, {3, 2}, {.stride = 2}), {2, 3}) + sum(avg_pool2d(n, 2), {2, 3});
    auto const wanted = zeros<double>({2, 3}, D{});
    return cross_entropy(scores, labels.to(D{}), {.label_smoothing = 0.1}) + binary_cross_entropy_with_logits(scores, wanted) + sum(lgamma(square(scores) + 1)) * 0.1;
  };
  CHECK(differs(product(loss, Tensor<double, Gpu>(a), Tensor<double, Gpu>(v)), product(loss, a, v), 1e-9) == "");
}

TEST_CASE("reductions have the host's gradients on a GPU") {
  Tensor<float> const a = numbers<float>({33, 20}), v = numbers<float>({33}, 2);
  Tensor<float, Gpu> const x{a}, w{v};
  auto const gradient = [](auto const& f, auto const& at, auto const& g) {
    Variable e(at);
    sum(f(e) * g).backward();
    return e.grad();
  };
  auto const same = [&](auto const& f) { return differs(gradient(f, x, w), gradient(f, a, v), 5e-5); };
  CHECK(same([](auto const& e) { return max(e, 1); }) == "");
  CHECK(same([](auto const& e) { return prod(e, 1); }) == "");
  CHECK(same([](auto const& e) { return stddev(e, 1); }) == "");
  CHECK(same([](auto const& e) { return norm(e * 2, 1, {.p = 3}); }) == "");
}
