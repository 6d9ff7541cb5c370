/// The exceptions that situ throws, and how their messages are put together.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include <situ/config.hpp>

#define SITU_EXCEPTION __attribute__((visibility("default")))

namespace situ::inline SITU_ABI {

/// The base of all: `what()` says who, what was asked, what was found, and what to do.
struct SITU_EXCEPTION Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Shapes, axes or sizes do not fit the call.
struct SITU_EXCEPTION ShapeError : virtual Error {
  using Error::Error;
};
/// The strides do not allow what was asked; a copy would.
struct SITU_EXCEPTION LayoutError : Error {
  using Error::Error;
};
/// An index lies outside its axis.
struct SITU_EXCEPTION IndexError : virtual Error {
  using Error::Error;
};
/// The shape has no such axis: an IndexError, as in PyTorch, and a ShapeError, as NumPy's AxisError is both.
struct SITU_EXCEPTION AxisError : ShapeError, IndexError {
  explicit AxisError(char const* text) : Error(text), ShapeError(text), IndexError(text) {}
  explicit AxisError(std::string const& text) : AxisError(text.c_str()) {}
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

/// What writes reports is compiled for its size, and never into what calls it.
#define SITU_REPORTS __attribute__((noinline, cold)) inline

/// A message that is being written. (Of std::string, C++20 has every program compile what it uses.)
class MessageText {
 public:
  MessageText() = default;
  MessageText(MessageText const&) = delete;
  MessageText& operator=(MessageText const&) = delete;
  ~MessageText() { std::free(text_); }

  /// Without memory, the message ends here.
  SITU_REPORTS void add(char const* text, std::size_t length) noexcept;
  SITU_REPORTS void add(char const* text) noexcept { add(text, __builtin_strlen(text)); }
  SITU_REPORTS void add_integer(unsigned long long magnitude, bool negative = false) noexcept;
  /// With so many digits in all, or `behind_point`.
  SITU_REPORTS void add_floating(double number, int digits = 6, bool behind_point = false) noexcept;

  void add_spaces(std::size_t count) noexcept {
    while (count-- > 0) add(" ", 1);
  }
  void clear() noexcept { size_ = 0, cut_ = false; }

  char const* c_str() const { return size_ > 0 ? text_ : ""; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  /// There was no memory for all of it.
  bool is_cut() const { return cut_; }
  std::string string() const { return std::string(c_str(), size_); }
  /// The same of a text that is worth nothing when it is cut. Throws std::bad_alloc.
  SITU_REPORTS std::string whole() const;

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0, room_ = 0;
  bool cut_ = false;
};
std::string MessageText::whole() const {
  if (cut_) throw std::bad_alloc();
  return string();
}
void MessageText::add(char const* text, std::size_t length) noexcept {
  if (size_ + length >= room_) {
    std::size_t const room = 2 * (size_ + length) + 64;
    auto* const longer = static_cast<char*>(std::realloc(text_, room));
    if (!longer) return void(cut_ = true);
    text_ = longer;
    room_ = room;
  }
  __builtin_memcpy(text_ + size_, text, length);
  size_ += length;
  text_[size_] = 0;
}
void MessageText::add_integer(unsigned long long magnitude, bool negative) noexcept {
  char digits[24];
  int at = 24;
  do {
    digits[--at] = static_cast<char>('0' + magnitude % 10);
    magnitude /= 10;
  } while (magnitude != 0);
  if (negative) digits[--at] = '-';
  add(digits + at, static_cast<std::size_t>(24 - at));
}
void MessageText::add_floating(double number, int digits, bool behind_point) noexcept {
  char buffer[48];
  __builtin_snprintf(buffer, sizeof buffer, behind_point ? "%.*f" : "%.*g", digits, number);
  char* to = buffer;
  bool in_point = false;  // the locale's, which may have several bytes
  for (char const* at = buffer; *at; ++at) {
    bool const word = (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || *at == '-' || *at == '+';
    if (word) *to++ = *at;
    else if (!in_point) *to++ = '.';
    in_point = !word;
  }
  *to = '\0';
  add(buffer);
}

/// How an argument of a message travels: a word, and the function that writes what it stands for.
using MessageWord = void const*;
using WriteWord = void (*)(MessageText& to, MessageWord word);
static_assert(sizeof(MessageWord) == 8, "situ: pointers have 64 bits");

SITU_REPORTS void write_text(MessageText& to, MessageWord word) { to.add(static_cast<char const*>(word)); }
SITU_REPORTS void write_string(MessageText& to, MessageWord word) {
  auto const& text = *static_cast<std::string const*>(word);
  to.add(text.data(), text.size());
}
SITU_REPORTS void write_view(MessageText& to, MessageWord word) {
  auto const& text = *static_cast<std::string_view const*>(word);
  to.add(text.data(), text.size());
}
SITU_REPORTS void write_natural(MessageText& to, MessageWord word) { to.add_integer(reinterpret_cast<std::uintptr_t>(word)); }
SITU_REPORTS void write_whole(MessageText& to, MessageWord word) {
  auto const bits = reinterpret_cast<std::uintptr_t>(word);
  bool const negative = bits >> 63 != 0;
  to.add_integer(negative ? 0 - bits : bits, negative);
}
SITU_REPORTS void write_floating(MessageText& to, MessageWord word) {
  auto const bits = reinterpret_cast<std::uintptr_t>(word);
  double number;
  __builtin_memcpy(&number, &bits, sizeof number);
  to.add_floating(number);
}
/// Has an append_to(MessageText&, X), or else a to_string(X). Numbers have none, whatever names a program brings into the global namespace.
template <class X>
concept has_text = !std::is_arithmetic_v<X> && (requires(X const& x, MessageText& to) { append_to(to, x); } || requires(X const& x) { to_string(x); });
template <class X>
SITU_REPORTS void write_any(MessageText& to, MessageWord word) {
  X const& x = *static_cast<X const*>(word);
  if constexpr (requires { append_to(to, x); }) {
    append_to(to, x);
  } else {
    std::string const text = to_string(x);
    to.add(text.data(), text.size());
  }
}

SITU_INLINE MessageWord message_word(char const* text) { return text; }
SITU_INLINE MessageWord message_word(std::string const& text) { return &text; }
SITU_INLINE MessageWord message_word(std::string_view const& text) { return &text; }
SITU_INLINE MessageWord message_word(double number) {
  std::uintptr_t bits;
  __builtin_memcpy(&bits, &number, sizeof bits);
  return reinterpret_cast<MessageWord>(bits);
}
template <class Ix>
  requires std::is_integral_v<Ix>
SITU_INLINE MessageWord message_word(Ix number) {
  return reinterpret_cast<MessageWord>(static_cast<std::intptr_t>(number));
}
template <has_text X>
SITU_INLINE MessageWord message_word(X const& x) {
  return &x;
}
/// What writes an X.
template <class X>
constexpr WriteWord writer_of() {
  if constexpr (std::is_integral_v<X>) return std::is_signed_v<X> ? &write_whole : &write_natural;
  else if constexpr (std::is_convertible_v<X, char const*>) return &write_text;
  else if constexpr (std::is_same_v<X, std::string>) return &write_string;
  else if constexpr (std::is_same_v<X, std::string_view>) return &write_view;
  else if constexpr (has_text<X>) return &write_any<X>;
  else return &write_floating;
}

/// A piece of a message: a text, a number, or what to_string() writes. What it is given must outlive it. Messages are put together from
/// arrays of these, so that nothing but the array is compiled for each.
class MessagePart {
 public:
  MessagePart(char const* text) : word_(text), write_(&write_text) {}
  MessagePart(std::string const& text) : word_(&text), write_(&write_string) {}
  MessagePart(std::string_view const& text) : word_(&text), write_(&write_view) {}
  MessagePart(double number) : word_(message_word(number)), write_(&write_floating) {}
  template <class Ix>
    requires std::is_integral_v<Ix>
  MessagePart(Ix number) : word_(message_word(number)), write_(writer_of<Ix>()) {}
  template <has_text X>
  MessagePart(X const& x) : word_(&x), write_(&write_any<X>) {}
  MessagePart(MessageWord word, WriteWord write) : word_(word), write_(write) {}

  void write_to(MessageText& to) const { write_(to, word_); }

 private:
  MessageWord word_;
  WriteWord write_;
};

using MessageParts = std::initializer_list<MessagePart>;
SITU_REPORTS void write_parts(MessageText& to, MessageParts parts) {
  for (MessagePart const& part : parts) part.write_to(to);
}

/// The parts, one after the other: message({"axis ", axis, " is out of range for shape ", shape}).
SITU_REPORTS std::string message(MessageParts parts) {
  MessageText text;
  write_parts(text, parts);
  return text.string();
}
template <class... Parts>
SITU_REPORTS std::string text(Parts const&... parts) {
  return message({parts...});
}
template <class X>
SITU_REPORTS void append(std::string& to, X const& x) {
  to += message({x});
}

/// Throws E with the parts as its message; kept out of line so that checks cost a compare and a jump.
template <class E>
[[noreturn]] SITU_REPORTS void fail_with(MessageParts parts) {
  MessageText text;
  write_parts(text, parts);
  throw E(text.c_str());
}
template <class E>
[[noreturn]] SITU_REPORTS void throw_message(MessageText const& text) {
  throw E(text.c_str());
}
template <class... Xs>
inline constexpr WriteWord word_writers[] = {writer_of<Xs>()...};
SITU_REPORTS void write_words(MessageText& to, WriteWord const* writers, int count, __builtin_va_list& words) {
  for (int k = 0; k < count; ++k) writers[k](to, __builtin_va_arg(words, MessageWord));
}
/// The words of a message, as many as there are writers.
SITU_REPORTS void add_words(MessageText& to, WriteWord const* writers, int count, ...) {
  __builtin_va_list words;
  __builtin_va_start(words, count);
  write_words(to, writers, count, words);
  __builtin_va_end(words);
}
[[noreturn]] SITU_REPORTS void fail_with_words(void (*raise)(MessageText const&), WriteWord const* writers, int count, ...) {
  MessageText text;
  __builtin_va_list words;
  __builtin_va_start(words, count);
  write_words(text, writers, count, words);
  __builtin_va_end(words);
  raise(text);
  __builtin_unreachable();
}
/// Adds the parts, one after the other: add_to(text, "axis ", axis). No code is compiled for their types.
template <class... Parts>
SITU_INLINE void add_to(MessageText& to, Parts const&... parts) {
  add_words(to, word_writers<std::decay_t<Parts const>...>, static_cast<int>(sizeof...(Parts)), message_word(parts)...);
}
/// Throws E with the parts as its message.
template <class E, class... Parts>
[[noreturn]] SITU_INLINE void fail(Parts const&... parts) {
  fail_with_words(&throw_message<E>, word_writers<std::decay_t<Parts const>...>, static_cast<int>(sizeof...(Parts)), message_word(parts)...);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
