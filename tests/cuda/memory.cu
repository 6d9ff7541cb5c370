#include <doctest/doctest.h>

#include <cmath>
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>
#include <string>
#include <thread>
#include <vector>

using namespace situ;

namespace {

constexpr int64_t MiB = int64_t{1} << 20;

template <class F>
OutOfMemory shortage_of(F f) {
  try {
    f();
  } catch (OutOfMemory const& error) {
    return error;
  }
  return OutOfMemory("nothing was thrown");
}

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

TEST_SUITE("without a gpu") {
  TEST_CASE("without a GPU its memory is nothing, and cannot be limited") {
    CHECK(gpu::memory_allocated() == 0);
    CHECK(gpu::memory_reserved() == 0);
    CHECK(gpu::max_memory_allocated() == 0);
    CHECK(gpu::memory_summary().starts_with("cuda:0: 0 bytes allocated"));
    CHECK_THROWS_AS(gpu::set_memory_fraction(0.5), DeviceUnavailable);
    CHECK_THROWS_AS(gpu::set_release_threshold(0), DeviceUnavailable);
    gpu::empty_cache();
  }
}

TEST_CASE("what tensors hold on a GPU is counted, and kept when they are freed") {
  gpu::empty_cache();
  int64_t const before = gpu::memory_allocated();
  {
    auto const x = empty<float>({16 * MiB / 4}, Cuda<0>{});
    auto const y = empty<float>({MiB / 4}, Cuda<0>{});
    CHECK(gpu::memory_allocated() == before + 17 * MiB);
    CHECK(gpu::memory_reserved() >= gpu::memory_allocated());
    CHECK(gpu::max_memory_allocated() >= before + 17 * MiB);
    CHECK(gpu::memory_summary().find("1 x 16.0 MiB") != std::string::npos);
  }
  CHECK(gpu::memory_allocated() == before);
  synchronize(Cuda<0>{});
  int64_t const kept = gpu::memory_reserved();
  CHECK(kept >= before + 17 * MiB);
  gpu::empty_cache();
  CHECK(gpu::memory_reserved() < kept);
  gpu::reset_peak_memory_stats();
  CHECK(gpu::max_memory_allocated() == gpu::memory_allocated());
}

TEST_CASE("a small block that was freed in the default stream is the next tensor of its size there") {
  auto const kept = [] { return detail::cuda::kept_blocks()[0].count; };
  auto const make = [](int64_t size) { return empty<float>({size}, Cuda<0>{}).data(); };  // which is freed at once
  gpu::empty_cache();
  CHECK(kept() == 0);
  int64_t const before = gpu::memory_allocated();
  float const* const first = make(1000);
  CHECK(kept() == 1);
  CHECK(make(1000) == first);
  CHECK(gpu::memory_allocated() == before);
  auto const held = empty<float>({1000}, Cuda<0>{});
  CHECK(held.data() == first);
  CHECK(kept() == 0);
  make(2 * MiB);  // too large
  {
    Stream<Cuda<0>> const stream;
    StreamGuard const guard{stream};
    make(1000);  // another stream
    full({50}, 1.0f, Cuda<0>{});
  }
  CHECK(kept() == 0);
  make(1000);
  CHECK(kept() == 1);
  {
    Stream<Cuda<0>> const stream;
    StreamGuard const guard{stream};
    CHECK(make(1000) != first);
  }
  CHECK(kept() == 1);

  // More of them than are kept, by two threads, in turns with work that uses them.
  auto const wrong = [](int64_t step) {
    double off = 0;
    std::vector<Tensor<float, Cuda<0>>> many;
    for (int round = 0; round < 3; ++round) {
      for (int64_t k = 0; k < 100; ++k) many.push_back(full({k * step + 1}, static_cast<float>(k), Cuda<0>{}));
      for (int64_t k = 0; k < 100; ++k) {
        off += std::abs(static_cast<double>(sum(many[static_cast<std::size_t>(k)]).item()) - static_cast<double>(k * (k * step + 1)));
      }
      many.clear();
    }
    return off;
  };
  double of_other = -1;
  std::thread other([&] { of_other = wrong(331); });
  CHECK(wrong(317) == 0);
  other.join();
  CHECK(of_other == 0);
  CHECK(gpu::memory_allocated() == before + held.size() * 4);
  CHECK(kept() > 0);

  // A graph takes and leaves none; another thread may give back those that are kept.
  Tensor<float, Cuda<0>> const x = full({1000}, 3.0f, Cuda<0>{});
  Tensor<float, Cuda<0>> y = zeros({1000}, Cuda<0>{});
  make(1000);
  int const still = kept();
  int during = -1;
  gpu::Graph<Cuda<0>> graph{[&] {
    y.assign(eval(x + 1) * 2);
    during = kept();
    std::thread([] { gpu::empty_cache(); }).join();
  }};
  CHECK(during == still);
  CHECK(kept() == 0);
  make(1000);
  graph.replay();
  CHECK(sum(y).item() == 8000.0f);

  gpu::set_release_threshold(100 * MiB);
  make(1000);
  CHECK(kept() == 0);
  gpu::set_release_threshold(INT64_MAX);
  make(1000);
  CHECK(kept() == 1);
}

TEST_CASE("the pool gives back what is beyond its threshold when the device is waited for") {
  gpu::set_release_threshold(0);
  { auto const x = empty<float>({64 * MiB / 4}, Cuda<0>{}); }
  synchronize(Cuda<0>{});
  int64_t const kept = gpu::memory_reserved() - gpu::memory_allocated();
  gpu::set_release_threshold(INT64_MAX);
  CHECK(kept < 64 * MiB);
}

TEST_CASE("out of memory on a GPU carries its numbers, and the program goes on") {
  auto const held = empty<float>({3 * MiB / 4}, Cuda<0>{});
  OutOfMemory const error = shortage_of([] { empty<float>({int64_t{1} << 42}, Cuda<0>{}); });
  std::string const message = error.what();
  CHECK(message.starts_with("cuda:0: out of memory: 16.0 TiB were asked for (17592186044416 bytes) and cudaMallocAsync failed: "));
  CHECK(message.find("1 x 3.0 MiB") != std::string::npos);
  CHECK(error.requested == int64_t{1} << 44);
  CHECK(error.total == gpu::memory_info().total);
  CHECK(error.free > 0);
  CHECK(error.allocated == gpu::memory_allocated());
  CHECK(error.reserved >= error.allocated);
  CHECK((held * 0 + 1).item(7) == 1.0f);
}

TEST_CASE("memory that another tensor kept is given back before an allocation fails") {
  gpu::empty_cache();
  int64_t const free = gpu::memory_info().free;
  { auto const x = empty<uint8_t>({free / 10 * 6}, Cuda<0>{}); }  // kept by the pool
  auto const y = empty<uint8_t>({free / 10 * 7}, Cuda<0>{});     // a larger piece than what is kept
  CHECK(y.size() == free / 10 * 7);
}

TEST_CASE("what is kept is given back before a recording runs out of memory") {
  auto const kept = [] { return detail::cuda::kept_blocks()[0].count; };
  auto y = zeros<uint8_t>({16 * MiB}, Cuda<0>{});
  auto const record = [&] { y.assign(eval(y + uint8_t{1}) * uint8_t{2}); };
  gpu::Graph<Cuda<0>>{record};  // the driver has its own memory for kernels and graphs from here on
  gpu::empty_cache();
  std::vector<Tensor<uint8_t, Cuda<0>>> small, rest;
  for (int k = 0; k < 8; ++k) small.push_back(empty<uint8_t>({4 * MiB}, Cuda<0>{}));
  for (int64_t piece = gpu::memory_info().free / 2; piece >= 8 * MiB;) {
    try {
      rest.push_back(empty<uint8_t>({piece}, Cuda<0>{}));
    } catch (OutOfMemory const&) {
      piece /= 2;
    }
  }
  CHECK_THROWS_AS(gpu::Graph<Cuda<0>>{record}, OutOfMemory);
  small.clear();
  CHECK(kept() == 8);
  gpu::Graph<Cuda<0>> graph{record};
  CHECK(kept() == 0);
  graph.replay();
  graph.replay();
  rest.clear();
  CHECK(y.item(7) == 6);
}

TEST_CASE("a process can be limited to a fraction of a GPU") {
  gpu::empty_cache();
  int64_t const total = gpu::memory_info().total;
  double const fraction = static_cast<double>(gpu::memory_allocated() + 256 * MiB) / static_cast<double>(total);
  gpu::set_memory_fraction(fraction);
  OutOfMemory const error = shortage_of([] { empty<float>({300 * MiB / 4}, Cuda<0>{}); });
  {
    auto const x = empty<float>({100 * MiB / 4}, Cuda<0>{});
    auto const y = empty<float>({100 * MiB / 4}, Cuda<0>{});
    CHECK(x.size() == y.size());
  }
  for (int64_t size = 20; size < 200; size += 20) auto const x = empty<float>({size * MiB / 4}, Cuda<0>{});
  int64_t const reserved = gpu::memory_reserved();
  gpu::set_memory_fraction(1);
  CHECK(std::string(error.what()).find("by set_memory_fraction") != std::string::npos);
  CHECK(reserved <= static_cast<int64_t>(static_cast<double>(total) * fraction));
  CHECK(empty<float>({300 * MiB / 4}, Cuda<0>{}).size() == 300 * MiB / 4);
}

TEST_CASE("errors that end a process say so, others say what to do") {
  using detail::cuda::advice;
  std::string const dead = advice(cudaErrorIllegalAddress);
  CHECK(dead.find("the process must be started again") != std::string::npos);
  CHECK(dead.find("SITU_CHECK_LAUNCHES=1") != std::string::npos);
  CHECK(std::string(advice(cudaErrorNoKernelImageForDevice)).find("-arch=native") != std::string::npos);
  CHECK(std::string(advice(cudaErrorInvalidValue)).empty());
  CHECK(detail::cuda::is_unloading(cudaErrorCudartUnloading));
  CHECK_FALSE(detail::cuda::is_sticky(cudaErrorMemoryAllocation));
  CHECK(message_of([] { detail::cuda::check(0, cudaErrorLaunchFailure, "running ", detail::LaunchName("sum")); })
            .starts_with("cuda:0: running sum failed: cudaErrorLaunchFailure ("));
}
