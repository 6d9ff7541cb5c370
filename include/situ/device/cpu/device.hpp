/// What `Cpu` and `Pinned` can do.
#pragma once


#include <situ/core/device.hpp>
#include <situ/device/cpu/launch.hpp>
#include <situ/device/cpu/memory.hpp>

namespace situ::inline SITU_ABI {

template <>
struct device_traits<Cpu> {
  static constexpr bool host_memory = true;
  static constexpr bool immediate = true;
  static constexpr bool head_before_data = true;
  using kernels = cpu_kernels;

  static std::string name() { return "cpu"; }
  static void* allocate(std::size_t bytes) { return detail::cpu::allocate(bytes); }
  static void deallocate(void* memory, std::size_t bytes) noexcept { detail::cpu::deallocate(memory, bytes); }
  static void copy(void* to, void const* from, std::size_t bytes) { detail::cpu::copy_bytes(to, from, bytes); }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) { detail::cpu::copy_bytes(to, from, bytes); }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) { detail::cpu::copy_bytes(to, from, bytes); }
  template <class Kernel>
  static void launch(Kernel const& kernel, int64_t items, int64_t grain) {
    detail::cpu::launch(kernel, items, grain);
  }
  static void synchronize() {}
};

}  // namespace situ::inline SITU_ABI
