/// DataParallel: the same results as on one device, by as few copies as possible, with work on all devices at once.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <sstream>
#include <thread>

#include <situ/autograd/backward.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/device/transfer_log.hpp>
#include <situ/io/safetensors.hpp>
#include <situ/nn/activations.hpp>
#include <situ/nn/batch_norm.hpp>
#include <situ/nn/dropout.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/losses.hpp>
#include <situ/nn/sequential.hpp>
#include <situ/ops/random.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/optim/sgd.hpp>
#include <situ/parallel/data_parallel.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
namespace parallel_test {}  // named: g++ warns of members of templates in anonymous ones
using namespace parallel_test;
using situ_test::thrown;

namespace parallel_test {

using First = Emulated<0>;
using Second = Emulated<1>;
using Third = Emulated<2>;

template <class Device>
struct Net {
  nn::Linear<float, Device> fc1{3, 5}, fc2{5, 2};
  auto forward(auto const& x) const { return fc2(tanh(fc1(x))); }
  SITU_MODULE(fc1, fc2)
};
/// The devices that a configuration makes; two again in the end.
struct Devices {
  explicit Devices(int count) { emulated::configure({.devices = count}); }
  Devices(Devices const&) = delete;
  Devices& operator=(Devices const&) = delete;
  ~Devices() { emulated::configure({.devices = 2}); }
};

Tensor<float> rows_of_input(int64_t rows) { return sin(arange<float>(rows * 3).reshape({rows, 3})); }

template <class T, class D>
Tensor<T> on_host(Tensor<T, D> const& x) {
  return x.to(Cpu{}).clone();
}
template <class M>
std::vector<Tensor<float>> gradients_of(M const& net) {
  std::vector<Tensor<float>> result;
  for (auto const& each : parameters(net)) result.push_back(on_host(each.grad()));
  zero_grad(net);
  return result;
}
void check_close(std::vector<Tensor<float>> const& found, std::vector<Tensor<float>> const& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t k = 0; k < found.size(); ++k) {
    REQUIRE(found[k].shape() == expected[k].shape());
    CHECK(max(abs(found[k] - expected[k])).item() <= 1e-6f * (1 + max(abs(expected[k])).item()));
    CHECK(max(abs(expected[k])).item() > 0);
  }
}
int64_t launches(int device) { return emulated::statistics(device).launches; }

}  // namespace parallel_test

TEST_CASE("outputs are those of one device, and gradients sums of the devices'") {
  Devices const devices(3);
  auto const net = to(Net<Cpu>(), First{});
  DataParallel<Net, First, Second, Third> const parallel{net};
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 30}) {
    CAPTURE(rows);
    auto const x = rows_of_input(rows).to(First{});
    auto const expected = net(x);
    sum(square(expected)).backward();
    auto const gradients = gradients_of(net);

    int64_t const second = launches(1), third = launches(2);
    auto const y = parallel(x);
    static_assert(std::is_same_v<decltype(y), Variable<float, First> const>);
    CHECK(y.shape() == Shape{rows, 2});
    check_close({on_host(y.value())}, {on_host(expected.value())});
    CHECK((launches(1) > second) == (rows > 1));
    CHECK((launches(2) > third) == (rows != 1 && rows != 2 && rows != 4));  // 4 rows are 2 and 2
    sum(square(y)).backward();
    check_close(gradients_of(net), gradients);
  }
}

TEST_CASE("rows are cut as chunks are, and nothing to cut stays on the first device") {
  Devices const devices(3);
  auto const net = to(nn::Sequential{nn::Linear<float, Cpu>{3, 5}, nn::ReLU{}, nn::Linear<float, Cpu>{5, 2}}, First{});
  auto const x = rows_of_input(7).to(First{});
  check_close({on_host(data_parallel<First, Second, Third>(net, x).value())}, {on_host(net(x).value())});
  check_close({on_host(data_parallel<First>(net, x).value())}, {on_host(net(x).value())});

  int64_t const second = launches(1);
  CHECK(data_parallel<First, Second>(net, x.slice(0, 0, 0)).shape() == Shape{0, 2});
  CHECK(launches(1) == second);
}

namespace parallel_test {
/// Several inputs and outputs of several kinds.
template <class Device>
struct Many {
  Variable<float, Device> weight = Variable<float, Device>(Tensor<float>{2, 3}.to(Device{}));
  int64_t power = 2;
  auto forward(auto const& pair, auto const& scale, int64_t extra, auto const& list) const {
    auto const y = pair.first * weight * scale + pair.second;
    return std::tuple(y, std::pair(sum(y), static_cast<int>(power + extra)), std::vector{Tensor(list[0] + 1), Tensor(list[1] * 2)}, std::optional(square(pair.second)));
  }
  SITU_MODULE(weight, power)
};
}  // namespace parallel_test

TEST_CASE("tensors in tuples, pairs, vectors and optionals; numbers become vectors") {
  auto const net = to(Many<Cpu>(), First{});
  DataParallel<Many, First, Second> const parallel{net};
  auto const a = Tensor<float>{{1, 2}, {3, 4}, {5, 6}}.to(First{}), b = Tensor<float>{{1}, {2}, {3}}.to(First{});
  Variable<float, First> scale(full({}, 10.f, First{}));
  auto const [y, two, list, squares] = parallel(std::pair(a, b), scale, int64_t{5}, std::vector{a, b.expand({3, 2})});
  CHECK(all(on_host(y.value()) == Tensor<float>{{21, 61}, {62, 122}, {103, 183}}).item());
  CHECK(all(on_host(two.first.value()) == Tensor<float>{21 + 61 + 62 + 122, 103 + 183}).item());  // of each device
  CHECK(two.first.shape() == Shape{2});
  CHECK(two.second == 7);
  REQUIRE(list.size() == 2);
  CHECK(all(on_host(list[0]) == Tensor<float>{{2, 3}, {4, 5}, {6, 7}}).item());
  CHECK(all(on_host(list[1]) == Tensor<float>{{2, 2}, {4, 4}, {6, 6}}).item());
  REQUIRE(squares.has_value());
  CHECK(all(on_host(*squares) == Tensor<float>{{1}, {4}, {9}}).item());
  // y = a w s + b: dy/ds = sum of a w, dy/dw = s times the sums of a's columns; the numbers weigh as much again.
  (sum(y) + sum(two.first)).backward();
  CHECK(scale.grad().item() == 2 * (2 * 9 + 3 * 12));
  CHECK(all(on_host(parameters(net)[0].grad()) == Tensor<float>{180, 240}).item());
}

TEST_CASE("inputs get their gradients, formulas are evaluated once, and nothing is recorded where nothing records") {
  auto const net = to(Net<Cpu>(), First{});
  DataParallel<Net, First, Second> const parallel{net};
  Variable<float, First> x(rows_of_input(5).to(First{})), alone(rows_of_input(5).to(First{}));
  sum(square(parallel(x * 2))).backward();
  auto const found = gradients_of(net);
  sum(square(net(alone * 2))).backward();
  check_close(found, gradients_of(net));
  check_close({on_host(x.grad())}, {on_host(alone.grad())});
  no_grad const guard;
  CHECK_FALSE(parallel(x).requires_grad());
}

TEST_CASE("second derivatives go through") {
  auto const net = to(Net<Cpu>(), First{});
  DataParallel<Net, First, Second> const parallel{net};
  auto const gradient_of_gradient = [](auto const& module) {
    Variable<float, First> x(rows_of_input(4).to(First{}));
    auto const slope = grad(sum(square(module(x))), x, create_graph);
    return on_host(grad(sum(square(slope)), x));
  };
  check_close({gradient_of_gradient(parallel)}, {gradient_of_gradient(net)});
}

TEST_CASE("few copies: the parameters together, their gradients together, and one of each input and output") {
  auto const net = to(Net<Cpu>(), First{});
  DataParallel<Net, First, Second> const parallel{net};
  auto const x = rows_of_input(8).to(First{});
  TransferLog forward;
  auto const y = parallel(x);
  forward.stop();
  int64_t const parameter_bytes = num_parameters(net) * 4;
  CHECK(forward.count() == 3);
  CHECK(forward.bytes() == parameter_bytes + 4 * 3 * 4 + 4 * 2 * 4);
  std::ostringstream text;
  text << forward;
  CHECK(text.str().find("DataParallel") != std::string::npos);
  TransferLog backward;
  mean(y).backward();
  backward.stop();
  CHECK(backward.count() == 2);
  CHECK(backward.bytes() == parameter_bytes + 4 * 2 * 4);
}

namespace parallel_test {
/// Parameters beyond the joined ones, one in two places, a frozen one, and buffers.
template <class Device>
struct Mixture {
  Variable<float, Device> large = Variable<float, Device>(zeros<float>({600, 600}).to(Device{}) + 0.5f), small = Variable<float, Device>(Tensor<float>{3}.to(Device{})), same = small,
                          frozen = Variable<float, Device>(Tensor<float>{4}.to(Device{}), false);
  Variable<double, Device> wide = Variable<double, Device>(Tensor<double>{5}.to(Device{}));
  Tensor<float, Device> offset = Tensor<float>{1}.to(Device{}), second_offset = Tensor<float>{2}.to(Device{});
  Tensor<int64_t, Device> index = Tensor<int64_t>{7}.to(Device{});
  std::optional<Tensor<float, Device>> nothing;
  std::vector<Variable<float, Device>> list{small};
  auto forward(auto const& x) const {
    return x * small + same * frozen + list[0] + large(0, range(0, 1)) + offset - second_offset + cast<float>(index) + cast<float>(wide);
  }
  SITU_MODULE(large, small, same, frozen, wide, offset, second_offset, index, nothing, list)
};
}  // namespace parallel_test

TEST_CASE("large, shared and frozen parameters, several element types, buffers") {
  auto net = to(Mixture<Cpu>(), First{});
  DataParallel<Mixture, First, Second> const parallel{net};
  auto const x = Tensor<float>{{1}, {2}, {3}}.to(First{});
  auto const y = parallel(x);
  // 3 x + 12 + 3 + 0.5 + 1 - 2 + 7 + 5
  CHECK(all(on_host(y.value()) == Tensor<float>{{29.5f}, {32.5f}, {35.5f}}).item());
  sum(y).backward();
  CHECK(net.small.grad().item() == 6 + 3 * 4 + 3);
  CHECK(net.wide.grad().item() == 3);
  CHECK(on_host(net.large.grad())(0, 0) == 3);
  CHECK(sum(net.large.grad()).item() == 3);
  CHECK_FALSE(net.frozen.has_grad());
}

TEST_CASE("running statistics are those of the first device's rows") {
  auto const net = to(nn::Sequential{nn::Linear<float, Cpu>{3, 4}, nn::BatchNorm1d<float, Cpu>{4}}, First{});
  auto const one = clone(net);
  auto const x = rows_of_input(6).to(First{});
  auto const y = data_parallel<First, Second>(net, x);
  auto const first = Variable(one(x.slice(0, 0, 3)));
  CHECK(all(on_host(y.value()).slice(0, 0, 3) == on_host(first.value())).item());
  CHECK(all(on_host(*get<1>(net).running_mean) == on_host(*get<1>(one).running_mean)).item());
  CHECK(get<1>(net).num_batches_tracked->value() == 1);
  CHECK(all(on_host(y.value()).slice(0, 3, 6) == on_host(Variable(clone(one)(x.slice(0, 3, 6))).value())).item());
}

namespace parallel_test {
/// Waits until a call runs on the other device, too.
struct Meeting {
  static inline std::atomic<int> waiting{0};
  static inline std::atomic<bool> failed{false};
  float operator()(float x) const {
    ++waiting;
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (waiting < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (waiting < 2) failed = true;
    return x;
  }
};
template <class Device>
struct Meets {
  Variable<float, Device> weight = Variable<float, Device>(Tensor<float>{1}.to(Device{}));
  auto forward(auto const& x) const { return map(Meeting(), constant(x)) * weight; }
  SITU_MODULE(weight)
};
}  // namespace parallel_test

TEST_CASE("the devices work at the same time") {
  auto const net = to(Meets<Cpu>(), First{});
  DataParallel<Meets, First, Second> const parallel{net};
  auto const y = parallel(Tensor<float>{{1}, {2}}.to(First{}));
  CHECK(all(on_host(y.value()) == Tensor<float>{{1}, {2}}).item());
  CHECK_FALSE(Meeting::failed);
}

namespace parallel_test {
/// Layers whose derivatives wait until they run on the other device, too.
template <int K>
struct Meets2 {
  static inline std::atomic<int> waiting{0};
  static inline std::atomic<bool> failed{false};
  static float value(float x) { return x; }
  static float derivative(float, float) {
    ++waiting;
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (waiting < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (waiting < 2) failed = true;
    return 1;
  }
};
template <class Device>
struct Layers {
  Variable<float, Device> w1 = Variable<float, Device>(ones<float>({1, 1}, Device{})), w2 = Variable<float, Device>(ones<float>({1, 1}, Device{}));
  auto forward(auto const& x) const { return map(Meets2<2>(), matmul(map(Meets2<1>(), matmul(x, w1) * 1.f), w2) * 1.f); }
  SITU_MODULE(w1, w2)
};
}  // namespace parallel_test

TEST_CASE("on the way back, too, down to the first layer") {
  Layers<First> const net;
  sum(DataParallel<Layers, First, Second>{net}(ones({2, 1}, First{}))).backward();
  synchronize(First{});
  CHECK(net.w1.grad().item() == 2);
  CHECK_FALSE(Meets2<2>::failed);
  CHECK_FALSE(Meets2<1>::failed);
}

namespace parallel_test {
/// Writes to one buffer where a derivative reads another one; state in a part that is on no device of its own; a list of flags.
struct Steps {
  nn::Counter calls;
  Tensor<float> last{0};
  auto forward(auto const& x) const {
    calls.set(calls.value() + 1);
    Tensor<float>(last).assign(static_cast<float>(x.shape()[0]));
    return x;
  }
  SITU_MODULE(calls, last)
};
template <class Device>
struct Stateful {
  Tensor<float, Device> scale = Tensor<float>{1, 2}.to(Device{}), seen = Tensor<float>{0, 0}.to(Device{});
  Variable<float, Device> weight = Variable<float, Device>(Tensor<float>{3, 4}.to(Device{})), unused = Variable<float, Device>(ones<float>({2}, Device{})),
                          large = Variable<float, Device>(ones<float>({600, 600}, Device{}));
  Steps steps;
  nn::Counter calls;
  auto forward(auto const& x) const {
    calls.set(calls.value() + 1);
    Variable<float, Device> y = square(steps.forward(x) * weight) * scale;
    Tensor<float, Device>(seen) += 1;
    return std::pair(y, std::vector<bool>{true, false});
  }
  SITU_MODULE(scale, seen, weight, unused, large, steps, calls)
};
}  // namespace parallel_test

TEST_CASE("buffers that are written to leave others alone, state of all kinds is the first device's, and what is not used has no gradient") {
  Stateful<First> const net, alone;
  DataParallel<Stateful, First, Second> const parallel{net};
  auto const x = Tensor<float>{{1, 2}, {3, 4}, {5, 6}}.to(First{});
  for (int call = 1; call <= 2; ++call) {
    auto const [y, flags] = parallel(x);
    sum(y).backward();
    CHECK(flags == std::vector<bool>{true, false});
    CHECK(net.calls.value() == call);
    CHECK(net.steps.calls.value() == call);
    CHECK(net.steps.last.item() == 2);  // rows
    CHECK(all(on_host(net.seen) == static_cast<float>(call)).item());
    CHECK_FALSE(net.unused.has_grad());
    CHECK_FALSE(net.large.has_grad());
    sum(alone(x).first).backward();
    CHECK(all(on_host(net.weight.grad()) == on_host(alone.weight.grad())).item());
  }
}

namespace parallel_test {
/// Its own gradient, whatever its caller records.
template <class Device>
struct Slope {
  Variable<float, Device> weight = Variable<float, Device>(Tensor<float>{3}.to(Device{}));
  auto forward(auto const& x) const {
    enable_grad const guard;
    return x * grad(sum(square(weight)), weight);
  }
  SITU_MODULE(weight)
};
}  // namespace parallel_test

TEST_CASE("under no_grad the parameters of the copies can be differentiated as those of the module; a module of no device") {
  no_grad const guard;
  CHECK(all(on_host(DataParallel<Slope, First, Second>{Slope<First>()}(Tensor<float>{{1}, {2}}.to(First{}))) == Tensor<float>{{6}, {12}}).item());
  CHECK(all(on_host(data_parallel<First, Second>(nn::Sequential{nn::ReLU{}}, Tensor<float>{{-1}, {2}}.to(First{}))) == Tensor<float>{{0}, {2}}).item());
}

TEST_CASE("is a module: optimisers, modes, state files, copies, one device") {
  auto const host = Net<Cpu>();
  auto const net = to(host, First{}), alone = to(host, First{});
  DataParallel<Net, First, Second> parallel{net};
  CHECK(named_parameters(parallel)[0].name == "module.fc1.weight");
  CHECK(num_parameters(parallel) == num_parameters(host));
  optim::SGD both{parallel, {.lr = 0.1f, .momentum = 0.9f}}, one{alone, {.lr = 0.1f, .momentum = 0.9f}};
  auto const x = rows_of_input(10).to(First{});
  auto const target = cos(x).slice(1, 0, 2);
  for (int step = 0; step < 5; ++step) {
    both.zero_grad(), one.zero_grad();
    mse_loss(parallel(x), target).backward();
    mse_loss(alone(x), target).backward();
    both.step(), one.step();
  }
  for (std::size_t k = 0; k < 4; ++k) {
    check_close({on_host(parameters(net)[k].value())}, {on_host(parameters(alone)[k].value())});
    CHECK(any(on_host(parameters(net)[k].value()) != on_host(parameters(host)[k].value())).item());
  }
  auto const back = to(parallel, Cpu{});
  static_assert(std::is_same_v<decltype(back), DataParallel<Net, Cpu> const>);
  check_close({back(rows_of_input(10)).value()}, {on_host(parallel(x).value())});
  struct Bigger {
    DataParallel<Net, First, Second> part;
  } const bigger{to(back, First{})};  // one device's becomes many's where the type says so
  CHECK(all(on_host(bigger.part(x).value()) == on_host(parallel(x).value())).item());
  auto const copy = clone(parallel);
  CHECK(parameters(copy)[0].state() != parameters(parallel)[0].state());
  CHECK(all(on_host(copy(x).value()) == on_host(parallel(x).value())).item());
}

TEST_CASE("modes reach the copies") {
  auto net = to(nn::Sequential{nn::Linear<float, Cpu>{3, 50}, nn::Dropout{.p = 0.5}}, First{});
  auto const x = rows_of_input(4).to(First{});
  auto const zeros_in = [&](int64_t first) { return sum(cast<int64_t>(on_host(data_parallel<First, Second>(net, x).value()).slice(0, first, first + 2) == 0)).item(); };
  CHECK(zeros_in(0) > 20);
  CHECK(zeros_in(2) > 20);
  net.eval();
  CHECK(zeros_in(0) == 0);
  CHECK(zeros_in(2) == 0);
}

TEST_CASE("bad input: what is told, and that nothing changes") {
  auto const net = to(Net<Cpu>(), First{});
  CHECK(thrown<DeviceUnavailable>([&] { DataParallel<Net, First, Emulated<5>> const parallel{net}; },
                                  "DataParallel: emulated:5 is not there, of the devices emulated:0, emulated:5; name such as this machine has") == "");
  auto const many = to(Many<Cpu>(), First{});
  DataParallel<Many, First, Second> const parallel{many};
  auto const a = Tensor<float>{{1, 2}, {3, 4}, {5, 6}}.to(First{}), b = Tensor<float>{{1}, {2}}.to(First{}), s = full({}, 10.f, First{});
  CHECK(thrown<ShapeError>([&] { parallel(std::pair(a, b), s, int64_t{1}, std::vector{a, a}); },
                           "DataParallel: all inputs are cut along their first axis, which must be of one length: an input has shape [3, 2], another one [2, 1]") == "");
  // What the module throws passes, and the next call works.
  DataParallel<Net, First, Second> const again{net};
  CHECK_THROWS_AS(again(a), ShapeError);
  CHECK(again(rows_of_input(4).to(First{})).shape() == Shape{4, 2});
}
