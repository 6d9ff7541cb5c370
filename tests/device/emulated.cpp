#include <situ/device/emulated/device.hpp>
#include <situ/device/event.hpp>
#include <situ/device/query.hpp>

#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>
#include <situ/tensor/transfer.hpp>

using namespace situ;

namespace {

using Device = Emulated<0>;
using Traits = device_traits<Device>;
using Float = Tensor<float, Device>;

/// A fresh set of devices for one test case; the usual two are back when it ends.
struct Configured {
  explicit Configured(emulated::configuration const& c = {}) { emulated::configure(c); }
  Configured(Configured const&) = delete;
  Configured& operator=(Configured const&) = delete;
  ~Configured() { emulated::configure(); }
};

/// Host flags that kernels wait for and set.
struct Gate {
  int open = 0, passed = 0;
};

/// Waits until its gate opens, then writes a value everywhere.
struct Late {
  Gate* gate;
  float* data;
  float value;
  void operator()(int64_t first, int64_t last) const {
    while (__atomic_load_n(&gate->open, __ATOMIC_ACQUIRE) == 0) ::usleep(200);
    for (int64_t i = first; i < last; ++i) data[i] = value;
    __atomic_fetch_add(&gate->passed, 1, __ATOMIC_RELEASE);
  }
};

void open(Gate& gate) { __atomic_store_n(&gate.open, 1, __ATOMIC_RELEASE); }
int passed(Gate& gate) { return __atomic_load_n(&gate.passed, __ATOMIC_ACQUIRE); }

template <class D = Device>
void fill_late(Gate& gate, Tensor<float, D>& x, float value) {
  device_traits<D>::launch(Late{&gate, x.data(), value}, x.size(), 1024);
}

Tensor<float> counting(Shape const& shape) {
  std::vector<float> values(static_cast<std::size_t>(detail::product(shape)));
  std::iota(values.begin(), values.end(), 0.f);
  return {values, shape};
}

template <class A, class B>
void check_same(A const& a, B const& b) {
  CHECK(a.shape() == b.shape());
  CHECK(a.to_vector() == b.to_vector());
}

/// How a child process that runs f ends: its signal, or 0.
template <class F>
int signal_of(F f) {
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    std::signal(SIGBUS, SIG_DFL);
    f();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

template <class A, class B>
concept addable = requires(A const& a, B const& b) {
  a + b;
};
static_assert(addable<Tensor<float, Emulated<0>>, Tensor<double, Emulated<0>>>);
static_assert(!addable<Tensor<float, Emulated<0>>, Tensor<float, Cpu>>);
static_assert(!addable<Tensor<float, Cpu>, Tensor<float, Emulated<0>>>);
static_assert(!addable<Tensor<float, Emulated<0>>, Tensor<float, Emulated<1>>>);
static_assert(!std::is_convertible_v<Tensor<float, Emulated<1>>, Tensor<float, Emulated<0>>>);
static_assert(!std::is_convertible_v<Tensor<float, Cpu>, Tensor<float, Emulated<0>>>);
static_assert(!std::is_assignable_v<Tensor<float, Emulated<0>>&, Tensor<float, Emulated<1>>>);
static_assert(std::is_constructible_v<Tensor<float, Emulated<0>>, Tensor<float, Emulated<1>>>);
static_assert(!std::is_invocable_v<Tensor<float, Emulated<0>>&, int>);
static_assert(std::is_invocable_v<Tensor<float, Cpu>&, int>);

/// Destroyed after main and after the threads of the devices have ended: its destructor is registered before they
/// start.
struct Survivor {
  Float x;
  void fill() { x = Tensor<float>{1, 2, 3}.to(Device{}) * 2; }
  ~Survivor() {
    if (x.size() == 0) return;
    Float const y = x + 1;
    Tensor<float, Emulated<1>> const z = y.to(Emulated<1>{});
    if (z.to_vector() != std::vector<float>{3, 5, 7}) ::_exit(99);
  }
} survivor;
bool const worked_before_main = [] {
  survivor.fill();
  bool const worked = survivor.x.to_vector() == std::vector<float>{2, 4, 6};
  survivor.x = Float();
  return worked;
}();

using Fresh = Configured;

}  // namespace

TEST_CASE("a tensor in static storage works before and after main") {
  CHECK(worked_before_main);
  struct Last {
    ~Last() { survivor.fill(); }  // after main, before the threads end
  };
  [[maybe_unused]] static Last const last;
}

TEST_CASE("expressions on an emulated device give what they give on the CPU") {
  Tensor<float> const a = counting({7, 33}), b = counting({33}) * 0.25f - 3.f;
  auto const x = a.to(Device{}), y = b.to(Device{});
  check_same(eval(x * 2 + y), eval(a * 2 + b));
  check_same(eval(x.t() - y.unsqueeze(1)), eval(a.t() - b.unsqueeze(1)));
  check_same(eval(tanh(x * 0.01f) / (1 + abs(y))), eval(tanh(a * 0.01f) / (1 + abs(b))));
  check_same(eval(where(x > 50, y, -x)), eval(where(a > 50, b, -a)));
  check_same(eval(cast<int64_t>(x) % 5), eval(cast<int64_t>(a) % 5));
  check_same(eval(x.flip(0) + x(all(), range(1, 2))), eval(a.flip(0) + a(all(), range(1, 2))));
  CHECK(eval(x * y).shape() == Shape(7, 33));
}

TEST_CASE("writes in place on an emulated device give what they give on the CPU") {
  Tensor<float> a = counting({6, 5});
  auto x = a.to(Device{});
  a[1] = a[2] * 10;
  x[1] = x[2] * 10;
  a(all(), 0) = -1;
  x(all(), 0) = -1;
  a.slice(0, 1, 6).assign(a.slice(0, 0, 5));
  x.slice(0, 1, 6).assign(x.slice(0, 0, 5));
  a *= a;
  x *= x;
  check_same(x, a);
}

TEST_CASE("large expressions run on an emulated device in one launch") {
  Tensor<float> const a = counting({3000, 1000});
  auto const x = a.to(Device{});
  auto const before = emulated::statistics(0);
  Float const y = x * 2 + 1;
  auto const after = emulated::statistics(0);
  CHECK(after.launches == before.launches + 1);
  CHECK(after.allocations == before.allocations + 1);
  CHECK(after.copies_to_host == before.copies_to_host);
  check_same(y, eval(a * 2 + 1));
}

TEST_CASE("a launch returns before it has run, and reading waits for it") {
  Gate gate;
  Float x = Tensor<float>{0, 0, 0}.to(Device{});
  fill_late(gate, x, 7);
  CHECK(passed(gate) == 0);
  Float const y = x + 1;  // enqueued behind it
  CHECK(passed(gate) == 0);
  open(gate);
  CHECK(y.to_vector() == std::vector<float>{8, 8, 8});
  CHECK(passed(gate) == 1);
}

TEST_CASE("synchronize waits for everything that is enqueued") {
  Gate gate;
  Float x = Tensor<float>{0, 0}.to(Device{});
  for (int k = 0; k < 10; ++k) fill_late(gate, x, static_cast<float>(k));
  open(gate);
  synchronize(Device{});
  CHECK(passed(gate) == 10);
  CHECK(x.item(1) == 9);
}

TEST_CASE("synchronize waits for a device that is known only at run time") {
  Gate gate;
  Float x = Tensor<float>{0, 0}.to(Device{});
  for (int k = 0; k < 10; ++k) fill_late(gate, x, static_cast<float>(k));
  open(gate);
  synchronize(AnyDevice(Device{}));
  CHECK(passed(gate) == 10);
  synchronize(AnyDevice(Cpu{}));
  CHECK_THROWS_AS(synchronize(AnyDevice(Emulated<77>{})), DeviceUnavailable);
  Stream<Device> stream;
  enqueue(stream, [] { throw std::runtime_error("failed on the way"); });
  CHECK_THROWS_WITH_AS(synchronize(AnyDevice(Device{})), doctest::Contains("failed on the way"), std::runtime_error);
#if !defined(SITU_WITH_CUDA)
  CHECK_THROWS_AS(synchronize(AnyDevice::cuda(0)), DeviceUnavailable);
#endif
}

TEST_CASE("a copy within the device is enqueued, a copy from the host is done when it returns") {
  Gate gate;
  Float x = Tensor<float>{1, 2}.to(Device{});
  fill_late(gate, x, 5);
  Float const y = x.clone();
  CHECK(passed(gate) == 0);
  open(gate);
  std::vector<float> values{8, 9};
  Float const z(values, {2});
  CHECK(passed(gate) == 1);
  values = {0, 0};
  CHECK(y.to_vector() == std::vector<float>{5, 5});
  CHECK(z.to_vector() == std::vector<float>{8, 9});
}

TEST_CASE("memory that is freed while a kernel is queued is not used again before the kernel has run") {
  Gate gate;
  Float kept = Tensor<float>{0, 0, 0, 0}.to(Device{});
  float const* freed = nullptr;
  Float result;
  {
    Float x = Tensor<float>{0, 0, 0, 0}.to(Device{});
    freed = x.data();
    fill_late(gate, x, 3);
    result = x * 2;
  }
  std::vector<Float> fresh;
  for (int k = 0; k < 8; ++k) fresh.push_back(kept + static_cast<float>(k));
  for (Float const& f : std::as_const(fresh)) CHECK(f.data() != freed);
  open(gate);
  CHECK(result.to_vector() == std::vector<float>{6, 6, 6, 6});
  for (int k = 0; k < 8; ++k) CHECK(fresh[static_cast<std::size_t>(k)].item(3) == static_cast<float>(k));
  synchronize(Device{});
  Float const reuse = kept + 1;
  CHECK(reuse.data() == freed);
}

TEST_CASE("memory that waits to be freed does not make an allocation fail") {
  Fresh const devices({.memory = 1 << 16});
  Gate gate;
  Float x = Tensor<float>::uninitialized({1}).to(Device{});
  fill_late(gate, x, 1);
  { Float const large = Float::uninitialized({15000}); }
  open(gate);
  Float const large = Float::uninitialized({15000});
  CHECK(large.size() == 15000);
}

TEST_CASE("copies between devices run in the order of both streams") {
  Gate source, target;
  Float x = Tensor<float>{1, 2, 3}.to(Device{});
  Tensor<float, Emulated<1>> other = Tensor<float>{0, 0}.to(Emulated<1>{});
  auto const before = emulated::statistics(1);
  auto const from_before = emulated::statistics(0);
  fill_late(source, x, 4);  // what the copy waits for
  fill_late(target, other, 1);
  Tensor<float, Emulated<1>> const y = x.to(Emulated<1>{});
  Gate after{1, 0};
  fill_late(after, x, 9);  // what waits for the copy
  CHECK(passed(source) == 0);
  open(source);
  ::usleep(2000);
  CHECK(passed(after) == 0);  // the copy waits for the target's stream
  open(target);
  CHECK(y.to_vector() == std::vector<float>{4, 4, 4});
  CHECK(x.to_vector() == std::vector<float>{9, 9, 9});
  auto const counted = emulated::statistics(1);
  CHECK(counted.copies_from_peer == before.copies_from_peer + 1);
  CHECK(counted.copies_from_host == before.copies_from_host);
  CHECK(emulated::statistics(0).copies_to_peer == from_before.copies_to_peer + 1);
  CHECK(emulated::statistics(0).copies_to_host == from_before.copies_to_host + 1);  // x.to_vector()
}

TEST_CASE("storage that is freed right after a copy to another device is still there for the copy") {
  Gate gate;
  Tensor<float, Emulated<1>> other = Tensor<float>{0, 0}.to(Emulated<1>{});
  Float const base = Tensor<float>{1, 2, 3}.to(Device{});
  fill_late(gate, other, 1);
  Tensor<float, Emulated<1>> const y = base.clone().to(Emulated<1>{});
  Float const fresh = base * 0;
  open(gate);
  CHECK(y.to_vector() == std::vector<float>{1, 2, 3});
}

TEST_CASE("copies that cross each other do not wait in a circle") {
  Float x = counting({100}).to(Device{});
  auto y = counting({100}).to(Emulated<1>{});
  for (int k = 0; k < 100; ++k) {
    auto const x_there = x.to(Emulated<1>{});
    auto const y_here = y.to(Device{});
    x = x + y_here;
    y = y + x_there;
  }
  check_same(x, y.to(Device{}));
}

namespace {
/// Two host threads, each copying in its own direction.
void* copy_there(void*) {
  Float const x = counting({64}).to(Device{});
  for (int k = 0; k < 200; ++k) {
    if (x.to(Emulated<1>{}).item(63) != 63) return nullptr;
  }
  return reinterpret_cast<void*>(1);
}
}  // namespace

TEST_CASE("two host threads may use the devices at once") {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, nullptr, &copy_there, nullptr) == 0);
  auto const y = counting({64}).to(Emulated<1>{});
  bool right = true;
  for (int k = 0; k < 200; ++k) right = right && (y.to(Device{}) * 2).item(63) == 126;
  CHECK(right);
  void* result = nullptr;
  pthread_join(thread, &result);
  CHECK(result != nullptr);
}

TEST_CASE("transfers carry views, expressions and other element types") {
  Tensor<float> const a = counting({4, 6});
  auto const x = a.to(Device{});
  check_same(x.t().cpu(), a.t());
  check_same(x.t().to(Emulated<1>{}), a.t());
  check_same(x(range(1, 3), range(0, end(), 2)).cpu(), a(range(1, 3), range(0, end(), 2)));
  check_same(x.flip(1).to(Emulated<1>{}).to(Device{}).cpu(), a.flip(1));
  check_same(x[2].expand({3, 6}).cpu(), a[2].expand({3, 6}));
  check_same(a.t().to(Device{}), a.t());
  check_same((x * 2).to(Emulated<1>{}), eval(a * 2));
  check_same(x.to<double>(Cpu{}), cast<double>(a));
  check_same(x.to<int8_t>(Emulated<1>{}), cast<int8_t>(a));
  check_same(a.to<int32_t>(Device{}), cast<int32_t>(a));
  check_same(x.t().to<float16>().cpu(), cast<float16>(a.t()));
  CHECK(x.to(Device{}).data() == x.data());
  Float const direct{a};
  check_same(direct, a);
  Float const braces{{1, 2}, {3, 4}};
  CHECK(braces.to_vector() == std::vector<float>{1, 2, 3, 4});
  CHECK(x.item(3, -1) == 23);
  CHECK(Float().cpu().size() == 0);
  CHECK(Float().to(Emulated<1>{}).size() == 0);
  CHECK(x(range(2, 2)).cpu().shape() == Shape(0, 6));
}

TEST_CASE("out of memory says what was asked, what is free and what to do, and the next operation works") {
  Fresh const devices({.memory = 1 << 20});
  Float const a = Float::uninitialized({64, 1024});   // a quarter
  Float const b = Float::uninitialized({128, 1024});  // a half
  CHECK_THROWS_WITH_AS(
      Float::uninitialized({128, 1024}),
      "emulated:0: out of memory: 512.0 KiB were asked for (524288 bytes): 256.0 KiB of 1.0 MiB are free, the largest "
      "free block has 256.0 KiB; situ has allocated 768.0 KiB and holds 768.0 KiB; the largest live allocations are 1 x "
      "512.0 KiB, 1 x 256.0 KiB. Free tensors, work on smaller parts, or give the device more with "
      "emulated::configure({.memory = ...})",
      OutOfMemory);
  CHECK(emulated::statistics(0).allocations == 2);
  CHECK(emulated::statistics(0).bytes == 786432);
  Float const c = Float::uninitialized({64, 1024});
  CHECK_THROWS_AS(Float::uninitialized({1}), OutOfMemory);
  Tensor<float, Emulated<1>> const other = Tensor<float>{1, 2}.to(Emulated<1>{});
  CHECK(other.item(1) == 2);
}

TEST_CASE("an expression that runs out of memory leaves its operands and its target as they were") {
  Fresh const devices({.memory = 1 << 12});
  Float const x = counting({600}).to(Device{});
  Float y = Tensor<float>{1, 2}.to(Device{});
  CHECK_THROWS_AS(y = x * 2, OutOfMemory);
  CHECK(y.to_vector() == std::vector<float>{1, 2});
  CHECK(x.item(599) == 599);
  CHECK((x(range(0, 4)) + 1).to_vector() == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("freed neighbours become one block again") {
  Fresh const devices({.memory = 1 << 20});
  for (int round = 0; round < 3; ++round) {
    synchronize(Device{});
    std::vector<Float> parts;
    for (int k = 0; k < 16; ++k) parts.push_back(Float::uninitialized({16384}));
    CHECK_THROWS_AS(Float::uninitialized({1}), OutOfMemory);
    for (std::size_t k : {3u, 5u, 4u, 0u, 15u, 14u, 1u, 2u}) parts[k] = Float();
    Float const five = Float::uninitialized({6 * 16384});
    CHECK(five.size() == 6 * 16384);
    CHECK_THROWS_AS(Float::uninitialized({3 * 16384}), OutOfMemory);
  }
  Float const whole = Float::uninitialized({1 << 18});
  CHECK(whole.size() == 1 << 18);
}

TEST_CASE("memory is aligned to 256 bytes") {
  std::vector<Float> all;
  for (int64_t n : {1, 3, 100, 1000, 7}) all.push_back(Float::uninitialized({n}));
  for (Float& x : all) CHECK(reinterpret_cast<std::uintptr_t>(x.data()) % 256 == 0);
}

TEST_CASE("the operation that fail_at names fails, and only that one") {
  Fresh const devices;
  Tensor<float> const a{1, 2, 3};
  emulated::configure({.fail_at = 0});  // an allocation
  CHECK_THROWS_WITH_AS(a.to(Device{}),
                       "emulated:0: allocation failed: operation 0 was made to fail by emulated::configure({.fail_at = "
                       "0}); the next operation works",
                       OutOfMemory);
  CHECK(a.to(Device{}).to_vector() == a.to_vector());
  emulated::configure({.fail_at = 1});  // a copy
  CHECK_THROWS_WITH_AS(a.to(Emulated<1>{}),
                       "emulated:1: copy failed: operation 1 was made to fail by emulated::configure({.fail_at = 1}); "
                       "the next operation works",
                       emulated::InjectedFault);
  CHECK(a.to(Emulated<1>{}).to_vector() == a.to_vector());
  emulated::configure({.fail_at = 3});  // a launch
  {
    Float const x = a.to(Device{});
    Float y;
    CHECK_THROWS_AS(y = x + 1, Error);
    CHECK(y.size() == 0);
    y = x + 1;
    CHECK(y.to_vector() == std::vector<float>{2, 3, 4});
  }
}

TEST_CASE("a fault can be asked for while tensors live") {
  Fresh const devices;
  Float const x = Tensor<float>{1, 2, 3}.to(Device{});
  for (int k = 0; k < 2; ++k) {  // an allocation, then a launch
    emulated::configure({.fail_at = k});
    CHECK(emulated::statistics(0).launches == 0);
    CHECK(emulated::statistics(0).bytes == 12);
    CHECK_THROWS_AS(eval(x + 1), Error);
    CHECK(eval(x + 1).to_vector() == std::vector<float>{2, 3, 4});
  }
  emulated::configure();
  CHECK(x.to_vector() == std::vector<float>{1, 2, 3});
  CHECK_THROWS_AS(emulated::configure({.memory = 1 << 20}), Error);
}

TEST_CASE("whichever operation fails, operands stay as they were and nothing is lost") {
  Fresh const devices;
  int64_t failures = 0;
  for (int64_t k = 0; k < 12; ++k) {
    emulated::configure({.fail_at = k});
    {
      Tensor<float> const a{1, 2, 3, 4};
      Float x, z{};
      auto const program = [&] {
        if (x.size() == 0) x = a.to(Device{});
        Float y = x * 2;
        auto const there = y.to(Emulated<1>{});
        z = there.to(Device{}) + x.clone();
      };
      try {
        program();
      } catch (Error const&) {
        ++failures;
        CHECK(z.size() == 0);
        program();
      }
      CHECK(x.to_vector() == a.to_vector());
      CHECK(z.to_vector() == std::vector<float>{3, 6, 9, 12});
    }
    CHECK(emulated::statistics(0).bytes == 0);
    CHECK(emulated::statistics(1).bytes == 0);
  }
  CHECK(failures >= 10);
}

namespace {
/// Finds index `first + index` wrong, when its gate opens.
struct Faulty {
  Gate* gate;
  detail::IndexBounds bounds;
  int64_t index;
  void operator()(int64_t first, int64_t last) const {
    while (__atomic_load_n(&gate->open, __ATOMIC_ACQUIRE) == 0) ::usleep(200);
    for (int64_t i = first; i < last; ++i) detail::record_fault(bounds, index + i, i);
  }
};
}  // namespace

TEST_CASE("what a kernel finds wrong is thrown by the next synchronisation, once, and nothing waits for it") {
  Float const x = counting({4}).to(Device{});
  Gate gate;
  detail::IndexBounds const bounds{Traits::fault(), "lookup", 7, 2}, later{Traits::fault(), "later", 1, detail::IndexFault::elements};
  Traits::launch(Faulty{&gate, bounds, 50}, 3, 1);
  Traits::launch(Faulty{&gate, later, -9}, 1, 1);
  Float const y = x * 2;
  open(gate);
  CHECK_THROWS_WITH_AS(y.to_vector(),
                       "emulated:0: lookup: index 50 (element 0 of the indices) is out of range for axis 2: it has 7 elements; the operation ran without it, and "
                       "its result must not be used",
                       IndexError);
  CHECK(y.to_vector() == std::vector<float>{0, 2, 4, 6});
  Traits::launch(Faulty{&gate, later, -9}, 1, 1);
  CHECK_THROWS_WITH_AS(synchronize(Device{}),
                       "emulated:0: later: index -9 (element 0 of the indices) is out of range for an input of 1 element; the operation ran without it, and its "
                       "result must not be used",
                       IndexError);
  synchronize(Device{});
  Traits::launch(Faulty{&gate, bounds, 50}, 1, 1);
  synchronize(Emulated<1>{});
  { Float const written = counting({4}).to(Device{}); }  // what is written to the device is not in doubt, and nothing throws when it ends
  CHECK_THROWS_AS((void)x.item(0), IndexError);
  CHECK(x.item(3) == 3);
}

TEST_CASE("what a kernel finds wrong is thrown where its results have gone, and by an event that is waited for") {
  Configured const devices({.devices = 3});
  Gate gate;
  open(gate);
  detail::IndexBounds const bounds{Traits::fault(), "lookup", 7, 2};
  Float const x = counting({4}).to(Device{});
  Traits::launch(Faulty{&gate, bounds, 50}, 1, 1);
  Tensor<float, Emulated<2>> const there = x.to(Emulated<2>{});
  synchronize(Emulated<1>{});
  CHECK_THROWS_AS(there.to_vector(), IndexError);
  CHECK(there.to_vector() == std::vector<float>{0, 1, 2, 3});
  synchronize(Device{});
  Traits::launch(Faulty{&gate, bounds, 50}, 1, 1);
  CHECK_THROWS_AS(x.to(Emulated<1>{}).to(Emulated<2>{}).to_vector(), IndexError);  // over two devices
  Event<Emulated<9>> const never;  // has passed, on no device
  never.synchronize();
  Event<Device> start, end;
  start.record();
  Traits::launch(Faulty{&gate, bounds, 50}, 1, 1);
  end.record();
  CHECK_THROWS_AS(end.synchronize(), IndexError);
  end.synchronize();
  Traits::launch(Faulty{&gate, bounds, 50}, 1, 1);
  end.record();
  CHECK_THROWS_AS((void)start.elapsed_ms(end), IndexError);
  synchronize(Device{});
}

TEST_CASE("a fault that nobody asked for ends with its device") {
  Fresh const devices;
  Gate gate{1};
  Traits::launch(Faulty{&gate, {Traits::fault(), "lookup", 7, 0}, 50}, 1, 1);
  emulated::configure();
  synchronize(Device{});
}

TEST_CASE("a device that does not exist is unavailable, and the message says how to have it") {
  CHECK_THROWS_WITH_AS(
      (Tensor<float>{1, 2}.to(Emulated<5>{})),
      "emulated:5: there is no such device: 2 devices are configured; emulated::configure({.devices = 6}) makes more",
      DeviceUnavailable);
  CHECK_THROWS_AS(synchronize(Emulated<2>{}), DeviceUnavailable);
  CHECK_THROWS_AS(emulated::statistics(2), DeviceUnavailable);
  CHECK((Tensor<float, Emulated<7>>().size()) == 0);
  Fresh const devices({.devices = 6});
  CHECK(emulated::device_count() == 6);
  CHECK(Tensor<float>{1, 2}.to(Emulated<5>{}).to(Emulated<3>{}).to_vector() == std::vector<float>{1, 2});
  emulated::configure({.devices = 1});
  CHECK_THROWS_WITH_AS(
      (Tensor<float, Emulated<1>>{1, 2}),
      "emulated:1: there is no such device: 1 device is configured; emulated::configure({.devices = 2}) makes more",
      DeviceUnavailable);
}

TEST_CASE("configure refuses while tensors live, and numbers of devices that cannot be") {
  Fresh const devices({.devices = 3});
  {
    Tensor<float, Emulated<2>> const x{1, 2};
    CHECK_THROWS_WITH_AS(
        emulated::configure({.devices = 4}),
        "emulated::configure: emulated:2 still holds 1 allocation of 8 bytes in all: destroy the tensors on it first",
        Error);
    CHECK(emulated::device_count() == 3);
    CHECK(x.item(1) == 2);
  }
  CHECK_THROWS_WITH_AS(emulated::configure({.devices = -1}),
                       "emulated::configure: -1 devices were asked for; there can be 0 to 256", Error);
  CHECK_THROWS_AS(emulated::configure({.devices = 257}), Error);
  emulated::configure({.devices = 0});
  CHECK_THROWS_AS((Tensor<float, Device>{1, 2}), DeviceUnavailable);
  emulated::configure({.memory = std::size_t{1} << 60});
  CHECK_THROWS_AS((Tensor<float, Device>{1, 2}), OutOfMemory);
}

TEST_CASE("statistics count what a device was asked to do") {
  Fresh const devices;
  {
    Float const x = counting({100}).to(Device{});
    Float const y = x * x + 1;
    Float const z = y.clone();
    CHECK(z.item(2) == 5);
    auto const s = emulated::statistics(0);
    CHECK(s.launches == 1);
    CHECK(s.allocations == 3);
    CHECK(s.bytes == 1200);
    CHECK(s.copies_from_host == 1);
    CHECK(s.copies_within == 1);
    CHECK(s.copies_to_host == 1);
    CHECK(s.copies_from_peer + s.copies_to_peer == 0);
  }
  CHECK(emulated::statistics(0).bytes == 0);
  CHECK(emulated::statistics(0).peak == 1200);
  CHECK(emulated::statistics(1).allocations == 0);
}

TEST_CASE("the host cannot read or write the memory of a device") {
  Float x = Tensor<float>{1, 2, 3}.to(Device{});
  synchronize(Device{});
  float* const data = x.data();
  CHECK(signal_of([data] { [[maybe_unused]] float volatile const value = *const_cast<float volatile*>(data); }) ==
        SIGSEGV);
  CHECK(signal_of([data] { *const_cast<float volatile*>(data) = 1; }) == SIGSEGV);
  CHECK(signal_of([] {}) == 0);
  CHECK(x.item(0) == 1);
}

namespace {
struct Dereference {
  float volatile* data;
  void operator()(int64_t, int64_t) const { *data = 1; }
};
}  // namespace

TEST_CASE("a kernel cannot reach the memory of another device") {
  if (std::getenv("SITU_TEST_FAULT")) {  // in the new process that is started below: threads do not survive a fork
    std::signal(SIGSEGV, SIG_DFL);
    Tensor<float, Emulated<1>> other = Tensor<float>{1, 2}.to(Emulated<1>{});
    Traits::launch(Dereference{other.data()}, 1, 1);
    synchronize(Device{});
    return;
  }
  CHECK(signal_of([] {
          ::setenv("SITU_TEST_FAULT", "1", 1);
          ::execl("/proc/self/exe", "emulated", "--test-case=a kernel cannot reach the memory of another device",
                  "--out=/dev/null", nullptr);
        }) == SIGSEGV);
}

#if SITU_ASAN
TEST_CASE("a kernel that writes past a tensor is seen by AddressSanitizer") {
  Float x = Float::uninitialized({64});
  float* const behind = x.data() + 64;
  CHECK(__asan_address_is_poisoned(behind));
  CHECK(!__asan_address_is_poisoned(behind - 1));
  float* const data = x.data();
  x = Float();
  synchronize(Device{});
  CHECK(__asan_address_is_poisoned(data));
}
#endif
