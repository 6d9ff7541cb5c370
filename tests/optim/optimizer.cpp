#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <new>
#include <string>

#include <optim/support.hpp>
#include <support/probe.hpp>

#include <situ/autograd.hpp>
#include <situ/optim.hpp>

using namespace situ;
using situ_test::leaf;
using situ_test::ramp;
using situ_test::set_grad;
using situ_test::set_grads;
using situ_test::thrown;
using situ_test::numbers_of;

namespace {

std::int64_t host_allocations = 0;

template <class D>
struct Net {
  Variable<float, D> weight = leaf<float, D>({4, 5}, ramp(20));
  Variable<float, D> bias = leaf<float, D>({4}, ramp(4));
  SITU_MODULE(weight, bias)
};

/// What for_each_state visits, by name.
template <class X>
std::map<std::string, std::vector<double>> state_of(X& x) {
  std::map<std::string, std::vector<double>> result;
  for_each_state(x, [&]<class S>(std::string const& name, S const& state) {
    if constexpr (std::is_same_v<S, nn::Counter>) result[name] = {static_cast<double>(state.value())};
    else result[name] = numbers_of(state);
  });
  return result;
}
/// Writes it back in place, as loading does.
template <class X>
void load_state(X& x, std::map<std::string, std::vector<double>> const& from) {
  for_each_state(x, [&]<class S>(std::string const& name, S& state) {
    std::vector<double> const& values = from.at(name);
    if constexpr (std::is_same_v<S, nn::Counter>) {
      state.set(static_cast<std::int64_t>(values[0]));
    } else {
      using T = typename S::value_type;
      std::vector<T> const converted(values.begin(), values.end());
      state.assign(Tensor<T, typename S::device_type>(converted, state.shape()));
    }
  });
}
template <class O>
void train(O& optimizer, int steps, int from = 0) {
  for (int t = from; t < from + steps; ++t) {
    for (auto& p : optimizer.parameters()) set_grads(p, situ_test::gradient_at(t, numbers_of(p)));
    optimizer.step();
  }
}

}  // namespace

// All allocations of the program are counted.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  ++host_allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  ++host_allocations;
  return std::malloc(bytes);
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE_TEMPLATE("an optimiser is made from a module, a vector or a list, and changes the parameters themselves", D, Cpu, Emulated<0>) {
  Net<D> net;
  optim::Adam adam{net, {.lr = 0.5f}};
  static_assert(std::is_same_v<decltype(adam), optim::Adam<float, D>>);
  optim::SGD sgd{std::vector{net.weight}, {.lr = 0.1, .momentum = 0.9}};
  optim::AdamW adamw{{net.weight, net.bias}};
  optim::RMSprop rmsprop{{net.weight}};
  optim::Adagrad adagrad{net};
  CHECK(adam.lr() == doctest::Approx(0.5));
  CHECK(adamw.options().weight_decay == 0.01);
  CHECK(adam.parameters().size() == 2);

  set_grads(net.bias, {1., 1., -2., 0.});
  adam.step();  // weight has no gradient: it is skipped, and its count of steps stays
  CHECK(numbers_of(net.weight) == numbers_of(leaf<float>({20}, ramp(20))));
  for (std::size_t i : {0u, 1u, 2u}) CHECK(numbers_of(net.bias)[i] == doctest::Approx(0.1 * static_cast<double>(i) - 1 + (i == 2 ? 0.5 : -0.5)).epsilon(1e-6));
  CHECK(state_of(adam)["0.step"][0] == 0);
  CHECK(state_of(adam)["1.step"][0] == 1);
  adam.zero_grad();
  CHECK_FALSE(net.bias.has_grad());
}

TEST_CASE("a group is a module or a list, with the first group's options or its own") {
  auto w = leaf<float>({3}, ramp(3));
  Net<Cpu> net, head;
  optim::SGD sgd{{w}, {.lr = 0.1, .momentum = 0.9}};
  sgd.add_param_group(net);
  auto slower = sgd.options();
  slower.lr = 0.01;
  sgd.add_param_group(head, slower);
  CHECK(sgd.groups() == 3);
  CHECK(sgd.parameters().size() == 5);
  CHECK(sgd.options(1).lr == 0.1);
  CHECK(sgd.options(1).momentum == 0.9);
  CHECK(sgd.options(2).lr == 0.01);
  CHECK(sgd.options(2).momentum == 0.9);
}

TEST_CASE("groups have options of their own, and parameters of different ages their own corrections") {
  auto a = leaf<float>({40}, ramp(40)), b = leaf<float>({3}, ramp(3)), c = leaf<float>({2}, ramp(2));
  optim::Adam together{{a, c}, {.lr = 0.1}};
  together.add_param_group({b}, {.lr = 0.01, .betas = {0.5, 0.9}, .amsgrad = true});
  auto a2 = leaf<float>({40}, ramp(40)), b2 = leaf<float>({3}, ramp(3)), c2 = leaf<float>({2}, ramp(2));
  optim::Adam first{{a2}, {.lr = 0.1}}, second{{b2}, {.lr = 0.01, .betas = {0.5, 0.9}, .amsgrad = true}}, third{{c2}, {.lr = 0.1}};
  for (int t = 0; t < 5; ++t) {
    set_grads(a, situ_test::gradient_at(t, numbers_of(a)));
    set_grads(b, situ_test::gradient_at(t, numbers_of(b)));
    if (t > 2) set_grads(c, situ_test::gradient_at(t, numbers_of(c)));
    set_grads(a2, situ_test::gradient_at(t, numbers_of(a2)));
    set_grads(b2, situ_test::gradient_at(t, numbers_of(b2)));
    if (t > 2) set_grads(c2, situ_test::gradient_at(t, numbers_of(c2)));
    together.step(), first.step(), second.step(), third.step();
  }
  CHECK(numbers_of(a) == numbers_of(a2));
  CHECK(numbers_of(b) == numbers_of(b2));
  CHECK(numbers_of(c) == numbers_of(c2));
  CHECK(together.groups() == 2);
  together.set_lr(0.3);
  CHECK(together.lr(1) == 0.3);
  together.set_lr(1, 0.2);
  CHECK(together.lr(0) == 0.3);
  CHECK(together.options(1).lr == 0.2);
  CHECK(together.options(1).betas.first == 0.5);
}

TEST_CASE("what cannot be optimised is said with its value, and nothing is changed") {
  Net<Cpu> net;
  CHECK(thrown<Error>([&] { optim::Adam o{net, {.lr = -0.1}}; }, "Adam: lr is -0.1; it must be a number that is at least 0") == "");
  CHECK(thrown<Error>([&] { optim::AdamW o{net, {.betas = {1, 0.9}}}; }, "AdamW: betas.first is 1; it must be at least 0 and less than 1") == "");
  CHECK(thrown<Error>([&] { optim::SGD o{net, {.momentum = -2}}; }, "SGD: momentum is -2; it must be a number that is at least 0") == "");
  CHECK(thrown<Error>([&] { optim::SGD o{net, {.momentum = 0.5, .dampening = 0.1, .nesterov = true}}; },
                      "SGD: nesterov needs a momentum and no dampening: momentum is 0.5 and dampening 0.1") == "");
  CHECK(thrown<Error>([&] { optim::RMSprop o{net, {.alpha = std::nan("")}}; }, "RMSprop: alpha is nan; it must be a number that is at least 0") == "");
  CHECK(thrown<Error>([&] { optim::Adagrad o{net, {.eps = -1}}; }, "Adagrad: eps is -1; it must be a number that is at least 0") == "");
  CHECK(thrown<Error>([&] { optim::Adam o{std::vector<Variable<float>>{}}; }, "Adam: there are no parameters to optimise; give a module or a list that has some") == "");
  CHECK(thrown<Error>([&] { optim::Adam o{{net.weight, net.weight}}; }, "Adam: parameter 1, of shape [4, 5], is given twice; a parameter belongs to one group") == "");
  CHECK(thrown<Error>([&] { optim::Adam o{{net.weight.t()}}; }, "Adam: parameter 0, of shape [5, 4], is the result of T; only leaves can be optimised") == "");
  optim::Adam adam{net};
  CHECK(thrown<Error>([&] { adam.add_param_group({net.bias}); }, "Adam: parameter 0, of shape [4], is given twice; a parameter belongs to one group") == "");
  CHECK(thrown<Error>([&] { adam.set_lr(-1); }, "Adam: lr is -1; it must be a number that is at least 0") == "");
  CHECK(thrown<IndexError>([&] { (void)adam.lr(1); }, "Adam: there is no group 1: it has 1 group") == "");
  CHECK(adam.groups() == 1);
  CHECK(adam.lr() == 0.001);

  Variable<float> broadcast{full<float>({1}, 2.f).expand({3})};
  optim::SGD sgd{{net.bias, broadcast}, {.lr = 1}};
  set_grads(net.bias, {1., 1., 1., 1.});
  set_grads(broadcast, {1., 1., 1.});
  CHECK(thrown<LayoutError>([&] { sgd.step(); }, "SGD: writing to a broadcast view of shape [3] with strides [0] would write elements more than once; write to a clone() of it") == "");
  CHECK(numbers_of(net.bias)[0] == -1);
}

TEST_CASE("without a decay of the weights a parameter that is infinite stays so, and does no harm") {
  // PyTorch 1.13: the class that the score of -inf forbids has no gradient
  float const inf = std::numeric_limits<float>::infinity();
  auto const run = [&](auto make) {
    Variable<float> scores{Tensor<float>{1, -inf, 2}};
    auto optimizer = make(scores);
    for (int k = 0; k < 2; ++k) {
      optimizer.zero_grad();
      (logsumexp(scores) - scores[0]).backward();
      optimizer.step();
    }
    CHECK(scores.value()(1) == -inf);
    return std::pair{scores.value().item(0), scores.value().item(2)};
  };
  auto const sgd = run([](auto const& p) { return optim::SGD{{p}, {.lr = 0.1}}; });
  CHECK(sgd.first == doctest::Approx(1.1432).epsilon(1e-4));
  CHECK(sgd.second == doctest::Approx(1.8568).epsilon(1e-4));
  for (auto const& found : {run([](auto const& p) { return optim::SGD{{p}, {.lr = 0.1, .momentum = 0.9, .nesterov = true}}; }), run([](auto const& p) { return optim::Adam{{p}, {.lr = 0.1}}; }),
                            run([](auto const& p) { return optim::AdamW{{p}, {.lr = 0.1, .weight_decay = 0}}; }), run([](auto const& p) { return optim::RMSprop{{p}, {.lr = 0.1}}; }),
                            run([](auto const& p) { return optim::Adagrad{{p}, {.lr = 0.1}}; })}) {
    CHECK(found.first > 1);
    CHECK(found.second < 2);
  }
}

TEST_CASE("a backward through what was recorded before a step is refused") {
  auto w = leaf<float>({3}, {1, 2, 3});
  Variable y = sum(w * w);
  set_grads(w, {1., 1., 1.});
  optim::SGD sgd{{w}};
  sgd.step();
  CHECK(thrown<GradientError>([&] { y.backward(); },
                              "backward: Sum needs a tensor of shape [3] as it was when it was recorded, but SGD has written to it in place since; write to a clone() of it, or after the backward") == "");
}

TEST_CASE_TEMPLATE("parameters and gradients of any strides are changed where they lie", D, Cpu, Emulated<0>) {
  Tensor<float, D> storage = Tensor<float>(std::vector<float>(40, 7.f), {8, 5}).to(D{});
  Variable<float, D> strided{Tensor<float, D>(storage.slice(0, 1, 8, 2).t())};  // [5, 4]
  strided.value().assign(leaf<float>({5, 4}, ramp(20)).value().to(D{}));
  auto dense = leaf<float, D>({5, 4}, ramp(20));
  optim::AdamW one{{strided}}, other{{dense}};
  Tensor<float, D> gradient = leaf<float>({4, 5}, ramp(20)).value().to(D{}).t();
  for (int t = 0; t < 3; ++t) {
    set_grad(strided, gradient);
    set_grad(dense, Tensor<float, D>(gradient.clone()));
    one.step(), other.step();
  }
  CHECK(numbers_of(strided) == numbers_of(dense));
  CHECK(storage.item(0, 0) == 7);  // what lies between is not touched
  CHECK(storage.item(2, 4) == 7);
}

TEST_CASE_TEMPLATE("state is visited by PyTorch's names, and training goes on from it as if it had not stopped", D, Cpu, Emulated<0>) {
  auto const same = [](auto const& make) {
    auto p = leaf<float, D>({5, 7}, ramp(35)), q = leaf<float, D>({5, 7}, ramp(35));
    auto one = make(p), other = make(q);
    train(one, 6);
    auto const state = state_of(one);
    load_state(other, state);
    CHECK(state_of(other) == state);
    q.value().assign(p.value());
    train(one, 4, 6), train(other, 4, 6);
    CHECK(numbers_of(p) == numbers_of(q));
    CHECK(state_of(one) == state_of(other));
    std::string names;
    for (auto const& each : state) names += each.first + " ";
    return names;
  };
  using V = Variable<float, D>;
  CHECK(same([](V p) { return optim::Adam<float, D>({p}, {.amsgrad = true}); }) ==
        "0.exp_avg 0.exp_avg_sq 0.max_exp_avg_sq 0.step groups.0.beta1 groups.0.lr ");
  CHECK(same([](V p) { return optim::SGD<float, D>({p}, {.momentum = 0.9, .dampening = 0.5}); }) == "0.momentum_buffer 0.step groups.0.lr groups.0.momentum ");
  CHECK(same([](V p) { return optim::RMSprop<float, D>({p}, {.momentum = 0.9, .centered = true}); }) ==
        "0.grad_avg 0.momentum_buffer 0.square_avg 0.step groups.0.lr groups.0.momentum ");
  CHECK(same([](V p) { return optim::Adagrad<float, D>({p}, {.initial_accumulator_value = 0.1}); }) == "0.step 0.sum groups.0.lr ");
}

TEST_CASE("state of 16-bit parameters is float, and so are master weights") {
  auto p = leaf<float16>({3}, {1, 2, 3});
  optim::Adam adam{{p}, {.lr = 1e-4, .master_weights = true}};
  for (int t = 0; t < 3; ++t) {  // each step is less than half a unit in the last place
    set_grads(p, {1., 1., 1.});
    adam.step();
  }
  auto const state = state_of(adam);
  CHECK(state.at("0.master")[1] == doctest::Approx(2 - 3e-4).epsilon(1e-7));
  CHECK(numbers_of(p)[1] == 2);
  for (int t = 0; t < 10; ++t) adam.step();
  CHECK(numbers_of(p)[1] < 2);
  CHECK(state.at("0.exp_avg").size() == 3);
}

TEST_CASE("a step is one launch, whatever the number of parameters is up to 60, and allocates nothing") {
  std::vector<Variable<float, Probe>> parameters;
  for (int k = 0; k < 61; ++k) parameters.push_back(leaf<float, Probe>({k % 5 * 700 + 1}, ramp(k % 5 * 700 + 1)));
  optim::Adam few{std::vector(parameters.begin(), parameters.begin() + 60)};
  optim::Adam many{parameters};
  auto const grads = [&] {
    for (auto& p : parameters) set_grads(p, ramp(p.size()));
  };
  grads();
  few.step();
  for (int t = 0; t < 3; ++t) {
    Probe::reset();
    few.step();
    CHECK(Probe::launches == 1);
    CHECK(Probe::allocations == 0);
    CHECK(Probe::transfers() == 0);
  }
  Probe::reset();
  many.step();
  CHECK(Probe::launches == 2);
}

TEST_CASE("a step asks for no memory of the host, either") {
  Variable<float, Probe> a{full<float>({64, 100}, 1.f, Probe{})}, b{full<float>({100}, 1.f, Probe{})};
  optim::Adam adam{{a, b}};
  optim::SGD sgd{{a, b}, {.momentum = 0.9}};
  set_grad(a, full<float>({64, 100}, 0.5f, Probe{}));
  set_grad(b, full<float>({100}, 0.5f, Probe{}));
  Probe::reset();
  std::int64_t const before = host_allocations;
  for (int t = 0; t < 10; ++t) adam.step(), sgd.step();
  CHECK(host_allocations == before);
  CHECK(Probe::allocations == 0);
}

TEST_CASE("the number of threads changes nothing") {
  auto const after = [](int threads) {
    set_num_threads(threads);
    auto p = leaf<float>({300, 1001}, ramp(300300)), q = leaf<float>({5}, ramp(5));
    optim::Adam adam{{p, q}};
    train(adam, 2);
    auto const norm = optim::clip_grad_norm(std::vector{p, q}, 1.0).item();
    auto result = numbers_of(p);
    result.push_back(norm);
    return result;
  };
  auto const one = after(1);
  CHECK(one == after(3));
  set_num_threads(1);
}

TEST_CASE("an optimiser is reached by its parameters only through their storage") {
  Net<Cpu> net;
  auto copy = net;  // shares the parameters
  optim::SGD sgd{net, {.lr = 1}};
  set_grads(copy.bias, {1., 2., 3., 4.});
  sgd.step();
  CHECK(numbers_of(copy.bias)[3] == doctest::Approx(-0.7 - 4));
  auto const shared = sgd;  // copies of an optimiser share everything
  CHECK(shared.lr() == 1);
  sgd.set_lr(0.5);
  CHECK(shared.lr() == 0.5);
}
