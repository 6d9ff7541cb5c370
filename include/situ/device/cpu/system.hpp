/// What the system tells in files of its own, which threads a thread may use, and shared objects that stay.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include <situ/config.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The beginning of a file that the system writes, as a string; false where there is none.
__attribute__((noinline, cold)) inline bool read_text(char const* path, char* content, std::size_t size) noexcept {
  int const file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  auto const length = ::read(file, content, size - 1);
  ::close(file);
  content[length > 0 ? length : 0] = 0;
  return length > 0;
}

/// Of a thread.
struct ThreadUse {
  bool alone = false;        ///< its kernels run on it alone: it is one of several that are at work on something else
  bool used_others = false;  ///< some of its kernels ran on several threads
  int in_a_row = 0;          ///< how many launches worth a thought followed the one before closely
  std::int64_t launched = 0; ///< when the last one was, in nanoseconds
};
SITU_PROCESS_STATE ThreadUse& thread_use() {
  static thread_local constinit ThreadUse use;
  return use;
}

#if defined(__GLIBC__)
#define SITU_HAS_LOADER __GLIBC_PREREQ(2, 34)  // before, it was in a library of its own, which is not asked for
#elif defined(RTLD_NOLOAD) && defined(RTLD_NODELETE)
#define SITU_HAS_LOADER 1
#else
#define SITU_HAS_LOADER 0
#endif
/// Keeps the shared object with this code in memory, also when dlclose is called for it: the process has a pointer to the code. The loader has a lock, under
/// which it runs initialisers: not to be called under another one.
[[gnu::cold]] SITU_NOINLINE inline void stay_loaded([[maybe_unused]] void const* code) noexcept {
#if SITU_HAS_LOADER
  Dl_info object{};
  if (::dladdr(code, &object) != 0 && object.dli_fname) (void)::dlopen(object.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
#endif
}
#undef SITU_HAS_LOADER

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
