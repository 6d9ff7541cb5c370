/// What the system tells in files of its own, which threads a thread may use, and shared objects that stay.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>

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
};
SITU_PROCESS_STATE ThreadUse& thread_use() {
  static thread_local constinit ThreadUse use;
  return use;
}

// Where the C library has no such functions these are null.
extern "C" {
int situ_dladdr(void const*, Dl_info*) __asm__("dladdr") __attribute__((weak));
void* situ_dlopen(char const*, int) __asm__("dlopen") __attribute__((weak));
}
/// Keeps the shared object with this code in memory, also when dlclose is called for it: the process has a pointer to the code.
[[gnu::cold]] SITU_NOINLINE inline void stay_loaded(void const* code) noexcept {
  Dl_info object{};
  if (&situ_dladdr == nullptr || &situ_dlopen == nullptr || situ_dladdr(code, &object) == 0 || object.dli_fname == nullptr) return;
  (void)situ_dlopen(object.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
