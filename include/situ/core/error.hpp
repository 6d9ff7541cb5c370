/// The exceptions that situ throws, and how their messages are put together.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

#include <situ/config.hpp>

#define SITU_EXCEPTION __attribute__((visibility("default")))

namespace situ::inline SITU_ABI {

/// The base of all: `what()` says who, what was asked, what was found, and what to do.
struct SITU_EXCEPTION Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Shapes, axes or sizes do not fit the call.
struct SITU_EXCEPTION ShapeError : Error {
  using Error::Error;
};
/// The strides do not allow what was asked; a copy would.
struct SITU_EXCEPTION LayoutError : Error {
  using Error::Error;
};
/// An index lies outside its axis.
struct SITU_EXCEPTION IndexError : Error {
  using Error::Error;
};
/// The element type, or the storage's permission, does not allow it.
struct SITU_EXCEPTION TypeError : Error {
  using Error::Error;
};
/// There is no such device in this machine or this build.
struct SITU_EXCEPTION DeviceUnavailable : Error {
  using Error::Error;
};
/// A call to CUDA failed; the message holds the call and the code.
struct SITU_EXCEPTION CudaError : Error {
  using Error::Error;
};
/// Memory ran out on a device; the message holds what was asked and what there was, and the members do, in bytes. Nothing has been
/// changed: when tensors have been freed, the operation can be tried again.
struct SITU_EXCEPTION OutOfMemory : Error {
  using Error::Error;
  long long requested = 0;
  long long free = 0, total = 0;  ///< of the device
  long long allocated = 0;        ///< by situ: what is in use
  long long reserved = 0;         ///< what situ holds, in use or kept for reuse
};
/// A gradient cannot be computed.
struct SITU_EXCEPTION GradientError : Error {
  using Error::Error;
};
/// A matrix is singular or an iteration did not converge.
struct SITU_EXCEPTION LinalgError : Error {
  using Error::Error;
};
/// A file cannot be read or written, or does not hold what it should.
struct SITU_EXCEPTION IoError : Error {
  using Error::Error;
};

namespace detail {

inline void append(std::string& to, char const* text) { to += text; }
inline void append(std::string& to, std::string const& text) { to += text; }
__attribute__((cold)) inline void append_integer(std::string& to, unsigned long long magnitude, bool negative) {
  char digits[24];
  int at = 24;
  do {
    digits[--at] = static_cast<char>('0' + magnitude % 10);
    magnitude /= 10;
  } while (magnitude != 0);
  if (negative) digits[--at] = '-';
  to.append(digits + at, static_cast<std::size_t>(24 - at));
}
template <class I>
  requires std::is_integral_v<I>
void append(std::string& to, I number) {
  if (std::is_signed_v<I> && static_cast<long long>(number) < 0) append_integer(to, 0ull - static_cast<unsigned long long>(number), true);
  else append_integer(to, static_cast<unsigned long long>(number), false);
}
inline void append(std::string& to, double number) {
  char buffer[32];
  __builtin_snprintf(buffer, sizeof buffer, "%g", number);
  to += buffer;
}
template <class X>
  requires requires(X const& x) { to_string(x); }
void append(std::string& to, X const& x) {
  to += to_string(x);
}

/// The parts, one after the other: text("axis ", axis, " is out of range for shape ", shape).
template <class... Parts>
std::string text(Parts const&... parts) {
  std::string result;
  (append(result, parts), ...);
  return result;
}

/// Throws E with the parts as its message; kept out of line so that checks cost a compare and a jump.
template <class E, class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail(Parts const&... parts) {
  throw E(text(parts...));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
