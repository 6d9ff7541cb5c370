#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <cuda_runtime_api.h>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE_TEMPLATE("what goes to a GPU and back is what it was", T, float, double, float16, bool, int8_t, int64_t) {
  for (Shape const& s : {Shape{0}, Shape{1}, Shape{1000}, Shape{33, 65}}) {
    Tensor<T> const a = numbers<T>(s);
    Tensor<T, Gpu> const x = a.to(Gpu{});
    CHECK(x.shape() == s);
    CHECK(differs(x, a) == "");
    CHECK(differs(Tensor<T, Gpu>{a}.cpu(), a) == "");
  }
}

TEST_CASE("strided tensors cross in both directions") {
  Tensor<float> const a = numbers<float>({30, 40});
  Tensor<float, Gpu> const x{a};
  CHECK(differs(Tensor<float, Gpu>{a.t()}, a.t()) == "");
  CHECK(differs(x.t().cpu(), a.t()) == "");
  CHECK(differs(x(range(3, 9), range(5, 30)).cpu(), a(range(3, 9), range(5, 30))) == "");
  CHECK(differs(x.flip(0).cpu(), a.flip(0)) == "");
  CHECK(differs(x.slice(1, 1, 40, 3).cpu(), a.slice(1, 1, 40, 3)) == "");
  CHECK(differs(x.select(1, 7).cpu(), a.select(1, 7)) == "");
}

TEST_CASE("pinned memory mixes with the host's and crosses to a GPU") {
  Tensor<float> const a = numbers<float>({5000});
  Tensor<float, Pinned> const p = pin(a);
  cudaPointerAttributes attributes{};
  REQUIRE(cudaPointerGetAttributes(&attributes, p.data()) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK(differs(p + a, a + a) == "");
  CHECK(differs(p.to(Gpu{}), a) == "");
  CHECK(differs(Tensor<float, Gpu>{a}.to(Pinned{}), a) == "");
}

TEST_CASE("pinned memory that was freed is kept for the next tensor, until it is asked back or there is much of it") {
  auto const is_locked = [](void const* at) {
    cudaPointerAttributes attributes{};
    REQUIRE(cudaPointerGetAttributes(&attributes, at) == cudaSuccess);
    return attributes.type == cudaMemoryTypeHost;
  };
  (void)zeros({1}, Gpu{});
  gpu::empty_cache();
  int64_t const before = gpu::memory_reserved(Pinned{});
  void const* at = nullptr;
  {
    Tensor<float, Pinned> const p = pin(ones({100000}));
    at = p.data();
    CHECK(gpu::memory_reserved(Pinned{}) == gpu::memory_allocated(Pinned{}));
  }
  CHECK(before == gpu::memory_allocated(Pinned{}));
  CHECK(gpu::memory_reserved(Pinned{}) >= before + 400000);
  CHECK(is_locked(at));
  {
    Tensor<float, Pinned> const larger = pin(ones({200000})), p = pin(numbers<float>({99999}));
    CHECK(p.data() == at);
    CHECK(larger.data() != at);
    CHECK(differs(p.to(Gpu{}), numbers<float>({99999})) == "");
  }
  CHECK(gpu::memory_reserved(Pinned{}) >= before + 1200000);
  gpu::empty_cache();
  CHECK(gpu::memory_reserved(Pinned{}) == before);
  CHECK(!is_locked(at));

  gpu::set_release_threshold(1 << 20, Pinned{});
  (void)pin(ones({100000}));
  (void)pin(ones({400000}));
  CHECK(gpu::memory_reserved(Pinned{}) < before + 500000);
  gpu::set_release_threshold(0, Pinned{});
  CHECK(gpu::memory_reserved(Pinned{}) == before);
  gpu::set_release_threshold(int64_t{1} << 30, Pinned{});
}

TEST_CASE("a tensor that is already there keeps its storage") {
  Tensor<float, Gpu> const x{numbers<float>({10})};
  CHECK(x.to(Gpu{}).data() == x.data());
  CHECK(x.cuda().data() == x.data());
}

TEST_CASE("one element is read by value") {
  Tensor<float> const a = numbers<float>({20, 30});
  Tensor<float, Gpu> const x{a};
  CHECK(x.item(3, 4) == a(3, 4));
  CHECK(x(range(2, 3), range(7, 8)).item() == a(2, 7));
}

TEST_CASE("conversion and transfer go together") {
  Tensor<float> const a = numbers<float>({100});
  CHECK(differs(a.to<double>(Gpu{}), a) == "");
  CHECK(differs(a.to<int32_t>(Gpu{}), cast<int32_t>(a)) == "");
  CHECK(differs((Tensor<float, Gpu>{a}.to<float16>(Cpu{})), cast<float16>(a)) == "");
}

TEST_CASE("tensors cross between GPUs, and the current device stays what it was") {
  if (gpu::device_count() < 2) return;
  Tensor<float> const a = numbers<float>({300, 200});
  Tensor<float, Cuda<0>> const x{a};
  Tensor<float, Cuda<1>> const y = x.to(Cuda<1>{});
  int device = -1;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  CHECK(device == 0);
  CHECK(differs(y * 2, a * 2) == "");
  CHECK(differs(y.t().to(Cuda<0>{}) + x.t(), a.t() + a.t()) == "");
}

TEST_CASE("memory is counted while tensors hold it") {
  int64_t const before = gpu::memory_allocated(Gpu{});
  {
    auto const x = empty<float>({1 << 20}, Gpu{});
    CHECK(gpu::memory_allocated(Gpu{}) == before + (4 << 20));
    CHECK(gpu::max_memory_allocated(Gpu{}) >= before + (4 << 20));
    CHECK(gpu::memory_reserved(Gpu{}) >= 4 << 20);
  }
  CHECK(gpu::memory_allocated(Gpu{}) == before);
  gpu::empty_cache();
  auto const info = gpu::memory_info(0);
  CHECK(info.free > 0);
  CHECK(info.free <= info.total);
}
