#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/autograd/backward.hpp>
#include <situ/autograd/reduce.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

/// The Hessian of f at x, times v.
template <class F, class D>
Tensor<float, D> product(F const& f, Tensor<float, D> const& at, Tensor<float, D> const& v) {
  Variable<float, D> x(at);
  Variable<float, D> const g = grad(f(x), x, create_graph);
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
