/// Memory that a kernel needs while it runs: a thread keeps the last block that it gave back for the next kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include <situ/config.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

struct ScratchBlock {
  void* memory = nullptr;
  std::size_t bytes = 0;
};
struct KeptScratch : ScratchBlock {
  ~KeptScratch() { ::operator delete(std::exchange(memory, nullptr), std::align_val_t{64}); }
};
SITU_PROCESS_STATE KeptScratch& kept_scratch() {
  static thread_local KeptScratch kept;
  return kept;
}

/// At least `bytes`, aligned to a cache line, as long as this lives. Cost: nothing where the thread's last block is as large.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    if (bytes == 0) return;
    auto const wanted = static_cast<std::size_t>(bytes);
    KeptScratch& kept = kept_scratch();
    if (kept.bytes >= wanted) block_ = std::exchange(static_cast<ScratchBlock&>(kept), {});
    if (!block_.memory) block_ = {::operator new(wanted, std::align_val_t{64}), wanted};
  }
  ~Scratch() {
    constexpr std::size_t most = std::size_t{1} << 20;  // what a thread keeps
    KeptScratch& kept = kept_scratch();
    if (!SITU_ASAN && block_.bytes > kept.bytes && block_.bytes <= most) std::swap(block_, static_cast<ScratchBlock&>(kept));
    ::operator delete(block_.memory, std::align_val_t{64});
  }
  Scratch(Scratch const&) = delete;
  Scratch& operator=(Scratch const&) = delete;

  unsigned char* get() const { return static_cast<unsigned char*>(block_.memory); }

 private:
  ScratchBlock block_;
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
