/// The gradients of pooling on a GPU: each pixel gathers from the windows that it belongs to, in their order. The places of the largest
/// elements are found by a kernel before.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/ops/cuda/pool2d.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// A thread for each window: where its largest element is in its plane.
template <class Tree, class C, int Inputs>
struct LargestArguments {
  Tree tree;
  void const* data[Inputs + 1];  ///< contiguous
  PoolPlan plan;
  int64_t outputs;
  int64_t* places;
  explicit LargestArguments(Tree const& formula) : tree(formula) {}
};
template <class Tree, class C, int Inputs>
__global__ void __launch_bounds__(block_threads) largest_kernel(const __grid_constant__ LargestArguments<Tree, C, Inputs> arguments) {
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
    C largest = C(0);
    int64_t place = -1;
#pragma unroll 1
    for (int64_t i = top; i < bottom; i += y.axis.dilation) {
#pragma unroll 1
      for (int64_t j = left; j < right; j += x.axis.dilation) {
        int64_t const here = i * x.axis.extent + j, index = plane * y.axis.extent * x.axis.extent + here;
        Held<Tree, 1> held;
        hold(held, PoolSource{arguments.data, index});
        C const value = convert_scalar<C>(Evaluator::value(arguments.tree, held, 0, index));
        if (place < 0 || value > largest || math::isnan(value)) largest = value, place = here;
      }
    }
    arguments.places[output] = place;
  }
}

/// The windows [first, last) of an axis that may hold an index.
SITU_DEVICE __forceinline__ void windows_around(PoolAxis const& axis, int64_t index, int64_t& first, int64_t& last) {
  WindowAxis const& a = axis.axis;
  if (axis.adaptive) {
    first = index * a.windows / a.extent;
    last = ((index + 1) * a.windows + a.extent - 1) / a.extent;
  } else {
    int64_t const behind = index + a.padding, reach = behind - (a.kernel - 1) * a.dilation;
    first = reach > 0 ? (reach + a.stride - 1) / a.stride : 0;
    last = behind / a.stride + 1;
  }
  if (last > a.windows) last = a.windows;
}

template <class T>
struct PoolGradientArguments {
  PoolPlan plan;
  T const* gradients;     ///< [planes, windows]
  int64_t const* places;  ///< null for means
  int64_t count;          ///< of pixels
  T* result;
};
template <class T>
__global__ void __launch_bounds__(block_threads) pool_gradient_kernel(const __grid_constant__ PoolGradientArguments<T> p) {
  using C = compute_t<T>;
  PoolAxis const& y = p.plan.y;
  PoolAxis const& x = p.plan.x;
  int64_t const threads = static_cast<int64_t>(gridDim.x) * block_threads;
#pragma unroll 1
  for (int64_t pixel = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x; pixel < p.count; pixel += threads) {
    int64_t const line = pixel / x.axis.extent, column = pixel - line * x.axis.extent;
    int64_t const plane = line / y.axis.extent, row = line - plane * y.axis.extent, here = row * x.axis.extent + column;
    int64_t first_y, last_y, first_x, last_x;
    windows_around(y, row, first_y, last_y);
    windows_around(x, column, first_x, last_x);
    C sum = C(0);
#pragma unroll 1
    for (int64_t i = first_y; i < last_y; ++i) {
#pragma unroll 1
      for (int64_t j = first_x; j < last_x; ++j) {
        int64_t const window = (plane * y.axis.windows + i) * x.axis.windows + j;
        if (p.places) {
          if (p.places[window] == here) sum += convert_scalar<C>(p.gradients[window]);
          continue;
        }
        int64_t top, bottom, left, right;
        y.range(i, top, bottom);
        x.range(j, left, right);
        int64_t const count = p.plan.count_padding ? y.padded_count(i) * x.padded_count(j) : (bottom - top) * (right - left);
        sum += convert_scalar<C>(p.gradients[window]) / static_cast<C>(count);
      }
    }
    p.result[pixel] = convert_scalar<T>(sum);
  }
}

/// Of each window, what stands in the place that was found; 0 where none was.
template <class T>
struct PickArguments {
  T const* from;  ///< [planes, extent]
  int64_t const* places;
  T* result;      ///< [planes, windows]
  int64_t windows, extent, count;
};
template <class T>
__global__ void __launch_bounds__(block_threads) pick_kernel(const __grid_constant__ PickArguments<T> p) {
  int64_t const threads = static_cast<int64_t>(gridDim.x) * block_threads;
#pragma unroll 1
  for (int64_t window = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x; window < p.count; window += threads) {
    int64_t const place = p.places[window];
    p.result[window] = place < 0 ? T(0) : p.from[window / p.windows * p.extent + place];
  }
}

inline dim3 blocks_over(int64_t count) {
  int64_t const blocks = (count + block_threads - 1) / block_threads;
  return dim3(static_cast<unsigned>(blocks < (1 << 30) ? blocks : 1 << 30));
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {
template <class D, class T>
void launch_mean_pool_gradient(cuda_kernels, PoolPlan const& plan, T const* gradients, T* result, int64_t const* places = nullptr) {
  int64_t const count = plan.planes * plan.y.axis.extent * plan.x.axis.extent;
  cuda::PoolGradientArguments<T> const arguments{plan, gradients, places, count, result};
  cuda::launch(device_traits<D>::ordinal, "pool2d", cuda::pool_gradient_kernel<T>, cuda::blocks_over(count), cuda::block_threads, arguments);
}
/// The places of the largest elements, while this lives.
template <class D, class T, class E>
struct LargestPlaces {
  int64_t const outputs;
  Temporary<D> const memory;
  int64_t* const places = static_cast<int64_t*>(memory.get());
  LargestPlaces(PoolPlan const& plan, E const& e) : outputs(plan.planes * plan.y.axis.windows * plan.x.axis.windows), memory(static_cast<std::size_t>(outputs) * sizeof(int64_t)) {
    using Tree = tree_of<E>;
    using C = compute_t<T>;
    cuda::LargestArguments<Tree, C, leaf_count<E>> arguments(lower<0>(e));
    void* data[leaf_count<E> + 1];
    collect_places(e, data);
    for (int o = 1; o <= leaf_count<E>; ++o) arguments.data[o] = data[o];
    arguments.plan = plan, arguments.outputs = outputs, arguments.places = places;
    cuda::launch(device_traits<D>::ordinal, "pool2d", cuda::largest_kernel<Tree, C, leaf_count<E>>, cuda::blocks_over(outputs), cuda::block_threads, arguments);
  }
};
template <class D, class T, class E>
void launch_max_pool_gradient(cuda_kernels, PoolPlan const& plan, E const& e, T const* gradients, T* result) {
  LargestPlaces<D, T, E> const largest(plan, e);
  launch_mean_pool_gradient<D, T>(cuda_kernels{}, plan, gradients, result, largest.places);
}
template <class D, class T>
void launch_max_pool_pick(cuda_kernels, PoolPlan const& plan, Tensor<T, D> const& x, T const* from, T* result) {
  LargestPlaces<D, T, Tensor<T, D>> const largest(plan, x);
  cuda::PickArguments<T> const arguments{from, largest.places, result, plan.y.axis.windows * plan.x.axis.windows, plan.y.axis.extent * plan.x.axis.extent, largest.outputs};
  cuda::launch(device_traits<D>::ordinal, "pool2d", cuda::pick_kernel<T>, cuda::blocks_over(largest.outputs), cuda::block_threads, arguments);
}
}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
