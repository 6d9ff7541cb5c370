// Graphs: what is recorded runs when it is replayed, in the memory that it named. Also compiled for a GPU.
#include <situ/device/graph.hpp>

#include <situ/device/event.hpp>
#include <situ/device/query.hpp>
#include <situ/device/stream.hpp>
#include <situ/ops/matmul.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>
#include <situ/tensor/transfer_async.hpp>

#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

namespace {

using namespace situ;
using floats = std::vector<float>;

/// What f throws, in words.
template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (Error const& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE_TEMPLATE("a graph does nothing until it is replayed, then what was recorded, each time", D, Emulated<0>) {
  Tensor<float, D> x = arange(4, D{}), y = zeros({4}, D{});
  gpu::Graph<D> const graph{[&] { y.assign(x * 2 + 1); }};
  CHECK(graph.size() == 1);
  CHECK(y.to_vector() == floats{0, 0, 0, 0});
  graph.replay();
  CHECK(y.to_vector() == floats{1, 3, 5, 7});
  x.assign(full({4}, 10.f, D{}));  // new inputs, in place
  graph();
  CHECK(y.to_vector() == floats{21, 21, 21, 21});
  y += 1;
  CHECK(y.to_vector() == floats{22, 22, 22, 22});
  graph();
  CHECK(y.to_vector() == floats{21, 21, 21, 21});
}

TEST_CASE_TEMPLATE("what is written is read by the next operation, and by the next replay", D, Emulated<0>) {
  Tensor<float, D> x = ones({1000}, D{}), total = zeros({}, D{});
  gpu::Graph<D> const graph{[&] {
    for (int k = 0; k < 3; ++k) x.assign(x * 2);
    total.assign(total + sum(x));
  }};
  for (int k = 0; k < 4; ++k) graph.replay();
  CHECK(x.item(999) == 4096.f);
  CHECK(total.item() == 1000.f * (8 + 64 + 512 + 4096));
}

TEST_CASE_TEMPLATE("memory that is allocated while recording belongs to the graph", D, Emulated<0>) {
  synchronize(D{});
  int64_t const before = gpu::memory_allocated(D{});
  {
    Tensor<float, D> const x = ones({300, 20}, D{}), w = full({20, 30}, 0.5f, D{});
    Tensor<float, D> y, kept;
    gpu::Graph<D> graph{[&] {
      Tensor<float, D> h = matmul(x, w);        // a temporary
      for (int k = 0; k < 5; ++k) h = h * 1.5f;  // no storage is reused, whoever holds it
      kept = sum(h, 1);                          // lives on
      y = max(kept + 1, 0);
    }};
    CHECK(kept.shape() == Shape{300});
    for (int k = 0; k < 2; ++k) {
      graph.replay();
      CHECK(kept.item(299) == 300 * 7.59375f);
      CHECK(y.item() == 300 * 7.59375f + 1);
      Tensor<float, D> const other = full({300, 30}, -1.f, D{});  // does not get the memory of the graph
      graph.replay();
      CHECK(other.item(299, 29) == -1.f);
    }
    Tensor<float, D> const doubled = kept * 2;
    kept = {};
    synchronize(D{});
    std::vector<Tensor<float, D>> others;  // one of them would get the memory of `kept`
    for (int k = 0; k < 400; ++k) others.push_back(full({300}, -2.f, D{}));
    graph.replay();
    for (auto const& other : others) CHECK(sum(other).item() == -600.f);
    graph.reset();
    CHECK(graph.empty());
    CHECK(doubled.item(0) == 600 * 7.59375f);
    CHECK(y.item() == 300 * 7.59375f + 1);
  }
  synchronize(D{});
  CHECK(gpu::memory_allocated(D{}) == before);
}

TEST_CASE_TEMPLATE("a graph outlives its tensors, and its tensors outlive it", D, Emulated<0>) {
  Tensor<float, D> y = zeros({100}, D{});
  {
    gpu::Graph<D> graph;
    {
      Tensor<float, D> const x = full({100}, 3.f, D{});
      graph.capture([&] { y.assign(x + 4); });
    }
    Tensor<float, D> const other = full({100}, 8.f, D{});  // might have taken the memory of x
    graph.replay();
    CHECK(y.item(99) == 7.f);
    y += other;
    gpu::Graph<D> const moved = std::move(graph);
    moved.replay();
    CHECK(message_of([&] { graph.replay(); }) == "gpu::Graph: replay of a graph that holds nothing; capture(f) records what f does");
  }
  CHECK(y.item(0) == 7.f);  // the replay runs to its end, though the graph has gone
}

TEST_CASE_TEMPLATE("an error while recording leaves the graph, the stream and the tensors as they were", D, Emulated<0>) {
  Tensor<float, D> x = ones({3}, D{}), y = zeros({3}, D{});
  gpu::Graph<D> graph{[&] { y.assign(x + 1); }};
  std::string const what = device_traits<D>::name() + ": a copy that the host waits for was asked for while work on this device is recorded: what is recorded has not run";
  CHECK(message_of([&] {
          graph.capture([&] {
            x.assign(x * 100);
            Tensor<float, D> const lost = x * 2 + y;
            (void)lost.item(0);
          });
        }) == what);
  CHECK(message_of([&] { graph.capture([&] { synchronize(D{}); }); }) ==
        device_traits<D>::name() + ": synchronize was called while work on this device is recorded: what is recorded has not run");
  CHECK(message_of([&] { graph.capture([&] { (void)Tensor<float, D>{1, 2}; }); }) == what);
  CHECK(message_of([&] { graph.capture([&] { (void)(x + zeros({4}, D{})); }); }).find("do not broadcast") != std::string::npos);
  CHECK(message_of([&] { graph.capture([&] { graph.replay(); }); }) ==
        "gpu::Graph: replay on " + device_traits<D>::name() + " while this thread records a graph there; graphs do not nest");
  CHECK(message_of([&] { graph.capture([&] { gpu::Graph<D> const inner{[] {}}; }); }) ==
        "gpu::Graph: capture on " + device_traits<D>::name() + " while this thread records a graph there; graphs do not nest");
  CHECK(message_of([&] {
          graph.capture([&] {
            Stream<D> const stream;
            StreamGuard const guard{stream};
          });
        }) == "StreamGuard: this thread records a graph on " + device_traits<D>::name() + ", and a graph records one stream");
  CHECK(message_of([&] { graph.capture([&] { Event<D>().record(); }); }) == "Event::record: this thread records a graph on " + device_traits<D>::name() + ", and a graph records one stream");
  Stream<D> const other;
  Event<D> event;
  event.record(other);
  CHECK(message_of([&] { graph.capture([&] { event.wait(); }); }) == "Stream::wait: this thread records a graph on " + device_traits<D>::name() + ", and a graph records one stream");
  CHECK(message_of([&] { graph.capture([&] { other.wait(Stream<D>::current()); }); }) ==
        "Stream::wait: this thread records a graph on " + device_traits<D>::name() + ", and a graph records one stream");
  CHECK(message_of([&] { graph.capture([&] { enqueue(D{}, [] {}); }); }) ==
        "enqueue: " + device_traits<D>::name() + " is recording a graph on this thread, and a host function runs once; call it before or after the replay");
  CHECK(message_of([&] { graph.capture([&] { (void)x.to_async(Pinned{}); }); }) ==
        "to_async: work on this device is recorded on this thread, and a copy of page-locked memory would be waited for; copy before or after it");
  CHECK(x.to_vector() == floats{1, 1, 1});
  graph.replay();
  CHECK(y.to_vector() == floats{2, 2, 2});
  graph.capture([&] { y.assign(x + 5); });
  graph.replay();
  CHECK(y.to_vector() == floats{6, 6, 6});
}

TEST_CASE_TEMPLATE("memory that was allocated by a recording that failed goes back", D, Emulated<0>) {
  synchronize(D{});
  int64_t const before = gpu::memory_allocated(D{});
  {
    Tensor<float, D> const x = ones({1000}, D{});
    Tensor<float, D> kept;
    gpu::Graph<D> graph;
    CHECK(message_of([&] {
            graph.capture([&] {
              Tensor<float, D> const temporary = x * 2;
              kept = temporary + 1;
              synchronize(D{});
            });
          }) != "nothing was thrown");
    CHECK(graph.empty());
    CHECK(kept.size() == 1000);
    kept.assign(x * 3);  // memory like any other
    CHECK(kept.item(999) == 3.f);
  }
  synchronize(D{});
  CHECK(gpu::memory_allocated(D{}) == before);
}

TEST_CASE_TEMPLATE("replays are ordered with the work of all streams", D, Emulated<0>) {
  Stream<D> const first, second;
  Tensor<float, D> x = zeros({50000}, D{}), y = zeros({50000}, D{});
  gpu::Graph<D> const graph{[&] {
    for (int k = 0; k < 4; ++k) x.assign(x + 1);
    y.assign(x * 2);
  }};
  for (int k = 0; k < 20; ++k) {
    StreamGuard const guard{k % 3 == 0 ? first : second};
    graph.replay();
    if (k % 2 == 0) {
      StreamGuard const other{first};
      y += 1;
      x += 1;
    }
  }
  CHECK(x.item(49999) == 90.f);
  CHECK(y.item(0) == 180.f);
}

TEST_CASE_TEMPLATE("copies within the device and products are recorded; an empty graph may be replayed", D, Emulated<0>) {
  Tensor<float, D> const a = arange(6, D{}).view({2, 3});
  Tensor<float, D> b = zeros({3, 2}, D{}), c = zeros({2, 2}, D{});
  gpu::Graph<D> const graph{[&] {
    b.assign(a.t());
    c.assign(matmul(a, b));
  }};
  graph.replay();
  CHECK(c.to_vector() == floats{5, 14, 14, 50});
  gpu::Graph<D> const nothing{[] {}};
  CHECK(nothing.size() == 0);
  nothing.replay();
}

TEST_CASE("a graph is of the first GPU unless its type says otherwise, and moves") {
  static_assert(std::is_same_v<gpu::Graph<>, gpu::Graph<Cuda<0>>>);
  static_assert(std::is_same_v<gpu::Graph<>::device_type, Cuda<0>>);
  static_assert(!std::is_copy_constructible_v<gpu::Graph<Emulated<0>>>);
  static_assert(std::is_nothrow_move_assignable_v<gpu::Graph<Emulated<0>>>);
  static_assert(!std::is_convertible_v<void (*)(), gpu::Graph<Emulated<0>>>);
}

TEST_CASE("a fault in a replay is an error, and the next replay works") {
  emulated::configure({.fail_at = 3});
  {
    Tensor<float, Emulated<0>> y = zeros({10}, Emulated<0>{});  // operations 0 and 1
    gpu::Graph<Emulated<0>> const graph{[&] { y.assign(y + 1); }};  // 2
    CHECK(message_of([&] { graph.replay(); }).find("launch of gpu::Graph::replay failed: operation 3") != std::string::npos);
    graph.replay();
    CHECK(y.item(9) == 1.f);
  }
  emulated::configure();
}

TEST_CASE("with streams that pause, replays still give what operations one by one do") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulated::configure({.delays = seed});
    {
      using D = Emulated<0>;
      Stream<D> const streams[2];
      Tensor<float, D> x = ones({64}, D{}), y = zeros({64}, D{}), last;
      gpu::Graph<D> graph{[&] {
        Tensor<float, D> const t = x * 2;
        y.assign(t + y);
        x.assign(t - 1);
        last = x + y;
      }};
      float a = 1, b = 0;
      for (int k = 0; k < 12; ++k) {
        StreamGuard const guard{streams[(seed + static_cast<uint64_t>(k * k)) % 2]};
        if (k % 4 == 3) x += 1, a += 1;
        graph.replay();
        b += 2 * a, a = 2 * a - 1;
        if (k == 8) graph = gpu::Graph<D>{[&] { x.assign(x * 1); }};  // while the last replay runs
        if (k >= 9) b -= 0;
        if (k == 8) break;
      }
      CHECK(x.item(63) == a);
      CHECK(y.item(0) == b);
      CHECK(last.item(5) == a + b);
    }
    synchronize(Emulated<0>{});
    CHECK(emulated::statistics(0).bytes == 0);
  }
  emulated::configure();
}
