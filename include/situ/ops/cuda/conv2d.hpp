/// Convolution on a GPU: by cuDNN with SITU_WITH_CUDNN, else, and where cuDNN has no algorithm, by the matrix of pixels of as many images at a
/// time as a quarter of a gigabyte holds, and batched products.
#pragma once

#include <situ/ops/conv2d_plan.hpp>
#include <situ/ops/cuda/matmul.hpp>
#include <situ/tensor/tensor.hpp>
#if defined(SITU_WITH_CUDNN)
#include <situ/ops/cuda/cudnn.hpp>
#endif
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

inline namespace SITU_ABI_COMPILER {
inline namespace SITU_ABI_CUDNN {

#if defined(__CUDACC__)

/// A planned convolution as products with the matrix of pixels.
template <class D, class T>
void convolve_by_products(ConvolutionPlan const& plan, Tensor<T, D> const& x, T const* weights, T const* bias, T* result, int64_t groups) {
  constexpr int device = device_traits<D>::ordinal;
  Layout const& layout = x.layout();
  int const at = layout.rank() - 3;
  int64_t const windows = plan.windows.outputs(), depth = plan.channels * plan.windows.y.kernel * plan.windows.x.kernel;
  int64_t const rows = depth * groups, outputs = plan.outputs * groups;
  if (windows > INT32_MAX) fail<ShapeError>("conv2d: images of ", windows, " windows were given; on Cuda at most ", INT32_MAX, " are possible");
  if (bias) {  // first, and the sums onto it: they are rounded once
    Layout const all({plan.images, outputs, windows});
    auto const spread = Tensor<T, D>::from_handle(make_view({}, const_cast<T*>(bias), Layout{all.shape, {0, 1, 0}}));
    evaluate<D>(result, all, true, spread);
  } else if (depth == 0) {
    cuda::DeviceGuard const guard(device);
    cuda::check(device, cudaMemsetAsync(result, 0, static_cast<std::size_t>(plan.images * outputs * windows) * sizeof(T), cuda::current_stream(device)),
                "cudaMemsetAsync");
  }
  if (depth == 0) return;
  int64_t const bytes_per_image = rows * windows * static_cast<int64_t>(sizeof(T));
  int64_t at_once = (int64_t{1} << 28) / bytes_per_image;
  if (at_once < 1) at_once = 1;
  if (at_once > plan.images) at_once = plan.images;
  Temporary<D> const scratch(static_cast<std::size_t>(at_once * bytes_per_image));
  auto* const pixels = static_cast<T*>(scratch.get());
  for (int64_t first = 0; first < plan.images; first += at_once) {
    int64_t const images = plan.images - first < at_once ? plan.images - first : at_once;
    int64_t const step_image = at == 1 ? layout.strides[0] : 0;
    cuda::PixelArguments<T> p{x.data() + first * step_image, step_image, layout.strides[at], layout.strides[at + 1], layout.strides[at + 2],
                              plan.windows, images, rows, cuda::FastDivisor::of(plan.windows.x.windows), pixels};
    auto const clamped = [](int64_t n) { return static_cast<unsigned>(n > 65535 ? 65535 : n); };
    cuda::launch(device, "conv2d", cuda::pixel_kernel<T>,
                 dim3(static_cast<unsigned>((windows + cuda::block_threads - 1) / cuda::block_threads), clamped(rows), clamped(images)), cuda::block_threads, p);
    ProductPlan product;
    product.m = plan.outputs, product.n = windows, product.k = depth;
    product.rank = 2;
    product.sizes[0] = images, product.sizes[1] = groups;
    product.a[0] = 0, product.a[1] = plan.outputs * depth;
    product.b[0] = rows * windows, product.b[1] = depth * windows;
    product.c[0] = outputs * windows, product.c[1] = plan.outputs * windows;
    cuda::CublasProduct one{product.m, product.n, depth, {product.m, depth, depth, 1}, {depth, windows, windows, 1}, nullptr, nullptr, nullptr, 0, 0, 0, 1};
    one.onto = bias != nullptr;
    (void)cublas_launch<identity, T>(device, product, one, weights, pixels, result + first * outputs * windows, nullptr);
  }
}

#endif

#if defined(SITU_WITH_CUDNN) && defined(SITU_WITH_CUDA)

/// Elements at a multiple of 16 bytes, where cuDNN's kernels want them: as they lie, or a copy.
template <class T, class D>
class AlignedElements {
 public:
  AlignedElements(T const* from, int64_t count)
      : bytes_(reinterpret_cast<std::uintptr_t>(from) % 16 == 0 ? 0 : static_cast<std::size_t>(count) * sizeof(T)), copy_(bytes_), from_(from) {
    if (bytes_ > 0) device_traits<D>::copy(copy_.get(), from, bytes_);
  }
  T const* data() const { return bytes_ > 0 ? static_cast<T const*>(copy_.get()) : from_; }

 private:
  std::size_t bytes_;
  Temporary<D> copy_;
  T const* from_;
};

/// Gives whether cuDNN has taken a planned convolution.
template <class D, class T>
bool convolve_by_cudnn(ConvolutionPlan const& plan, Tensor<T, D> const& x, T const* weights, T const* bias, T* result, int64_t groups) {
  int64_t const outputs = plan.outputs * groups;
  AlignedElements<T, D> const w(weights, outputs * plan.channels * plan.windows.y.kernel * plan.windows.x.kernel), b(bias, bias ? outputs : 0);
  if (x.is_contiguous()) {
    AlignedElements<T, D> const images(x.data(), x.size());
    return cuda::cudnn_convolution<D, T>(plan, groups, images.data(), w.data(), b.data(), result);
  }
#if defined(__CUDACC__)
  auto packed = Tensor<T, D>::uninitialized(x.shape(), "conv2d");
  evaluate<D>(packed.data(), packed.layout(), true, x);
  return cuda::cudnn_convolution<D, T>(plan, groups, packed.data(), w.data(), b.data(), result);
#else
  fail<LayoutError>("conv2d: images of strides ", x.layout().strides, " were given, and cuDNN takes contiguous ones: compile the file with nvcc, which makes ",
                    "a kernel that packs them, or pass a contiguous tensor");
#endif
}

#endif

/// Runs a planned convolution on D, which has CUDA's kernels; enqueued on the device's current stream. Weights and bias are contiguous.
template <class D, class T>
void launch_convolution(cuda_kernels, [[maybe_unused]] ConvolutionPlan const& plan, [[maybe_unused]] Tensor<T, D> const& x, [[maybe_unused]] T const* weights,
                        [[maybe_unused]] T const* bias, [[maybe_unused]] T* result, [[maybe_unused]] int64_t groups) {
#if defined(SITU_WITH_CUDA)
  if (plan.images * plan.outputs * groups * plan.windows.outputs() == 0) return;
#if defined(SITU_WITH_CUDNN)
  if (convolve_by_cudnn<D>(plan, x, weights, bias, result, groups)) return;
#endif
#if defined(__CUDACC__)
  convolve_by_products<D>(plan, x, weights, bias, result, groups);
#elif defined(SITU_WITH_CUDNN)
  fail<CudaError>("conv2d: cuDNN has no deterministic algorithm for images of shape ", x.shape(), ", which become ", plan.shape,
                  ": compile the file with nvcc, which makes a kernel that does it in another way");
#else
  static_assert(compiled_by_nvcc<T>, "situ: convolving_on_Cuda_needs_nvcc_or_SITU_WITH_CUDNN: this file is not compiled by nvcc; name it .cu, define "
                                     "SITU_WITH_CUDNN, or move the tensors to the host");
#endif
#endif
}

}  // namespace SITU_ABI_CUDNN
}  // namespace SITU_ABI_COMPILER

}  // namespace detail
}  // namespace situ::inline SITU_ABI
