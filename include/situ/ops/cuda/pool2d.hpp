/// Pooling on a GPU: a thread for each window; neighbouring threads take neighbouring windows of a row.
#pragma once

#include <situ/device/cuda/launch.hpp>
#include <situ/expr/cuda/evaluate.hpp>
#include <situ/ops/cpu/pool2d.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

template <class Tree, class T, int Inputs>
struct PoolArguments {
  Tree tree;
  void const* data[Inputs + 1];  ///< contiguous
  PoolPlan plan;
  int64_t outputs;
  T* result;
  explicit PoolArguments(Tree const& formula) : tree(formula) {}
};

/// One element of every input.
struct PoolSource {
  void const* const* data;
  int64_t index;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    lanes.load_each(static_cast<T const*>(data[K + 1]) + index, 1, 1);
  }
};

template <class Pooling, class Tree, class T, int Inputs>
__global__ void __launch_bounds__(block_threads) pool_kernel(const __grid_constant__ PoolArguments<Tree, T, Inputs> arguments) {
  using C = compute_t<T>;
  PoolAxis const& y = arguments.plan.y;
  PoolAxis const& x = arguments.plan.x;
  int64_t const threads = static_cast<int64_t>(gridDim.x) * block_threads;
#pragma unroll 1
  for (int64_t output = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x; output < arguments.outputs; output += threads) {
    int64_t const row = output / x.axis.windows, column = output - row * x.axis.windows;
    int64_t const plane = row / y.axis.windows, window = row - plane * y.axis.windows;
    int64_t top, bottom, left, right;
    y.range(window, top, bottom);
    x.range(column, left, right);
    C value = Pooling::template nothing<C>;
    int64_t count = 0;
#pragma unroll 1
    for (int64_t i = top; i < bottom; i += y.axis.dilation) {
#pragma unroll 1
      for (int64_t j = left; j < right; j += x.axis.dilation, ++count) {
        int64_t const index = (plane * y.axis.extent + i) * x.axis.extent + j;
        Held<Tree, 1> held;
        hold(held, PoolSource{arguments.data, index});
        C const element = convert_scalar<C>(Evaluator::value(arguments.tree, held, 0, index));
        value = count == 0 ? element : Pooling::combine(value, element);
      }
    }
    if constexpr (Pooling::counts) {
      if (arguments.plan.count_padding) count = y.padded_count(window) * x.padded_count(column);
      value = value / static_cast<C>(count);
    }
    arguments.result[output] = convert_scalar<T>(value);
  }
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {
template <class D, class Pooling, class T, class E>
void launch_pooling(cuda_kernels, PoolPlan const& plan, E const& e, T* result) {
  using Tree = tree_of<E>;
  cuda::PoolArguments<Tree, T, leaf_count<E>> arguments(lower<0>(e));
  void* data[leaf_count<E> + 1];
  collect_places(e, data);
  for (int o = 1; o <= leaf_count<E>; ++o) arguments.data[o] = data[o];
  arguments.plan = plan;
  arguments.outputs = plan.planes * plan.y.axis.windows * plan.x.axis.windows;
  arguments.result = result;
  int64_t const blocks = (arguments.outputs + cuda::block_threads - 1) / cuda::block_threads;
  cuda::launch(device_traits<D>::ordinal, "pool2d", cuda::pool_kernel<Pooling, Tree, T, leaf_count<E>>,
               dim3(static_cast<unsigned>(blocks < (1 << 30) ? blocks : 1 << 30)), cuda::block_threads, arguments);
}
}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
