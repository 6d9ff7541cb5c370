#include <situ/device/event.hpp>
#include <situ/device/stream.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <situ/device/query.hpp>
#include <situ/tensor.hpp>

using namespace situ;

namespace {

using Device = Emulated<0>;
using Float = Tensor<float, Device>;

/// A host flag that a stream waits for.
struct Gate {
  int open = 0;
};
void open(Gate& gate) { __atomic_store_n(&gate.open, 1, __ATOMIC_RELEASE); }
/// Holds a stream up until its gate opens.
template <class D>
void hold(Stream<D> const& stream, Gate& gate) {
  enqueue(stream, [&gate] {
    while (__atomic_load_n(&gate.open, __ATOMIC_ACQUIRE) == 0) ::usleep(100);
  });
}

struct Devices {
  explicit Devices(emulated::configuration const& c = {}) { emulated::configure(c); }
  Devices(Devices const&) = delete;
  Devices& operator=(Devices const&) = delete;
  ~Devices() { emulated::configure(); }
};

using Values = std::vector<float>;

}  // namespace

TEST_CASE("a guard makes a stream the current one of its device in this thread, and guards nest") {
  Stream<Device> const a, b;
  CHECK(a != b);
  CHECK(Stream<Device>::current() == Stream<Device>::default_stream());
  {
    StreamGuard const outer{a};
    CHECK(Stream<Device>::current() == a);
    CHECK(Stream<Emulated<1>>::current() == Stream<Emulated<1>>::default_stream());
    {
      StreamGuard const inner{b};
      StreamGuard const other{Stream<Emulated<1>>{}};
      CHECK(Stream<Device>::current() == b);
      CHECK(Stream<Emulated<1>>::current() != Stream<Emulated<1>>::default_stream());
      StreamGuard const back{Stream<Device>::default_stream()};
      CHECK(Stream<Device>::current() == Stream<Device>::default_stream());
    }
    CHECK(Stream<Device>::current() == a);
  }
  CHECK(Stream<Device>::current() == Stream<Device>::default_stream());
}

TEST_CASE("work on one stream does not wait for another, and query tells whether there is some left") {
  Gate gate;
  Stream<Device> const held, free;
  hold(held, gate);
  CHECK(!held.query());
  {
    StreamGuard const guard{free};
    Float const x = full<float>({3}, 2.f, Device{});
    CHECK(x.to_vector() == Values{2, 2, 2});
  }
  Float const y = full<float>({3}, 4.f, Device{});  // nor does the default one
  CHECK(y.item(1) == 4);
  free.synchronize();
  CHECK(free.query());
  CHECK(!held.query());
  open(gate);
  held.synchronize();
  CHECK(held.query());
}

TEST_CASE("a tensor that another stream uses is ordered behind what wrote it, and not behind what came later") {
  Devices const devices;
  Gate first, later;
  Stream<Device> const copies, compute;
  Float batch;
  {
    StreamGuard const guard{copies};
    hold(copies, first);
    batch = full<float>({100}, 3.f, Device{});
  }
  {
    StreamGuard const guard{copies};
    hold(copies, later);  // the next batch is on its way
  }
  Float y;
  {
    StreamGuard const guard{compute};
    y = batch * 2;
    CHECK(!compute.query());
    open(first);
    CHECK(y.item(99) == 6);  // and the later work is not waited for
  }
  CHECK(!copies.query());
  open(later);
}

TEST_CASE("a write on another stream waits for those who read, and memory is not used again before they have") {
  Devices const devices({.memory = 1 << 16});
  Gate gate;
  Stream<Device> const reader;
  Float x = full<float>({8}, 1.f, Device{});
  Float seen;
  {
    StreamGuard const guard{reader};
    hold(reader, gate);
    seen = x + 1;
  }
  float const* const place = std::as_const(x).data();
  x += 41;
  x = Float();
  for (int k = 0; k < 20; ++k) {
    Float const fresh = full<float>({8}, 9.f, Device{});
    CHECK(std::as_const(fresh).data() != place);
  }
  open(gate);
  CHECK(seen.to_vector() == Values(8, 2));
}

TEST_CASE("storage is not written again by an assignment while it is in flight on another stream") {
  Gate gate;
  Stream<Device> const reader;
  Float x = full<float>({8}, 1.f, Device{});
  float const* const place = std::as_const(x).data();
  x = x * 2;
  CHECK(std::as_const(x).data() == place);  // alone, it is
  Float seen;
  {
    StreamGuard const guard{reader};
    hold(reader, gate);
    seen = x + 1;
  }
  x = x * 5;
  CHECK(x.to_vector() == Values(8, 10));  // without waiting for the reader
  CHECK(std::as_const(x).data() != place);
  open(gate);
  CHECK(seen.to_vector() == Values(8, 3));
}

TEST_CASE("events order streams, and measure") {
  Gate gate;
  Stream<Device> const a, b;
  Event<Device> const never;
  CHECK(never.query());
  never.synchronize();
  Event<Device> start, done;
  CHECK_THROWS_WITH_AS((void)start.elapsed_ms(done), "Event::elapsed_ms: the event was never recorded; call record() where the time is to be taken", Error);
  int order = 0, seen_by_b = 0;
  hold(a, gate);
  start.record(a);
  emulated::delay(a, 5);
  enqueue(a, [&] { order = 1; });
  done.record(a);
  CHECK(!done.query());
  b.wait(done);
  enqueue(b, [&] { seen_by_b = order; });
  Event<Device> const same = done;  // a copy is the same event
  done.record(b);                   // until one is recorded again
  open(gate);
  same.synchronize();
  CHECK(same.query());
  CHECK(order == 1);
  done.synchronize();
  CHECK(seen_by_b == 1);
  CHECK(start.elapsed_ms(same) >= 4.5);
  CHECK(start.elapsed_ms(same) < 2000);
  Stream<Device> const c;
  c.wait(b);
  Event<Device> on_current;
  {
    StreamGuard const guard{c};
    on_current.record();
    on_current.wait();
  }
  on_current.synchronize();
  c.synchronize();
}

TEST_CASE("host functions run in the order of the stream, and what they throw reaches the next synchronisation") {
  Stream<Device> const s;
  std::vector<int> order;
  Float x = full<float>({4}, 1.f, Device{});
  {
    StreamGuard const guard{s};
    for (int k = 0; k < 5; ++k) enqueue(s, [&order, k] { order.push_back(k); });
    x += 1;
    Pending<Tensor<float, Pinned>> const h = x.to_async(Pinned{});
    enqueue(Device{}, [&order, h] { order.push_back(static_cast<int>(h.get()(3))); });
  }
  s.synchronize();
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 2});
  enqueue(s, [] { throw std::runtime_error("first"); });
  enqueue(s, [] { throw std::runtime_error("second"); });
  CHECK_THROWS_WITH_AS(s.synchronize(), "first", std::runtime_error);
  s.synchronize();
  enqueue(s, [] { throw std::runtime_error("third"); });
  CHECK_THROWS_WITH_AS(synchronize(Device{}), "third", std::runtime_error);
  synchronize(Device{});
  enqueue(s, [s] { s.synchronize(); });
  CHECK_THROWS_WITH_AS(s.synchronize(), "emulated: a function on a stream waits for that stream itself, which cannot go on before it returns", Error);
}

TEST_CASE("a host function takes what has arrived as it is: what would be converted first is an error") {
  Stream<Device> const s;
  Float const x = full<float>({4}, 3.f, Device{});
  float seen = 0;
  {
    StreamGuard const guard{s};
    Pending<Tensor<double, Pinned>> const wider = x.to_async<double>(Pinned{});
    enqueue(s, [wider, &seen] { seen = static_cast<float>(wider.get()(0)); });
  }
  CHECK_THROWS_AS(s.synchronize(), Error);
  CHECK(seen == 0);
}

TEST_CASE("a host function may use tensors of its device") {
  Stream<Device> const s;
  Float result;
  {
    Float const x = full<float>({4}, 3.f, Device{});
    enqueue(s, [x, &result] { result = x * 2; });
  }
  s.synchronize();
  CHECK(result.to_vector() == Values(4, 6));
}

TEST_CASE("synchronize waits for all streams of the device, and for no other device's") {
  Gate gate;
  Stream<Emulated<1>> const other;
  hold(other, gate);
  int done = 0;
  std::vector<Stream<Device>> streams(3);
  for (auto const& s : streams) {
    emulated::delay(s, 2);
    enqueue(s, [&] { __atomic_fetch_add(&done, 1, __ATOMIC_RELAXED); });
  }
  synchronize(Device{});
  CHECK(done == 3);
  CHECK(!other.query());
  open(gate);
  other.synchronize();
}

namespace {
/// Copies when its gate opens.
struct LateCopy {
  Gate* gate;
  float const* from;
  float* to;
  void operator()(int64_t first, int64_t last) const {
    while (__atomic_load_n(&gate->open, __ATOMIC_ACQUIRE) == 0) ::usleep(100);
    for (int64_t k = first; k < last; ++k) to[k] = from[k];
  }
};
}  // namespace

TEST_CASE("a thread that has taken a pointer for a launch is waited for, whatever other threads do in between") {
  Devices const devices;
  Gate gate;
  Float out = zeros<float>({64}, Device{});
  Float x = full<float>({64}, 5.f, Device{});
  float const* const from = std::as_const(x).data();
  SUBCASE("on streams of their own, until the memory is freed") {
    std::thread([x] {
      Stream<Device> const s;
      StreamGuard const guard{s};
      CHECK((x + 1).item(3) == 6);
    }).join();
    device_traits<Device>::launch(LateCopy{&gate, from, out.data()}, 64, 64);
    Stream<Device> const s;
    StreamGuard const guard{s};  // where nothing holds up a free
    x = Float();
  }
  SUBCASE("on the same stream, until the memory is written") {
    { StreamGuard const away{Stream<Device>{}}; }  // what wrote it has ended, and is not what holds up the write
    CHECK(std::as_const(x).data() == from);
    std::thread([x] {
      CHECK((x + 1).item(3) == 6);
      Stream<Device> const s;
      StreamGuard const guard{s};  // ends this thread's stay on the default one
    }).join();
    device_traits<Device>::launch(LateCopy{&gate, from, out.data()}, 64, 64);
    Stream<Device> const s;
    StreamGuard const guard{s};
    x.assign(7);
  }
  ::usleep(3000);
  open(gate);
  CHECK(out.to_vector() == Values(64, 5));
}

TEST_CASE("streams that were let go finish their work, and are handed out again when they are idle") {
  Gate gate;
  void* first = nullptr;
  {
    Stream<Device> const s;
    first = s.native();
    hold(s, gate);
  }
  std::vector<Stream<Device>> const others(3);
  for (auto const& s : others) CHECK(s.native() != first);
  open(gate);
  synchronize(Device{});
  bool again = false;
  std::vector<Stream<Device>> more(40);
  for (auto const& s : more) again = again || s.native() == first;
  CHECK(again);
  auto const count = detail::stream_table().count;
  more.clear();
  for (int k = 0; k < 100; ++k) {
    Stream<Device> const s;
    StreamGuard const guard{s};
    Float const x = full<float>({4}, 3.f, Device{});
    CHECK(x.item(0) == 3);
  }
  CHECK(detail::stream_table().count == count);
}

TEST_CASE("the default stream is a stream like others") {
  Stream<Device> const s = Stream<Device>::default_stream();
  StreamGuard const guard{s};
  CHECK(Float{1, 2, 3}.to_vector() == Values{1, 2, 3});
  s.synchronize();
  CHECK(s.query());
}

TEST_CASE("a device that does not exist has no streams") {
  Devices const devices;
  CHECK_THROWS_AS(Stream<Emulated<2>>(), DeviceUnavailable);
  CHECK_THROWS_AS(Stream<Emulated<2>>::current(), DeviceUnavailable);
  CHECK_THROWS_AS(Stream<Emulated<300>>(), DeviceUnavailable);
  CHECK_THROWS_AS(Stream<Emulated<300>>::current(), DeviceUnavailable);
}

TEST_CASE("what is left of a device that is no longer there is of no use, until it is there again") {
  using Gone = Emulated<2>;
  Devices const devices({.devices = 3});
  Stream<Gone> const s;
  {
    StreamGuard const guard{s};
    CHECK(full<float>({3}, 2.f, Gone{}).to_vector() == Values{2, 2, 2});
    CHECK(Stream<Gone>::default_stream() != s);
  }
  gpu::set_memory_fraction(0.5, Emulated<1>{});
  synchronize(Gone{});
  emulated::configure({.devices = 2});
  std::string const message = "emulated:2: there is no such device: 2 devices are configured; emulated::configure({.devices = 3}) makes more";
  auto const is_refused = [&](auto f) {
    try {
      f();
    } catch (DeviceUnavailable const& error) {
      return std::string(error.what()) == message;
    }
    return false;
  };
  CHECK(is_refused([] { Stream<Gone>(); }));
  CHECK(is_refused([] { Stream<Gone>::current(); }));
  CHECK(is_refused([] { Stream<Gone>::default_stream(); }));
  CHECK(is_refused([&] { Stream<Gone>::wrap(s.native()); }));
  CHECK(is_refused([&] { StreamGuard const guard{s}; }));
  CHECK(is_refused([] { Event<Gone>().record(); }));
  CHECK(is_refused([&] { Event<Gone>().record(s); }));
  CHECK(is_refused([] { Event<Gone>().wait(); }));
  CHECK(is_refused([&] { enqueue(s, [] {}); }));
  CHECK(is_refused([] { enqueue(Gone{}, [] {}); }));
  CHECK(is_refused([&] { s.synchronize(); }));
  CHECK(is_refused([] { synchronize(Gone{}); }));
  CHECK(is_refused([] { zeros<float>({3}, Gone{}); }));
  CHECK(is_refused([] { (void)pin(ones<float>({3})).to_async(Gone{}); }));
  CHECK(is_refused([] { gpu::set_memory_fraction(0.5, Gone{}); }));
  CHECK(is_refused([] { gpu::set_release_threshold(0, Gone{}); }));
  CHECK(is_refused([] { (void)emulated::statistics(2); }));
  CHECK(gpu::memory_allocated(Gone{}) + gpu::max_memory_allocated(Gone{}) + gpu::memory_reserved(Gone{}) + gpu::memory_info(Gone{}).total == 0);
  CHECK(gpu::memory_summary(Emulated<1>{}).find("no limit for this process") != std::string::npos);  // devices are made anew
  emulated::configure({.devices = 3});
  StreamGuard const guard{s};
  CHECK(full<float>({3}, 5.f, Gone{}).to_vector() == Values{5, 5, 5});
}

TEST_CASE("streams differ in priority, and those that are handed out again have the one that was asked for") {
  std::vector<void*> high, normal;
  {
    std::vector<Stream<Device>> const urgent(3, Stream<Device>{priority::high});
    std::vector<Stream<Device>> others;
    for (int k = 0; k < 3; ++k) others.emplace_back();
    for (auto const& s : urgent) high.push_back(s.native());
    for (auto const& s : others) normal.push_back(s.native());
  }
  synchronize(Device{});
  std::vector<Stream<Device>> urgent;
  for (int k = 0; k < 50; ++k) urgent.emplace_back(StreamOptions{.priority = -1});
  int again = 0;
  for (auto const& s : urgent) {
    for (void* const other : normal) CHECK(s.native() != other);
    for (void* const one : high) again += s.native() == one;
  }
  CHECK(again == 3);
}

TEST_CASE("a stream that somebody else made can be wrapped, and is left to them in the end") {
  Devices const devices;
  Stream<Device> const theirs;
  Gate gate;
  Float x = full<float>({50}, 1.f, Device{});
  {
    Stream<Device> const s = Stream<Device>::wrap(theirs.native());
    CHECK(s.native() == theirs.native());
    CHECK(s == Stream<Device>::wrap(theirs.native()));
    CHECK(s != theirs);
    StreamGuard const guard{s};
    CHECK(Stream<Device>::current() == s);
    hold(s, gate);
    x += 1;
  }
  Float const y = x * 3;  // on the default stream, behind what was done on the wrapped one
  Stream<Device> const fresh;
  CHECK(fresh.native() != theirs.native());  // not handed out to others
  CHECK(!Stream<Device>::default_stream().query());
  open(gate);
  CHECK(y.to_vector() == Values(50, 6));
  {
    // Wrapped anew, after its last handle had gone: what was noted of it still comes first.
    Gate second;
    {
      Stream<Device> const s = Stream<Device>::wrap(theirs.native());
      StreamGuard const guard{s};
      hold(s, second);
      x += 1;
    }
    Stream<Device> const other;
    Stream<Device> const s = Stream<Device>::wrap(other.native());
    StreamGuard const guard{s};
    Float const z = x * 2;
    CHECK(!s.query());
    open(second);
    CHECK(z.to_vector() == Values(50, 6));
  }
}

TEST_CASE_TEMPLATE("on the host the same types work at once", D, Cpu, Pinned) {
  Stream<D> const s, high{priority::high}, low({.priority = 1});
  StreamGuard const guard{s};
  CHECK(s == Stream<D>::current());
  CHECK(s.query());
  s.synchronize();
  int calls = 0;
  enqueue(s, [&] { ++calls; });
  enqueue(D{}, [&] { ++calls; });
  CHECK(calls == 2);
  CHECK_THROWS_AS(enqueue(s, [] { throw std::runtime_error("here"); }), std::runtime_error);
  Event<D> start, end;
  CHECK_THROWS_AS((void)start.elapsed_ms(end), Error);
  start.record();
  ::usleep(2000);
  end.record(s);
  end.wait();
  end.wait(s);
  s.wait(end);
  end.synchronize();
  CHECK(end.query());
  CHECK(start.elapsed_ms(end) >= 2);
  CHECK(s.native() == nullptr);
  synchronize(D{});
}
