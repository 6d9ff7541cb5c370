/// What `Cuda<N>` can do. A complete type in every build; without SITU_WITH_CUDA, using it is a compile error.
#pragma once

#include <string>

#include <situ/device/host_functions.hpp>
#include <situ/core/device.hpp>
#include <situ/device/cuda/order.hpp>

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
  static void copy_rows_to_host(void* to, void const* from, detail::PitchedCopy const& rows) {
    detail::cuda::runtime_of<N>::copy_rows_to_host(N, to, from, rows);
    detail::cuda::check_fault(N);
  }
  /// Between GPUs: direct where the hardware can, never through situ's own host memory. Enqueued.
  template <class From>
    requires detail::is_cuda<From>
  static void copy_from(void* to, void const* from, std::size_t bytes) {
    detail::cuda::runtime_of<N>::copy_from_peer(N, to, From::ordinal, from, bytes);
  }
  template <class From>
    requires detail::is_cuda<From>
  static void copy_rows_from(void* to, void const* from, detail::PitchedCopy const& rows) {
    detail::cuda::runtime_of<N>::copy_rows_from_peer(N, to, From::ordinal, from, rows);
  }
  static void synchronize() { detail::cuda::wait_for_device<N>(N); }
  static detail::IndexFault* fault() { return detail::cuda::fault_of(N); }
  /// Throws for a bad index that was found. What is waited for has been waited for.
  static void check() { detail::cuda::check_fault(N); }

  /// Between the device and page-locked memory: enqueued.
  static void copy_from_pinned(void* to, void const* from, std::size_t bytes) { detail::cuda::streams_of<N>::copy_pinned(N, to, from, bytes, true); }
  static void copy_to_pinned(void* to, void const* from, std::size_t bytes) { detail::cuda::streams_of<N>::copy_pinned(N, to, from, bytes, false); }
  /// The same for rows, which arrive side by side.
  static void copy_rows_from_pinned(void* to, void const* from, detail::PitchedCopy const& rows) { detail::cuda::streams_of<N>::copy_pinned_rows(N, to, from, rows, true); }
  static void copy_rows_to_pinned(void* to, void const* from, detail::PitchedCopy const& rows) { detail::cuda::streams_of<N>::copy_pinned_rows(N, to, from, rows, false); }

  static detail::StreamDriver const* stream_driver() { return detail::cuda::streams_of<N>::driver(); }
  static detail::CurrentStream& current_stream() { return detail::cuda::current_streams()[N]; }
  static uint64_t use_stream() {
    detail::CurrentStream& current = current_stream();
    uint64_t const segment = detail::begin_segment(detail::cuda::process_state().stream_driver, N, current);
    current.used = true;
    return segment;
  }
  static void order_after_others(detail::StorageHead& head, bool writes) {
    if (detail::StreamDriver const* const driver = detail::cuda::process_state().stream_driver) detail::order_after_others(driver, N, current_stream(), head, writes);
  }
  static void end_uses(detail::StorageHead& head) noexcept { detail::end_uses(detail::cuda::process_state().stream_driver, N, current_stream(), head); }
  static bool used_by_others(detail::StorageHead const& head) { return detail::used_by_others(current_stream(), head); }
  static void deallocate_after_others(detail::StorageHead& head) noexcept {
    detail::deallocate_after_others(detail::cuda::process_state().stream_driver, N, current_stream(), head, &detail::cuda::runtime_of<N>::deallocate);
  }
};

}  // namespace situ::inline SITU_ABI
