#include <situ/device/query.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <pthread.h>
#include <situ/device/emulated/device.hpp>
#include <situ/device/pinned.hpp>
#include <situ/tensor/factories.hpp>
#include <situ/tensor/transfer.hpp>

#include "support/compare.hpp"

using namespace situ;

namespace {

using Device = Emulated<0>;
using Float = Tensor<float, Device>;

constexpr int64_t head = static_cast<int64_t>(detail::fresh_block_bytes);
constexpr int64_t KiB = 1024, MiB = 1024 * KiB;

/// A fresh set of emulated devices for one test case; the usual two are back when it ends.
struct Configured {
  explicit Configured(emulated::configuration const& c) { emulated::configure(c); }
  Configured(Configured const&) = delete;
  Configured& operator=(Configured const&) = delete;
  ~Configured() { emulated::configure(); }
};

template <class F>
OutOfMemory shortage_of(F f) {
  try {
    f();
  } catch (OutOfMemory const& error) {
    return error;
  }
  return OutOfMemory("nothing was thrown");
}

/// Runs f on a thread of its own.
template <class F>
void on_a_thread(F f) {
  pthread_t thread;
  constexpr auto run = [](void* argument) -> void* {
    (*static_cast<F*>(argument))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, nullptr, run, &f) == 0);
  pthread_join(thread, nullptr);
}

}  // namespace

TEST_CASE("what tensors hold on the host is counted to the byte; blocks from 128 KiB on with what they are rounded up by") {
  {
    int64_t const before = gpu::memory_allocated(Cpu{});
    Tensor<float> const large = zeros({100000});
    int64_t const held = gpu::memory_allocated(Cpu{}) - before;
    CHECK(held >= 400000 + head);
    CHECK(held < 400000 + head + (1 << 14));
  }
  for (int64_t n : {1, 10, 1000, 16000}) {
    int64_t const before = gpu::memory_allocated(Cpu{});
    {
      Tensor<float> const a = zeros({n});
      CHECK(gpu::memory_allocated(Cpu{}) - before == n * 4 + head);
      Tensor<float> const b = a;  // shares it
      Tensor<double> const c = ones<double>({n});
      CHECK(gpu::memory_allocated(Cpu{}) - before == n * 12 + 2 * head);
    }
    CHECK(gpu::memory_allocated(Cpu{}) == before);
  }
}

TEST_CASE("large host blocks are counted as what they take, and kept when they are freed") {
  gpu::empty_cache();
  int64_t const before = gpu::memory_allocated(Cpu{});
  {
    Tensor<float> const a = zeros({1 << 22});  // 16 MiB and a head, in pages of 2 MiB
    CHECK(gpu::memory_allocated(Cpu{}) - before == 18 * MiB);
    CHECK(gpu::memory_reserved(Cpu{}) == gpu::memory_allocated(Cpu{}));
    CHECK(gpu::memory_summary(Cpu{}).find("1 x 18.0 MiB") != std::string::npos);
  }
  CHECK(gpu::memory_allocated(Cpu{}) == before);
#if !SITU_ASAN
  CHECK(gpu::memory_reserved(Cpu{}) == before + 18 * MiB);
  gpu::set_release_threshold(0, Cpu{});
  CHECK(gpu::memory_reserved(Cpu{}) == before);
  { Tensor<float> const a = zeros({1 << 22}); }
  CHECK(gpu::memory_reserved(Cpu{}) == before);
  gpu::set_release_threshold(1024 * MiB, Cpu{});
  { Tensor<float> const a = zeros({1 << 22}); }
  CHECK(gpu::memory_reserved(Cpu{}) == before + 18 * MiB);
#endif
  gpu::empty_cache();
  CHECK(gpu::memory_reserved(Cpu{}) == before);
}

#if !SITU_ASAN
TEST_CASE("large host blocks of sizes that are no longer asked for make room for those that are") {
  auto const hold_two = [](int64_t n) {
    Tensor<float> const a = empty<float>({n}), b = empty<float>({n});
    return gpu::memory_reserved(Cpu{});
  };
  gpu::empty_cache();
  {
    std::vector<Tensor<float>> many;
    for (int k = 0; k < 200; ++k) many.push_back(empty<float>({1 << 18}));
  }
  hold_two(50000);
  int64_t reserved = gpu::memory_reserved(Cpu{});
  CHECK(hold_two(50000) == reserved);  // both are there
  gpu::set_release_threshold(40 * MiB, Cpu{});
  {
    std::vector<Tensor<float>> many;
    for (int k = 0; k < 30; ++k) many.push_back(empty<float>({1 << 18}));
  }
  hold_two(1 << 21);  // of bytes, too
  reserved = gpu::memory_reserved(Cpu{});
  CHECK(hold_two(1 << 21) == reserved);
  gpu::set_release_threshold(1024 * MiB, Cpu{});
  gpu::empty_cache();
}
#endif

TEST_CASE("the peak of the host is exact for small and large blocks, and can be started again") {
  gpu::reset_peak_memory_stats(Cpu{});
  int64_t const before = gpu::memory_allocated(Cpu{});
  CHECK(gpu::max_memory_allocated(Cpu{}) == before);
  { Tensor<float> const a = zeros({2000}); }
  CHECK(gpu::max_memory_allocated(Cpu{}) - before == 8000 + head);
  { Tensor<float> const a = zeros({1000}); }
  CHECK(gpu::max_memory_allocated(Cpu{}) - before == 8000 + head);
  {
    Tensor<float> const small = zeros({500});
    { Tensor<float> const middle = zeros({3000}); }
    Tensor<float> const large = zeros({1 << 20});  // 4 MiB and a head
    { Tensor<float> const more = zeros({700}); }
  }
  CHECK(gpu::max_memory_allocated(Cpu{}) - before == 4 * MiB + 64 * KiB + 2000 + 2800 + 2 * head);
  gpu::reset_peak_memory_stats(Cpu{});
  CHECK(gpu::max_memory_allocated(Cpu{}) == gpu::memory_allocated(Cpu{}));
}

TEST_CASE("memory that one thread makes and another frees is counted once") {
  int64_t const before = gpu::memory_allocated(Cpu{});
  std::vector<Tensor<float>> made;
  on_a_thread([&] {
    for (int k = 0; k < 100; ++k) made.push_back(zeros({100}));
    CHECK(gpu::memory_allocated(Cpu{}) - before == 100 * (400 + head));
  });
  CHECK(gpu::memory_allocated(Cpu{}) - before == 100 * (400 + head));
  on_a_thread([&] { made.resize(30); });
  CHECK(gpu::memory_allocated(Cpu{}) - before == 30 * (400 + head));
  made.clear();
  CHECK(gpu::memory_allocated(Cpu{}) == before);
}

namespace {
/// Frees a tensor when its thread ends, after the thread's account may have been closed.
struct LastOfThread {
  Tensor<float> x;
};
}  // namespace

TEST_CASE("memory that ends with its thread is counted") {
  int64_t const before = gpu::memory_allocated(Cpu{});
  for (int k = 0; k < 3; ++k) {
    on_a_thread([] {
      static thread_local LastOfThread last;
      last.x = zeros({50});
    });
    CHECK(gpu::memory_allocated(Cpu{}) == before);
  }
}

TEST_CASE("page-locked memory is counted by itself") {
  int64_t const before = gpu::memory_allocated(Pinned{}), host = gpu::memory_allocated(Cpu{});
  {
    Tensor<float, Pinned> const p = Tensor<float, Pinned>::uninitialized({1000});
    CHECK(gpu::memory_allocated(Pinned{}) - before == 4000 + head);
    CHECK(gpu::memory_reserved(Pinned{}) - before == 4000 + head);
    CHECK(gpu::memory_allocated(Cpu{}) == host);
  }
  CHECK(gpu::memory_allocated(Pinned{}) == before);
}

TEST_CASE("an emulated device tells what is allocated, reserved, and was at most") {
  Configured const devices({.memory = 1 << 20});
  CHECK(gpu::memory_allocated(Device{}) == 0);
  CHECK(gpu::memory_info(Device{}).total == MiB);
  {
    Float const a = Float::uninitialized({64 * 256});
    { Float const b = Float::uninitialized({32 * 256}); }
    synchronize(Device{});
    CHECK(gpu::memory_allocated(Device{}) == 64 * KiB);
    CHECK(gpu::max_memory_allocated(Device{}) == 96 * KiB);
    CHECK(gpu::memory_reserved(Device{}) == 96 * KiB);
    CHECK(gpu::memory_info(Device{}).free == MiB - 96 * KiB);
    gpu::empty_cache();
    CHECK(gpu::memory_reserved(Device{}) == 64 * KiB);
    CHECK(gpu::memory_allocated(Emulated<1>{}) == 0);
    gpu::reset_peak_memory_stats(Device{});
    CHECK(gpu::max_memory_allocated(Device{}) == 64 * KiB);
  }
  synchronize(Device{});
  CHECK(gpu::memory_allocated(Device{}) == 0);
  CHECK(gpu::memory_reserved(Device{}) == 64 * KiB);
  gpu::set_release_threshold(10000, Device{});
  CHECK(gpu::memory_reserved(Device{}) == 10000);
  AnyDevice const chosen = Device{};
  CHECK(gpu::memory_reserved(chosen) == 10000);
}

TEST_CASE("out of memory carries its numbers, names the largest blocks, and the program goes on") {
  Configured const devices({.memory = 1 << 20});
  std::vector<Float> held;
  for (int k = 0; k < 3; ++k) held.push_back(Float::uninitialized({64 * 256}));  // 3 x 64 KiB
  held.push_back(Float::uninitialized({512 * 256}));                             // 512 KiB
  for (int k = 0; k < 2; ++k) held.push_back(Float::uninitialized({100}));
  std::string const message =
      "emulated:0: out of memory: 400.0 KiB were asked for (409600 bytes): 319.0 KiB of 1.0 MiB are free, the largest free block has 319.0 KiB; "
      "situ has allocated 704.8 KiB and holds 705.0 KiB; the largest live allocations are 1 x 512.0 KiB, 3 x 64.0 KiB, 2 x 400 bytes. Free tensors, "
      "work on smaller parts, or give the device more with emulated::configure({.memory = ...})";
  CHECK(situ_test::thrown<OutOfMemory>([] { Float::uninitialized({400 * 256}); }, message) == "");
  OutOfMemory const error = shortage_of([] { Float::uninitialized({400 * 256}); });
  CHECK(error.requested == 400 * KiB);
  CHECK(error.free == 319 * KiB);
  CHECK(error.total == MiB);
  CHECK(error.allocated == 704 * KiB + 800);
  CHECK(error.reserved == 705 * KiB);
  CHECK(gpu::memory_allocated(Device{}) == 704 * KiB + 800);
  held.erase(held.begin() + 3);  // what is freed can be had again
  synchronize(Device{});
  Float const large = Float::uninitialized({400 * 256});
  CHECK(large.size() == 400 * 256);
  CHECK(gpu::memory_summary(Device{}) ==
        "emulated:0: 592.8 KiB allocated, at most 704.8 KiB; 705.0 KiB reserved\n  319.0 KiB of 1.0 MiB free; no limit for this process\n"
        "  7 allocations, 6 live; 2 after emptying the cache, 2 failed\n  largest: 1 x 400.0 KiB, 3 x 64.0 KiB, 2 x 400 bytes\n");
}

TEST_CASE("an operation that runs out of memory can be repeated when tensors have been freed") {
  Configured const devices({.memory = 1 << 16});
  Float x = full({4096}, 2.f).to(Device{}), other = Float::uninitialized({10000});
  Float y;
  CHECK_THROWS_AS(y = x * 3, OutOfMemory);
  CHECK(y.size() == 0);
  other = Float();
  y = x * 3;
  CHECK(y.item(4095) == 6);
}

TEST_CASE("a process can be limited to a fraction of a device's memory") {
  Configured const devices({.memory = 1 << 20});
  gpu::set_memory_fraction(0.25, Device{});
  Float const a = Float::uninitialized({200 * 256});
  CHECK(situ_test::thrown<OutOfMemory>(
            [] { Float::uninitialized({100 * 256}); },
            "emulated:0: out of memory: 100.0 KiB were asked for (102400 bytes): 824.0 KiB of 1.0 MiB are free, the largest free block has 824.0 KiB, this "
            "process is limited to 256.0 KiB by set_memory_fraction; situ has allocated 200.0 KiB and holds 200.0 KiB; the largest live allocations are "
            "1 x 200.0 KiB. Free tensors, work on smaller parts, or give the device more with emulated::configure({.memory = ...})") == "");
  Float const b = Float::uninitialized({56 * 256});
  CHECK_THROWS_AS(Float::uninitialized({1}), OutOfMemory);
  Tensor<float, Emulated<1>> const elsewhere = Tensor<float, Emulated<1>>::uninitialized({200 * 256});
  gpu::set_memory_fraction(1, Device{});
  Float const c = Float::uninitialized({100 * 256});
  CHECK(c.size() == 100 * 256);
  CHECK(situ_test::thrown<ShapeError>([] { gpu::set_memory_fraction(1.5, Device{}); },
                                      "set_memory_fraction: 1.5 is not a fraction: it must be above 0 and at most 1") == "");
  CHECK_THROWS_AS(gpu::set_memory_fraction(0, Device{}), ShapeError);
  CHECK_THROWS_AS(gpu::set_release_threshold(-1, Device{}), ShapeError);
}

TEST_CASE("large blocks of the host can be limited, too") {
  Tensor<float> const before = zeros({1 << 20});
  gpu::set_memory_fraction(1e-9, Cpu{});
  OutOfMemory const error = shortage_of([] { zeros({1 << 20}); });
  Tensor<float> const small = zeros({1000});
  gpu::set_memory_fraction(1, Cpu{});
  CHECK(error.requested == (4 << 20) + head);
  CHECK(std::string(error.what()).find("by set_memory_fraction") != std::string::npos);
  CHECK(zeros({1 << 20}).size() == 1 << 20);
}

TEST_CASE("the host says how much there was when it runs out") {
  OutOfMemory const error = shortage_of([] { zeros({int64_t{1} << 50}); });
  std::string const message = error.what();
  CHECK(message.starts_with("cpu: out of memory: 4.0 PiB were asked for (4503599627370"));
  CHECK(message.find("and mmap failed: ") != std::string::npos);
  CHECK(message.find("Free tensors, write to tensors that exist, or work on smaller parts") != std::string::npos);
  CHECK(error.total > 0);
  CHECK(error.free > 0);
  CHECK(error.free <= error.total);
  CHECK(error.allocated == gpu::memory_allocated(Cpu{}));
  CHECK(ones({10}).item(9) == 1);
  CHECK_THROWS_AS((Tensor<float, Pinned>::uninitialized({int64_t{1} << 50})), OutOfMemory);
}

TEST_CASE("a failure that was asked for is out of memory as well") {
  Configured const devices({.fail_at = 0});
  CHECK_THROWS_AS(Float::uninitialized({4}), OutOfMemory);
  CHECK(gpu::memory_allocated(Device{}) == 0);
  CHECK(Float::uninitialized({4}).size() == 4);
}

TEST_CASE("without a GPU its memory is nothing, and cannot be limited") {
  if (gpu::is_available()) return;
  CHECK(gpu::memory_allocated() == 0);
  CHECK(gpu::memory_reserved(3) == 0);
  CHECK(gpu::max_memory_allocated(Cuda<0>{}) == 0);
  CHECK(gpu::memory_info().total == 0);
  gpu::reset_peak_memory_stats();
  CHECK(gpu::memory_summary(Cuda<0>{}).starts_with("cuda:0: 0 bytes allocated"));
  CHECK_THROWS_AS(gpu::set_memory_fraction(0.5), DeviceUnavailable);
  CHECK_THROWS_AS(gpu::set_release_threshold(0), DeviceUnavailable);
  CHECK(gpu::memory_allocated(AnyDevice::cuda(1000)) == 0);
}

TEST_CASE("amounts of memory are written in the largest unit that leaves a digit before the point") {
  using detail::bytes_text;
  CHECK(bytes_text(0) == "0 bytes");
  CHECK(bytes_text(1) == "1 byte");
  CHECK(bytes_text(1023) == "1023 bytes");
  CHECK(bytes_text(1024) == "1.0 KiB");
  CHECK(bytes_text(1024 * 1024 - 1) == "1.0 MiB");
  CHECK(bytes_text(3 * 256 * MiB) == "768.0 MiB");
  CHECK(bytes_text(int64_t{5} << 40) == "5.0 TiB");
}

TEST_CASE("the table of sizes counts as a map does") {
  detail::SizeTable table;
  std::map<int64_t, int64_t> expected;
  std::srand(7);
  for (int round = 0; round < 20000; ++round) {
    int64_t const bytes = 1 + std::rand() % (round < 10000 ? 3000 : 50);
    if (std::rand() % 2 == 0) {
      table.add(bytes);
      ++expected[bytes];
    } else if (expected[bytes] > 0) {
      table.remove(bytes);
      --expected[bytes];
    }
  }
  detail::SizeTable::Entry largest[8];
  int const found = table.largest(largest, 8);
  auto it = expected.rbegin();
  for (int k = 0; k < found; ++k, ++it) {
    while (it != expected.rend() && it->second == 0) ++it;
    REQUIRE(it != expected.rend());
    CHECK(largest[k].bytes == it->first);
    CHECK(largest[k].count == it->second);
  }
  CHECK(found == 8);
  table.clear();
  CHECK(table.largest(largest, 8) == 0);
}
