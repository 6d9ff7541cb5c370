/// The gradients of convolution on a GPU, by the matrix of pixels of as many images at a time as a quarter of a gigabyte holds.
///
/// weights  batched products of the results' gradients with the transposed matrix, one for each image, and their sum
/// images   batched products of the transposed weights with the results' gradients; then each pixel gathers what its windows return
#pragma once

#include <situ/ops/conv2d_plan.hpp>
#include <situ/ops/cuda/conv2d.hpp>
#include <situ/ops/reduce.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail {
namespace cuda {

template <class T>
struct PixelSumArguments {
  T const* matrix;  ///< [images, channels * kernel height * kernel width, windows]
  Windows windows;
  int64_t planes;   ///< images * channels
  FastDivisor across, stride_y, stride_x;
  T* result;        ///< [planes, height, width]
};

/// One thread for each pixel: sums over the windows that it belongs to, in the order of the kernel's elements.
template <class T>
__global__ void __launch_bounds__(block_threads) pixel_sum_kernel(const __grid_constant__ PixelSumArguments<T> p) {
  WindowAxis const& y = p.windows.y;
  WindowAxis const& x = p.windows.x;
  int64_t const pixels = y.extent * x.extent, windows = p.windows.outputs();
  int64_t const pixel = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  if (pixel >= pixels) return;
  int64_t const row = p.across.quotient(static_cast<uint32_t>(pixel)), column = pixel - row * x.extent;
#pragma unroll 1
  for (int64_t plane = blockIdx.y; plane < p.planes; plane += gridDim.y) {
    T const* const matrix = p.matrix + plane * y.kernel * x.kernel * windows;
    compute_t<T> sum = 0;
#pragma unroll 1
    for (int64_t ky = 0; ky < y.kernel; ++ky) {
      int64_t const from_y = row + y.padding - ky * y.dilation;
      if (from_y < 0) break;
      int64_t const i = p.stride_y.quotient(static_cast<uint32_t>(from_y));
      if (i * y.stride != from_y || i >= y.windows) continue;
#pragma unroll 1
      for (int64_t kx = 0; kx < x.kernel; ++kx) {
        int64_t const from_x = column + x.padding - kx * x.dilation;
        if (from_x < 0) break;
        int64_t const j = p.stride_x.quotient(static_cast<uint32_t>(from_x));
        if (j * x.stride != from_x || j >= x.windows) continue;
        sum += convert_scalar<compute_t<T>>(matrix[(ky * x.kernel + kx) * windows + i * x.windows + j]);
      }
    }
    p.result[plane * pixels + pixel] = convert_scalar<T>(sum);
  }
}

inline unsigned clamped_blocks(int64_t n) { return static_cast<unsigned>(n > 65535 ? 65535 : n); }

}  // namespace cuda

/// How many images are handled at once, so that each brings `bytes`.
inline int64_t images_at_once(int64_t images, int64_t bytes) {
  int64_t const most = (int64_t{1} << 28) / (bytes > 0 ? bytes : 1);
  return most < 1 ? 1 : most < images ? most : images;
}

inline namespace SITU_ABI_COMPILER {

/// The gradient of the weights as parts [1, groups * outputs, channels * kernel height * kernel width]. `g` is contiguous.
template <class D, class T>
Tensor<T, D> weight_gradient_parts(cuda_kernels, ConvolutionPlan const& plan, Tensor<T, D> const& x, Tensor<T, D> const& g, int64_t groups) {
  constexpr int device = device_traits<D>::ordinal;
  Layout const& layout = x.layout();
  int const at = layout.rank() - 3;
  int64_t const windows = plan.windows.outputs(), depth = plan.channels * plan.windows.y.kernel * plan.windows.x.kernel;
  int64_t const rows = depth * groups, outputs = plan.outputs * groups;
  if (windows > INT32_MAX) fail<ShapeError>("conv2d: images of ", windows, " windows were given; on Cuda at most ", INT32_MAX, " are possible");
  int64_t const at_once = images_at_once(plan.images, (rows * windows + outputs * depth) * static_cast<int64_t>(sizeof(T)));
  Temporary<D> const scratch(static_cast<std::size_t>(at_once * rows * windows) * sizeof(T));
  auto* const pixels = static_cast<T*>(scratch.get());
  Tensor<T, D> total;
  for (int64_t first = 0; first < plan.images; first += at_once) {
    int64_t const images = plan.images - first < at_once ? plan.images - first : at_once;
    int64_t const step_image = at == 1 ? layout.strides[0] : 0;
    cuda::PixelArguments<T> p{x.data() + first * step_image, step_image, layout.strides[at], layout.strides[at + 1], layout.strides[at + 2],
                              plan.windows, images, rows, cuda::FastDivisor::of(plan.windows.x.windows), pixels};
    cuda::launch(device, "conv2d", cuda::pixel_kernel<T>,
                 dim3(static_cast<unsigned>((windows + cuda::block_threads - 1) / cuda::block_threads), cuda::clamped_blocks(rows), cuda::clamped_blocks(images)),
                 cuda::block_threads, p);
    auto parts = Tensor<T, D>::uninitialized({images, outputs, depth}, "conv2d");
    ProductPlan product;
    product.m = plan.outputs, product.n = depth, product.k = windows;
    product.rank = 2;
    product.sizes[0] = images, product.sizes[1] = groups;
    product.a[0] = outputs * windows, product.a[1] = plan.outputs * windows;
    product.b[0] = rows * windows, product.b[1] = depth * windows;
    product.c[0] = outputs * depth, product.c[1] = plan.outputs * depth;
    cuda::CublasProduct one{product.m, product.n, windows, {product.m, windows, windows, 1}, {windows, depth, 1, windows}, nullptr, nullptr, nullptr, 0, 0, 0, 1};
    (void)cublas_launch<identity, T>(device, product, one, g.data() + first * outputs * windows, pixels, parts.data(), nullptr);
    Tensor<T, D> const whole = images == 1 ? parts : sum(parts, 0, keepdim);
    if (total.body() && first > 0) total += whole;
    else total = whole;
  }
  return total;
}

/// The gradient of the images, contiguous. `g` and the weights are contiguous.
template <class D, class T>
Tensor<T, D> image_gradient(cuda_kernels, ConvolutionPlan const& plan, Shape const& shape, Tensor<T, D> const& g, Tensor<T, D> const& w, int64_t groups) {
  constexpr int device = device_traits<D>::ordinal;
  int64_t const windows = plan.windows.outputs(), depth = plan.channels * plan.windows.y.kernel * plan.windows.x.kernel;
  int64_t const rows = depth * groups, outputs = plan.outputs * groups, pixels = plan.windows.y.extent * plan.windows.x.extent;
  WindowAxis const &y = plan.windows.y, &x = plan.windows.x;
  if (pixels > INT32_MAX || y.extent + y.padding > INT32_MAX || x.extent + x.padding > INT32_MAX || y.stride > INT32_MAX || x.stride > INT32_MAX) {
    fail<ShapeError>("conv2d: images of ", pixels, " pixels were given; on Cuda at most ", INT32_MAX, " are possible");
  }
  auto result = Tensor<T, D>::uninitialized(shape, "conv2d");
  int64_t const at_once = images_at_once(plan.images, rows * windows * static_cast<int64_t>(sizeof(T)));
  Temporary<D> const scratch(static_cast<std::size_t>(at_once * rows * windows) * sizeof(T));
  auto* const matrix = static_cast<T*>(scratch.get());
  for (int64_t first = 0; first < plan.images; first += at_once) {
    int64_t const images = plan.images - first < at_once ? plan.images - first : at_once;
    ProductPlan product;
    product.m = depth, product.n = windows, product.k = plan.outputs;
    product.rank = 2;
    product.sizes[0] = images, product.sizes[1] = groups;
    product.a[0] = 0, product.a[1] = plan.outputs * depth;
    product.b[0] = outputs * windows, product.b[1] = plan.outputs * windows;
    product.c[0] = rows * windows, product.c[1] = depth * windows;
    cuda::CublasProduct one{depth, windows, plan.outputs, {depth, plan.outputs, 1, depth}, {plan.outputs, windows, windows, 1}, nullptr, nullptr, nullptr, 0, 0, 0, 1};
    (void)cublas_launch<identity, T>(device, product, one, w.data(), g.data() + first * outputs * windows, matrix, nullptr);
    int64_t const planes = images * plan.channels * groups;
    cuda::PixelSumArguments<T> p{matrix, plan.windows, planes, cuda::FastDivisor::of(x.extent), cuda::FastDivisor::of(y.stride), cuda::FastDivisor::of(x.stride),
                                 result.data() + first * plan.channels * groups * pixels};
    cuda::launch(device, "conv2d", cuda::pixel_sum_kernel<T>,
                 dim3(static_cast<unsigned>((pixels + cuda::block_threads - 1) / cuda::block_threads), cuda::clamped_blocks(planes)), cuda::block_threads, p);
  }
  return result;
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
