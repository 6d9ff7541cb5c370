// What a graph has on a GPU beside what tests/device/graph.cpp looks at: libraries, generic kernels, memory, and CUDA's own errors.
#include <situ/device/graph.hpp>

#include <cuda/compare.hpp>
#include <situ/device/query.hpp>
#include <situ/device/stream.hpp>
#include <situ/ops/matmul.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/ops/softmax.hpp>
#include <situ/tensor.hpp>

#include <cuda_runtime_api.h>

#include <string>
#include <thread>

#include <doctest/doctest.h>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE("a graph of a GPU is deduced, and holds kernels of situ and of cuBLAS") {
  Tensor<float> const a = numbers<float>({64, 100}), b = numbers<float>({100, 30}, 2), r = numbers<float>({30}, 3);
  Tensor<float, Gpu> x{a}, w{b}, bias{r}, y = zeros({64, 30}, Gpu{}), best;
  gpu::Graph graph{[&] {
    y.assign(softmax(tanh(matmul(x, w) * 0.01f) + bias, 1));
    best = max(y, 1);
  }};
  static_assert(std::is_same_v<decltype(graph), gpu::Graph<Gpu>>);
  CHECK(graph.size() >= 3);
  for (int k = 0; k < 3; ++k) {
    Tensor<float> const next = a * static_cast<float>(k);
    x.assign(Tensor<float, Gpu>{next});
    graph.replay();
    Tensor<float> const expected = softmax(tanh(matmul(next, b) * 0.01f) + r, 1);
    CHECK(differs(y, expected, 1e-4) == "");
    CHECK(differs(best, max(expected, 1), 1e-4) == "");
  }
}

TEST_CASE("a thousand operations need the memory of two, and replay what one by one they give") {
  Tensor<float> const a = numbers<float>({100, 100}) * 0.001f + 1.0f;
  Tensor<float, Gpu> const x{a};
  Tensor<float, Gpu> z, one_by_one = x;
  for (int k = 0; k < 1000; ++k) one_by_one = one_by_one * x;
  synchronize(Gpu{});
  int64_t const before = gpu::memory_allocated(Gpu{});
  {
    gpu::Graph graph{[&] {
      z = x;
      for (int k = 0; k < 1000; ++k) z = z * x;
    }};
    CHECK(graph.size() == 1000);
    CHECK(gpu::memory_allocated(Gpu{}) <= before + 3 * 40000);
    graph.replay();
    CHECK(differs(z, one_by_one) == "");
    graph.replay();
    CHECK(differs(z, one_by_one) == "");
  }
  CHECK(differs(z, one_by_one) == "");
  z = {};
  synchronize(Gpu{});
  CHECK(gpu::memory_allocated(Gpu{}) == before);
}

TEST_CASE("a call of CUDA that cannot be captured is named, and the stream and the device go on") {
  Tensor<float, Gpu> x = ones({10}, Gpu{});
  gpu::Graph graph{[&] { x.assign(x + 1); }};
  auto const message_of = [](auto f) -> std::string {
    try {
      f();
    } catch (CudaError const& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  CHECK(message_of([&] { graph.capture([&] { (void)cudaStreamSynchronize(Stream<Gpu>::current().native()); }); }).find("cudaStreamEndCapture failed: cudaErrorStreamCaptureInvalidated") !=
        std::string::npos);
  CHECK(message_of([&] { graph.capture([&] { (void)x.cpu(); }); }).find("a copy that the host waits for was asked for") != std::string::npos);
  CHECK(cudaGetLastError() == cudaSuccess);
  graph.replay();
  CHECK(differs(x, full({10}, 2)) == "");
  graph.capture([&] { x.assign(x * 10); });
  graph.replay();
  CHECK(differs(x, full({10}, 20)) == "");
}

TEST_CASE("replays on several streams give what one stream gives") {
  Stream<Gpu> const streams[3];
  Tensor<float, Gpu> x = zeros({1 << 20}, Gpu{}), y = zeros({1 << 20}, Gpu{});
  gpu::Graph const graph{[&] {
    Tensor<float, Gpu> const t = x + 1;
    x.assign(t);
    y.assign(y + t * 2);
  }};
  for (int k = 0; k < 60; ++k) {
    StreamGuard const guard{streams[k * k % 3]};
    graph.replay();
  }
  CHECK(x.item(777) == 60.f);
  CHECK(y.item((1 << 20) - 1) == 2 * 60 * 61 / 2);
}

TEST_CASE("what a capture assigned before it failed is freed while the next one records on the same stream") {
  Tensor<float, Gpu> const x{numbers<float>({1000})};
  Tensor<float, Gpu> y;
  CHECK_THROWS_AS(gpu::Graph{[&] { y = x + 1; (void)y.item(0); }}, CudaError);
  gpu::Graph graph{[&] { y = x * 2; }};
  graph.replay();
  CHECK(differs(y, numbers<float>({1000}) * 2) == "");
}

TEST_CASE("another thread may wait for the device, and return its memory, while a graph is captured") {
  Tensor<float, Gpu> const x{numbers<float>({1000})};
  Tensor<float, Gpu> y;
  gpu::Graph graph{[&] {
    y = x + 1;
    std::thread([] {
      synchronize(Gpu{});
      gpu::empty_cache();
    }).join();
    y = y * 2;
  }};
  graph.replay();
  CHECK(differs(y, (numbers<float>({1000}) + 1) * 2) == "");
}
