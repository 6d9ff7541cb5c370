/// Thrust: its algorithms over the elements of a GPU's tensors, on the device's current stream. For files that nvcc compiles; situ.hpp does not include it.
///
///     #include <thrust/sort.h>
///     #include <situ/interop/thrust.hpp>
///
///     thrust::sort(interop::thrust_policy(x.device()), interop::thrust_begin(x), interop::thrust_end(x));
///
/// Memory of a thrust::device_vector is a tensor by `from_blob(thrust::raw_pointer_cast(v.data()), {v.size()}, Cuda<0>{})`.
///
/// Source    https://nvidia.github.io/cccl/thrust/
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/interop/named.hpp>

#if defined(__CUDACC__)
#include <thrust/device_ptr.h>
#include <thrust/system/cuda/execution_policy.h>
#endif

namespace situ::inline SITU_ABI {

namespace error {
template <class Device>
struct Thrust_works_on_Cuda_here__move_the_tensor_with_to {};
template <class X>
struct Thrust_needs_nvcc__name_the_file_cu {};
}  // namespace error

namespace detail::on_thrust {
inline namespace SITU_ABI_COMPILER {

struct none {};
template <class D>
constexpr auto refusal_of_device() {
  if constexpr (!is_cuda<D>) return std::type_identity<error::Thrust_works_on_Cuda_here__move_the_tensor_with_to<D>>{};
#if !defined(__CUDACC__)
  else return std::type_identity<error::Thrust_needs_nvcc__name_the_file_cu<D>>{};
#else
  else return std::type_identity<none>{};
#endif
}
template <class X>
constexpr auto refusal() {
  if constexpr (!named_tensor<X>) return std::type_identity<error::a_view_is_made_of_a_Tensor_with_a_name__which_keeps_its_elements<std::remove_cvref_t<X>>>{};
  else return on_thrust::refusal_of_device<device_of<X>>();
}

#if defined(__CUDACC__)

/// The device's memory for what an algorithm needs meanwhile: of the pool, in the order of the current stream.
template <class D>
struct Memory {
  using value_type = char;
  char* allocate(std::ptrdiff_t bytes) const { return bytes > 0 ? static_cast<char*>(device_traits<D>::allocate(static_cast<std::size_t>(bytes))) : nullptr; }
  void deallocate(char* memory, std::size_t bytes) const noexcept {
    if (memory) device_traits<D>::deallocate(memory, bytes);
  }
};

template <class X>
using pointer_to = ::thrust::device_ptr<std::conditional_t<is_const_tensor<X>, value_of<X> const, value_of<X>>>;

inline void check_contiguous(Layout const& layout, bool contiguous, char const* who) {
  if (!contiguous) fail<LayoutError>(who, ": shape ", layout.shape, " with strides ", layout.strides, " is not contiguous; give a contiguous() copy");
}
inline void check_current(int device) {
  cuda::require_device(device);
  int current = device;
  cuda::check(device, cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  fail<CudaError>("cuda:", device, ": thrust_policy: the current device is cuda:", current, ", and Thrust works on the current one; call cudaSetDevice(", device, ") before");
}

#endif

}  // namespace SITU_ABI_COMPILER
}  // namespace detail::on_thrust

namespace interop {
inline namespace SITU_ABI_COMPILER {

#if defined(__CUDACC__)

/// The first of x's elements and the place behind the last one, as thrust::device_ptr, for algorithms that are enqueued from then on on the device's current stream. Of a
/// const tensor the elements are const.
///
/// Lives     as long as x does and keeps its storage: assigning to x, as in x = e, ends it.
/// Throws    LayoutError unless x is contiguous, TypeError for read-only storage that is not const.
/// Cost      nothing is copied, and nothing is waited for.
template <class X>
  requires std::is_same_v<typename decltype(detail::on_thrust::refusal<X>())::type, detail::on_thrust::none>
detail::on_thrust::pointer_to<X> thrust_begin(X&& x) {
  detail::on_thrust::check_contiguous(x.layout(), x.is_contiguous(), "thrust_begin");
  return detail::on_thrust::pointer_to<X>(detail::data_for(x, "thrust_begin"));
}
template <class X>
  requires std::is_same_v<typename decltype(detail::on_thrust::refusal<X>())::type, detail::on_thrust::none>
detail::on_thrust::pointer_to<X> thrust_end(X&& x) {
  detail::on_thrust::check_contiguous(x.layout(), x.is_contiguous(), "thrust_end");
  return detail::on_thrust::pointer_to<X>(detail::data_for(x, "thrust_end")) + x.size();
}

/// Thrust's thrust::cuda::par_nosync on the stream of the device that is now this thread's current one, with temporary memory from the pool that tensors are made of.
/// Algorithms are enqueued behind situ's work and ahead of what follows; only those that return a value to the host, as thrust::reduce, wait.
///
/// Lives     as long as the stream is the current one: to be made in the call of the algorithm.
/// Throws    CudaError unless the device is CUDA's current one (cudaSetDevice), DeviceUnavailable; algorithms throw OutOfMemory.
template <class D = Cuda<0>>
  requires std::is_same_v<typename decltype(detail::on_thrust::refusal_of_device<D>())::type, detail::on_thrust::none>
auto thrust_policy(D = {}) -> decltype(::thrust::cuda::par_nosync(detail::on_thrust::Memory<D>{}).on(cudaStream_t{})) {
  detail::on_thrust::check_current(D::ordinal);
  return ::thrust::cuda::par_nosync(detail::on_thrust::Memory<D>{}).on(detail::cuda::current_stream(D::ordinal));
}

#endif

template <class X, class Error = typename decltype(detail::on_thrust::refusal<X>())::type>
  requires(!std::is_same_v<Error, detail::on_thrust::none>)
void thrust_begin(X&&) = delete;
template <class X, class Error = typename decltype(detail::on_thrust::refusal<X>())::type>
  requires(!std::is_same_v<Error, detail::on_thrust::none>)
void thrust_end(X&&) = delete;
template <class D = Cuda<0>, class Error = typename decltype(detail::on_thrust::refusal_of_device<D>())::type>
  requires(!std::is_same_v<Error, detail::on_thrust::none>)
void thrust_policy(D = {}) = delete;

}  // namespace SITU_ABI_COMPILER
}  // namespace interop
}  // namespace situ::inline SITU_ABI
