/// Layers on a GPU against the host: values, gradients, initial values, transfers of whole modules.
#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/nn/activations.hpp>
#include <situ/nn/conv2d.hpp>
#include <situ/nn/dropout.hpp>
#include <situ/nn/embedding.hpp>
#include <situ/nn/flatten.hpp>
#include <situ/nn/init.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/pool2d.hpp>
#include <situ/nn/residual.hpp>
#include <situ/nn/sequential.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

template <class D>
struct Net {
  nn::Conv2d<float, D> conv{2, 4, 3, {.stride = 2, .padding = 1}};
  nn::Residual<nn::Sequential<nn::ReLU, nn::Dropout>> block{nn::Sequential{nn::ReLU{}, nn::Dropout{0}}};
  nn::Sequential<nn::MaxPool2d, nn::Flatten, nn::LazyLinear<float, D>> head{nn::MaxPool2d{2}, nn::Flatten{}, nn::LazyLinear<float, D>{6}};
  auto forward(auto const& x) const { return head(block(conv(x))); }
  SITU_MODULE(conv, block, head)
};

}  // namespace

TEST_CASE("a network on a GPU computes what it does on the host, and its gradients too") {
  manual_seed(1);
  Net<Cpu> const host;
  Tensor<float> const x = numbers<float>({3, 2, 9, 8}) / 10;
  Variable<float> const y = host(x);
  Net<Gpu> const gpu = to(host, Gpu{});
  Variable<float, Gpu> const z = gpu(x.to(Gpu{}));
  CHECK(differs(z.value(), y.value(), 1e-5) == "");
  Tensor<float> const g = numbers<float>(y.shape(), 2);
  y.backward(g);
  z.backward(g.to(Gpu{}));
  auto const expected = named_parameters(host);
  auto const found = named_parameters(gpu);
  REQUIRE(expected.size() == found.size());
  for (std::size_t k = 0; k < expected.size(); ++k) {
    CAPTURE(expected[k].name);
    CHECK(differs(found[k].value.grad(), expected[k].value.grad(), 1e-4) == "");
  }
  CHECK(differs(to(gpu, Cpu{})(x).value(), y.value()) == "");
}

TEST_CASE("an embedding on a GPU") {
  nn::Embedding<float> const host{7, 5, {.padding_idx = 2}};
  auto const gpu = to(host, Gpu{});
  Tensor<int64_t> const index{{1, 2, 6}, {1, 0, 2}};
  auto const y = host(index);
  auto const z = gpu(index.to(Gpu{}));
  CHECK(differs(z.value(), y.value()) == "");
  Tensor<float> const g = numbers<float>(y.shape(), 2);
  y.backward(g);
  z.backward(g.to(Gpu{}));
  CHECK(differs(gpu.weight.grad(), host.weight.grad(), 1e-6) == "");
}

TEST_CASE("initial values are the same numbers on a GPU") {
  manual_seed(4);
  nn::Linear<float> const host{30, 20};
  manual_seed(4);
  nn::Linear<float, Gpu> const gpu{30, 20};
  CHECK(differs(gpu.weight.value(), host.weight.value()) == "");
  CHECK(differs(gpu.bias->value(), host.bias->value()) == "");
  Generator first{5}, second{5};
  nn::init::kaiming_normal(host.weight, {}, first);
  nn::init::kaiming_normal(gpu.weight, {}, second);
  CHECK(differs(gpu.weight.value(), host.weight.value()) == "");
}
