#include <doctest/doctest.h>

#include <limits>

#include <cuda/compare.hpp>
#include <situ/optim.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

template <class T, class D>
void set_grad(Variable<T, D> const& v, Tensor<T> const& gradient) {
  v.state()->grad = gradient.to(D{});
  v.state()->has_grad = true;
}

/// More tensors than one launch takes, of sizes that vectors do not divide, and one that does not start at 16 bytes.
template <class T, class D>
std::vector<Variable<T, D>> many() {
  std::vector<Variable<T, D>> result;
  for (unsigned k = 0; k < 70; ++k) result.emplace_back(numbers<T>({static_cast<std::int64_t>(k % 7 * 1500 + 1)}, k + 1).to(D{}));
  result.emplace_back(Tensor<T, D>(numbers<T>({5000}, 99).to(D{}).slice(0, 1, 4444)));
  result.emplace_back(Tensor<T, D>(numbers<T>({40, 50}, 98).to(D{}).t()));
  return result;
}
template <class Vs>
void set_grads(Vs const& parameters, unsigned seed) {
  for (auto const& p : parameters) set_grad(p, numbers<value_of<decltype(p.value())>>(p.shape(), ++seed));
}

/// Where three steps on the GPU lead elsewhere than on the host: empty when they do not.
template <class O, class OnGpu>
std::string steps_differ(typename O::Options const& options, double tolerance) {
  using T = typename O::value_type;
  auto const on_host = many<T, Cpu>();
  auto const on_gpu = many<T, Gpu>();
  O host(on_host, options);
  OnGpu device(on_gpu, options);
  for (unsigned t = 0; t < 3; ++t) {
    set_grads(on_host, 100 * t), set_grads(on_gpu, 100 * t);
    host.step(), device.step();
  }
  for (std::size_t k = 0; k < on_host.size(); ++k) {
    std::string const difference = differs(on_gpu[k].value(), on_host[k].value(), tolerance);
    if (!difference.empty()) return "parameter " + std::to_string(k) + ": " + difference;
  }
  return "";
}

}  // namespace

TEST_CASE_TEMPLATE("optimisers take the same steps on a GPU as on the host", T, float, bfloat16) {
  double const tolerance = sizeof(T) == 2 ? 1e-2 : 1e-5;
  // No gradient and share of a weight, which are multiples of 0.01, cancel: which way a step goes must not hang on what rounding leaves of them.
  CHECK(steps_differ<optim::Adam<T>, optim::Adam<T, Gpu>>({.lr = 0.1, .weight_decay = 0.1003, .amsgrad = true, .master_weights = true}, tolerance) == "");
  CHECK(steps_differ<optim::Adam<T>, optim::Adam<T, Gpu>>({.lr = 0.1}, tolerance) == "");
  CHECK(steps_differ<optim::SGD<T>, optim::SGD<T, Gpu>>({.lr = 0.1, .momentum = 0.9, .nesterov = true}, tolerance) == "");
  CHECK(steps_differ<optim::SGD<T>, optim::SGD<T, Gpu>>({.lr = 0.1}, tolerance) == "");
}
TEST_CASE("so do the others, in double") {
  CHECK(steps_differ<optim::RMSprop<double>, optim::RMSprop<double, Gpu>>({.lr = 0.1, .eps = 1e-3, .momentum = 0.5, .centered = true}, 1e-10) == "");
  CHECK(steps_differ<optim::Adagrad<double>, optim::Adagrad<double, Gpu>>({.lr_decay = 0.1}, 1e-10) == "");
}

TEST_CASE("gradients are clipped and unscaled on a GPU as on the host") {
  auto const on_host = many<float, Cpu>();
  auto const on_gpu = many<float, Gpu>();
  for (double p : {2., 1., 3.5, std::numeric_limits<double>::infinity()}) {
    CAPTURE(p);
    set_grads(on_host, 7), set_grads(on_gpu, 7);
    auto const host = optim::clip_grad_norm(on_host, 2, p);
    auto const first = optim::clip_grad_norm(on_gpu, 1e9, p), device = optim::clip_grad_norm(on_gpu, 2, p);
    CHECK(differs(device, host, 1e-6) == "");
    CHECK(differs(first, device, 0) == "");  // nothing was clipped, and sums are the same from run to run
    CHECK(differs(on_gpu[13].grad(), on_host[13].grad(), 1e-6) == "");
    optim::clip_grad_value(on_host, 1e-3), optim::clip_grad_value(on_gpu, 1e-3);
    CHECK(differs(on_gpu[13].grad(), on_host[13].grad(), 1e-9) == "");
  }
  optim::SGD optimizer{on_gpu};
  optim::GradScaler scaler;
  set_grads(on_gpu, 7);
  CHECK(scaler.step(optimizer));
  scaler.update();
  Tensor<float> bad = full<float>(on_gpu[65].shape(), 1.f);
  bad.data()[bad.size() - 1] = std::numeric_limits<float>::quiet_NaN();
  set_grad(on_gpu[65], bad);
  scaler.unscale(optimizer);
  CHECK_FALSE(scaler.step(optimizer));
}
