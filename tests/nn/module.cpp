/// Modules: what SITU_MODULE gives a struct, and what happens to a module that is moved, cast or cloned.
#include <doctest/doctest.h>

#include <situ/autograd/backward.hpp>
#include <situ/autograd/values.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/move.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::thrown;

namespace {

/// A layer of its own: w x.
template <class T = float, class Device = Cpu>
struct Scale {
  Variable<T, Device> weight = Variable<T, Device>(Tensor<T>{1, 2, 3}.to(Device{}));
  auto forward(auto const& x) const { return x * weight; }
  SITU_MODULE(weight)
};

/// What counts its calls, and behaves in training in its own way.
template <class Device = Cpu>
struct Counting {
  Tensor<float, Device> mean = Tensor<float>{0.5f}.to(Device{});
  nn::Counter calls;
  bool training = true;
  auto forward(auto const& x) const {
    calls.set(calls.value() + 1);
    return x + (training ? 1 : 0);
  }
  SITU_MODULE(mean, calls, training)
};

template <class Device>
struct Net {
  Scale<float, Device> first, second;
  Counting<Device> counting;
  std::vector<Scale<float, Device>> several = std::vector<Scale<float, Device>>(2);
  std::array<Scale<float, Device>, 2> pair;
  std::optional<Scale<float, Device>> none, some = Scale<float, Device>();
  std::optional<Variable<float, Device>> bias = Variable<float, Device>(Tensor<float>{10, 20, 30}.to(Device{}));
  int heads = 4;
  auto forward(auto const& x) const { return second(counting(first(x))); }
  SITU_MODULE(first, second, counting, several, pair, none, some, bias, heads)
};

template <class M>
std::vector<std::string> names_of(M const& net) {
  std::vector<std::string> result;
  for_each_state(net, [&](std::string const& name, auto const&) { result.push_back(name); });
  return result;
}
using Names = std::vector<std::string>;

template <class M, class X>
concept takes = requires(M const& net, X const& x) { net(x); };
static_assert(takes<Net<Cpu>, Tensor<float>> && takes<Net<Cpu>, Variable<float>> && takes<Net<Emulated<0>>, Tensor<float, Emulated<0>>>);
static_assert(!takes<Net<Cpu>, Tensor<float, Emulated<0>>> && !takes<Net<Emulated<0>>, Variable<float>> && !takes<Net<Emulated<0>>, Tensor<float, Emulated<1>>>);
static_assert(any_module<Net<Cpu>> && any_module<Scale<> const&> && !any_module<Variable<float>> && !any_module<int>);

}  // namespace

TEST_CASE("parameters and buffers have the names of the members, in their order") {
  Net<Cpu> net;
  CHECK(names_of(net) == Names{"first.weight", "second.weight", "counting.mean", "counting.calls", "several.0.weight", "several.1.weight", "pair.0.weight", "pair.1.weight",
                               "some.weight", "bias"});
  auto const parameters_with_names = named_parameters(net);
  CHECK(parameters_with_names.size() == 8);
  CHECK(parameters_with_names[7].name == "bias");
  CHECK(parameters_with_names[7].value.state() == net.bias->state());
  CHECK(parameters(net)[1].state() == net.second.weight.state());
  CHECK(num_parameters(net) == 24);
  auto const its_buffers = named_buffers(net);
  CHECK(its_buffers.size() == 1);
  CHECK(its_buffers[0].name == "counting.mean");
  CHECK(buffers(net)[0].storage_head() == net.counting.mean.storage_head());
  CHECK(named_buffers<int64_t>(net).empty());
  net.some.reset();
  CHECK(num_parameters(net) == 21);
  net.several.clear();
  CHECK(num_parameters(net) == 15);
  // What is changed through them is changed in the module.
  parameters(net)[0].value().assign(5);
  CHECK(net.first.weight.item(0) == 5);
}

TEST_CASE("a module computes, for tensors, Variables and formulas") {
  Net<Cpu> net;
  Tensor<float> const x{1, 1, 1};
  Variable<float> const y = net(x);
  CHECK(y.to_vector() == std::vector<float>{2, 6, 12});
  net.eval();
  Variable<float> const z = std::as_const(net)(Variable<float>(x) * 2);
  CHECK(z.to_vector() == std::vector<float>{2, 8, 18});
  CHECK(net.counting.calls.value() == 2);
  sum(z).backward();
  CHECK(net.second.weight.grad().to_vector() == std::vector<float>{2, 4, 6});
  CHECK(net.first.weight.has_grad());
  zero_grad(net);
  CHECK(!net.first.weight.has_grad());
  CHECK(net.second.weight.grad().shape() == Shape{0});
}

namespace {
/// Its forward evaluates by the name that the module has for its mode.
struct Evaluating {
  Variable<float> weight{{1, 2, 3}};
  bool training = true;
  auto forward(auto const& x) const {
    auto const y = eval(x * weight);
    return y + eval(y * 2);
  }
  SITU_MODULE(weight, training)
};
}  // namespace

TEST_CASE("eval of a formula is not hidden by that of the module") {
  Evaluating net;
  CHECK(net(Tensor<float>{1, 1, 2}).value().to_vector() == std::vector<float>{3, 6, 18});
  CHECK(net(Variable<float>{{1, 1, 2}} + 0.f).value().to_vector() == std::vector<float>{3, 6, 18});
  net.eval();
  CHECK_FALSE(net.training);
}

TEST_CASE("copies share parameters and buffers, and not the mode; a clone shares nothing") {
  Net<Cpu> net;
  Net<Cpu> const copy = net;
  net.first.weight.value().assign(7);
  net(Tensor<float>{1, 1, 1});
  net.eval();
  CHECK(copy.first.weight.item(2) == 7);
  CHECK(copy.counting.calls.value() == 1);
  CHECK(copy.counting.training);
  Net<Cpu> const other = clone(net);
  CHECK(!other.counting.training);
  CHECK(other.heads == 4);
  CHECK(other.first.weight.state() != net.first.weight.state());
  net.first.weight.value().assign(8);
  net.counting.mean.assign(1);
  net(Tensor<float>{1, 1, 1});
  CHECK(other.first.weight.item(0) == 7);
  CHECK(other.counting.mean.item() == 0.5f);
  CHECK(other.counting.calls.value() == 1);
  CHECK(names_of(other) == names_of(net));
}

TEST_CASE("train and eval reach everything below") {
  Net<Cpu> net;
  net.eval();
  CHECK(!net.counting.training);
  net.train();
  CHECK(net.counting.training);
  net.train(false);
  CHECK(!net.counting.training);
}

namespace {

template <class D>
struct Both {
  std::vector<std::optional<Counting<D>>> several{Counting<D>(), std::nullopt, Counting<D>()};
  std::array<Counting<D>, 2> pair;
  SITU_MODULE(several, pair)
};

/// One weight in two places.
template <class D>
struct Tied {
  Scale<float, D> in, out = in;
  SITU_MODULE(in, out)
};

struct Swapped {
  Variable<float> a, b;
  SITU_MODULE(b, a)
};

/// Parameters of two types.
template <class D>
struct Mixed {
  Scale<float, D> single;
  Scale<double, D> precise;
  SITU_MODULE(single, precise)
};

/// No aggregate: made of its members by a constructor.
template <class T, class D>
class Constructed {
 public:
  explicit Constructed(T start) : weight_(full<T>({2}, start).to(D{})), start_(start) {}
  Constructed(nn::from_members_t, Variable<T, D> weight, T start) : weight_(std::move(weight)), start_(start) {}
  auto forward(auto const& x) const { return x * weight_; }
  T start() const { return start_; }

 private:
  Variable<T, D> weight_;
  T start_;

 public:
  SITU_MODULE(weight_, start_)
};

/// A module whose arguments are not all types: it says what it becomes.
template <int N, class D>
struct Sized {
  template <class To>
  using on_device = Sized<N, To>;
  Variable<float, D> weight = Variable<float, D>(zeros({N}).to(D{}));
  SITU_MODULE(weight)
};

template <class D>
struct Transparent {
  static constexpr bool situ_member_is_nameless = true;
  Scale<float, D> inner;
  SITU_MODULE(inner)
};
template <class D>
struct Outer {
  Transparent<D> wrapped;
  Sized<3, D> sized;
  Constructed<float, D> made{2.f};
  SITU_MODULE(wrapped, sized, made)
};

struct Nothing {
  auto forward(auto const& x) const { return x; }
  SITU_MODULE()
};

}  // namespace

TEST_CASE("modes reach the elements of vectors, arrays and optionals") {
  Both<Cpu> net;
  net.eval();
  CHECK((!net.several[0]->training && !net.several[2]->training && !net.pair[1].training));
  CHECK(names_of(net) == Names{"several.0.mean", "several.0.calls", "several.2.mean", "several.2.calls", "pair.0.mean", "pair.0.calls", "pair.1.mean", "pair.1.calls"});
  auto const far = to(net, Emulated<0>{});
  CHECK(!far.several[1]);
  CHECK(!far.pair[0].training);
}

TEST_CASE("a parameter in two places is one, also after a move, a cast and a clone") {
  Tied<Cpu> const net;
  CHECK(named_parameters(net).size() == 1);
  CHECK(named_parameters(net)[0].name == "in.weight");
  CHECK(num_parameters(net) == 3);
  CHECK(names_of(net) == Names{"in.weight", "out.weight"});
  auto const far = to(net, Emulated<1>{});
  CHECK(far.in.weight.state() == far.out.weight.state());
  auto const precise = to<double>(Scale<float>());
  CHECK(precise.weight.dtype() == dtype::float64);
  auto const copy = clone(net);
  CHECK(copy.in.weight.state() == copy.out.weight.state());
  CHECK(copy.in.weight.state() != net.in.weight.state());
  sum(net.in(Tensor<float>{1, 1, 1}) + net.out(Tensor<float>{1, 1, 1})).backward();
  CHECK(parameters(net)[0].grad().to_vector() == std::vector<float>{2, 2, 2});
}

TEST_CASE("members listed in another order than they stand in are refused") {
  CHECK(thrown<TypeError>([] { parameters(Swapped()); }, "SITU_MODULE(b, a): the members stand in another order in the struct; list them in that order") == "");
}

TEST_CASE("parameters of several types are asked for by type") {
  Mixed<Cpu> const net;
  CHECK(named_parameters<float>(net).size() == 1);
  CHECK(named_parameters<double>(net)[0].name == "precise.weight");
  CHECK(parameters<double>(net)[0].dtype() == dtype::float64);
  CHECK(parameters<float16>(net).empty());
  CHECK(num_parameters(net) == 6);
}

TEST_CASE_TEMPLATE("a module moves to a device and back", D, Emulated<0>, Emulated<1>) {
  Net<Cpu> net;
  net.eval();
  net.heads = 7;
  net.second.weight.requires_grad(false);
  net(Tensor<float>{1, 1, 1});
  Net<D> far = to(net, D{});
  CHECK(names_of(far) == names_of(net));
  CHECK(far.heads == 7);
  CHECK(!far.none);
  CHECK(!far.counting.training);
  CHECK(far.counting.calls.value() == 1);
  CHECK(!far.second.weight.requires_grad());
  CHECK(far.first.weight.requires_grad());
  Variable<float, D> const y = far(Tensor<float, D>{1, 1, 1});
  CHECK(y.to_vector() == std::vector<float>{1, 4, 9});
  CHECK(net.counting.calls.value() == 1);  // a copy of its own
  sum(y).backward();
  CHECK(far.first.weight.grad().to_vector() == std::vector<float>{1, 2, 3});
  CHECK(!far.second.weight.has_grad());
  CHECK(!net.first.weight.has_grad());
  far.first.weight.value().assign(9);
  CHECK(net.first.weight.item(0) == 1);
  Net<Cpu> const back = to(far, Cpu{});
  CHECK(back.first.weight.to_vector() == std::vector<float>{9, 9, 9});
  CHECK(back.bias->to_vector() == std::vector<float>{10, 20, 30});
  // Already there: the same parameters.
  CHECK(to(far, D{}).first.weight.state() == far.first.weight.state());
}

namespace {
template <class Device, int Width = 8>
struct Wide {
  nn::Linear<float, Device> in{4, Width}, out{Width, 2};
  auto forward(auto const& x) const { return out(relu(in(x))); }
  SITU_MODULE(in, out)
};
template <class T, class Device, int Width, bool Bias>
struct Typed {
  std::array<nn::Linear<T, Device>, 2> layers{{{Width, Width}, {Width, Width}}};
  SITU_MODULE(layers)
};
}  // namespace

TEST_CASE("modules whose arguments are types and then numbers move too") {
  Wide<Cpu> const net;
  auto const far = to(net, Emulated<0>{});
  static_assert(std::is_same_v<decltype(far), Wide<Emulated<0>> const>);
  Tensor<float> const x = ones({3, 4});
  CHECK(far(x.to(Emulated<0>{})).to_vector() == net(x).to_vector());
  auto const precise = to<double>(Typed<float, Cpu, 3, true>(), Emulated<1>{});
  static_assert(std::is_same_v<decltype(precise), Typed<double, Emulated<1>, 3, true> const>);
  CHECK(num_parameters(precise) == 24);
}

TEST_CASE("modules that are no simple aggregates move too") {
  Outer<Cpu> const net;
  CHECK(names_of(net) == Names{"wrapped.weight", "sized.weight", "made.weight_"});
  auto const far = to(net, Emulated<0>{});
  static_assert(std::is_same_v<decltype(far), Outer<Emulated<0>> const>);
  static_assert(std::is_same_v<decltype(far.sized), Sized<3, Emulated<0>>>);
  CHECK(far.made.start() == 2);
  CHECK(names_of(far) == names_of(net));
  auto const precise = to<double>(net.made);
  CHECK(precise.start() == 2.f);
  CHECK(precise(Tensor<double>{1, 2}).dtype() == dtype::float64);
  auto const both = to<float16>(Scale<float>(), Emulated<1>{});
  static_assert(std::is_same_v<decltype(both), Scale<float16, Emulated<1>> const>);
  CHECK(static_cast<float>(both.weight.item(2)) == 3);
  // Without state a module is on every device.
  Nothing const nothing;
  static_assert(std::is_same_v<decltype(to(nothing, Emulated<0>{})), Nothing>);
  CHECK(num_parameters(nothing) == 0);
  CHECK(parameters(nothing).empty());
  CHECK(nothing(Tensor<float, Emulated<0>>{1, 2}).size() == 2);
}
