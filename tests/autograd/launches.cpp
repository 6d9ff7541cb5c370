/// What gradients ask of a device: one kernel for the formula, one for its backward, and the memory of the results.
#include <doctest/doctest.h>

#include <support/probe.hpp>

#include <autograd/inputs.hpp>
#include <situ/autograd/backward.hpp>
#include <situ/autograd/rows.hpp>
#include <situ/nn/cross_entropy.hpp>

using namespace situ;

namespace {

using V = Variable<float, Probe>;

V leaf(Shape const& shape, uint64_t seed) { return V(situ_test::numbers(shape, seed).to<float>().to(Probe{})); }

struct Asked {
  int64_t launches, allocations;
};
/// What f asks for beyond the first time, when nothing is held yet.
template <class F>
Asked asked(F const& f) {
  Probe::reset();
  f();
  CHECK(Probe::transfers() == 0);
  CHECK(Probe::synchronizations == 0);
  return {Probe::launches, Probe::allocations};
}

}  // namespace

TEST_CASE("a formula that is summed has one kernel forward and one backward, however many gradients it has") {
  V x = leaf({30, 20}, 1), w = leaf({30, 20}, 2), b = leaf({30, 20}, 3), y = leaf({30, 20}, 4);
  Variable<float, Probe> loss;
  Asked const forward = asked([&] { loss = sum(tanh(x * w + b) * y); });
  CHECK(forward.launches == 1);
  CHECK(forward.allocations == 1);
  Asked const backward = asked([&] { loss.backward(); });
  CHECK(backward.launches == 2);     // the gradient 1 to begin with
  CHECK(backward.allocations == 5);  // that, and four gradients
  loss = sum(gelu(x));
  CHECK(asked([&] { loss.backward(); }).launches == 3);  // and it is added to the gradient that is there
}

TEST_CASE("rows have one kernel more each way") {
  V x = leaf({30, 100}, 1);
  auto const y = leaf({30, 100}, 2).value();
  Variable<float, Probe> loss;
  Asked const forward = asked([&] { loss = sum(layer_norm(x, {100}) * y); });
  CHECK(forward.launches == 2);
  CHECK(forward.allocations == 3);  // the rows, what they were made with, the sum
  Asked const backward = asked([&] { loss.backward(); });
  CHECK(backward.launches == 3);
  CHECK(backward.allocations == 2);  // the gradient of the rows becomes that of x
}

TEST_CASE("cross entropy is one kernel forward and one backward") {
  V x = leaf({30, 100}, 1);
  auto const labels = arange<int64_t>(30).to(Probe{});
  Variable<float, Probe> loss;
  Asked const forward = asked([&] { loss = cross_entropy(x, labels); });
  CHECK(forward.launches == 1);
  CHECK(forward.allocations == 3);  // the loss, the rows' sums, the gradient
  Asked const backward = asked([&] { loss.backward(); });
  CHECK(backward.launches == 2);
  CHECK(backward.allocations == 1);  // the seed
}

TEST_CASE("the terms of a sum that pass their gradient on share that of the sum: no kernel, no memory") {
  V a = leaf({30, 20}, 1), b = leaf({30, 20}, 2), c = leaf({30, 20}, 3);
  auto const seed = leaf({30, 20}, 4).value();
  V x = exp(a), y = exp(b);
  V z = x + y;
  Asked const two_terms = asked([&] { z.backward(seed); });
  CHECK(two_terms.launches == 2);     // the exps'
  CHECK(two_terms.allocations == 2);  // the gradients of a and b
  x = exp(a), y = exp(b);
  z = x - y * c;  // x shares, the others have one kernel
  a.zero_grad(), b.zero_grad();
  Asked const mixed = asked([&] { z.backward(seed); });
  CHECK(mixed.launches == 3);
  CHECK(mixed.allocations == 4);  // for y, a, b and c
  // A leaf keeps its gradient, which is its own.
  z = a + b;
  a.zero_grad(), b.zero_grad();
  Asked const leaves = asked([&] { z.backward(seed); });
  CHECK(leaves.launches == 1);
  CHECK(leaves.allocations == 2);
}
