/// The devices that value tests run on: TEST_CASE_TEMPLATE("...", D, SITU_TEST_DEVICES).
#pragma once

#include <cstdint>
#include <vector>

#include <situ/device/emulated/device.hpp>
#include <situ/device/pinned.hpp>
#include <situ/tensor/factories.hpp>
#include <situ/tensor/print.hpp>
#include <situ/tensor/tensor.hpp>
#include <situ/tensor/transfer.hpp>

#if defined(__CUDACC__)
#define SITU_TEST_DEVICES situ::Cpu, situ::Pinned, situ::Emulated<0>, situ::Cuda<0>
/// One device for each family of kernels; for tests that instantiate many of them.
#define SITU_TEST_KERNEL_DEVICES situ::Cpu, situ::Cuda<0>
#else
#define SITU_TEST_DEVICES situ::Cpu, situ::Pinned, situ::Emulated<0>
#define SITU_TEST_KERNEL_DEVICES situ::Cpu
#endif

namespace situ_test {

/// The instruction sets that this processor has, from the plainest on.
inline std::vector<situ::instruction_set> instruction_sets() {
  std::vector<situ::instruction_set> result;
  for (int k = 0; k <= static_cast<int>(situ::detail::cpu::best_instruction_set()); ++k) {
    result.push_back(static_cast<situ::instruction_set>(k));
  }
  return result;
}

/// Runs the kernels of a scope with one instruction set.
class InstructionSet {
 public:
  explicit InstructionSet(situ::instruction_set set) : before_(situ::get_instruction_set()) { situ::set_instruction_set(set); }
  InstructionSet(InstructionSet const&) = delete;
  InstructionSet& operator=(InstructionSet const&) = delete;
  ~InstructionSet() { situ::set_instruction_set(before_); }

 private:
  situ::instruction_set before_;
};

/// In its scope the processor does not tell how large its caches are, so that results of 8 MiB go past them on every machine.
class UnknownCaches {
 public:
  UnknownCaches() { situ::detail::cpu::last_cache_bytes() = 0; }
  UnknownCaches(UnknownCaches const&) = delete;
  UnknownCaches& operator=(UnknownCaches const&) = delete;
  ~UnknownCaches() { situ::detail::cpu::last_cache_bytes() = before_; }

 private:
  std::int64_t before_ = situ::detail::cpu::last_cache_bytes();
};

/// f() with every instruction set in turn; devices whose kernels are not the CPU's run it once.
template <class D, class F>
void with_every_instruction_set(F f) {
  if constexpr (std::is_same_v<typename situ::device_traits<D>::kernels, situ::cpu_kernels>) {
    for (situ::instruction_set set : instruction_sets()) {
      InstructionSet const guard(set);
      f();
    }
  } else {
    f();
  }
}

}  // namespace situ_test
