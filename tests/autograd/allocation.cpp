/// A steady training step takes its nodes, and the views of tensors, from what the step before gave back.
#include <doctest/doctest.h>
#include <situ/autograd.hpp>
#include <situ/device/query.hpp>

#include <cstdlib>
#include <new>
#include <thread>

using namespace situ;

namespace {
thread_local int64_t allocations = 0;
}  // namespace

// The program's own, so that what the library asks for is seen; elements of tensors are counted by memory_statistics instead.
__attribute__((noinline)) void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

struct Perceptron {
  Tensor<float> x = full<float>({64, 100}, 0.01f), target = full<float>({64, 10}, 0.1f);
  Variable<float> w1{full<float>({50, 100}, 0.02f)}, b1{full<float>({50}, 0.1f)}, w2{full<float>({10, 50}, 0.03f)}, b2{full<float>({10}, 0.f)};
  void step() {
    for (Variable<float>* v : {&w1, &b1, &w2, &b2}) v->zero_grad();
    Variable const h = linear_relu(x, w1, b1);
    Variable const z = linear(h, w2, b2);
    mean(square(z - target)).backward();
  }
};

}  // namespace

TEST_CASE("a steady training step makes no block on the heap for its graph") {
  Perceptron net;
  for (int k = 0; k < 3; ++k) net.step();
  int64_t const before = allocations;
  for (int k = 0; k < 5; ++k) net.step();
  int64_t const made = allocations - before;
#if SITU_ASAN
  CHECK(made > 0);  // blocks are not kept, so that the sanitizer sees their ends
#else
  CHECK(made == 0);
#endif
}

TEST_CASE("a graph may be made by one thread and ended by another") {
  Perceptron net;
  for (int k = 0; k < 4; ++k) {
    Variable loss;
    std::thread([&] { loss = mean(square(linear(net.x, net.w1, net.b1))); }).join();
    loss.backward();
    std::thread([graph = std::move(loss)]() mutable { graph = Variable<float>(); }).join();
  }
  CHECK(net.w1.has_grad());
}

TEST_CASE("a chain longer than what is kept of blocks is made and ended") {
  Variable<float> x{full<float>({1}, 1.f)};
  for (int round = 0; round < 2; ++round) {
    Variable<float> y = x;
    for (int k = 0; k < 100000; ++k) y = y + 1.f;
    y.backward();
  }
  CHECK(x.grad().item(0) == 2.f);
}

TEST_CASE("a temporary that is reduced is gone when the backward of the same statement begins") {
  constexpr int64_t rows = 1000, bytes = rows * 100 * 4;
  Variable<float> x{full<float>({rows, 100}, 2.f)};
  Tensor<float> const y = full<float>({rows, 100}, 3.f);
  auto const peak = [&](auto const& step) {
    x.zero_grad();
    int64_t const before = gpu::memory_allocated(Cpu{});
    gpu::reset_peak_memory_stats(Cpu{});
    step();
    return gpu::max_memory_allocated(Cpu{}) - before;
  };
  CHECK(peak([&] { sum(layer_norm(x, {100}) * y).backward(); }) < 2 * bytes);
  CHECK(x.grad().item(5, 5) == 0.f);
  CHECK(peak([&] { mean(layer_norm(x, {100}), {0, 1}).backward(); }) < 2 * bytes);

  auto const formula = square(x * 1.5f) * y;  // a name may be used again
  CHECK(sum(formula).item() == 2700000.f);
  CHECK(sum(formula).item() == 2700000.f);
  Variable<float> const named = x * 2.f;
  CHECK(mean(named).item() == 4.f);
  CHECK(named.item(0, 0) == 4.f);
}
