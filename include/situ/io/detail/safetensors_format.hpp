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

/// A tensor in a file.
struct SafetensorsEntry {
  std::string name;
  std::string type;    ///< as it is written: "F32"
  int kind = -1;       ///< its place in safetensors_types; -1 for one that is not known
  int64_t axes = 0;    ///< how many there are: perhaps more than a Shape holds
  Shape shape;         ///< the first of them
  int64_t begin = 0;   ///< of its elements, from the end of the header on
  int64_t end = 0;

  bool is_own_type() const { return kind >= 0 && kind < safetensors_own_types; }
  situ::dtype dtype() const { return static_cast<situ::dtype>(kind); }
  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  List<SafetensorsEntry> entries;         ///< in the order of their elements
  List<SafetensorsEntry const*> by_name;  ///< the same in the order of their names
  io::Metadata metadata;
  int64_t data_begin = 0;

  SafetensorsHeader() = default;
  SafetensorsHeader(SafetensorsHeader&&) = default;
  SafetensorsHeader& operator=(SafetensorsHeader&&) = default;

  /// Null where there is none of that name.
  SafetensorsEntry const* find(std::string_view name) const {
    size_t first = 0, last = by_name.size();
    while (first < last) {
      size_t const middle = first + (last - first) / 2;
      if (std::string_view(by_name[middle]->name) < name) first = middle + 1;
      else last = middle;
    }
    return first < by_name.size() && by_name[first]->name == name ? by_name[first] : nullptr;
  }
};

/// The length of the header, from the first eight bytes of a file of `file_size` bytes.
///
/// Throws    IoError if it is more than the format allows, or more than there is.
[[gnu::cold]] inline int64_t safetensors_header_length(unsigned char const* bytes, int64_t file_size, FileContext const& context) {
  if (file_size < 8) context.fail({"the file is too short: ", file_size, " bytes found; a safetensors file begins with the 8 bytes of its header's length"});
  uint64_t length;
  std::memcpy(&length, bytes, 8);
  if (length > static_cast<uint64_t>(safetensors_max_header)) {
    context.fail({"is no safetensors file: its first 8 bytes say that the header is ", std::to_string(length), " bytes long; at most ", safetensors_max_header, " are allowed"});
  }
  if (static_cast<int64_t>(length) > file_size - 8) {
    context.fail({"the file ends inside its header: ", file_size, " bytes found; ", length + 8, " are needed"});
  }
  return static_cast<int64_t>(length);
}

/// Reads the JSON of a header.
class SafetensorsReader {
 public:
  SafetensorsReader(unsigned char const* header, int64_t length, FileContext const& context)
      : json_(header, header + length, 8, context), context_(context) {}

  [[gnu::cold]] void read(SafetensorsHeader& header) {
    bool has_metadata = false;
    json_.need('{', "the header is no JSON object", "'{'");
    for (bool first = true; json_.more('}', first, "the header cannot be read"); first = false) {
      std::string name = json_.string("a name cannot be read");
      json_.need(':', "a name has no value", "':'");
      if (name != "__metadata__") {
        header.entries.push_back(read_entry(static_cast<std::string&&>(name)));
        continue;
      }
      if (has_metadata) context_.fail("\"__metadata__\" stands twice in the header; names are unique");
      has_metadata = true;
      read_metadata(header.metadata);
    }
    if (!json_.at_end()) json_.expected("the header goes on after its object", "nothing but spaces");
  }

 private:
  [[gnu::cold]] void read_metadata(io::Metadata& metadata) {
    if (json_.take_null()) return;
    json_.need('{', "\"__metadata__\" is no JSON object", "'{'");
    List<std::pair<std::string, std::string>> pairs;
    for (bool first = true; json_.more('}', first, "\"__metadata__\" cannot be read"); first = false) {
      std::string key = json_.string("a key of \"__metadata__\" cannot be read");
      json_.need(':', "a key of \"__metadata__\" has no value", "':'");
      pairs.push_back({static_cast<std::string&&>(key), json_.string("a value of \"__metadata__\" is no text")});
    }
    io::Metadata(std::as_const(pairs).begin(), std::as_const(pairs).end()).swap(metadata);
  }

  [[gnu::cold]] SafetensorsEntry read_entry(std::string&& name) {
    SafetensorsEntry entry;
    entry.name = static_cast<std::string&&>(name);
    bool has_type = false, has_shape = false, has_offsets = false;
    json_.need('{', "a tensor is no JSON object", "'{'");
    for (bool first = true; json_.more('}', first, "a tensor cannot be read"); first = false) {
      std::string const key = json_.string("a key of a tensor cannot be read");
      json_.need(':', "a key of a tensor has no value", "':'");
      if (key == "dtype") {
        once(has_type, entry, key);
        entry.type = json_.string("the dtype cannot be read");
        for (int k = 0; k < safetensors_type_count; ++k) {
          if (entry.type == safetensors_types[k].name) entry.kind = k;
        }
      } else if (key == "shape") {
        once(has_shape, entry, key);
        read_shape(entry);
      } else if (key == "data_offsets") {
        once(has_offsets, entry, key);
        constexpr char const* what = "data_offsets are no pair of offsets";
        json_.need('[', what, "'['");
        entry.begin = json_.count(what);
        json_.need(',', what, "','");
        entry.end = json_.count(what);
        json_.need(']', what, "']'");
      } else {
        json_.skip_value();
      }
    }
    if (!has_type || !has_shape || !has_offsets) {
      fail(entry, message({"has no \"", !has_type ? "dtype" : !has_shape ? "shape" : "data_offsets", "\"; \"dtype\", \"shape\" and \"data_offsets\" are needed"}));
    }
    check(entry);
    return entry;
  }
  [[gnu::cold]] void once(bool& found, SafetensorsEntry const& entry, std::string const& key) {
    if (std::exchange(found, true)) fail(entry, message({"has \"", key, "\" twice; once is needed"}));
  }
  /// As in the reference, an extent of 0 excuses those behind it: what is in front of it must be addressable.
  [[gnu::cold]] void read_shape(SafetensorsEntry& entry) {
    constexpr char const* what = "the shape is no list of sizes";
    json_.need('[', what, "'['");
    int64_t elements = 1;
    for (bool first = true; json_.more(']', first, what); first = false) {
      int64_t const extent = json_.count(what);
      if (entry.axes++ < max_rank) entry.shape.push_back(extent);
      too_large_ = too_large_ || __builtin_mul_overflow(elements, extent, &elements);
    }
    elements_ = elements;
  }
  [[gnu::cold]] void check(SafetensorsEntry const& entry) {
    if (entry.end < entry.begin) fail(entry, message({"ends before it begins: data_offsets [", entry.begin, ", ", entry.end, "] found; [begin, end] are needed"}));
    int64_t bits = 0;
    bool const too_large = std::exchange(too_large_, false) || __builtin_mul_overflow(elements_, entry.kind < 0 ? int64_t{1} : int64_t{safetensors_types[entry.kind].bits}, &bits);
    if (too_large) fail(entry, message({"is too large: shape ", shape_text(entry), " of ", quoted_name(entry.type), " found; fewer than 2^63 bits are needed"}));
    if (entry.kind < 0) return;  // of a type that is not known here, nothing more can be said
    if (bits % 8 != 0) fail(entry, message({"does not end with a byte: shape ", shape_text(entry), " of ", entry.type, " found; whole bytes are needed"}));
    if (bits / 8 != entry.bytes()) {
      fail(entry, message({"has another size than its shape: data_offsets [", entry.begin, ", ", entry.end, "] found; ", bits / 8, " bytes are needed for shape ", shape_text(entry), " of ",
                       entry.type}));
    }
  }
  [[noreturn]] SITU_NOINLINE void fail(SafetensorsEntry const& entry, std::string const& what) const { context_.fail("tensor " + quoted_name(entry.name) + " " + what); }

  static std::string shape_text(SafetensorsEntry const& entry) { return entry.axes > max_rank ? message({"of ", entry.axes, " axes"}) : to_string(entry.shape); }

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

/// Reads a header of `length` bytes, and compares it with the size of the file.
///
/// Throws    IoError as `<who>: <file>: what is wrong: found; needed`. What is allocated is a small multiple of `length`.
[[gnu::cold]] inline SafetensorsHeader parse_safetensors_header(unsigned char const* bytes, int64_t length, int64_t file_size, FileContext const& context) {
  SafetensorsHeader header;
  header.data_begin = 8 + length;
  if (length == 0 || bytes[0] != '{') {
    context.fail({"is no safetensors file: ", length == 0 ? "an empty header" : "a header that begins with " + quote_bytes(bytes, length < 8 ? static_cast<size_t>(length) : 8),
                      " found; a JSON object is needed, which begins with '{'"});
  }
  size_t const wrong = first_not_utf8(bytes, static_cast<size_t>(length));
  if (wrong < static_cast<size_t>(length)) {
    size_t const rest = static_cast<size_t>(length) - wrong;
    context.fail({"the header is not UTF-8: ", quote_bytes(bytes + wrong, rest < 4 ? rest : 4), " found at byte ", 8 + wrong, "; UTF-8 is needed"});
  }
  SafetensorsHeader raw;
  SafetensorsReader(bytes, length, context).read(raw);
  header.metadata.swap(raw.metadata);

  List<std::pair<std::string, std::string> const*> keys;
  for (auto const& pair : header.metadata) keys.push_back(&pair);
  sort_pointers<std::pair<std::string, std::string>>(keys, [](auto const& a, auto const& b) { return a.first.compare(b.first); });
  for (size_t k = 1; k < keys.size(); ++k) {
    if (keys[k]->first == keys[k - 1]->first) context.fail({"key ", quoted_name(keys[k]->first), " stands twice in \"__metadata__\"; keys are unique"});
  }

  List<SafetensorsEntry const*> order;
  order.reserve(raw.entries.size());
  for (SafetensorsEntry const& entry : raw.entries) order.push_back(&entry);
  sort_pointers<SafetensorsEntry>(order, [](SafetensorsEntry const& a, SafetensorsEntry const& b) {
    if (a.begin != b.begin) return a.begin < b.begin ? -1 : 1;
    if (a.end != b.end) return a.end < b.end ? -1 : 1;
    return a.name.compare(b.name);
  });
  header.entries.reserve(order.size());
  int64_t end = 0;
  for (SafetensorsEntry const* const entry : order) {
    if (entry->begin != end) {
      context.fail({"tensor ", quoted_name(entry->name), " does not begin where the one in front of it ends: at byte ", entry->begin, " of the data; ", end, " is needed"});
    }
    end = entry->end;
    header.entries.push_back(static_cast<SafetensorsEntry&&>(const_cast<SafetensorsEntry&>(*entry)));
  }
  header.by_name.reserve(order.size());
  for (SafetensorsEntry const& entry : header.entries) header.by_name.push_back(&entry);
  sort_pointers<SafetensorsEntry>(header.by_name, [](SafetensorsEntry const& a, SafetensorsEntry const& b) { return a.name.compare(b.name); });
  for (size_t k = 1; k < header.by_name.size(); ++k) {
    if (header.by_name[k]->name == header.by_name[k - 1]->name) context.fail({"tensor ", quoted_name(header.by_name[k]->name), " stands twice in the header; names are unique"});
  }
  if (end != file_size - header.data_begin) {
    context.fail({"the data are ", file_size - header.data_begin < end ? "shorter" : "longer", " than the header says: ", file_size - header.data_begin, " bytes found; ", end, " are needed"});
  }
  return header;
}

/// Appends a shape as serde_json writes it: `[2,3]`.
[[gnu::cold]] inline void append_json_shape(std::string& to, Shape const& shape) {
  to += '[';
  for (int k = 0; k < shape.rank(); ++k) {
    if (k > 0) to += ',';
    append(to, shape[k]);
  }
  to += ']';
}

/// What stands before the elements, byte for byte as the reference writes it: `entries` are in the order of the file, their offsets are set here.
///
/// Throws    IoError for names that are not UTF-8, are "__metadata__" or not unique, and for a header longer than the format allows.
[[gnu::cold]] inline std::string safetensors_preamble(List<SafetensorsEntry>& entries, io::Metadata const& metadata, FileContext const& context) {
  auto const checked = [&](std::string const& name) -> std::string const& {
    if (first_not_utf8(reinterpret_cast<unsigned char const*>(name.data()), name.size()) < name.size()) {
      context.fail({"the name ", quote_bytes(reinterpret_cast<unsigned char const*>(name.data()), name.size()), " is not UTF-8; UTF-8 is needed"});
    }
    return name;
  };
  std::string header(8, '\0');
  header += '{';
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (auto const& pair : metadata) {
      if (&pair != metadata.data()) header += ',';
      append_json_string(header, checked(pair.first));
      header += ':';
      append_json_string(header, checked(pair.second));
      for (auto const* earlier = metadata.data(); earlier != &pair; ++earlier) {
        if (earlier->first == pair.first) context.fail({"key ", quoted_name(pair.first), " of the metadata was given twice; keys are unique"});
      }
    }
    header += '}';
  }
  int64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    if (header.size() > 9) header += ',';
    if (entry.name == "__metadata__") context.fail("a tensor cannot be called \"__metadata__\": the format keeps the metadata under that name");
    entry.begin = end;
    if (__builtin_add_overflow(end, product(entry.shape) * bytes_of_dtype(entry.dtype()), &end)) context.fail("the tensors are too large: fewer than 2^63 bytes are needed");
    entry.end = end;
    append_json_string(header, checked(entry.name));
    header.append(":{\"dtype\":\"").append(safetensors_name(entry.dtype())).append("\",\"shape\":");
    append_json_shape(header, entry.shape);
    header += message({",\"data_offsets\":[", entry.begin, ",", entry.end, "]}"});
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  uint64_t const length = header.size() - 8;
  if (length > static_cast<uint64_t>(safetensors_max_header)) {
    context.fail({"the header would be too long: ", length, " bytes of names and shapes; at most ", safetensors_max_header, " are allowed"});
  }
  std::memcpy(header.data(), &length, 8);
  return header;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
