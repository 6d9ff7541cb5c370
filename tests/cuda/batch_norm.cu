#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/autograd/batch_norm.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

/// The result, the gradients of x, weight and bias, and the running statistics after it.
template <class T, class D>
std::array<Tensor<double>, 6> everything(Shape const& shape, bool training, D device) {
  int64_t const channels = shape[1];
  Variable<T, D> x(numbers<T>(shape).to(device)), weight(numbers<T>({channels}, 2).to(device)), bias(numbers<T>({channels}, 3).to(device));
  Tensor<T, D> const mean = numbers<T>({channels}, 4).to(device), variance = ones<T>({channels}, device);
  Variable<T, D> const y = batch_norm(x, mean, variance, weight, bias, {.training = training});
  y.backward(numbers<T>(shape, 5).to(device));
  auto const wide = [](auto const& t) { return t.cpu().template to<double>(); };
  return {wide(y.value()), wide(x.grad()), wide(weight.grad()), wide(bias.grad()), wide(mean), wide(variance)};
}

template <class T>
void compare(double tolerance) {
  for (Shape const& shape : {Shape{16, 8, 12, 12}, Shape{5, 3, 7, 7}, Shape{300, 70}, Shape{64, 33, 2}, Shape{4, 1, 300, 301}, Shape{2, 600, 16}}) {
    for (bool training : {true, false}) {
      CAPTURE(to_string(shape));
      CAPTURE(training);
      auto const there = everything<T>(shape, training, Gpu{}), here = everything<T>(shape, training, Cpu{});
      for (std::size_t k = 0; k < there.size(); ++k) {
        CAPTURE(k);
        CHECK(differs(there[k], here[k], tolerance) == "");
      }
    }
  }
}

}  // namespace

TEST_CASE("batch_norm and its gradients are the same on a GPU as on the host") {
  compare<float>(1e-4);  // beside the same in double, host and GPU alike are up to 1.4e-4 off: products of up to 200 that nearly cancel
  compare<bfloat16>(0.02);
}

TEST_CASE("batch_norm does not lose the variance of numbers far from 0 on a GPU") {
  Tensor<float> const x = numbers<float>({64, 4, 100}) + 1e4f;
  Tensor<float, Gpu> const none;
  auto const there = batch_norm(x.to(Gpu{}), none, none, {.training = true});
  CHECK(differs(there, batch_norm(x, Tensor<float>(), Tensor<float>(), {.training = true}), 1e-3) == "");
}
