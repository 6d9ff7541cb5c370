/// JSON as RFC 8259 has it and nothing more: read from front to back without recursion, and strings as they are written.
///
/// Source    RFC 8259; the UTF-8 of table 3-7 in chapter 3 of the Unicode Standard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <situ/config.hpp>
#include <situ/io/detail/file.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The first byte that is not UTF-8, or `size`. Longer forms than needed, surrogates and what lies beyond U+10FFFF are not.
[[gnu::cold]] inline size_t first_not_utf8(unsigned char const* bytes, size_t size) {
  size_t at = 0;
  while (at < size) {
    uint64_t eight;
    if (size - at >= 8 && (std::memcpy(&eight, bytes + at, 8), (eight & 0x8080808080808080u) == 0)) {
      at += 8;
      continue;
    }
    unsigned const first = bytes[at];
    if (first < 0x80) {
      ++at;
      continue;
    }
    size_t const more = first >= 0xc2 && first <= 0xdf ? 1 : first >= 0xe0 && first <= 0xef ? 2 : first >= 0xf0 && first <= 0xf4 ? 3 : 0;
    if (more == 0 || size - at <= more) return at;
    unsigned const low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80, high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (bytes[at + 1] < low || bytes[at + 1] > high) return at;
    for (size_t k = 2; k <= more; ++k) {
      if ((bytes[at + k] & 0xc0) != 0x80) return at;
    }
    at += more + 1;
  }
  return size;
}

/// Appends a string, which is UTF-8, as serde_json and most others write it: `"`, `\` and control characters escaped; without the quotes around it.
SITU_REPORTS void append_escaped(MessageText& to, std::string_view value) {
  constexpr char const* digits = "0123456789abcdef";
  constexpr char const* letters = "btn?fr??";  // of 8 to 13
  for (char const c : value) {
    auto const byte = static_cast<unsigned char>(c);
    char const code[] = {'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]};
    char const letter[] = {'\\', byte >= 0x20 ? c : letters[byte & 7]};
    if (c == '"' || c == '\\' || (byte >= 8 && byte <= 13 && byte != 11)) to.add(letter, 2);
    else if (byte < 0x20) to.add(code, 6);
    else to.add(&c, 1);
  }
}
SITU_REPORTS void append_json_string(MessageText& to, std::string_view value) {
  to.add("\"");
  append_escaped(to, value);
  to.add("\"");
}

/// A name as it may stand in a message: quoted, without control characters, not endless.
struct QuotedName {
  std::string_view name;
};
SITU_REPORTS void append_to(MessageText& to, QuotedName const& quoted) {
  constexpr size_t longest = 200;
  size_t const size = quoted.name.size();
  size_t end = size;
  if (end > longest) {
    end = longest;
    while (end > 0 && (static_cast<unsigned char>(quoted.name[end]) & 0xc0) == 0x80) --end;  // whole characters
  }
  to.add("\"");
  append_escaped(to, {quoted.name.data(), end});
  to.add(end < size ? "…\"" : "\"");
}
inline QuotedName quoted_name(std::string_view name) { return {name}; }

/// Reads one JSON text. The caller asks for what should come next; anything else is an IoError that says where. Strings are brought to what they
/// mean in their place, which no string is too short for.
class JsonReader {
 public:
  static constexpr int max_depth = 128;

  /// `offset` is where the text begins in the file. The bytes must be UTF-8.
  JsonReader(unsigned char* first, unsigned char* last, int64_t offset, FileContext const& context)
      : begin_(first), at_(first), last_(last), offset_(offset), context_(context) {}

  /// Whether `c` comes next, after spaces; it is taken then.
  [[gnu::cold]] SITU_NOINLINE bool take(char c) {
    skip_space();
    if (at_ == last_ || *at_ != static_cast<unsigned char>(c)) return false;
    ++at_;
    return true;
  }
  void need(char c, char const* what, char const* needed) {
    if (!take(c)) expected(what, needed);
  }
  /// Whether another entry of an object or array follows, which ends with `end`. `first`: none has been read yet.
  [[gnu::cold]] bool more(char end, bool first, char const* what) {
    if (take(end)) return false;
    if (!first && !take(',')) expected(what, end == '}' ? "',' or '}'" : "',' or ']'");
    return true;
  }
  bool take_null() { return take_word("null"); }
  bool at_end() {
    skip_space();
    return at_ == last_;
  }

  /// A string, with its escapes resolved; a 0 stands behind it.
  [[gnu::cold]] std::string_view string(char const* what) {
    if (!take('"')) expected(what, "a string");
    unsigned char *const first = at_, *end = at_;
    for (;;) {
      if (at_ == last_) expected("a string does not end", "'\"'");
      if (*at_ == '"') break;
      if (*at_ < 0x20) expected("a string holds a control character", "an escape");
      if (*at_ == '\\') end = read_escape(end);
      else *end++ = *at_++;
    }
    ++at_;
    *end = 0;
    return {reinterpret_cast<char const*>(first), static_cast<size_t>(end - first)};
  }

  /// An integer that is not negative and has no fraction and no exponent.
  [[gnu::cold]] int64_t count(char const* what) {
    skip_space();
    unsigned char* const first = at_;
    if (at_ == last_ || !is_digit(*at_)) expected(what, "an integer that is not negative");
    int64_t result = 0;
    bool fits = true;
    for (; at_ != last_ && is_digit(*at_); ++at_) {
      fits = fits && !__builtin_mul_overflow(result, int64_t{10}, &result) && !__builtin_add_overflow(result, int64_t{*at_} - '0', &result);
    }
    bool const zeros = *first == '0' && at_ - first > 1;
    if (zeros || (at_ != last_ && (*at_ == '.' || *at_ == 'e' || *at_ == 'E'))) at_ = first, expected(what, "an integer without leading zeros, fraction and exponent");
    if (!fits) at_ = first, expected(what, "an integer below 2^63");
    return result;
  }

  /// Any value: checked, and left out.
  [[gnu::cold]] void skip_value() {
    bool in_object[max_depth];
    int depth = 0;
    for (;;) {
      bool const object = take('{');
      if (object || take('[')) {
        if (depth == max_depth) expected("values are nested too deeply", "at most 128 levels");
        in_object[depth++] = object;
        if (take(object ? '}' : ']')) --depth;
        else {
          if (object) skip_key();
          continue;
        }
      } else {
        skip_scalar();
      }
      for (;; --depth) {
        if (depth == 0) return;
        bool const outer = in_object[depth - 1];
        if (!more(outer ? '}' : ']', false, "a value cannot be read")) continue;
        if (outer) skip_key();
        break;
      }
    }
  }

  [[noreturn, gnu::cold]] SITU_NOINLINE void expected(char const* what, char const* needed) const {
    MessageText found;
    if (at_ == last_) found.add("the end of the header");
    else append_to(found, quote_bytes(at_, static_cast<size_t>(last_ - at_ < 20 ? last_ - at_ : 20)));
    context_.fail(what, ": ", found.c_str(), " found at byte ", offset_ + (at_ - begin_), "; ", needed, " is needed");
  }

 private:
  static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
  void skip_space() {
    while (at_ != last_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  [[gnu::cold]] bool take_word(char const* word) {
    skip_space();
    size_t const size = std::strlen(word);
    if (static_cast<size_t>(last_ - at_) < size || std::memcmp(at_, word, size) != 0) return false;
    at_ += size;
    return true;
  }
  void skip_key() {
    (void)string("a key cannot be read");
    need(':', "a key has no value", "':'");
  }
  [[gnu::cold]] void skip_scalar() {
    if (at_ == last_) expected("a value is missing", "a value");
    if (*at_ == '"') {
      (void)string("a string cannot be read");
      return;
    }
    if (take_word("true") || take_word("false") || take_word("null")) return;
    take('-');
    skip_digits();
    if (at_ != last_ && *at_ == '.') ++at_, skip_digits(true);
    if (at_ != last_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      if (at_ != last_ && (*at_ == '+' || *at_ == '-')) ++at_;
      skip_digits(true);
    }
  }
  [[gnu::cold]] void skip_digits(bool zeros = false) {
    unsigned char* const first = at_;
    while (at_ != last_ && is_digit(*at_)) ++at_;
    if (at_ == first || (!zeros && *first == '0' && at_ - first > 1)) at_ = first, expected("a value cannot be read", "a value");
  }

  [[gnu::cold]] unsigned hexadecimal() {
    unsigned result = 0;
    for (int k = 0; k < 4; ++k, ++at_) {
      unsigned char const c = at_ == last_ ? 0 : *at_;
      if (is_digit(c)) result = result * 16 + (c - '0');
      else if ((c | 32) >= 'a' && (c | 32) <= 'f') result = result * 16 + static_cast<unsigned>((c | 32) - 'a' + 10);
      else expected("an escape cannot be read", "a hexadecimal digit");
    }
    return result;
  }
  /// Writes what the escape here means to `to`, which is not behind it; returns the end.
  [[gnu::cold]] unsigned char* read_escape(unsigned char* to) {
    constexpr char const* letters = "\"\\/bfnrt";
    constexpr char const* meanings = "\"\\/\b\f\n\r\t";
    unsigned char* const first = at_++;
    if (at_ == last_) expected("a string does not end", "'\"'");
    if (*at_ != 'u') {
      char const* const letter = *at_ == 0 ? nullptr : std::strchr(letters, *at_);
      if (!letter) at_ = first, expected("an escape cannot be read", "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
      *to++ = static_cast<unsigned char>(meanings[letter - letters]);
      ++at_;
      return to;
    }
    ++at_;
    unsigned code = hexadecimal();
    if (code >= 0xd800 && code <= 0xdbff && last_ - at_ >= 2 && at_[0] == '\\' && at_[1] == 'u') {
      at_ += 2;
      unsigned const low = hexadecimal();
      code = low >= 0xdc00 && low <= 0xdfff ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : 0xd800;
    }
    if (code >= 0xd800 && code <= 0xdfff) at_ = first, expected("an escape is half of a character", "a pair of surrogates");
    int const more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr unsigned leads[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = static_cast<unsigned char>(leads[more] | code >> (6 * more));
    for (int k = more - 1; k >= 0; --k) *to++ = static_cast<unsigned char>(0x80 | (code >> (6 * k) & 0x3f));
    return to;
  }

  unsigned char *begin_, *at_, *last_;
  int64_t offset_;
  FileContext context_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
