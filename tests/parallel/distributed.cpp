/// Collectives and DistributedDataParallel. Every process runs this program: alone, and by mpirun with 2 and 3 of them.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <ctime>
#include <limits>
#include <sstream>
#include <thread>

#include <situ/autograd/backward.hpp>
#include <situ/autograd/checkpoint.hpp>
#include <situ/data/dataset.hpp>
#include <situ/data/loader.hpp>
#include <situ/nn/activations.hpp>
#include <situ/nn/batch_norm.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/losses.hpp>
#include <situ/nn/mixed.hpp>
#include <situ/ops/random.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/optim/sgd.hpp>
#include <situ/parallel/collectives.hpp>
#include <situ/parallel/distributed_data_parallel.hpp>
#include <situ/train/trainer.hpp>
#include <support/devices.hpp>

using namespace situ;
using distributed::reduce_op;

namespace distributed_test {
std::atomic<int> sums{0};  // how often MPI was asked for one
}

/// MPI's functions may be replaced by a program's own: see MPI's profiling interface.
extern "C" int MPI_Allreduce(void const* from, void* to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  ++distributed_test::sums;
  return PMPI_Allreduce(from, to, count, type, op, comm);
}

namespace distributed_test {

/// What f says with an E; empty where it throws none.
template <class E, class F>
std::string thrown(F const& f) {
  try {
    f();
  } catch (E const& error) {
    return error.what();
  }
  return "";
}
int me() { return distributed::rank(); }
int processes() { return distributed::world_size(); }

#define SITU_TEST_COLLECTIVE_DEVICES Cpu, Pinned, Emulated<0>

/// Element k of process r: small, so that sums are exact in every type.
template <class T>
T value(int r, int64_t k) {
  if constexpr (std::is_same_v<T, bool>) return (k + r) % 3 == 0;
  else return static_cast<T>((k * 5 + r * 3) % 7 + 1);
}
template <class T, class D>
Tensor<T, D> mine(int64_t n, D device) {
  Tensor<T> host = empty<T>({n});
  for (int64_t k = 0; k < n; ++k) host.data()[k] = value<T>(me(), k);
  return host.to(device);
}
template <class T>
double combined(reduce_op op, int64_t k) {
  double result = static_cast<double>(value<T>(0, k));
  for (int r = 1; r < processes(); ++r) {
    double const x = static_cast<double>(value<T>(r, k));
    if (op == reduce_op::prod) result *= x;
    else if (op == reduce_op::min) result = x < result ? x : result;
    else if (op == reduce_op::max) result = x > result ? x : result;
    else result += x;
  }
  if (std::is_same_v<T, bool> && op == reduce_op::sum) return result > 0;
  return op == reduce_op::avg ? result / processes() : result;
}
template <class T, class D>
int64_t differences(Tensor<T, D> const& x, reduce_op op) {
  Tensor<T> const host = x.cpu().contiguous();
  int64_t wrong = 0;
  for (int64_t k = 0; k < host.size(); ++k) {
    double const expected = combined<T>(op, k), found = static_cast<double>(host.data()[k]);
    wrong += std::fabs(found - expected) > (op == reduce_op::avg ? std::fabs(expected) * (sizeof(T) == 2 ? 0.02 : 1e-6) : 0);
  }
  return wrong;
}

template <class D>
struct Net {
  nn::Linear<double, D> fc1{4, 6}, fc2{6, 3};
  auto forward(auto const& x) const { return fc2(tanh(fc1(x))); }
  SITU_MODULE(fc1, fc2)
};
template <class D>
struct NormNet {
  nn::Linear<float, D> fc{4, 6};
  nn::BatchNorm1d<float, D> norm{6};
  auto forward(auto const& x) const { return norm(fc(x)); }
  SITU_MODULE(fc, norm)
};
/// Uses one of two layers.
template <class D>
struct Choice {
  nn::Linear<double, D> first{4, 3}, second{4, 3}, never{4, 3};
  auto forward(auto const& x, int which) const { return which == 0 ? first(x) : second(x); }
  SITU_MODULE(first, second, never)
};
/// One weight in two places, and one that is not trained.
template <class D>
struct Tied {
  Variable<double, D> w, same = w, frozen{full<double>({3}, 2.0, D{}), false};
  auto forward(auto const& x) const { return tanh(matmul(x, w) * frozen) - matmul(x, same); }
  SITU_MODULE(w, same, frozen)
};

/// Counts what has been sent while its gradient passes.
struct Watch {
  static inline int before = 0, found = 0;
  static auto forward(autograd::Context&, Tensor<double> const& x) { return x + 0; }
  static auto backward(autograd::Context&, Tensor<double> const& g) {
    for (int k = 0; k < 5000 && processes() > 1 && sums - before < 2; ++k) {
      timespec const wait{0, 1'000'000};
      nanosleep(&wait, nullptr);
    }
    found = sums - before;
    return g;
  }
};
struct Watched {
  nn::Linear<double> low{4, 200}, high{200, 3};
  auto forward(auto const& x) const { return high(autograd::apply<Watch>(tanh(low(x)))); }
  SITU_MODULE(low, high)
};
struct Sections {
  nn::Linear<double> a{4, 5}, b{5, 3};
  auto forward(Tensor<double> const& x) const {
    return b(checkpoint([this](auto const& h) { return tanh(a(h)); }, Variable<double>(x)));
  }
  SITU_MODULE(a, b)
};
/// The first layer once more behind a section that is run again.
struct Again {
  nn::Linear<double> a{4, 4};
  auto forward(Tensor<double> const& x) const {
    return a(checkpoint([this](auto const& h) { return tanh(a(h)); }, Variable<double>(x)));
  }
  SITU_MODULE(a)
};
/// One element type in some processes, the other in others.
struct TwoTypes {
  nn::Linear<float> a{4, 3};
  nn::Linear<double> b{4, 3};
  auto forward(Tensor<double> const& x, bool first) const { return first ? Variable<double>(sum(a(cast<float>(x))).to<double>()) : Variable<double>(sum(b(x))); }
  SITU_MODULE(a, b)
};
struct Masked {
  nn::Linear<double> a{4, 3};
  Tensor<double> mask{1, 2, 3};
  auto forward(Tensor<double> const& x) const { return a(x) * mask; }
  SITU_MODULE(a, mask)
};
/// Changes itself.
struct Counting {
  nn::Linear<double> a{4, 3};
  int calls = 0;
  auto forward(Tensor<double> const& x) { return ++calls, a(x); }
  SITU_MODULE(a, calls)
};
/// Grows, cannot be assigned to, and counts calls that are const.
struct Growing {
  int const most = 2;
  mutable int calls = 0;
  std::vector<nn::Linear<float>> more;
  nn::Linear<double> a{4, 3};
  auto forward(Tensor<double> const& x) {
    ++calls;
    if (static_cast<int>(more.size()) < most) more.push_back(nn::Linear<float>{2, 2});
    return a(x);
  }
  SITU_MODULE(most, calls, more, a)
};
/// Fails in a pass, on its way to a.
struct Failing {
  static inline bool fails = false;
  static auto forward(autograd::Context&, Tensor<double> const& x) { return x + 0; }
  static auto backward(autograd::Context&, Tensor<double> const& g) {
    if (fails) throw Error("failed");
    return g;
  }
};
struct Breakable {
  nn::Linear<double> a{4, 3}, b{3, 2};
  auto forward(Tensor<double> const& x) const { return b(autograd::apply<Failing>(a(x))); }
  SITU_MODULE(a, b)
};
struct Thrower {
  Variable<double> w{ones<double>({2})};
  auto forward(Tensor<double> const& x) const {
    if (x.size() == 1) throw Error("thrown");
    return x * w;
  }
  SITU_MODULE(w)
};

constexpr int64_t rows = 5;
/// The whole batch, on every process, and this one's part.
Tensor<double> batch(uint64_t seed, int64_t columns) {
  Generator generator(seed);
  return randn<double>({rows * processes(), columns}, generator);
}
Tensor<double> part(Tensor<double> const& all) { return all.slice(0, rows * me(), rows * (me() + 1)); }

template <class A, class B>
double distance(A const& a, B const& b) {
  return static_cast<double>(max(abs(a.cpu() - b.cpu())).item());
}
template <class M, class N>
double gradient_distance(M const& a, N const& b) {
  auto const x = parameters(a);
  auto const y = parameters(b);
  double worst = 0;
  for (std::size_t k = 0; k < x.size(); ++k) worst = std::max(worst, distance(x[k].grad(), y[k].grad()));
  return worst;
}

/// This build has no NCCL.
template <class X>
concept reducible = requires(X& x) { distributed::all_reduce(x); };
static_assert(reducible<Tensor<float, Emulated<0>>> && !reducible<Tensor<float, Cuda<0>>> && !reducible<Tensor<float> const> && !reducible<Variable<float>>);

}  // namespace distributed_test
using namespace distributed_test;

TEST_CASE("processes know their number and how many they are") {
  char const* const expected = std::getenv("SITU_TEST_PROCESSES");
  REQUIRE(expected);
  CHECK(processes() == std::atoi(expected));
  CHECK((me() >= 0 && me() < processes()));
  CHECK(distributed::local_rank() == me());  // one machine
  Tensor<int64_t> const ranks = distributed::all_gather(Tensor<int64_t>{me()});
  for (int r = 0; r < processes(); ++r) CHECK(ranks(r) == r);
  distributed::barrier();
}

TEST_CASE("use_own_gpu names one of the GPUs that the process may see") {
  for (auto const& [list, expected] : {std::pair{"", ""}, {"5,7,GPU-3a", "5 7 GPU-3a"}, {"4", "4 -1 -1"}}) {
    ::setenv("CUDA_VISIBLE_DEVICES", list, 1);
    if (!*list) ::unsetenv("CUDA_VISIBLE_DEVICES");
    distributed::use_own_gpu();
    std::string wanted = std::to_string(me());
    if (*list) {
      std::istringstream words(expected);
      for (int k = 0; k <= me(); ++k) words >> wanted;
    }
    CHECK(std::getenv("CUDA_VISIBLE_DEVICES") == wanted);
  }
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_CASE_TEMPLATE("all_reduce is a plain loop over the processes, for every type, operation and layout", D, SITU_TEST_COLLECTIVE_DEVICES) {
  auto const check = [&]<class T>(T) {
    for (reduce_op op : {reduce_op::sum, reduce_op::avg, reduce_op::prod, reduce_op::min, reduce_op::max}) {
      CAPTURE(dtype_name<T>());
      CAPTURE(static_cast<int>(op));
      Tensor<T, D> x = mine<T>(12, D{});
      if (op == reduce_op::avg && !floating<T>) {
        CHECK(thrown<TypeError>([&] { distributed::all_reduce(x, op); }).find("an average of") != std::string::npos);
        continue;
      }
      distributed::all_reduce(x, op);
      CHECK(differences(x, op) == 0);
      Tensor<T, D> turned = mine<T>(12, D{}).view({3, 4}).t().contiguous().t();
      distributed::all_reduce(turned, op);
      CHECK(differences(turned, op) == 0);
      Tensor<T, D> whole = zeros<T>({24}, D{});
      whole(range(0, 24, 2)) = mine<T>(12, D{});
      distributed::all_reduce(whole(range(0, 24, 2)), op);
      CHECK(differences(whole(range(0, 24, 2)), op) == 0);
      CHECK(!any(whole(range(1, 24, 2)) != zeros<T>({12}, D{})).item());
    }
    Tensor<T, D> nothing = empty<T>({0, 3}, D{}), number = mine<T>(1, D{}).reshape({});
    distributed::all_reduce(nothing);
    distributed::all_reduce(number);
    CHECK(differences(number, reduce_op::sum) == 0);
  };
  [&]<class... Ts>(std::tuple<Ts...>) { (check(Ts{}), ...); }(std::tuple<bool, uint8_t, int8_t, int16_t, int32_t, int64_t, float16, bfloat16, float, double>{});
}

TEST_CASE("a NaN of any process stays one") {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  for (int from = 0; from < processes(); ++from) {
    for (reduce_op op : {reduce_op::sum, reduce_op::prod, reduce_op::min, reduce_op::max}) {
      Tensor<float> x{1, me() == from ? nan : 2};
      Tensor<float16> h = cast<float16>(x);
      distributed::all_reduce(x, op);
      distributed::all_reduce(h, op);
      CHECK((std::isnan(x(1)) && !std::isnan(x(0)) && std::isnan(static_cast<float>(h(1)))));
    }
  }
}

TEST_CASE_TEMPLATE("broadcast, all_gather and reduce_scatter", D, SITU_TEST_COLLECTIVE_DEVICES) {
  auto const check = [&]<class T>(T) {
    CAPTURE(dtype_name<T>());
    for (int root = 0; root < processes(); ++root) {
      Tensor<T, D> x = mine<T>(6, D{}), columns = mine<T>(6, D{}).view({2, 3});
      distributed::broadcast(x, root);
      distributed::broadcast(columns(all(), range(0, 2)), root);
      for (int64_t k = 0; k < 6; ++k) CHECK((x.cpu()(k) == value<T>(root, k) && columns.cpu()(k / 3, k % 3) == value<T>(k % 3 < 2 ? root : me(), k)));
    }
    Tensor<T, D> const x = mine<T>(6, D{}).view({2, 3});
    Tensor<T> const gathered = distributed::all_gather(x.t()).cpu(), numbers = distributed::all_gather(x.reshape({6})(range(0, 1)).reshape({})).cpu();
    REQUIRE(gathered.shape() == Shape{3 * processes(), 2});
    REQUIRE(numbers.shape() == Shape{processes()});
    for (int r = 0; r < processes(); ++r) {
      for (int64_t k = 0; k < 6; ++k) CHECK(gathered(3 * r + k % 3, k / 3) == value<T>(r, k));
      CHECK(numbers(r) == value<T>(r, 0));
    }
    int64_t const each = 2;
    Tensor<T, D> const long_one = mine<T>(each * processes(), D{});
    Tensor<T> const sums = distributed::reduce_scatter(long_one).cpu();
    REQUIRE(sums.shape() == Shape{each});
    for (int64_t k = 0; k < each; ++k) CHECK(static_cast<double>(sums(k)) == combined<T>(reduce_op::sum, me() * each + k));
    CHECK(!any(long_one != mine<T>(each * processes(), D{})).item());
    if constexpr (floating<T>) {
      Tensor<T> const means = distributed::reduce_scatter(long_one, reduce_op::avg).cpu();
      for (int64_t k = 0; k < each; ++k) CHECK(static_cast<double>(means(k)) == doctest::Approx(combined<T>(reduce_op::avg, me() * each + k)).epsilon(0.02));
    }
  };
  [&]<class... Ts>(std::tuple<Ts...>) { (check(Ts{}), ...); }(std::tuple<bool, int16_t, int64_t, bfloat16, float>{});
  Tensor<float, D> x = ones({3}, D{});
  CHECK(thrown<IndexError>([&] { distributed::broadcast(x, processes()); }).find("there are " + std::to_string(processes())) != std::string::npos);
  CHECK(thrown<IndexError>([&] { distributed::broadcast(x, -1); }) != "");
  CHECK(thrown<ShapeError>([&] { distributed::reduce_scatter(ones({}, D{})); }) != "");
  if (processes() > 1) CHECK(thrown<ShapeError>([&] { distributed::reduce_scatter(ones({processes() + 1, 2}, D{})); }).find("cut into as many equal parts") != std::string::npos);
}

TEST_CASE("collectives beside the program keep their order, and what comes behind them waits") {
  Tensor<double> a = full<double>({300'000}, me() + 1.0), b = full<double>({7}, me() * 2.0), c{1.0 * me()};
  auto first = distributed::all_reduce_async(a);
  auto second = distributed::all_reduce_async(b, reduce_op::max);
  distributed::all_reduce(c);
  int const n = processes();
  CHECK((a(299'999) == n * (n + 1) / 2.0 && b(0) == 2.0 * (n - 1)));  // what was called later has come behind them
  second.wait();
  first.wait();
  first.wait();
  Tensor<float> large = full<float>({512, 1024}, 1);
  auto third = distributed::all_reduce_async(large);
  distributed::all_reduce(large, reduce_op::avg);
  auto fourth = distributed::all_reduce_async(large, reduce_op::avg);
  distributed::all_reduce(large.t());
  CHECK((static_cast<double>(min(large).item()) == n * n && static_cast<double>(max(large).item()) == n * n));
  auto last = distributed::all_reduce_async(from_blob(new float[6](), {6}, {1}, [](float* p) { delete[] p, (void)distributed::rank(); }));
  last.wait();
  CHECK((min(a).item() == n * (n + 1) / 2.0 && max(a).item() == n * (n + 1) / 2.0));
  CHECK((b(6) == 2.0 * (n - 1) && c(0) == n * (n - 1) / 2.0));
  Tensor<double> turned = ones<double>({2, 3}).t();
  CHECK(thrown<ShapeError>([&] { (void)distributed::all_reduce_async(turned); }).find("not contiguous") != std::string::npos);
}

TEST_CASE("collectives of a device are ordered with its work, on every stream") {
  using D = Emulated<0>;
  Tensor<double, D> x = full<double>({1000}, me() + 1.0, D{});
  int const n = processes();
  double expected = 0, local = me() + 1.0;
  Stream<D> other;
  for (int k = 0; k < 20; ++k) {
    emulated::delay(Stream<D>::current(), 1);
    if (k % 2 == 1) {
      StreamGuard const guard{other};
      x = x * 2 + 1;
    } else {
      x = x * 2 + 1;
    }
    distributed::all_reduce(x, reduce_op::avg);
    expected = 0;
    for (int r = 0; r < n; ++r) expected += (k == 0 ? (r + 1.0) * 2 + 1 : local * 2 + 1) / n;
    local = expected;
    x = x / 4;
    local /= 4;
  }
  CHECK((std::fabs(min(x).item() - local) < 1e-12 && std::fabs(max(x).item() - local) < 1e-12));
}

TEST_CASE("what backward needs is not written behind its back") {
  Variable<double> v{ones<double>({3})};
  Tensor<double> x = full<double>({3}, 2.0);
  Variable<double> y = v * x;
  distributed::all_reduce(x);
  CHECK(thrown<GradientError>([&] { sum(y).backward(); }).find("all_reduce") != std::string::npos);
}

TEST_CASE_TEMPLATE("gradients are those of the whole batch, in buckets of any size", D, Cpu, Emulated<0>) {
  for (int64_t bytes : {int64_t{1}, int64_t{200}, int64_t{25} << 20}) {
    CAPTURE(bytes);
    manual_seed(static_cast<uint64_t>(me()) + 1);
    Net<D> net;
    DistributedDataParallel ddp{net, {.bucket_bytes = bytes}};
    Net<D> const alone = clone(net);
    Tensor<double> const first = distributed::all_gather(parameters(net)[0].value().cpu().unsqueeze(0));
    for (int r = 0; r < processes(); ++r) CHECK(distance(first[r], first[0]) == 0);
    optim::SGD trained{ddp, {.lr = 0.1}}, reference{alone, {.lr = 0.1}};
    for (uint64_t step = 0; step < 4; ++step) {
      Tensor<double> const x = batch(step, 4), y = batch(100 + step, 3);
      trained.zero_grad(), reference.zero_grad();
      nn::mse_loss(ddp(part(x).to(D{})), part(y).to(D{})).backward();
      nn::mse_loss(alone(x.to(D{})), y.to(D{})).backward();
      CHECK(gradient_distance(net, alone) < 1e-15);
      trained.step(), reference.step();
    }
    for (auto const& each : parameters(net)) {
      Tensor<double> const all = distributed::all_gather(each.value().cpu().unsqueeze(0));
      for (int r = 0; r < processes(); ++r) CHECK(distance(all[r], all[0]) == 0);
    }
    CHECK(parameters(ddp)[0].state() == parameters(net)[0].state());
    CHECK(named_parameters(ddp)[0].name == "module.fc1.weight");
  }
}

TEST_CASE("a module on a device and a call of a const one are averaged, too; without recording nothing is sent") {
  Net<Cpu> net;
  DistributedDataParallel const ddp{net};
  Net<Cpu> const alone = clone(net);
  Tensor<double> const x = batch(1, 4);
  sum(ddp(part(x))).backward();
  (sum(alone(x)) / processes()).backward();
  CHECK(gradient_distance(net, alone) < 1e-14);
  int const before = sums;
  {
    no_grad const guard;
    CHECK(distance(ddp(part(x)), alone(part(x)).value()) == 0);
  }
  CHECK(sums == before);
  auto const moved = to(ddp, Emulated<0>{});
  static_assert(std::is_same_v<decltype(moved), DistributedDataParallel<Net<Emulated<0>>> const>);
  CHECK(distance(moved(part(x).to(Emulated<0>{})).value(), alone(part(x)).value()) < 1e-15);
}

TEST_CASE("parameters that some processes, or all, do not use count as zeros there") {
  Choice<Cpu> net;
  DistributedDataParallel ddp{net, {.bucket_bytes = 1}};
  Tensor<double> const x = part(batch(3, 4));
  sum(ddp(x, me() == 0 ? 0 : 1)).backward();
  Tensor<double> const rows_of_all = distributed::all_gather(sum(x, 0).unsqueeze(0));
  for (int64_t j = 0; j < 4; ++j) {
    double others = 0;
    for (int r = 1; r < processes(); ++r) others += rows_of_all(r, j);
    CHECK(net.first.weight.grad()(0, j) == doctest::Approx(rows_of_all(0, j) / processes()));
    if (processes() > 1) CHECK(net.second.weight.grad()(0, j) == doctest::Approx(others / processes()));
    if (processes() > 1) CHECK(net.never.weight.grad()(0, j) == 0);
  }
}

TEST_CASE("one parameter in two places, frozen ones, hooks, grad, and passes that are repeated") {
  Generator generator(5);
  Tied<Cpu> net{.w = Variable<double>(randn<double>({4, 3}, generator))};
  DistributedDataParallel ddp{net};
  Tied<Cpu> alone{.w = Variable<double>(net.w.value().clone())};
  Tensor<double> const x = batch(6, 4);
  Tensor<double> seen;
  net.w.register_hook([&](Tensor<double> const& g) { seen = g.clone(); });
  Variable<double> const mine = mean(ddp(part(x))), whole = mean(alone(x));
  Tensor<double> const expected = grad(whole, alone.w);
  mine.backward(retain_graph);
  CHECK(distance(net.w.grad(), expected) < 1e-15);
  CHECK(distance(seen, expected) < 1e-15);
  mine.backward(retain_graph);  // on top
  CHECK(distance(net.w.grad(), expected * 2) < 1e-15);
  CHECK(distance(grad(mine, net.w, retain_graph), expected) < 1e-15);
  CHECK(distance(net.w.grad(), expected * 2) < 1e-15);
  CHECK(!net.frozen.requires_grad());
  if (processes() > 1) CHECK(thrown<GradientError>([&] { (void)grad(mine, net.w, create_graph); }).find("cannot be differentiated again") != std::string::npos);
  Variable<double> const second = mean(ddp(part(x)) + ddp(part(x) * 2));  // two calls, one pass
  net.w.zero_grad();
  second.backward();
  CHECK(distance(net.w.grad(), grad(mean(alone(x) + alone(x * 2)), alone.w)) < 1e-15);
}

TEST_CASE("what is added up without averaging is averaged with what comes next") {
  Net<Cpu> net;
  DistributedDataParallel ddp{net};
  Net<Cpu> const alone = clone(net);
  Tensor<double> const x = batch(7, 4), z = batch(8, 4);
  int const before = sums;
  {
    auto const guard = ddp.no_sync();
    sum(ddp(part(x))).backward();
  }
  CHECK(sums == before);
  CHECK(distance(net.fc2.bias->grad(), full<double>({3}, static_cast<double>(rows))) == 0);
  sum(ddp(part(z))).backward();
  ((sum(alone(x)) + sum(alone(z))) / processes()).backward();
  CHECK(gradient_distance(net, alone) < 1e-13);
}

TEST_CASE("buffers are those of the first process") {
  NormNet<Cpu> net;
  net.norm.running_mean->assign(1000.f * static_cast<float>(me() + 1));
  DistributedDataParallel ddp{net};
  CHECK((min(*net.norm.running_mean).item() == 1000 && max(*net.norm.running_mean).item() == 1000));
  Tensor<float> const x = cast<float>(part(batch(9, 4)));
  for (bool broadcasts : {true, false}) {
    ddp.options.broadcast_buffers = broadcasts;
    net.norm.running_mean->assign(1000.f * static_cast<float>(me() + 1));
    mean(ddp(x)).backward();
    float const expected = 900.f * static_cast<float>(broadcasts ? 1 : me() + 1);  // and a tenth of this batch's
    CHECK((std::fabs(min(*net.norm.running_mean).item() - expected) < 10 && std::fabs(max(*net.norm.running_mean).item() - expected) < 10));
  }
  net.norm.running_mean->assign(1000.f * static_cast<float>(me() + 1));
  no_grad const guard;  // nothing is sent
  ddp(x);
  CHECK(std::fabs(min(*net.norm.running_mean).item() - 900.f * static_cast<float>(me() + 1)) < 10);
}

TEST_CASE("gradients leave before the layers below are looked at") {
  Watched net;
  DistributedDataParallel ddp{net, {.bucket_bytes = 1}};
  Variable<double> const loss = sum(ddp(part(batch(10, 4))));
  Watch::before = sums;
  loss.backward();
  CHECK(Watch::found == (processes() > 1 ? 2 : 0));  // the high layer's bias and weight
  CHECK(sums - Watch::before == (processes() > 1 ? 4 : 0));
}

TEST_CASE("sections that are run again are averaged, whatever reads their parameters besides") {
  auto const check = [](auto const& net) {
    DistributedDataParallel ddp{net, {.bucket_bytes = 1}};
    auto const alone = clone(net);
    Tensor<double> const x = batch(11, 4);
    Variable<double> const whole = sum(square(alone(x))) / processes();
    Tensor<double> const wanted = grad(whole, alone.a.weight, retain_graph);
    CHECK(distance(grad(sum(square(ddp(part(x)))), net.a.weight), wanted) < 1e-13);
    sum(square(ddp(part(x)))).backward();
    whole.backward();
    CHECK(gradient_distance(net, alone) < 1e-13);
  };
  check(Sections());
  check(Again());
}

TEST_CASE("processes may use other parts of several modules, and other element types") {
  Choice<Cpu> one, two;
  DistributedDataParallel first{one, {.bucket_bytes = 1}}, second{two, {.bucket_bytes = 1}};
  Choice<Cpu> const a = clone(one), b = clone(two);
  Tensor<double> const x = ones<double>({2, 4});
  auto const loss = [&](auto const& f, auto const& g, int r) { return Variable<double>(sum(f(x, r % 2)) + 10 * sum(g(x, (r + 1) % 2))); };
  loss(first, second, me()).backward();
  for (int r = 0; r < processes(); ++r) (loss(a, b, r) / processes()).backward();
  auto const same = [](nn::Linear<double> const& x, nn::Linear<double> const& y) { return !y.weight.has_grad() || distance(x.weight.grad(), y.weight.grad()) < 1e-13; };
  CHECK((same(one.first, a.first) && same(one.second, a.second) && same(two.first, b.first) && same(two.second, b.second)));

  TwoTypes types;
  DistributedDataParallel both{types};
  both(x, me() == 0).backward();
  CHECK(types.a.weight.grad()(0, 0) == doctest::Approx(2.0 / processes()));
  if (processes() > 1) CHECK(types.b.weight.grad()(0, 0) == doctest::Approx(2.0 * (processes() - 1) / processes()));
}

TEST_CASE("constant buffers are not written between a call and its backward") {
  Masked net;
  if (me() > 0) net.mask.assign(7);
  DistributedDataParallel ddp{net};
  CHECK(net.mask.to_vector() == std::vector<double>{1, 2, 3});
  Tensor<double> const x = ones<double>({2, 4});
  (sum(ddp(x)) + sum(ddp(x * 2))).backward();
  CHECK(net.a.bias->grad().to_vector() == std::vector<double>{4, 8, 12});
}

TEST_CASE("what a pass that fails was to be added to is still there") {
  Breakable net;
  DistributedDataParallel ddp{net, {.bucket_bytes = 1}};
  Tensor<double> const x = ones<double>({2, 4});
  sum(ddp(x)).backward();
  Tensor<double> const before = net.b.weight.grad().clone();
  Failing::fails = true;
  CHECK(thrown<Error>([&] { sum(ddp(x)).backward(); }) == "failed");
  Failing::fails = false;
  CHECK((net.a.weight.has_grad() && distance(net.b.weight.grad(), before) == 0));
  sum(ddp(x)).backward();
  CHECK(distance(net.b.weight.grad(), before * 2) < 1e-14);
}

TEST_CASE("copies and moved modules send nothing, and share what no_sync says") {
  Net<Cpu> net;
  DistributedDataParallel ddp{net, {.bucket_bytes = 8, .broadcast_buffers = false}};
  if (me() == 0) {
    auto const there = to(ddp, Emulated<0>{});
    CHECK((there.options.bucket_bytes == 8 && !there.options.broadcast_buffers));
  }
  Tensor<double> const x = part(batch(12, 4));
  int const before = sums;
  {
    auto const guard = std::as_const(ddp).no_sync();
    auto const copy = clone(ddp);
    sum(copy(x)).backward();
    CHECK(sums == before);
  }
  auto const later = clone(ddp);
  sum(later(x)).backward();
  CHECK((sums > before) == (processes() > 1));
  auto const there = to(ddp, Emulated<0>{});
  Net<Cpu> const alone = clone(net);
  sum(there(x.to(Emulated<0>{}))).backward();
  (sum(alone(batch(12, 4))) / processes()).backward();
  CHECK(gradient_distance(there.module, alone) < 1e-14);
}

TEST_CASE("a graph that one process keeps does not hold up the others") {
  Net<Cpu> net;
  DistributedDataParallel ddp{net};
  Tensor<double> const x = ones<double>({2, 4});
  std::vector<Variable<double>> kept;
  for (int k = 0; k < 4; ++k) {
    net.fc1.weight.requires_grad(k % 2 == 0);  // makes another exchange
    zero_grad(net);
    Variable<double> const loss = sum(ddp(x));
    loss.backward(retain_graph);
    if (me() == 0) kept.push_back(loss);
    CHECK(net.fc2.bias->grad()(0) == 2);
    CHECK(net.fc1.weight.has_grad() == (k % 2 == 0));
  }
}

TEST_CASE("copies are averaged apart, and hooks see what a pass brings") {
  Choice<Cpu> net;
  DistributedDataParallel ddp{net, {.bucket_bytes = 1}};
  auto const copy = clone(ddp);
  Tensor<double> const x = ones<double>({2, 4});
  (sum(ddp(x, me() % 2)) + 10 * sum(copy(x, (me() + 1) % 2))).backward();
  double const share = (processes() + 1) / 2 / static_cast<double>(processes());  // of those with an even number
  CHECK(net.first.bias->grad()(0) == doctest::Approx(2 * share));
  if (processes() > 1) CHECK(copy.module.first.bias->grad()(0) == doctest::Approx(20 * (1 - share)));

  Net<Cpu> hooked;
  DistributedDataParallel watched{hooked};
  bool fails = false;
  hooked.fc2.bias->register_hook([](Tensor<double> const& g) { return Tensor<double>(g * 0.5); });
  hooked.fc2.weight.register_hook([&](Tensor<double> const&) {
    if (fails) throw Error("hook");
  });
  for (int k = 1; k <= 3; ++k) {
    sum(watched(x)).backward();
    CHECK(hooked.fc2.bias->grad()(0) == k);
  }
  Tensor<double> const before = hooked.fc2.weight.grad().clone();
  fails = true;
  CHECK(thrown<Error>([&] { sum(watched(x)).backward(); }) == "hook");
  CHECK(distance(hooked.fc2.weight.grad(), before) == 0);
  for (auto const& each : parameters(hooked)) CHECK(each.grad().storage_head()->bytes == static_cast<std::size_t>(each.size()) * sizeof(double));
  if (processes() > 1) {
    DistributedDataParallel linear{nn::Linear<float>{4, 3}};
    auto const guard = linear.no_sync();
    CHECK(thrown<GradientError>([&] { mixed<bfloat16>(linear)(cast<bfloat16>(x)); }).find("never averaged") != std::string::npos);
  }
}

TEST_CASE("what a call changes in its module stays") {
  Growing growing;
  DistributedDataParallel grows{growing};
  auto* const weight = grows.module.a.weight.state();
  for (int k = 1; k <= 3; ++k) {
    sum(grows(ones<double>({2, 4}))).backward();
    CHECK((grows.module.calls == k && grows.module.more.size() == static_cast<std::size_t>(k < 2 ? k : 2) && grows.module.a.weight.state() == weight));
    CHECK(grows.module.more[0].weight.shape() == Shape{2, 2});
  }
  CHECK(growing.a.bias->grad()(0) == doctest::Approx(6));

  Counting net;
  DistributedDataParallel ddp{net};
  auto* const state = ddp.module.a.weight.state();
  for (int k = 0; k < 3; ++k) sum(ddp(ones<double>({2, 4}))).backward();
  CHECK((ddp.module.calls == 3 && ddp.module.a.weight.state() == state));
  CHECK(net.a.bias->grad()(0) == doctest::Approx(6));
}

TEST_CASE("other threads may call a module that is trained, without recording, and devices may be used first by several") {
  Net<Cpu> net;
  DistributedDataParallel const ddp{net};
  std::atomic<bool> ends{false};
  int wrong = 0;
  std::thread reader([&] {
    no_grad const guard;
    while (!ends) wrong += ddp(ones<double>({2, 4})).shape() != Shape{2, 3};
  });
  for (int k = 0; k < 200; ++k) sum(ddp(ones<double>({2, 4}))).backward();
  ends = true;
  reader.join();
  CHECK(wrong == 0);

  auto const use = []<class D>(D device) {
    Tensor<int64_t, D> x = full<int64_t>({3}, D::ordinal + 1, device);
    distributed::all_reduce(x);
    return x.cpu()(2) == processes() * (D::ordinal + 1);
  };
  emulated::configure({.devices = 6});
  bool a = false, b = false;
  std::thread one([&] { me() % 2 == 0 ? a = use(Emulated<4>{}) : b = use(Emulated<5>{}); }), two([&] { me() % 2 == 0 ? b = use(Emulated<5>{}) : a = use(Emulated<4>{}); });
  one.join(), two.join();
  CHECK((a && b));
}

TEST_CASE("a module that throws keeps its parameters") {
  Thrower net;
  DistributedDataParallel ddp{net};
  auto* const state = ddp.module.w.state();
  CHECK(thrown<Error>([&] { ddp(ones<double>({1})); }) == "thrown");
  CHECK(ddp.module.w.state() == state);
  sum(ddp(ones<double>({2}))).backward();
  CHECK(net.w.grad().to_vector() == std::vector<double>{1, 1});
}

TEST_CASE("modules that differ are refused everywhere") {
  nn::Linear<float> net{3, me() == 0 ? 4 : 5};
  if (processes() > 1) CHECK(thrown<Error>([&] { DistributedDataParallel ddp{net}; }).find("the modules of the processes differ") != std::string::npos);
  nn::Linear<float> same{3, 4};
  same.weight.requires_grad(me() == 0);
  if (processes() > 1) CHECK(thrown<Error>([&] { DistributedDataParallel ddp{same}; }).find("the modules of the processes differ") != std::string::npos);
  CHECK(thrown<ShapeError>([&] { DistributedDataParallel ddp{same, {.bucket_bytes = 0}}; }) != "");
}

TEST_CASE("shares of a dataset are of one size, and leave nothing out") {
  for (int64_t n : {1, 2, 7, 12}) {
    data::TensorDataset samples(arange<int64_t>(n));
    auto const share = distributed::share(samples);
    CHECK(share.size() == (n + processes() - 1) / processes());
    Tensor<int64_t> const everyones = distributed::all_gather(share.indices());
    std::vector<int> seen(static_cast<std::size_t>(n));
    for (int64_t k = 0; k < everyones.size(); ++k) ++seen[static_cast<std::size_t>(everyones(k))];
    for (int times : seen) CHECK(times >= 1);
    if (n % processes() == 0) {
      for (int times : seen) CHECK(times == 1);
    }
  }
  CHECK(thrown<ShapeError>([] { (void)distributed::share(data::TensorDataset(arange<int64_t>(0))); }) != "");
}

TEST_CASE("a Trainer decides the same in all processes, and one of them writes files") {
  std::string const file = "distributed_run_" + std::to_string(processes()) + "_" + std::to_string(me()) + ".csv";
  std::remove(file.c_str());
  Net<Cpu> net;
  DistributedDataParallel ddp{net};
  // What helps in one process harms in the next one: alone, they would stop in different epochs.
  Tensor<double> const x = batch(20, 4), y = batch(21, 3);
  data::TensorDataset const samples{part(x), part(y)}, judged{part(x), Tensor<double>(part(y) * (me() % 2 == 0 ? 1.0 : -2.0))};
  learning::Trainer<Cpu> const trainer{{.epochs = 12, .batch_size = 2, .patience = 2, .restore_best = true, .csv = file, .progress = nullptr}};
  auto const history = trainer.fit(
      ddp, samples, judged, [](auto const& output, auto const& wanted) { return nn::mse_loss(output, wanted); }, [](auto& model) { return optim::SGD{model, {.lr = 0.3}}; });
  Tensor<double> const facts = distributed::all_gather(Tensor<double>{{static_cast<double>(history.epochs.size()), static_cast<double>(history.best_epoch), history.epochs.back().validation_loss,
                                                                       history.epochs.back().loss, static_cast<double>(sum(net.fc1.weight.value()).item())}});
  for (int r = 0; r < processes(); ++r) CHECK(distance(facts[r], facts[0]) == 0);
  CHECK((std::remove(file.c_str()) == 0) == (me() == 0));
}

/// Run by a test of its own, which looks for the end.
TEST_CASE("a process that fails ends all" * doctest::skip()) {
  distributed::barrier();
  if (me() == 1) std::exit(3);
  distributed::barrier();
}
