/// What the system tells in files of its own.
#pragma once

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

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
