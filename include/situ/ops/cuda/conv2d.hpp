/// Convolution on a GPU: the matrix of pixels, for as many images at a time as a quarter of a gigabyte holds, and batched products.
#pragma once

#include <situ/ops/conv2d_plan.hpp>
#include <situ/ops/matmul.hpp>
#if defined(__CUDACC__)
#include <situ/device/cuda/launch.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if defined(__CUDACC__)
namespace cuda {

template <class T>
struct PixelArguments {
  T const* image;
  int64_t step_image, step_c, step_y, step_x;
  Windows windows;
  int64_t images, rows;  ///< rows: channels * kernel height * kernel width
  FastDivisor across;    ///< by the windows of a row
  T* matrix;             ///< [images, rows, windows]
};

template <class T>
__global__ void __launch_bounds__(block_threads) pixel_kernel(const __grid_constant__ PixelArguments<T> p) {
  WindowAxis const& y = p.windows.y;
  WindowAxis const& x = p.windows.x;
  int64_t const windows = p.windows.outputs();
  int64_t const window = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  if (window >= windows) return;
  int64_t const i = p.across.quotient(static_cast<uint32_t>(window)), j = window - i * x.windows;
#pragma unroll 1
  for (int64_t image = blockIdx.z; image < p.images; image += gridDim.z) {
#pragma unroll 1
    for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
      int64_t const kx = row % x.kernel, ky = row / x.kernel % y.kernel, channel = row / x.kernel / y.kernel;
      int64_t const at_y = y.start(i) + ky * y.dilation, at_x = x.start(j) + kx * x.dilation;
      bool const inside = at_y >= 0 && at_y < y.extent && at_x >= 0 && at_x < x.extent;
      T value = convert_scalar<T>(0);
      if (inside) value = p.image[image * p.step_image + channel * p.step_c + at_y * p.step_y + at_x * p.step_x];
      p.matrix[(image * p.rows + row) * windows + window] = value;
    }
  }
}

}  // namespace cuda
#endif

#if defined(__CUDACC__) || !defined(SITU_WITH_CUDA)
inline constexpr bool can_convolve_on_cuda = true;
#else
inline constexpr bool can_convolve_on_cuda = false;
#endif

inline namespace SITU_ABI_COMPILER {
/// Runs a planned convolution on D, which has CUDA's kernels. Weights and bias are contiguous.
template <class D, class T>
void launch_convolution(cuda_kernels, [[maybe_unused]] ConvolutionPlan const& plan, [[maybe_unused]] Tensor<T, D> const& x, [[maybe_unused]] T const* weights,
                        [[maybe_unused]] T const* bias, [[maybe_unused]] T* result, [[maybe_unused]] int64_t groups) {
#if defined(__CUDACC__)
  Layout const& layout = x.layout();
  int const at = layout.rank() - 3;
  int64_t const windows = plan.windows.outputs(), depth = plan.channels * plan.windows.y.kernel * plan.windows.x.kernel;
  int64_t const rows = depth * groups, outputs = plan.outputs * groups;
  if (plan.images * outputs * windows == 0) return;
  if (windows > INT32_MAX) fail<ShapeError>("conv2d: images of ", windows, " windows were given; on Cuda at most ", INT32_MAX, " are possible");
  int64_t const bytes_per_image = (rows * windows > 0 ? rows * windows : 1) * static_cast<int64_t>(sizeof(T));
  int64_t at_once = (int64_t{1} << 28) / bytes_per_image;
  if (at_once < 1) at_once = 1;
  if (at_once > plan.images) at_once = plan.images;
  Temporary<D> const scratch(static_cast<std::size_t>(at_once * bytes_per_image));
  for (int64_t first = 0; first < plan.images; first += at_once) {
    int64_t const images = plan.images - first < at_once ? plan.images - first : at_once;
    int64_t const step_image = at == 1 ? layout.strides[0] : 0;
    cuda::PixelArguments<T> p{x.data() + first * step_image, step_image, layout.strides[at], layout.strides[at + 1], layout.strides[at + 2],
                              plan.windows, images, rows, cuda::FastDivisor::of(plan.windows.x.windows), static_cast<T*>(scratch.get())};
    auto const clamped = [](int64_t n) { return static_cast<unsigned>(n < 1 ? 1 : n > 65535 ? 65535 : n); };
    if (rows > 0) {
      cuda::launch(device_traits<D>::ordinal, "conv2d", cuda::pixel_kernel<T>,
                   dim3(static_cast<unsigned>((windows + cuda::block_threads - 1) / cuda::block_threads), clamped(rows), clamped(images)),
                   cuda::block_threads, p);
    }
    ProductPlan product;
    product.m = plan.outputs, product.n = windows, product.k = depth;
    product.a_i = depth, product.a_k = 1, product.b_k = windows, product.b_j = 1;
    product.rank = 2;
    product.sizes[0] = images, product.sizes[1] = groups;
    product.a[0] = 0, product.a[1] = plan.outputs * depth;
    product.b[0] = rows * windows, product.b[1] = depth * windows;
    product.c[0] = outputs * windows, product.c[1] = plan.outputs * windows;
    launch_product<D, identity, T>(cuda_kernels{}, product, weights, static_cast<T const*>(scratch.get()), result + first * outputs * windows, nullptr);
  }
  if (bias) {
    auto const view = [](T const* data, Shape const& shape) { return Tensor<T, D>::from_handle(make_view({}, const_cast<T*>(data), Layout(shape))); };
    auto const sums = view(result, {plan.images, outputs, windows});
    evaluate<D>(result, sums.layout(), true, sums + view(bias, {outputs, 1}));
  }
#else
  static_assert(can_convolve_on_cuda || !sizeof(T),
                "situ: convolving_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensors to the host");
#endif
}
}  // namespace SITU_ABI_COMPILER

}  // namespace detail
}  // namespace situ::inline SITU_ABI
