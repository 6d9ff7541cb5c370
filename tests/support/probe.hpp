/// Probe: a device of host memory that counts what is asked of it, so that "one launch", "one allocation" and "no
/// hidden copy" are proved without a GPU. It is added to situ as a user would add a device: by specialising
/// device_traits.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include <situ/core/device.hpp>
#include <situ/device/cpu/memory.hpp>

struct Probe {
  inline static int64_t launches = 0;
  inline static int64_t items = 0;        ///< of all launches
  inline static int64_t allocations = 0;  ///< calls
  inline static int64_t bytes = 0;        ///< of all allocations
  inline static int64_t live = 0;         ///< allocations that are not yet freed; reset() leaves it
  inline static int64_t copies = 0;       ///< within the device
  inline static int64_t from_host = 0;
  inline static int64_t to_host = 0;
  inline static int64_t synchronizations = 0;

  static int64_t transfers() { return copies + from_host + to_host; }
  static void reset() { launches = items = allocations = bytes = copies = from_host = to_host = synchronizations = 0; }

  friend constexpr bool operator==(Probe, Probe) { return true; }
};

template <>
struct situ::device_traits<Probe> {
  static constexpr bool host_memory = true;
  using kernels = situ::cpu_kernels;

  static std::string name() { return "probe"; }
  static void* allocate(std::size_t bytes) {
    void* const memory = situ::detail::cpu::allocate(bytes);
    ++Probe::allocations;
    ++Probe::live;
    Probe::bytes += static_cast<int64_t>(bytes);
    return memory;
  }
  static void deallocate(void* memory, std::size_t bytes) noexcept {
    --Probe::live;
    situ::detail::cpu::deallocate(memory, bytes);
  }
  static void copy(void* to, void const* from, std::size_t bytes) {
    ++Probe::copies;
    std::memcpy(to, from, bytes);
  }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) {
    ++Probe::from_host;
    std::memcpy(to, from, bytes);
  }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) {
    ++Probe::to_host;
    std::memcpy(to, from, bytes);
  }
  template <class Kernel>
  static void launch(Kernel const& kernel, int64_t count, int64_t /*grain*/) {
    ++Probe::launches;
    Probe::items += count;
    kernel(int64_t{0}, count);
  }
  static void synchronize() { ++Probe::synchronizations; }
};
