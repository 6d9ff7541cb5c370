/// Thrust's algorithms over a GPU's tensors: on the current stream, in the order of situ's own work, with memory of the pool.
#include <doctest/doctest.h>

#include <thrust/functional.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <cuda/compare.hpp>
#include <situ/interop/thrust.hpp>
#include <situ/device/stream.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::thrown;

namespace {

struct twice_and_one {
  SITU_HOST_DEVICE float operator()(float x) const { return 2 * x + 1; }
};

template <class X>
constexpr bool iterates = requires(X x) { interop::thrust_begin(static_cast<X>(x)); };
static_assert(iterates<Tensor<float, Cuda<0>>&> && iterates<Tensor<bool, Cuda<1>> const&>);
static_assert(!iterates<Tensor<float, Cuda<0>>> && !iterates<Tensor<float>&> && !iterates<Tensor<float, Emulated<0>>&>);
template <class D>
constexpr bool has_a_policy = requires { interop::thrust_policy(D{}); };
static_assert(has_a_policy<Cuda<0>> && !has_a_policy<Cpu>);

}  // namespace

TEST_CASE("Thrust's algorithms work on a tensor's elements") {
  constexpr int64_t n = 10000;
  Tensor<float> const mixed = (arange<float>(n) * 7919) % n;  // 0 to n-1, in another order
  Tensor<float, Cuda<0>> x{mixed}, y = zeros_like(x);
  thrust::sort(interop::thrust_policy(x.device()), interop::thrust_begin(x), interop::thrust_end(x));
  CHECK(differs(x, arange<float>(n)) == "");
  auto const& sorted = x;
  static_assert(std::is_same_v<decltype(interop::thrust_begin(sorted)), thrust::device_ptr<float const>>);
  CHECK(thrust::reduce(interop::thrust_policy(), interop::thrust_begin(sorted), interop::thrust_end(sorted), int64_t{0}, thrust::plus<int64_t>{}) == n * (n - 1) / 2);
  thrust::transform(interop::thrust_policy(), interop::thrust_begin(sorted), interop::thrust_end(sorted), interop::thrust_begin(y), twice_and_one{});
  CHECK(differs(y, arange<float>(n) * 2 + 1) == "");
}

TEST_CASE("they go to the current stream, behind what other streams have written") {
  Tensor<float, Cuda<0>> x = full({1000}, 3.f, Cuda<0>{});
  Stream<Cuda<0>> side;
  {
    StreamGuard const guard(side);
    x += 1;
    thrust::transform(interop::thrust_policy(), interop::thrust_begin(x), interop::thrust_end(x), interop::thrust_begin(x), twice_and_one{});
  }
  CHECK(differs(x * 2, full({1000}, 18.f)) == "");
}

TEST_CASE("what they take meanwhile is memory of the pool, and is given back") {
  Tensor<float, Cuda<0>> x = arange<float>(100000, Cuda<0>{});
  int64_t const before = gpu::memory_allocated(Cuda<0>{});
  gpu::reset_peak_memory_stats(Cuda<0>{});
  thrust::sort(interop::thrust_policy(), interop::thrust_begin(x), interop::thrust_end(x), thrust::greater<float>{});
  CHECK(gpu::memory_allocated(Cuda<0>{}) == before);
  CHECK(gpu::max_memory_allocated(Cuda<0>{}) > before);
  CHECK(x.item(0) == 99999);
}

TEST_CASE("parts with gaps, and storage that is read-only, are refused") {
  Tensor<float, Cuda<0>> x = zeros({4, 6}, Cuda<0>{}), column = x.select(1, 0), nothing = zeros({0}, Cuda<0>{});
  CHECK(thrown<LayoutError>([&] { (void)interop::thrust_begin(column); }, "thrust_begin: shape [4] with strides [6] is not contiguous; give a contiguous() copy") == "");
  CHECK(thrown<LayoutError>([&] { (void)interop::thrust_end(column); }, "thrust_end: shape [4] with strides [6] is not contiguous; give a contiguous() copy") == "");
  CHECK(interop::thrust_end(x) - interop::thrust_begin(x) == 24);
  CHECK(interop::thrust_end(nothing) == interop::thrust_begin(nothing));
  Tensor<float, Cuda<0>> const owner = x.clone();
  auto fixed = from_blob(owner.data(), {4, 6}, Cuda<0>{});
  CHECK_THROWS_AS(interop::thrust_begin(fixed), TypeError);
  CHECK(interop::thrust_begin(std::as_const(fixed)).get() == owner.data());
}
