/// What `Cuda<N>` can do. A complete type in every build; without SITU_WITH_CUDA, using it is a compile error.
#pragma once

#include <string>

#include <situ/core/device.hpp>
#include <situ/device/cuda/memory.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class D>
inline constexpr bool is_cuda = false;
template <int N>
inline constexpr bool is_cuda<Cuda<N>> = true;

}  // namespace detail

/// Work goes to the device's current stream of the calling thread; the current CUDA device is left as it was.
template <int N>
struct device_traits<Cuda<N>> {
  static constexpr bool host_memory = false;
  static constexpr int ordinal = N;
  using kernels = cuda_kernels;

  static std::string name() { return "cuda:" + std::to_string(N); }
  static void* allocate(std::size_t bytes) { return detail::cuda::runtime_of<N>::allocate(N, bytes); }
  static void deallocate(void* memory, std::size_t bytes) noexcept { detail::cuda::runtime_of<N>::deallocate(N, memory, bytes); }
  static void copy(void* to, void const* from, std::size_t bytes) { detail::cuda::runtime_of<N>::copy(N, to, from, bytes); }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) { detail::cuda::runtime_of<N>::copy_from_host(N, to, from, bytes); }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) {
    detail::cuda::runtime_of<N>::copy_to_host(N, to, from, bytes);
    detail::cuda::check_fault(N);
  }
  /// Between GPUs: direct where the hardware can, never through situ's own host memory. Enqueued.
  template <class From>
    requires detail::is_cuda<From>
  static void copy_from(void* to, void const* from, std::size_t bytes) {
    detail::cuda::runtime_of<N>::copy_from_peer(N, to, From::ordinal, from, bytes);
  }
  static void synchronize() {
    detail::cuda::runtime_of<N>::synchronize(N);
    detail::cuda::check_fault(N);
  }
  static detail::IndexFault* fault() { return detail::cuda::fault_of(N); }
};

}  // namespace situ::inline SITU_ABI
