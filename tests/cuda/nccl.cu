// Collectives by NCCL, as one process has them on one GPU: those of several are examples/distributed's.
#ifndef SITU_WITH_NCCL
#define SITU_WITH_NCCL 1
#endif
#include <doctest/doctest.h>

#include <cuda/prototypes.hpp>
#include <situ/parallel/collectives.hpp>
#include <situ/tensor/print.hpp>

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

using namespace situ;

#if defined(SITU_WITH_MPI)

#if __has_include(<nccl.h>)
namespace {
using situ_test::called_alike;
using F = detail::cuda::NcclFunctions;
static_assert(called_alike<decltype(F::unique_id), decltype(&ncclGetUniqueId)>);
static_assert(called_alike<decltype(F::init_rank), decltype(&ncclCommInitRank)>);
static_assert(called_alike<decltype(F::error_string), decltype(&ncclGetErrorString)>);
static_assert(called_alike<decltype(F::all_reduce), decltype(&ncclAllReduce)>);
static_assert(called_alike<decltype(F::broadcast), decltype(&ncclBroadcast)>);
static_assert(called_alike<decltype(F::all_gather), decltype(&ncclAllGather)>);
static_assert(called_alike<decltype(F::reduce_scatter), decltype(&ncclReduceScatter)>);
static_assert(sizeof(detail::cuda::NcclId) == sizeof(ncclUniqueId));
template <class T>
inline constexpr int type = detail::cuda::nccl_type<T>;
static_assert(type<float> == ncclFloat32 && type<double> == ncclFloat64 && type<float16> == ncclFloat16 && type<bfloat16> == ncclBfloat16);
static_assert(type<int64_t> == ncclInt64 && type<int32_t> == ncclInt32 && type<int8_t> == ncclInt8 && type<uint8_t> == ncclUint8 && type<bool> == ncclUint8);
static_assert(detail::cuda::nccl_bytes == ncclUint8);
using enum distributed::reduce_op;
template <class T>
constexpr bool operations(int of_sum, int of_avg, int of_prod, int of_min, int of_max) {
  return detail::cuda::nccl_operation<T>(sum) == of_sum && detail::cuda::nccl_operation<T>(avg) == of_avg && detail::cuda::nccl_operation<T>(prod) == of_prod &&
         detail::cuda::nccl_operation<T>(distributed::reduce_op::min) == of_min && detail::cuda::nccl_operation<T>(distributed::reduce_op::max) == of_max;
}
static_assert(operations<float>(ncclSum, ncclAvg, ncclProd, ncclMin, ncclMax) && operations<bool>(ncclMax, ncclMax, ncclMin, ncclMin, ncclMax));
}  // namespace
#endif

TEST_CASE("collectives of one process give it what it has") {
  Cuda<0> const gpu;
  Tensor<float> const host{1, 2, 3, 4};
  Tensor<float, Cuda<0>> x = host.to(gpu), odd = host.to(gpu)(range(0, 4, 2));
  distributed::all_reduce(x);
  distributed::all_reduce(odd, distributed::reduce_op::avg);
  distributed::broadcast(x);
  CHECK(x.to_vector() == host.to_vector());
  CHECK(odd.to_vector() == std::vector<float>{1, 3});
  CHECK(distributed::all_gather(x.view({2, 2}).t()).cpu().to_vector() == std::vector<float>{1, 3, 2, 4});
  CHECK(distributed::reduce_scatter(x, distributed::reduce_op::max).to_vector() == host.to_vector());
  Tensor<bool, Cuda<0>> truth = Tensor<bool>{true, false}.to(gpu);
  distributed::all_reduce_async(truth).wait();
  CHECK(truth.to_vector() == std::vector<bool>{true, false});
}

#else

TEST_CASE("collectives by NCCL are not compiled: no MPI was found" * doctest::skip()) {}

#endif
