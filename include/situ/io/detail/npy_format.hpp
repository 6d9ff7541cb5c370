/// The npy format as a pure function over bytes: a header becomes a shape and an element type, or an IoError.
///
/// A file is the magic `\x93NUMPY`, a version, the length of the header, the header (a Python dictionary with exactly
/// the keys 'descr', 'fortran_order' and 'shape', padded with spaces to a multiple of 64) and the elements.
///
/// Source    numpy.lib.format, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <situ/config.hpp>
#include <situ/core/scalar.hpp>
#include <situ/core/shape.hpp>
#include <situ/io/detail/file.hpp>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "situ reads and writes npy files on little-endian hosts");

namespace situ::inline SITU_ABI {
namespace detail {

inline constexpr int64_t npy_max_header = 65535;  // what version 1.0 can say; eight dimensions take less than 300
inline constexpr int64_t npy_max_preamble = 12 + npy_max_header;

/// What the header of an npy file says, checked for itself but not yet against an element type or the file's size.
struct npy_header {
  std::string_view descr;      ///< the element type as it is written, where it was read: `<f4`
  char byte_order = 0;         ///< `<`, `>` or `|`; 0 if descr is not an order, a letter and a number
  char kind = 0;               ///< `f`, `i`, `u`, `b`, `V`, …
  int64_t item_size = 0;       ///< bytes per element
  bool fortran_order = false;  ///< the first index varies fastest
  Shape shape;
  int64_t count = 0;       ///< elements
  int64_t data_begin = 0;  ///< where the elements begin
};

struct npy_type {
  char kind;
  int item_size;
  char const* descr;     ///< as it is saved
  char const* cpp_name;  ///< as it is asked for
};

/// bfloat16 has no name of its own in NumPy: it is saved as ml_dtypes does, as two raw bytes.
inline constexpr npy_type npy_types[] = {{'f', 4, "<f4", "float"},    {'f', 8, "<f8", "double"},  {'f', 2, "<f2", "float16"},
                                         {'V', 2, "<V2", "bfloat16"}, {'b', 1, "|b1", "bool"},    {'i', 1, "|i1", "int8_t"},
                                         {'i', 2, "<i2", "int16_t"},  {'i', 4, "<i4", "int32_t"}, {'i', 8, "<i8", "int64_t"},
                                         {'u', 1, "|u1", "uint8_t"}};
constexpr npy_type const& npy_type_of(dtype type) { return npy_types[static_cast<int>(type)]; }

/// A shape as Python writes it: `()`, `(3,)`, `(2, 3)`.
struct NpyShapeText {
  Shape const& shape;
};
SITU_REPORTS void append_to(MessageText& to, NpyShapeText const& x) {
  to.add("(");
  for (int i = 0; i < x.shape.rank(); ++i) add_to(to, i ? ", " : "", x.shape[i]);
  to.add(x.shape.rank() == 1 ? ",)" : ")");
}
inline NpyShapeText npy_shape_text(Shape const& shape) { return {shape}; }

/// Elements of a shape. As in NumPy, an extent of zero does not excuse the others: their product bounds the strides.
/// False if 63 bits do not hold the bytes.
[[gnu::cold]] inline bool npy_count(Shape const& shape, int64_t item_size, int64_t& count) {
  int64_t bound = item_size;
  count = 1;
  for (int64_t extent : shape)
    if (__builtin_mul_overflow(bound, extent > 0 ? extent : 1, &bound)) return false;
  for (int64_t extent : shape) count *= extent;
  return true;
}

/// Reads the dictionary: the part of Python's literals that such a header may use, and nothing else.
class NpyHeaderReader {
 public:
  NpyHeaderReader(unsigned char const* first, unsigned char const* last, int64_t offset, FileContext const& context)
      : begin_(first), at_(first), last_(last), offset_(offset), context_(context) {}

  [[gnu::cold]] void read(npy_header& header) {
    skip_space();
    if (!take('{')) expected("the header is not a dictionary", "'{'");
    for (skip_space(); !take('}'); skip_space()) {
      std::string_view key;
      if (!take_string(key)) expected("the header's dictionary cannot be read", "a key in quotes or '}'");
      read_value(key, header);
      skip_space();
      if (!take(',') && (at_ == last_ || *at_ != '}')) expected("the header's dictionary cannot be read", "',' or '}'");
    }
    skip_space();
    if (at_ != last_) expected("the header goes on after its dictionary", "nothing but spaces");
    if (!(found_[0] && found_[1] && found_[2])) missing();
  }

 private:
  static constexpr char const* keys_[] = {"descr", "fortran_order", "shape"};
  static constexpr char const* all_keys_ = "'descr', 'fortran_order' and 'shape' are needed";

  /// Python's, which has no vertical tab.
  static bool is_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r' && c != '\v'); }
  static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }

  void skip_space() {
    while (at_ != last_ && is_space(*at_)) ++at_;
  }
  bool take(char c) {
    if (at_ == last_ || *at_ != static_cast<unsigned char>(c)) return false;
    ++at_;
    return true;
  }
  [[gnu::cold]] bool take_word(char const* word) {
    size_t const size = std::strlen(word);
    if (static_cast<size_t>(last_ - at_) < size || std::memcmp(at_, word, size) != 0) return false;
    at_ += size;
    return true;
  }

  [[noreturn, gnu::cold]] SITU_NOINLINE void expected(char const* what, char const* needed) const {
    MessageText found;
    if (at_ == last_) found.add("its end");
    else append_to(found, quote_bytes(at_, static_cast<size_t>(last_ - at_)));
    context_.fail(what, ": ", found.c_str(), " found at byte ", offset_ + (at_ - begin_), "; ", needed, " is needed");
  }

  [[noreturn, gnu::cold]] SITU_NOINLINE void missing() const {
    MessageText found;
    for (int i = 0; i < 3; ++i)
      if (found_[i]) add_to(found, found.empty() ? "'" : ", '", keys_[i], "'");
    context_.fail("a key is missing from the header: ", found.empty() ? "none" : found.c_str(), " found; ", all_keys_);
  }

  /// Escapes are refused: no key and no element type needs one.
  [[gnu::cold]] bool take_string(std::string_view& text) {
    if (at_ == last_ || (*at_ != '\'' && *at_ != '"')) return false;
    unsigned char const* const first = at_ + 1;
    unsigned char const* closing = first;
    while (closing != last_ && *closing != *at_ && *closing != '\\' && *closing != '\n') ++closing;
    if (closing == last_ || *closing != *at_) return false;
    text = {reinterpret_cast<char const*>(first), static_cast<size_t>(closing - first)};
    at_ = closing + 1;
    return true;
  }

  [[gnu::cold]] void read_value(std::string_view key, npy_header& header) {
    int which = 0;
    while (which < 3 && key != keys_[which]) ++which;
    if (which == 3) context_.fail("unknown key in the header: ", quote_bytes(key), " found; ", all_keys_);
    if (found_[which]) context_.fail("a key stands twice in the header: ", quote_bytes(key), " found again; ", all_keys_);
    found_[which] = true;
    skip_space();
    if (!take(':')) expected("the header's dictionary cannot be read", "':'");
    skip_space();
    if (which == 0)
      read_descr(header);
    else if (which == 1)
      read_order(header);
    else
      read_shape(header);
  }

  [[gnu::cold]] void read_descr(npy_header& header) {
    if (at_ != last_ && (*at_ == '[' || *at_ == '('))
      expected("the elements are structured", "a plain element type such as '<f4'");
    if (!take_string(header.descr)) expected("the element type cannot be read", "a plain element type such as '<f4'");
    char const* const text = header.descr.data();
    size_t const size = header.descr.size(), letter = size > 0 && (*text == '<' || *text == '>' || *text == '|' || *text == '=') ? 1 : 0;
    if (size > letter && text[letter] == 'O')
      context_.fail("the elements are Python objects: ", quote_bytes(header.descr),
                     " found; numbers are needed, objects would have to be unpickled, which runs code");
    if (letter == 0 || *text == '=' || size < 3 || size > 6) return;
    int64_t item_size = 0;
    for (size_t i = 2; i < size; ++i) {
      if (text[i] < '0' || text[i] > '9') return;
      item_size = 10 * item_size + (text[i] - '0');
    }
    header.byte_order = text[0];
    header.kind = text[1];
    header.item_size = item_size;
  }

  [[gnu::cold]] void read_order(npy_header& header) {
    if (take_word("True"))
      header.fortran_order = true;
    else if (take_word("False"))
      header.fortran_order = false;
    else
      expected("'fortran_order' cannot be read", "True or False");
  }

  [[gnu::cold]] void read_shape(npy_header& header) {
    if (!take('(')) expected("the shape is not a tuple", "'('");
    int64_t rank = 0;
    bool comma = true;
    for (skip_space(); !take(')'); skip_space()) {
      if (!comma) expected("the shape cannot be read", "',' or ')'");
      int64_t const extent = read_extent();
      if (++rank <= max_rank) header.shape.push_back(extent);
      skip_space();
      comma = take(',');
    }
    if (rank > max_rank)
      context_.fail("the shape has too many dimensions: ", rank, " found; at most ", max_rank, " are supported");
    if (rank == 1 && !comma)
      context_.fail("the shape is not a tuple: '(", header.shape[0], ")' found; '(", header.shape[0], ",)' is needed");
    if (!npy_count(header.shape, 1, header.count))
      context_.fail("the shape is too large: ", npy_shape_text(header.shape), " found; fewer than 2^63 elements are needed");
  }

  [[gnu::cold]] int64_t read_extent() {
    unsigned char const* const first = at_;
    bool const negative = take('-');
    if (at_ == last_ || !is_digit(*at_)) at_ = first, expected("the shape cannot be read", "an extent");
    if (*at_ == '0' && last_ - at_ > 1 && is_digit(at_[1]))
      expected("the shape cannot be read", "an extent without leading zeros");
    int64_t extent = 0;
    bool fits = true;
    for (; at_ != last_ && is_digit(*at_); ++at_)
      fits = fits && !__builtin_mul_overflow(extent, int64_t{10}, &extent) &&
             !__builtin_add_overflow(extent, int64_t{*at_} - '0', &extent);
    QuotedBytes const digits = quote_bytes(first, static_cast<size_t>(at_ - first));
    if (negative) context_.fail("the shape has a negative extent: ", digits, " found; 0 or more is needed");
    if (!fits) context_.fail("the shape is too large: an extent of ", digits, " found; fewer than 2^63 elements are needed");
    take('L');  // written by Python 2
    return extent;
  }

  unsigned char const *begin_, *at_, *last_;
  int64_t offset_;
  FileContext context_;
  bool found_[3] = {};
};

/// Reads the header of an npy file from its first bytes, never beyond `bytes + size`.
///
/// `size` is the whole file's size, or at least npy_max_preamble. `context` is what messages begin with.
/// Throws    IoError as `<who>: <file>: what is wrong: found; needed`. Allocates only for messages and `descr`.
[[gnu::cold]] inline npy_header parse_npy_header(unsigned char const* bytes, size_t size, FileContext const& context) {
  static constexpr unsigned char magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
  auto const need = [&](int64_t needed) {
    if (size < static_cast<size_t>(needed))
      context.fail("the file ends inside its header: ", size, " bytes found; ", needed, " are needed");
  };
  if (size == 0) context.fail("the file is empty: 0 bytes found; an npy file is needed");
  if (std::memcmp(bytes, magic, size < 6 ? size : 6) != 0)
    context.fail("is not an npy file: it begins with ", quote_bytes(bytes, size < 6 ? size : 6), "; '\\x93NUMPY' is needed");
  need(10);
  int const major = bytes[6], minor = bytes[7];
  if (major < 1 || major > 3 || minor != 0)
    context.fail("unknown version of the format: ", major, ".", minor, " found; 1.0, 2.0 or 3.0 is needed");
  int64_t const begin = major == 1 ? 10 : 12;
  need(begin);
  int64_t length = 0;
  for (int64_t i = begin; i-- > 8;) length = 256 * length + bytes[i];
  if (length > npy_max_header && static_cast<int64_t>(size) >= npy_max_preamble)
    context.fail("the header is too long: ", length, " bytes found; at most ", npy_max_header, " are accepted");
  need(begin + length);

  npy_header header;
  header.data_begin = begin + length;
  NpyHeaderReader(bytes + begin, bytes + header.data_begin, begin, context).read(header);
  return header;
}

[[gnu::cold]] inline bool npy_holds(npy_header const& header, dtype type) {
  npy_type const& wanted = npy_type_of(type);
  if (header.byte_order == 0 || header.kind != wanted.kind || header.item_size != wanted.item_size) return false;
  if (type == dtype::bfloat16) return header.byte_order != '>';
  return wanted.item_size == 1 || header.byte_order != '|';
}

/// Compares a header with the element type that is asked for and the size of the file.
///
/// Returns   the number of bytes the elements take.
/// Throws    IoError if the type is another one, or the file is shorter or longer than the header says.
[[gnu::cold]] inline int64_t check_npy_data(npy_header const& header, dtype type, int64_t file_size, FileContext const& context) {
  npy_type const& wanted = npy_type_of(type);
  if (!npy_holds(header, type)) {
    QuotedBytes const found = quote_bytes(header.descr);
    MessageText asked;
    add_to(asked, name(type), " ('", wanted.descr, "') was asked for");
    for (int i = 0; i <= static_cast<int>(dtype::uint8); ++i) {
      dtype const other = static_cast<dtype>(i);
      if (npy_holds(header, other))
        context.fail("the elements have another type: ", name(other), " (", found, ") found; ", asked.c_str(), ": use ", context.who, "<", npy_type_of(other).cpp_name,
                      ">, or save the array as ", name(type));
    }
    context.fail("the elements have a type that situ has not: ", found, " found; ", asked.c_str(), ": save the array as ", name(type));
  }
  int64_t count;
  if (!npy_count(header.shape, wanted.item_size, count))
    context.fail("the shape is too large: ", npy_shape_text(header.shape), " of ", wanted.item_size, " bytes each found; fewer than 2^63 bytes are needed");
  int64_t const bytes = count * wanted.item_size, found = file_size - header.data_begin;
  if (found != bytes)
    context.fail("the data are ", found < bytes ? "shorter" : "longer", " than the header says: ", found, " bytes found; ", bytes, " are needed for shape ",
                  npy_shape_text(header.shape), " of ", name(type));
  return bytes;
}

/// Everything that stands before the elements, byte for byte as NumPy writes it: version 1.0, room for the first
/// extent to grow to 21 digits, padding to a multiple of 64. Eight dimensions never need version 2.0.
[[gnu::cold]] inline std::string npy_preamble(dtype type, Shape const& shape) {
  MessageText header, digits;
  add_to(header, "{'descr': '", npy_type_of(type).descr, "', 'fortran_order': False, 'shape': ", npy_shape_text(shape), ", }");
  if (!shape.empty()) {
    add_to(digits, shape[0]);
    header.add_spaces(21 - digits.size());
  }
  header.add_spaces(63 - (10 + header.size()) % 64);
  header.add("\n");
  MessageText preamble;
  preamble.add("\x93NUMPY\x01\x00", 8);
  char const length[] = {static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  preamble.add(length, 2);
  add_to(preamble, header.whole());
  return preamble.whole();
}

template <class Word>
void npy_swap_bytes(unsigned char* data, int64_t count) {
  for (int64_t i = 0; i < count; ++i, data += sizeof(Word)) {
    Word word;
    std::memcpy(&word, data, sizeof word);
    if constexpr (sizeof(Word) == 2)
      word = __builtin_bswap16(word);
    else if constexpr (sizeof(Word) == 4)
      word = __builtin_bswap32(word);
    else
      word = __builtin_bswap64(word);
    std::memcpy(data, &word, sizeof word);
  }
}

/// Makes what lies in the file what a tensor may hold: the host's byte order, and for bool only 0 and 1.
[[gnu::cold]] inline void npy_to_native(unsigned char* data, npy_header const& header) {
  if (header.kind == 'b')
    for (int64_t i = 0; i < header.count; ++i) data[i] = data[i] != 0;
  if (header.byte_order != '>') return;
  if (header.item_size == 2) npy_swap_bytes<uint16_t>(data, header.count);
  if (header.item_size == 4) npy_swap_bytes<uint32_t>(data, header.count);
  if (header.item_size == 8) npy_swap_bytes<uint64_t>(data, header.count);
}

/// Copies elements whose first index varies fastest to where the last one does, in tiles over these two axes.
[[gnu::cold]] inline void npy_from_fortran(unsigned char const* from, unsigned char* to, npy_header const& header) {
  constexpr int64_t tile = 32;
  int64_t const size = header.item_size;
  int const last = header.shape.rank() - 1;
  int64_t from_step[max_rank], to_step[max_rank], index[max_rank] = {};
  for (int64_t i = 0, step = size; i <= last; step *= header.shape[i++]) from_step[i] = step;
  for (int64_t i = last, step = size; i >= 0; step *= header.shape[i--]) to_step[i] = step;
  for (;;) {
    unsigned char const* from_block = from;
    unsigned char* to_block = to;
    for (int i = 1; i < last; ++i) from_block += index[i] * from_step[i], to_block += index[i] * to_step[i];
    for (int64_t row = 0; row < header.shape[0]; row += tile) {
      int64_t const rows = header.shape[0] - row < tile ? header.shape[0] - row : tile;
      for (int64_t column = 0; column < header.shape[last]; column += tile) {
        int64_t const columns = header.shape[last] - column < tile ? header.shape[last] - column : tile;
        for (int64_t k = row; k < row + rows; ++k) {
          copy_words(size, from_block + k * size + column * from_step[last], from_step[last], to_block + k * to_step[0] + column * size, size, columns);
        }
      }
    }
    int axis = last - 1;
    while (axis > 0 && ++index[axis] == header.shape[axis]) index[axis--] = 0;
    if (axis <= 0) return;
  }
}

/// Whether the elements lie in another order than the tensor's.
inline bool npy_is_transposed(npy_header const& header) {
  return header.fortran_order && header.shape.rank() > 1 && header.count > 0;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
