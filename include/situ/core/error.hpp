/// The exceptions that situ throws, and how their messages are put together.
#pragma once

#include <cstdint>
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

/// How an argument of a message travels: a word, and the function that writes what it stands for.
using MessageWord = void const*;
using WriteWord = void (*)(std::string& to, MessageWord word);
static_assert(sizeof(MessageWord) == 8, "situ: pointers have 64 bits");

#define SITU_WRITES_WORD __attribute__((noinline, cold)) inline void
SITU_WRITES_WORD write_text(std::string& to, MessageWord word) { to += static_cast<char const*>(word); }
SITU_WRITES_WORD write_string(std::string& to, MessageWord word) { to += *static_cast<std::string const*>(word); }
SITU_WRITES_WORD write_natural(std::string& to, MessageWord word) { append_integer(to, reinterpret_cast<std::uintptr_t>(word), false); }
SITU_WRITES_WORD write_whole(std::string& to, MessageWord word) {
  auto const bits = reinterpret_cast<std::uintptr_t>(word);
  bool const negative = bits >> 63 != 0;
  append_integer(to, negative ? 0 - bits : bits, negative);
}
SITU_WRITES_WORD write_floating(std::string& to, MessageWord word) {
  auto const bits = reinterpret_cast<std::uintptr_t>(word);
  double number;
  __builtin_memcpy(&number, &bits, sizeof number);
  char buffer[32];
  __builtin_snprintf(buffer, sizeof buffer, "%g", number);
  to += buffer;
}
/// What to_string() writes.
template <class X>
SITU_WRITES_WORD write_any(std::string& to, MessageWord word) {
  to += to_string(*static_cast<X const*>(word));
}
#undef SITU_WRITES_WORD

SITU_INLINE MessageWord message_word(char const* text) { return text; }
SITU_INLINE MessageWord message_word(std::string const& text) { return &text; }
SITU_INLINE MessageWord message_word(double number) {
  std::uintptr_t bits;
  __builtin_memcpy(&bits, &number, sizeof bits);
  return reinterpret_cast<MessageWord>(bits);
}
template <class I>
  requires std::is_integral_v<I>
SITU_INLINE MessageWord message_word(I number) {
  return reinterpret_cast<MessageWord>(static_cast<std::intptr_t>(number));
}
template <class X>
  requires requires(X const& x) { to_string(x); }
SITU_INLINE MessageWord message_word(X const& x) {
  return &x;
}
/// What writes an X.
template <class X>
constexpr WriteWord writer_of() {
  if constexpr (std::is_integral_v<X>) return std::is_signed_v<X> ? &write_whole : &write_natural;
  else if constexpr (std::is_convertible_v<X, char const*>) return &write_text;
  else if constexpr (std::is_same_v<X, std::string>) return &write_string;
  else if constexpr (requires(X const& x) { to_string(x); }) return &write_any<X>;
  else return &write_floating;
}

/// A piece of a message: a text, a number, or what to_string() writes. What it is given must outlive it. Messages are put together from
/// arrays of these, so that nothing but the array is compiled for each.
class MessagePart {
 public:
  MessagePart(char const* text) : word_(text), write_(&write_text) {}
  MessagePart(std::string const& text) : word_(&text), write_(&write_string) {}
  MessagePart(double number) : word_(message_word(number)), write_(&write_floating) {}
  template <class I>
    requires std::is_integral_v<I>
  MessagePart(I number) : word_(message_word(number)), write_(writer_of<I>()) {}
  template <class X>
    requires requires(X const& x) { to_string(x); }
  MessagePart(X const& x) : word_(&x), write_(&write_any<X>) {}
  MessagePart(MessageWord word, WriteWord write) : word_(word), write_(write) {}

  void append_to(std::string& to) const { write_(to, word_); }

 private:
  MessageWord word_;
  WriteWord write_;
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
template <class E>
[[noreturn]] __attribute__((noinline, cold)) void throw_message(std::string const& text) {
  throw E(text);
}
template <class... Xs>
inline constexpr WriteWord word_writers[] = {writer_of<Xs>()...};
/// The words of a message, as many as there are writers.
[[noreturn]] __attribute__((noinline, cold)) inline void fail_with_words(void (*raise)(std::string const&), WriteWord const* writers, int count, ...) {
  std::string text;
  __builtin_va_list words;
  __builtin_va_start(words, count);
  for (int k = 0; k < count; ++k) writers[k](text, __builtin_va_arg(words, MessageWord));
  __builtin_va_end(words);
  raise(text);
  __builtin_unreachable();
}
/// The same of arguments: no code is compiled for their types.
template <class E, class... Parts>
[[noreturn]] SITU_INLINE void fail(Parts const&... parts) {
  fail_with_words(&throw_message<E>, word_writers<std::decay_t<Parts const>...>, static_cast<int>(sizeof...(Parts)), message_word(parts)...);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
