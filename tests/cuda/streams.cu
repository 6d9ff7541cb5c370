#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <cuda/compare.hpp>
#include <cuda_runtime_api.h>
#include <optional>
#include <random>
#include <situ/tensor.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;

namespace {

using Gpu = Cuda<0>;
using Float = Tensor<float, Gpu>;
using Host = Tensor<float, Pinned>;

/// A kernel that is loaded when it is first launched would wait for the streams that host functions hold up here.
int const loads_at_once = ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);

/// Holds a stream up.
void delay(Stream<Gpu> const& stream, int milliseconds) {
  enqueue(stream, [milliseconds] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
}

__global__ void add_one(float* x, int n) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] += 1;
}

}  // namespace

TEST_SUITE("without a gpu") {
  TEST_CASE("without a GPU there are no streams and no events of it") {
    CHECK_THROWS_AS(Stream<Gpu>(), DeviceUnavailable);
    CHECK_THROWS_AS(Stream<Gpu>::default_stream(), DeviceUnavailable);
    CHECK_THROWS_AS(Stream<Gpu>::current(), DeviceUnavailable);
    Event<Gpu> event;
    CHECK_THROWS_AS(event.record(), DeviceUnavailable);
    CHECK(event.query());
    CHECK_THROWS_AS((void)pin(ones({3})).to_async(Gpu{}), DeviceUnavailable);
    CHECK_THROWS_AS(enqueue(Gpu{}, [] {}), DeviceUnavailable);
    Host const p = pin(ones({3}));  // still there
    CHECK(p(2) == 1);
  }
}

TEST_CASE("a guard makes a stream the current one, and the current device stays what it was") {
  int before = -1, after = -2;
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  Stream<Gpu> const a, urgent{priority::high}, low({.priority = 100});
  CHECK(a.native() != nullptr);
  CHECK(Stream<Gpu>::default_stream().native() == cudaStreamLegacy);
  unsigned flags = 0;
  REQUIRE(cudaStreamGetFlags(a.native(), &flags) == cudaSuccess);
  CHECK(flags == cudaStreamNonBlocking);
  {
    StreamGuard const guard{a};
    CHECK(Stream<Gpu>::current() == a);
    StreamGuard const inner{urgent};
    CHECK(Stream<Gpu>::current() == urgent);
    CHECK(differs(full<float>({5}, 3.f, Gpu{}), full<float>({5}, 3.f)) == "");
  }
  CHECK(Stream<Gpu>::current() == Stream<Gpu>::default_stream());
  REQUIRE(cudaGetDevice(&after) == cudaSuccess);
  CHECK(before == after);
}

TEST_CASE("tensors on several streams give what they give in order") {
  std::mt19937_64 random(1);
  auto const pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  constexpr int64_t rows = 40, columns = 300;
  for (int round = 0; round < 60; ++round) {
    std::vector<Stream<Gpu>> streams{Stream<Gpu>::default_stream(), Stream<Gpu>(), Stream<Gpu>()};
    std::vector<Float> x;
    std::vector<Tensor<float>> like;
    std::vector<std::pair<Pending<Host>, Tensor<float>>> pending;
    for (unsigned k = 0; k < 3; ++k) like.push_back(floor(abs(numbers<float>({rows, columns}, k + 1)))), x.push_back(like[k].to(Gpu{}));
    Host p = pin(like[0]);
    Tensor<float> like_p = like[0].clone();
    for (int step = 0; step < 16; ++step) {
      StreamGuard const guard{streams[pick(3)]};
      std::size_t const to = pick(3), a = pick(3), b = pick(3);
      switch (pick(9)) {
        case 0: x[to] = (x[a] * 3.f + x[b]) % 251.f, like[to] = (like[a] * 3.f + like[b]) % 251.f; break;
        case 1: x[to] += x[a], like[to] += like[a]; break;
        case 2: x[to] = x[to] % 17.f, like[to] = like[to] % 17.f; break;
        case 3: x[to][3] = x[a][7] + 1.f, like[to][3] = like[a][7] + 1.f; break;
        case 4: x[to] = std::as_const(x[a]).clone(), like[to] = like[a].clone(); break;
        case 5: {
          x[to] = p.to_async(Gpu{}), like[to] = like_p.clone();
          p += 1.f, like_p += 1.f;
          break;
        }
        case 6: pending.emplace_back(x[a].to_async(Pinned{}), like[a].clone()); break;
        case 7: x[to] = zeros<float>({rows, columns}, Gpu{}), like[to] = zeros<float>({rows, columns}); break;
        default: delay(Stream<Gpu>::current(), 1);
      }
    }
    for (std::size_t k = 0; k < 3; ++k) REQUIRE(differs(x[k], like[k]) == "");
    for (auto const& [arrives, expected] : pending) REQUIRE(differs(arrives.get(), expected) == "");
    REQUIRE(differs(p, like_p) == "");
  }
}

TEST_CASE("memory is not used again before every stream that uses it has done so") {
  Stream<Gpu> const reader;
  Float seen;
  {
    Float const x = full<float>({1 << 20}, 1.f, Gpu{});
    StreamGuard const guard{reader};
    delay(reader, 20);
    seen = x + 1.f;
  }
  std::vector<Float> others;
  for (int k = 0; k < 10; ++k) others.push_back(full<float>({1 << 20}, 9.f, Gpu{}));
  CHECK(differs(seen, full<float>({1 << 20}, 2.f)) == "");
}

TEST_CASE("a stream is waited for as far as the tensor goes, and not for what came later") {
  Stream<Gpu> const copies, compute;
  Host const p = pin(numbers<float>({1000}));
  Float batch;
  {
    StreamGuard const guard{copies};
    batch = p.to_async(Gpu{});
  }
  {
    StreamGuard const guard{copies};
    delay(copies, 300);  // the next one is on its way
  }
  StreamGuard const guard{compute};
  CHECK(differs(batch * 2.f, p * 2.f) == "");
  CHECK_FALSE(copies.query());
  copies.synchronize();
}

TEST_CASE("to_async crosses in both directions, with strides and conversions") {
  Host const p = pin(numbers<float>({30, 40}));
  CHECK(differs(p.to_async(Gpu{}), p) == "");
  CHECK(differs(p.t().to_async(Gpu{}), p.t()) == "");
  CHECK(differs(p(all(), range(3, 29)).to_async(Gpu{}), p(all(), range(3, 29))) == "");
  CHECK(differs(p.flip(0).to_async(Gpu{}), p.flip(0)) == "");
  CHECK(differs(p.slice(1, 0, 40, 3).to_async(Gpu{}), p.slice(1, 0, 40, 3)) == "");
  Float const x = p.to_async(Gpu{});
  CHECK(differs(x.to_async(Pinned{}).get(), p) == "");
  CHECK(differs(x.t().to_async(Pinned{}).get(), p.t()) == "");
  CHECK(differs(x(all(), range(3, 29)).to_async(Pinned{}).get(), p(all(), range(3, 29))) == "");
  CHECK(differs(x.select(1, 7).to_async(Pinned{}).get(), p.select(1, 7)) == "");
  CHECK(differs(x.slice(1, 0, 40, 3).flip(1).to_async(Pinned{}).get(), p.slice(1, 0, 40, 3).flip(1)) == "");
  CHECK(differs((x * 2.f).to_async(Pinned{}).get(), p * 2.f) == "");
  CHECK(differs(x.to_async<float16>(Pinned{}).get(), cast<float16>(p)) == "");
  CHECK(differs(x.to_async<double>(Pinned{}).get(), p) == "");
  CHECK(differs(p.to_async<float16>(Gpu{}), cast<float16>(p)) == "");
  CHECK(differs(p.to_async<double>(Gpu{}), p) == "");
  {
    Stream<Gpu> const s;
    StreamGuard const guard{s};
    std::optional<Host> source = pin(numbers<float>({100000}, 9));
    delay(s, 20);
    Float const y = source->to_async(Gpu{});
    Pending<Host> const h = y.to_async(Pinned{});
    CHECK_FALSE(h.ready());
    source.reset();
    Host const other = pin(zeros<float>({100000}));
    CHECK(differs(h.get(), numbers<float>({100000}, 9)) == "");
    CHECK(h.ready());
  }
}

TEST_CASE("events order and measure") {
  Stream<Gpu> const a, b;
  Event<Gpu> start, end;
  CHECK_THROWS_AS((void)start.elapsed_ms(end), Error);
  start.record(a);
  delay(a, 20);
  end.record(a);
  CHECK_FALSE(end.query());
  b.wait(end);
  int seen = 0;
  enqueue(b, [&] { seen = 1; });
  CHECK(seen == 0);
  CHECK(start.elapsed_ms(end) >= 15);
  CHECK(end.query());
  b.synchronize();
  CHECK(seen == 1);
}

TEST_CASE("what host functions throw reaches the next synchronisation") {
  Stream<Gpu> const s;
  enqueue(s, [] { throw std::runtime_error("first"); });
  CHECK_THROWS_WITH_AS(s.synchronize(), "first", std::runtime_error);
  s.synchronize();
  {
    Float const x = full<float>({10}, 3.f, Gpu{});
    enqueue(s, [x] { throw std::runtime_error("second"); });  // x ends on a thread that may free it
  }
  CHECK_THROWS_WITH_AS(synchronize(Gpu{}), "second", std::runtime_error);
  synchronize(Gpu{});
}

TEST_CASE("a host function reads what its own stream has copied, and what the host has waited for; another stream's copy is an error") {
  Stream<Gpu> const s, other;
  Tensor<float, Gpu> const x = full<float>({4}, 3.f, Gpu{});
  float seen = 0;
  {
    StreamGuard const guard{s};
    Pending<Tensor<float, Pinned>> const h = x.to_async(Pinned{});
    enqueue(s, [h, &seen] {
      Tensor<float, Pinned> const y = h.get();
      seen = y(3) + y(0);
    });
  }
  s.synchronize();
  CHECK(seen == 6);
  Pending<Tensor<float, Pinned>> elsewhere;
  {
    StreamGuard const guard{other};
    enqueue(other, [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    elsewhere = x.to_async(Pinned{});
  }
  enqueue(s, [elsewhere, &seen] { seen = elsewhere.get()(0); });
  CHECK_THROWS_AS(s.synchronize(), Error);
  elsewhere.wait();
  enqueue(s, [elsewhere, &seen] { seen = elsewhere.get()(0); });
  s.synchronize();
  CHECK(seen == 3);
}

TEST_CASE("a stream of CUDA's can be wrapped, and kernels launched on it by hand see the tensors") {
  cudaStream_t made = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) == cudaSuccess);
  Float x = full<float>({1000}, 1.f, Gpu{});
  {
    Stream<Gpu> const s = Stream<Gpu>::wrap(made);
    CHECK(s.native() == made);
    CHECK(s == Stream<Gpu>::wrap(made));
    StreamGuard const guard{s};
    delay(s, 5);
    add_one<<<4, 256, 0, s.native()>>>(x.data(), 1000);
  }
  CHECK(differs(x, full<float>({1000}, 2.f)) == "");
  x += 1.f;
  REQUIRE(cudaStreamDestroy(made) == cudaSuccess);
  CHECK(differs(x * 2.f, full<float>({1000}, 6.f)) == "");
}

TEST_CASE("host threads have current streams of their own") {
  Float const x = full<float>({100000}, 1.f, Gpu{});
  std::vector<Float> results(4);
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&results, x, k] {
      Stream<Gpu> const s;
      StreamGuard const guard{s};
      Float y = x;
      for (int n = 0; n < 100; ++n) y = y + static_cast<float>(k);
      results[static_cast<std::size_t>(k)] = y;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int k = 0; k < 4; ++k) CHECK(differs(results[static_cast<std::size_t>(k)], full<float>({100000}, static_cast<float>(1 + 100 * k))) == "");
}

TEST_CASE("two GPUs work side by side, and the current device stays what it was") {
  if (gpu::device_count() < 2) return;
  using Other = Cuda<1>;
  int before = -1, after = -2;
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  Stream<Gpu> const here;
  Stream<Other> const there;
  Tensor<float> like = floor(abs(numbers<float>({1000, 100})));
  Float x = like.to(Gpu{});
  for (int k = 0; k < 20; ++k) {
    Tensor<float, Other> y;
    {
      StreamGuard const guard{there};
      delay(here, 1);
      y = x.to(Other{}) * 2.f % 251.f;
      x += 1.f;
    }
    StreamGuard const guard{here};
    x = y.to_async(Gpu{}) + 1.f;
    like = like * 2.f % 251.f + 1.f;
  }
  CHECK(differs(x, like) == "");
  there.wait(Event<Gpu>());
  REQUIRE(cudaGetDevice(&after) == cudaSuccess);
  CHECK(before == after);
}
