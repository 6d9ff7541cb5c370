#include <doctest/doctest.h>

#include <sstream>

#include <situ/device/emulated/device.hpp>
#include <situ/nn/batch_norm.hpp>
#include <situ/nn/summary.hpp>

using namespace situ;

namespace {

template <class D>
struct Dense {
  Variable<float, D> weight{zeros({3, 4}, D{})};
  std::optional<Variable<float, D>> bias;
  auto forward(auto const& x) const { return x; }
  SITU_MODULE(weight, bias)
};
struct Plain {
  int threshold = 0;
  auto forward(auto const& x) const { return x; }
  SITU_MODULE(threshold)
};
template <class D>
struct Net {
  Variable<double, D> scale{full<double>({}, 1.0, D{})};
  std::vector<Dense<D>> layers{Dense<D>{}, Dense<D>{}};
  Plain act;
  nn::BatchNorm1d<float, D> norm{1000};
  std::array<Variable<float, D>, 2> embeddings{Variable<float, D>(zeros({5}, D{})), Variable<float, D>(zeros({2, 5}, D{}))};
  auto forward(auto const& x) const { return x; }
  SITU_MODULE(scale, layers, act, norm, embeddings)
};

/// Its layers stand at its own path.
struct Bag {
  static constexpr bool situ_member_is_nameless = true;
  std::vector<Plain> parts{Plain{}, Plain{}};
  auto forward(auto const& x) const { return x; }
  SITU_MODULE(parts)
};

/// Before its first input it has no weights.
struct Later {
  Variable<float> weight{Tensor<float>()};
  void situ_check_state(std::string const& path) const { detail::fail<TypeError>(path, " has no weights"); }
  auto forward(auto const& x) const { return x; }
  SITU_MODULE(weight)
};
struct Waiting {
  Later head;
  auto forward(auto const& x) const { return x; }
  SITU_MODULE(head)
};

template <class X>
struct Outer {
  template <class Y>
  struct Inner {
    std::vector<Variable<Y>> weights{Variable<Y>(zeros<Y>({2}))};
    auto forward(auto const& x) const { return x; }
    SITU_MODULE(weights)
  };
};

}  // namespace

TEST_CASE("a summary lists every module with its own parameters, and counts each once") {
  Net<Cpu> net;
  net.layers[0].bias.emplace(zeros({3}));
  net.layers[0].weight.requires_grad(false);
  net.layers[1].weight = net.layers[0].weight;
  CHECK(summary(net) ==
        "Net\n"
        "module    type         parameters                                       number  device\n"
        "          Net          scale [], embeddings.0 [5], embeddings.1 [2, 5]      16  cpu\n"
        "layers.0  Dense        weight [3, 4] frozen, bias [3]                       15  cpu\n"
        "layers.1  Dense        weight = layers.0.weight                              0  cpu\n"
        "act       Plain\n"
        "norm      BatchNorm1d  weight [1000], bias [1000]                        2,000  cpu\n"
        "2,031 parameters: 2,019 trainable, 12 frozen; 2,001 elements in buffers; 16,136 bytes");
  std::ostringstream stream;
  stream << net;
  CHECK(stream.str() == summary(net));
}

TEST_CASE("a summary names the device") {
  CHECK(summary(Dense<Emulated<0>>()) ==
        "Dense\n"
        "module  type   parameters     number  device\n"
        "        Dense  weight [3, 4]      12  emulated:0\n"
        "12 parameters: 12 trainable, 0 frozen; 0 elements in buffers; 48 bytes");
}

TEST_CASE("modules without state, without names and without weights so far are in a summary, too") {
  CHECK(summary(Plain{}) == "Plain\n0 parameters: 0 trainable, 0 frozen; 0 elements in buffers; 0 bytes");
  CHECK(summary(Bag{}) ==
        "Bag\n"
        "module  type   parameters  number  device\n"
        "0       Plain\n"
        "1       Plain\n"
        "0 parameters: 0 trainable, 0 frozen; 0 elements in buffers; 0 bytes");
  CHECK(summary(Waiting{}) ==
        "Waiting\n"
        "module  type   parameters               number  device\n"
        "head    Later  made by the first input\n"
        "0 parameters: 0 trainable, 0 frozen; 0 elements in buffers; 0 bytes");
}

TEST_CASE("the type of a module within a template is its own name") {
  CHECK(summary(Outer<int>::Inner<float>{}) ==
        "Inner\n"
        "module  type   parameters     number  device\n"
        "        Inner  weights.0 [2]       2  cpu\n"
        "2 parameters: 2 trainable, 0 frozen; 0 elements in buffers; 8 bytes");
}
