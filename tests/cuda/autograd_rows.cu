#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/autograd/random.hpp>
#include <situ/autograd/rows.hpp>
#include <situ/autograd/scan.hpp>
#include <situ/autograd/sort.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

/// The gradient of f(x) for the gradient g of its value, on the device of x.
template <class F, class D>
Tensor<float, D> gradient(F const& f, Tensor<float, D> const& x, Tensor<float, D> const& g) {
  Variable<float, D> v(x);
  Variable<float, D>(f(v)).backward(g);
  return v.grad();
}

}  // namespace

TEST_CASE("gradients of rows, scans and sorts are the same on a GPU as on the host") {
  Tensor<float> const a = numbers<float>({33, 70}), g = numbers<float>({33, 70}, 2);
  Tensor<float, Gpu> const x{a}, h{g};
  double const tolerance = 2e-5;
  auto const same = [&](auto const& f) { return differs(gradient(f, x, h), gradient(f, a, g), tolerance); };
  CHECK(same([](auto const& v) { return softmax(v, 1); }) == "");
  CHECK(same([](auto const& v) { return log_softmax(v * v, 0); }) == "");
  CHECK(same([](auto const& v) { return layer_norm(v, {70}); }) == "");
  CHECK(same([](auto const& v) { return rms_norm(v, normalized_axes{{0}}); }) == "");
  CHECK(same([](auto const& v) { return cumsum(v, 1); }) == "");
  CHECK(same([](auto const& v) { return cumprod(v, 0); }) == "");
  CHECK(same([](auto const& v) { return sort(v, 1).values; }) == "");
}

TEST_CASE("layer_norm's weight and bias get the host's gradients on a GPU") {
  Tensor<float> const a = numbers<float>({40, 30}), g = numbers<float>({40, 30}, 2), w = numbers<float>({30}, 3);
  auto const run = [&](auto device) {
    using D = decltype(device);
    Variable<float, D> x(a.to(device)), weight(w.to(device)), bias(zeros<float>({30}, device));
    layer_norm(x, {30}, weight, bias).backward(g.to(device));
    return std::array<Tensor<float>, 2>{weight.grad().cpu(), bias.grad().cpu()};
  };
  auto const there = run(Gpu{}), here = run(Cpu{});
  CHECK(differs(there[0], here[0], 2e-5) == "");
  CHECK(differs(there[1], here[1], 2e-5) == "");
}

TEST_CASE("dropout's gradient is dropped in the same places on a GPU") {
  Generator there(5), here(5);
  Tensor<float> const a = numbers<float>({64, 30});
  Tensor<float, Gpu> const x{a};
  auto const on_gpu = gradient([&](auto const& v) { return dropout(v, 0.3, there); }, x, x);
  auto const on_host = gradient([&](auto const& v) { return dropout(v, 0.3, here); }, a, a);
  CHECK(differs(on_gpu, on_host, 0) == "");
}
