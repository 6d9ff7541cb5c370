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
/// What a thread keeps is there as long as the thread, also when this has ended.
struct ScratchEnd {
  ScratchBlock& kept;
  ~ScratchEnd() { ::operator delete(std::exchange(kept, ScratchBlock{}).memory, std::align_val_t{64}); }
};
SITU_PROCESS_STATE ScratchBlock& kept_scratch() {
  static constinit thread_local ScratchBlock kept;
  [[maybe_unused]] static thread_local ScratchEnd const end{kept};
  return kept;
}

/// At least `bytes`, aligned to a cache line, as long as this lives. Cost: nothing where the thread's last block is as large.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    if (bytes == 0) return;
    auto const wanted = static_cast<std::size_t>(bytes);
    ScratchBlock& kept = kept_scratch();
    if (kept.bytes >= wanted) block_ = std::exchange(kept, {});
    if (!block_.memory) block_ = {::operator new(wanted, std::align_val_t{64}), wanted};
  }
  ~Scratch() {
    constexpr std::size_t most = std::size_t{1} << 20;  // what a thread keeps
    ScratchBlock& kept = kept_scratch();
    if (!SITU_ASAN && block_.bytes > kept.bytes && block_.bytes <= most) std::swap(block_, kept);
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
