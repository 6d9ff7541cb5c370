// A user's program, whose compiler warns of much and writes Intel's assembly: the single header, as one of the user's own, compiles silently.

// Words that headers of others define before it does: C's <complex.h>, X11, Qt.
#define I (__extension__ 1.0iF)
#define None 0L
#define Bool int
#define Status int
#define Success 0
#define Always 2
#define True 1
#define False 0
#define slots
#define signals public
#define emit
#define foreach for

// All names of std stand beside situ's, also within its headers.
#include <cmath>
#include <functional>
#include <iostream>
#include <string>
using namespace std;

#include <situ/situ.hpp>

using namespace situ;

// Names that users give their own: none of situ's stands for something else.
template <class D>
float train(D device) {
  return visit<Cpu, Cuda<0>>(AnyDevice(device), [](auto chosen) { return sum(ones({3}, chosen)).item(); });
}
constexpr float tolerance = 1e-5f;
static float mask(float x) { return x; }
static bool training = true;
static float accuracy(Tensor<float> const& x) { return mean(x).item() * mask(tolerance) + (training ? train(x.device()) : 0); }

namespace {

struct Cube {
  static auto forward(auto& ctx, auto const& x) {
    ctx.save(x);
    return eval(x * x * x);
  }
  static auto backward(auto& ctx, auto const& g) {
    auto const [x] = ctx.template saved<Tensor<float>>();
    return eval(g * 3 * x * x);
  }
};

template <class Device>
struct Net {
  nn::Linear<float, Device> fc1{4, 8}, fc2{8, 3};
  auto forward(const auto& x) const { return fc2(relu(fc1(x))); }
  SITU_MODULE(fc1, fc2)
};

}  // namespace

int main() {
  Tensor<float> a = randn({5, 4}), b = uniform(-1, 1, {4, 4});
  Tensor<int64_t> const labels = randint(3, {5});
  std::cout << tanh(a * 2 + 1) << matmul(a, b) << matmul(cast<double>(a), b) << softmax(a, 1) << sum(a, 0) << var(a, 1, keepdim) << cumsum(a, 0);
  std::cout << nonzero(a > 0) << masked_select(cast<int64_t>(a), a > 0) << sort(a, 1).values << one_hot(labels) << concat({a, b}) << allclose(a, 1);
  std::cout << scatter_add(a, 0, labels.reshape({5, 1}) % 4, a) << index_select(a, 0, labels) << conv2d(randn({1, 2, 6, 6}), randn({3, 2, 3, 3}), {.padding = 1});

  Variable<float> v{a}, w{b};
  Variable loss = mean(square(matmul(v, w) - a)) + sum(concat({v, w}, 0)) + sum(gather(v, 1, labels.reshape({5, 1}))) + sum(autograd::apply<Cube>(w));
  loss.backward();
  std::cout << loss << v.grad() << accuracy(a);

  Net<Cpu> net;
  learning::Trainer<Cpu> const trainer{{.epochs = 1}};
  trainer.fit(
      net, data::TensorDataset{a, labels}, data::TensorDataset{a, labels}, [](auto const& scores, auto const& classes) { return cross_entropy(scores, classes); },
      [](auto& model) { return optim::Adam{model, {.lr = 1e-3}}; }, learning::accuracy);
}
