/// The safetensors format as pure functions over bytes: a header becomes a list of tensors, or an IoError; a list becomes a header.
///
/// A file is the length of the header (eight bytes, little-endian), the header, and the tensors' elements, row-major and without gaps. The header is a JSON
/// object of "name": {"dtype": …, "shape": […], "data_offsets": [begin, end]}, with texts of any meaning under "__metadata__". Elements are little-endian.
///
/// Source    https://github.com/huggingface/safetensors, README and safetensors/src/tensor.rs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <situ/core/scalar.hpp>
#include <situ/core/shape.hpp>
#include <situ/core/list.hpp>
#include <situ/io/detail/file.hpp>
#include <situ/io/detail/json.hpp>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "situ reads and writes safetensors files on little-endian hosts");

namespace situ::inline SITU_ABI {
namespace io {

/// Texts of any meaning that a file carries: pairs of a key and a value.
using Metadata = std::vector<std::pair<std::string, std::string>>;

}  // namespace io
namespace detail {

inline constexpr int64_t safetensors_max_header = 100'000'000;

/// An element type of the format. Those that situ has come first, in the order of dtype.
struct safetensors_type {
  char const* name;
  int bits;
};
inline constexpr safetensors_type safetensors_types[] = {
    {"F32", 32},    {"F64", 64},    {"F16", 16},    {"BF16", 16},  {"BOOL", 8},        {"I8", 8},          {"I16", 16}, {"I32", 32}, {"I64", 64}, {"U8", 8}, {"U16", 16},
    {"U32", 32},    {"U64", 64},    {"C64", 64},    {"F8_E5M2", 8}, {"F8_E4M3", 8},     {"F8_E8M0", 8},     {"F8_E4M3FNUZ", 8},      {"F8_E5M2FNUZ", 8},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
inline constexpr int safetensors_type_count = sizeof safetensors_types / sizeof safetensors_types[0];
inline constexpr int safetensors_own_types = 10;

constexpr char const* safetensors_name(dtype type) { return safetensors_types[static_cast<int>(type)].name; }
constexpr int64_t bytes_of_dtype(dtype type) { return safetensors_types[static_cast<int>(type)].bits / 8; }

/// Where a type stands among others in a file: the largest number first.
constexpr int safetensors_rank(dtype type) {
  constexpr int ranks[] = {/* F32 */ 7, /* F64 */ 8, /* F16 */ 4, /* BF16 */ 5, /* BOOL */ 0, /* I8 */ 2, /* I16 */ 3, /* I32 */ 6, /* I64 */ 9, /* U8 */ 1};
  return ranks[static_cast<int>(type)];
}

/// A tensor in a file. Its texts lie in the header's, or where who writes a file has them.
struct SafetensorsEntry {
  std::string_view name;
  std::string_view type;  ///< as it is written: "F32"
  int kind = -1;          ///< its place in safetensors_types; -1 for one that is not known
  int64_t axes = 0;       ///< how many there are: perhaps more than a Shape holds
  Shape shape;            ///< the first of them
  int64_t begin = 0;      ///< of its elements, from the end of the header on
  int64_t end = 0;

  bool is_own_type() const { return kind >= 0 && kind < safetensors_own_types; }
  situ::dtype dtype() const { return static_cast<situ::dtype>(kind); }
  int64_t bytes() const { return end - begin; }
};

/// A text under "__metadata__", and its key; each ends with a 0.
struct SafetensorsText {
  std::string_view first, second;
};

struct SafetensorsHeader {
  List<unsigned char> text;               ///< where all names lie
  List<SafetensorsEntry> entries;         ///< in the order of their elements
  List<SafetensorsEntry const*> by_name;  ///< the same in the order of their names
  List<SafetensorsText> metadata;
  int64_t data_begin = 0;

  SafetensorsHeader() = default;
  SafetensorsHeader(SafetensorsHeader&&) = default;
  SafetensorsHeader& operator=(SafetensorsHeader&&) = default;

  /// Null where there is none of that name.
  [[gnu::cold]] SafetensorsEntry const* find(std::string_view name) const {
    size_t first = 0, last = by_name.size();
    while (first < last) {
      size_t const middle = first + (last - first) / 2;
      int const order = by_name[middle]->name.compare(name);
      if (order == 0) return by_name[middle];
      if (order < 0) first = middle + 1;
      else last = middle;
    }
    return nullptr;
  }
  io::Metadata copy_metadata() const {
    io::Metadata result;
    for (SafetensorsText const& each : metadata) result.emplace_back(each.first, each.second);
    return result;
  }
};

/// The shape of an entry, for messages.
struct ShapeText {
  SafetensorsEntry const& entry;
};
SITU_REPORTS void append_to(MessageText& to, ShapeText const& x) {
  if (x.entry.axes > max_rank) add_to(to, "of ", x.entry.axes, " axes");
  else append_to(to, x.entry.shape);
}
inline ShapeText shape_text(SafetensorsEntry const& entry) { return {entry}; }

/// The length of the header, from the first eight bytes of a file of `file_size` bytes.
///
/// Throws    IoError if it is more than the format allows, or more than there is.
[[gnu::cold]] inline int64_t safetensors_header_length(unsigned char const* bytes, int64_t file_size, FileContext const& context) {
  if (file_size < 8) context.fail("the file is too short: ", file_size, " bytes found; a safetensors file begins with the 8 bytes of its header's length");
  uint64_t length;
  std::memcpy(&length, bytes, 8);
  if (length > static_cast<uint64_t>(safetensors_max_header)) {
    context.fail("is no safetensors file: its first 8 bytes say that the header is ", length, " bytes long; at most ", safetensors_max_header, " are allowed");
  }
  if (static_cast<int64_t>(length) > file_size - 8) {
    context.fail("the file ends inside its header: ", file_size, " bytes found; ", length + 8, " are needed");
  }
  return static_cast<int64_t>(length);
}

/// Reads the JSON of a header.
class SafetensorsReader {
 public:
  SafetensorsReader(SafetensorsHeader& header, FileContext const& context)
      : header_(header), json_(header.text.begin(), header.text.end(), 8, context), context_(context) {}

  [[gnu::cold]] void read() {
    bool has_metadata = false;
    json_.need('{', "the header is no JSON object", "'{'");
    for (bool first = true; json_.more('}', first, "the header cannot be read"); first = false) {
      std::string_view const name = json_.string("a name cannot be read");
      json_.need(':', "a name has no value", "':'");
      if (name != "__metadata__") {
        read_entry(name);
        continue;
      }
      if (has_metadata) context_.fail("\"__metadata__\" stands twice in the header; names are unique");
      has_metadata = true;
      read_metadata();
    }
    if (!json_.at_end()) json_.expected("the header goes on after its object", "nothing but spaces");
  }

 private:
  static constexpr char const* fields_[] = {"dtype", "shape", "data_offsets"};

  [[gnu::cold]] void read_metadata() {
    if (json_.take_null()) return;
    json_.need('{', "\"__metadata__\" is no JSON object", "'{'");
    for (bool first = true; json_.more('}', first, "\"__metadata__\" cannot be read"); first = false) {
      std::string_view const key = json_.string("a key of \"__metadata__\" cannot be read");
      json_.need(':', "a key of \"__metadata__\" has no value", "':'");
      header_.metadata.push_back({key, json_.string("a value of \"__metadata__\" is no text")});
    }
  }

  [[gnu::cold]] void read_entry(std::string_view name) {
    SafetensorsEntry entry;
    entry.name = name;
    unsigned found = 0;
    json_.need('{', "a tensor is no JSON object", "'{'");
    for (bool first = true; json_.more('}', first, "a tensor cannot be read"); first = false) {
      std::string_view const key = json_.string("a key of a tensor cannot be read");
      json_.need(':', "a key of a tensor has no value", "':'");
      int field = 0;
      while (field < 3 && key != fields_[field]) ++field;
      if (field < 3 && (found >> field & 1) != 0) fail(entry, "has \"", key, "\" twice; once is needed");
      found |= 1u << field;
      if (field == 0) read_type(entry);
      else if (field == 1) read_shape(entry);
      else if (field == 2) read_offsets(entry);
      else json_.skip_value();
    }
    for (int field = 0; field < 3; ++field) {
      if ((found >> field & 1) == 0) fail(entry, "has no \"", fields_[field], "\"; \"dtype\", \"shape\" and \"data_offsets\" are needed");
    }
    check(entry);
    header_.entries.push_back(entry);
  }
  [[gnu::cold]] void read_type(SafetensorsEntry& entry) {
    entry.type = json_.string("the dtype cannot be read");
    for (int k = 0; k < safetensors_type_count; ++k) {
      if (entry.type == safetensors_types[k].name) entry.kind = k;
    }
  }
  [[gnu::cold]] void read_offsets(SafetensorsEntry& entry) {
    constexpr char const* what = "data_offsets are no pair of offsets";
    json_.need('[', what, "'['");
    entry.begin = json_.count(what);
    json_.need(',', what, "','");
    entry.end = json_.count(what);
    json_.need(']', what, "']'");
  }
  /// As in the reference, an extent of 0 excuses those behind it: what is in front of it must be addressable.
  [[gnu::cold]] void read_shape(SafetensorsEntry& entry) {
    constexpr char const* what = "the shape is no list of sizes";
    json_.need('[', what, "'['");
    elements_ = 1;
    for (bool first = true; json_.more(']', first, what); first = false) {
      int64_t const extent = json_.count(what);
      if (entry.axes++ < max_rank) entry.shape.push_back(extent);
      too_large_ = too_large_ || __builtin_mul_overflow(elements_, extent, &elements_);
    }
  }
  [[gnu::cold]] void check(SafetensorsEntry const& entry) {
    if (entry.end < entry.begin) fail(entry, "ends before it begins: data_offsets [", entry.begin, ", ", entry.end, "] found; [begin, end] are needed");
    int64_t bits = 0;
    bool const too_large = std::exchange(too_large_, false) || __builtin_mul_overflow(elements_, entry.kind < 0 ? int64_t{1} : int64_t{safetensors_types[entry.kind].bits}, &bits);
    if (too_large) fail(entry, "is too large: shape ", shape_text(entry), " of ", quoted_name(entry.type), " found; fewer than 2^63 bits are needed");
    if (entry.kind < 0) return;  // of a type that is not known here, nothing more can be said
    if (bits % 8 != 0) fail(entry, "does not end with a byte: shape ", shape_text(entry), " of ", entry.type, " found; whole bytes are needed");
    if (bits / 8 != entry.bytes()) {
      fail(entry, "has another size than its shape: data_offsets [", entry.begin, ", ", entry.end, "] found; ", bits / 8, " bytes are needed for shape ", shape_text(entry), " of ", entry.type);
    }
  }
  template <class... Parts>
  [[noreturn]] SITU_INLINE void fail(SafetensorsEntry const& entry, Parts const&... parts) const {
    context_.fail("tensor ", quoted_name(entry.name), " ", parts...);
  }

  SafetensorsHeader& header_;
  JsonReader json_;
  FileContext context_;
  int64_t elements_ = 1;
  bool too_large_ = false;
};

/// Sorts pointers to X; `compare(a, b)` is called with two of them, as qsort calls it.
template <class X, class Compare>
void sort_pointers(List<X const*>& pointers, Compare) {
  bool sorted = true;  // as most are
  for (size_t k = 1; k < pointers.size() && sorted; ++k) sorted = Compare{}(*pointers[k - 1], *pointers[k]) <= 0;
  if (sorted) return;
  std::qsort(pointers.data(), pointers.size(), sizeof(X const*),
             [](void const* a, void const* b) { return Compare{}(**static_cast<X const* const*>(a), **static_cast<X const* const*>(b)); });
}

/// In the order of their elements, for std::qsort.
inline int compare_entries(void const* left, void const* right) {
  auto const &a = *static_cast<SafetensorsEntry const*>(left), &b = *static_cast<SafetensorsEntry const*>(right);
  if (a.begin != b.begin) return a.begin < b.begin ? -1 : 1;
  if (a.end != b.end) return a.end < b.end ? -1 : 1;
  return a.name.compare(b.name);
}

/// Reads a header of `length` bytes, and compares it with the size of the file.
///
/// Throws    IoError as `<who>: <file>: what is wrong: found; needed`. What is allocated is a small multiple of `length`.
[[gnu::cold]] inline SafetensorsHeader parse_safetensors_header(unsigned char const* bytes, int64_t length, int64_t file_size, FileContext const& context) {
  auto const size = static_cast<size_t>(length);
  constexpr char const *no_file = "is no safetensors file: ", *needed = " found; a JSON object is needed, which begins with '{'";
  if (size == 0) context.fail(no_file, "an empty header", needed);
  if (bytes[0] != '{') context.fail(no_file, "a header that begins with ", quote_bytes(bytes, size < 8 ? size : 8), needed);
  size_t const wrong = first_not_utf8(bytes, size);
  if (wrong < size) {
    context.fail("the header is not UTF-8: ", quote_bytes(bytes + wrong, size - wrong < 4 ? size - wrong : 4), " found at byte ", 8 + wrong, "; UTF-8 is needed");
  }
  SafetensorsHeader header;
  header.data_begin = 8 + length;
  header.text.resize(size);
  std::memcpy(header.text.data(), bytes, size);
  SafetensorsReader(header, context).read();

  List<std::string_view> names;
  for (SafetensorsText const& each : header.metadata) names.push_back(each.first);
  if (std::string_view const* const twice = sort_names(names)) context.fail("key ", quoted_name(*twice), " stands twice in \"__metadata__\"; keys are unique");

  List<SafetensorsEntry>& entries = header.entries;
  if (!entries.empty()) std::qsort(entries.data(), entries.size(), sizeof(SafetensorsEntry), &compare_entries);
  int64_t end = 0;
  for (SafetensorsEntry const& entry : entries) {
    if (entry.begin != end) {
      context.fail("tensor ", quoted_name(entry.name), " does not begin where the one in front of it ends: at byte ", entry.begin, " of the data; ", end, " is needed");
    }
    end = entry.end;
    header.by_name.push_back(&entry);
  }
  sort_pointers<SafetensorsEntry>(header.by_name, [](SafetensorsEntry const& a, SafetensorsEntry const& b) { return a.name.compare(b.name); });
  for (size_t k = 1; k < entries.size(); ++k) {
    if (header.by_name[k]->name == header.by_name[k - 1]->name) context.fail("tensor ", quoted_name(header.by_name[k]->name), " stands twice in the header; names are unique");
  }
  int64_t const found = file_size - header.data_begin;
  if (found != end) context.fail("the data are ", found < end ? "shorter" : "longer", " than the header says: ", found, " bytes found; ", end, " are needed");
  return header;
}

/// Appends a name or a text of the metadata. Throws IoError where it is not UTF-8.
[[gnu::cold]] inline void append_checked(MessageText& to, char const* what, std::string_view text, FileContext const& context) {
  if (first_not_utf8(reinterpret_cast<unsigned char const*>(text.data()), text.size()) < text.size()) {
    context.fail(what, quote_bytes(text), " is not UTF-8; UTF-8 is needed");
  }
  append_json_string(to, text);
}

/// What stands before the elements, byte for byte as the reference writes it: `entries` are in the order of the file, their offsets are set here.
///
/// Throws    IoError for names that are not UTF-8, are "__metadata__" or not unique, and for a header longer than the format allows.
[[gnu::cold]] inline std::string safetensors_preamble(List<SafetensorsEntry>& entries, io::Metadata const& metadata, FileContext const& context) {
  MessageText header;
  header.add_spaces(8);  // for its length
  header.add(metadata.empty() ? "{" : "{\"__metadata__\":{");
  List<std::string_view> keys;
  for (auto const& pair : metadata) {
    if (!keys.empty()) header.add(",");
    append_checked(header, "the key ", pair.first, context);
    header.add(":");
    append_checked(header, "the text ", pair.second, context);
    keys.push_back(pair.first);
  }
  if (std::string_view const* const twice = sort_names(keys)) context.fail("key ", quoted_name(*twice), " of the metadata was given twice; keys are unique");
  if (!keys.empty()) header.add("}");
  int64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    if (header.size() > 9) header.add(",");
    if (entry.name == "__metadata__") context.fail("a tensor cannot be called \"__metadata__\": the format keeps the metadata under that name");
    entry.begin = end;
    if (__builtin_add_overflow(end, product(entry.shape) * bytes_of_dtype(entry.dtype()), &end)) context.fail("the tensors are too large: fewer than 2^63 bytes are needed");
    entry.end = end;
    append_checked(header, "the name ", entry.name, context);
    add_to(header, ":{\"dtype\":\"", safetensors_name(entry.dtype()), "\",\"shape\":[");
    for (int k = 0; k < entry.shape.rank(); ++k) add_to(header, k > 0 ? "," : "", entry.shape[k]);
    add_to(header, "],\"data_offsets\":[", entry.begin, ",", entry.end, "]}");
  }
  header.add("}");
  header.add_spaces((8 - header.size() % 8) % 8);
  uint64_t const length = header.size() - 8;
  if (length > static_cast<uint64_t>(safetensors_max_header)) {
    context.fail("the header would be too long: ", length, " bytes of names and shapes; at most ", safetensors_max_header, " are allowed");
  }
  std::string result = header.whole();
  std::memcpy(result.data(), &length, 8);
  return result;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
