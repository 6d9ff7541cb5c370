#include <doctest/doctest.h>

#include <cmath>
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>
#include <string>
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

TEST_CASE("a small block that was freed is the next tensor of its size in its stream, and in no other") {
  gpu::empty_cache();
  int64_t const before = gpu::memory_allocated();
  auto const place_of_new = [](int64_t size) { return empty<float>({size}, Cuda<0>{}).data(); };  // which is freed at once
  float const* const first = place_of_new(1000);
  CHECK(place_of_new(1000) == first);
  CHECK(gpu::memory_allocated() == before);
  auto const held = empty<float>({1000}, Cuda<0>{});
  CHECK(held.data() == first);
  CHECK(place_of_new(1000) != first);
  float const* const other = place_of_new(5000);
  {
    Stream<Cuda<0>> const stream;
    StreamGuard const guard{stream};
    CHECK(place_of_new(5000) != other);  // what the default stream does with it may not have been done
  }
  CHECK(place_of_new(5000) == other);
  // More than are kept, in turns with work that uses them.
  std::vector<Tensor<float, Cuda<0>>> many;
  for (int round = 0; round < 3; ++round) {
    for (int k = 0; k < 100; ++k) many.push_back(full({k * 331 + 1}, static_cast<float>(k), Cuda<0>{}));
    double wrong = 0;
    for (int k = 0; k < 100; ++k) wrong += std::abs(static_cast<double>(sum(many[static_cast<std::size_t>(k)]).item()) - static_cast<double>(k) * (k * 331 + 1));
    CHECK(wrong == 0);
    many.clear();
  }
  CHECK(gpu::memory_allocated() == before + held.size() * 4);
  gpu::empty_cache();
  gpu::check_launches(true);
  place_of_new(1000);
  gpu::check_launches(false);
  CHECK(detail::cuda::kept_blocks()[0].count == 0);  // compute-sanitizer sees it end
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
