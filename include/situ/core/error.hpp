/// The exceptions that situ throws, and how their messages are put together.
#pragma once

#include <initializer_list>
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

/// A piece of a message: a text, a number, or what to_string() writes. What it is given must outlive it. Messages are put together from
/// arrays of these, so that nothing but the array is compiled for each.
class MessagePart {
 public:
  MessagePart(char const* text) : text_(text), write_(&write_text) {}
  MessagePart(std::string const& text) : any_(&text), write_(&write_string) {}
  MessagePart(double number) : floating_(number), write_(&write_floating) {}
  template <class I>
    requires std::is_integral_v<I>
  MessagePart(I number) : whole_(static_cast<long long>(number)), write_(std::is_signed_v<I> ? &write_whole : &write_natural) {}
  template <class X>
    requires requires(X const& x) { to_string(x); }
  MessagePart(X const& x) : any_(&x), write_(&write_any<X>) {}

  void append_to(std::string& to) const { write_(to, *this); }

 private:
  union {
    char const* text_;
    void const* any_;
    long long whole_;
    double floating_;
  };
  void (*write_)(std::string& to, MessagePart const& part);

#define SITU_WRITES_PART __attribute__((noinline, cold)) static void
  SITU_WRITES_PART write_text(std::string& to, MessagePart const& part) { to += part.text_; }
  SITU_WRITES_PART write_string(std::string& to, MessagePart const& part) { to += *static_cast<std::string const*>(part.any_); }
  SITU_WRITES_PART write_natural(std::string& to, MessagePart const& part) { append_integer(to, static_cast<unsigned long long>(part.whole_), false); }
  SITU_WRITES_PART write_whole(std::string& to, MessagePart const& part) {
    auto const bits = static_cast<unsigned long long>(part.whole_);
    append_integer(to, part.whole_ < 0 ? 0ull - bits : bits, part.whole_ < 0);
  }
  SITU_WRITES_PART write_floating(std::string& to, MessagePart const& part) {
    char buffer[32];
    __builtin_snprintf(buffer, sizeof buffer, "%g", part.floating_);
    to += buffer;
  }
  template <class X>
  SITU_WRITES_PART write_any(std::string& to, MessagePart const& part) {
    to += to_string(*static_cast<X const*>(part.any_));
  }
#undef SITU_WRITES_PART
};

using MessageParts = std::initializer_list<MessagePart>;
__attribute__((noinline, cold)) inline void append_parts(std::string& to, MessageParts parts) {
  for (MessagePart const& part : parts) part.append_to(to);
}
template <class X>
__attribute__((cold)) void append(std::string& to, X const& x) {
  MessagePart(x).append_to(to);
}

/// The parts, one after the other: message({"axis ", axis, " is out of range for shape ", shape}).
__attribute__((noinline, cold)) inline std::string message(MessageParts parts) {
  std::string result;
  append_parts(result, parts);
  return result;
}
template <class... Parts>
__attribute__((noinline, cold)) std::string text(Parts const&... parts) {
  return message({parts...});
}

/// Throws E with the parts as its message; kept out of line so that checks cost a compare and a jump.
template <class E>
[[noreturn]] __attribute__((noinline, cold)) void fail_with(MessageParts parts) {
  throw E(message(parts));
}
template <class E, class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail(Parts const&... parts) {
  fail_with<E>({parts...});
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
