/// What a kernel found wrong with an index, and how it becomes an exception.
///
/// Kernels do not throw. One that meets an index outside of its axis leaves that element out and writes down the first such
/// index in its device's `IndexFault`. A device that runs kernels while the host waits has the operation itself look there; an
/// asynchronous one offers its record as `device_traits<D>::fault()` and throws at the next synchronisation, after which it
/// works on. Nothing waits for the sake of the check.
#pragma once

#include <situ/core/device.hpp>
#include <situ/core/error.hpp>
#include <situ/core/scalar.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The first index that was out of range since the last synchronisation. Kernels reach it: it lies in memory that the device
/// and the host share.
struct IndexFault {
  enum : int32_t { none, being_written, there, being_read };
  static constexpr int32_t elements = -1, classes = -2;  ///< in place of an axis
  int32_t state = none;
  int32_t axis = 0;                 ///< or what else the index counts
  char const* operation = nullptr;  ///< a literal of the program; kernels only pass it on
  int64_t index = 0;
  int64_t position = 0;  ///< of the index among the indices, in row-major order
  int64_t extent = 0;
};

/// The range that the indices of an operation must lie in. Goes into kernels.
struct IndexBounds {
  IndexFault* fault;
  char const* operation;
  int64_t extent;
  int32_t axis;
  bool counts_from_end = true;  ///< negative indices do; else they are out of range

  /// Counts a negative index from the end where that is meant; whether it is in range.
  SITU_HOST_DEVICE bool resolve(int64_t& index) const {
    if (index < 0 && counts_from_end) index += extent;
    return static_cast<uint64_t>(index) < static_cast<uint64_t>(extent);
  }
};

/// Writes a fault down, unless there is an earlier one. Called by kernels of the CPU's family, also side by side.
SITU_NOINLINE inline void record_fault(IndexBounds const& bounds, int64_t index, int64_t position) noexcept {
  IndexFault& fault = *bounds.fault;
  int32_t none = IndexFault::none;
  if (!__atomic_compare_exchange_n(&fault.state, &none, static_cast<int32_t>(IndexFault::being_written), false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
  fault.axis = bounds.axis;
  fault.operation = bounds.operation;
  fault.index = index;
  fault.position = position;
  fault.extent = bounds.extent;
  __atomic_store_n(&fault.state, static_cast<int32_t>(IndexFault::there), __ATOMIC_RELEASE);
}

/// Throws IndexError for a fault that was written down, and forgets it. To be called when the device has been waited for.
template <class Name>
void throw_fault(IndexFault& fault, Name const& device_name) {
  if (SITU_LIKELY(__atomic_load_n(&fault.state, __ATOMIC_ACQUIRE) != IndexFault::there)) return;
  int32_t there = IndexFault::there;
  if (!__atomic_compare_exchange_n(&fault.state, &there, static_cast<int32_t>(IndexFault::being_read), false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
  IndexFault const found = fault;
  __atomic_store_n(&fault.state, static_cast<int32_t>(IndexFault::none), __ATOMIC_RELEASE);
  std::string const count = text(found.extent, found.axis == IndexFault::classes ? " class" : " element", found.extent == 1 ? "" : found.axis == IndexFault::classes ? "es" : "s");
  std::string const range = found.axis == IndexFault::classes    ? count
                            : found.axis == IndexFault::elements ? text("an input of ", count)
                                                                 : text("axis ", found.axis, ": it has ", count);
  fail<IndexError>(device_name(), ": ", found.operation, ": index ", found.index, " (element ", found.position, " of the indices) is out of range for ", range,
                   "; the operation ran without it, and its result must not be used");
}

/// Whether D runs kernels later, and tells of bad indices at the next synchronisation.
template <class D>
concept reports_faults_later = requires { device_traits<D>::fault(); };

}  // namespace detail
}  // namespace situ::inline SITU_ABI
