/// Tensors as text, by PyTorch's rules: what `std::cout << x` prints.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include <situ/config.hpp>
#include <situ/core/scalar.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// PyTorch's default print options.
namespace print_options {
inline constexpr int digits = 4;            // behind the point
inline constexpr int line_width = 80;       // of elements, and of the last line with its suffixes
inline constexpr int64_t threshold = 1000;  // more elements than this are summarised
inline constexpr int64_t edge = 3;          // kept at each end of an axis that is summarised
}  // namespace print_options

// Printing is never hot: `cold` functions are compiled for size, and these two stay calls, so that a program that
// prints pays little for it in compile time.
[[gnu::cold]] SITU_NOINLINE inline void put(std::string& out, char const* text) { out.append(text); }
[[gnu::cold]] SITU_NOINLINE inline void put(std::string& out, char c, int count) {
  out.append(static_cast<std::size_t>(count), c);
}

/// The bits of a float as those of the same double. No arithmetic touches subnormals, infinities and NaN, which
/// floating-point flags may flush or assume away.
[[gnu::cold]] inline uint64_t widened(uint32_t bits) {
  uint64_t const sign = static_cast<uint64_t>(bits >> 31) << 63, fraction = bits & 0x007fffffu;
  uint64_t const exponent = (bits >> 23) & 0xffu;
  if (exponent == 0) return sign | bits_to<uint64_t>(static_cast<double>(fraction) * 0x1p-149);
  return sign | (exponent == 0xff ? uint64_t{0x7ff} : exponent + (1023 - 127)) << 52 | fraction << 29;
}

/// Element i of a floating type, as the bits of a double.
[[gnu::cold]] inline uint64_t real_bits_at(dtype type, void const* data, int64_t i) {
  if (type == dtype::float64) {
    uint64_t bits;
    __builtin_memcpy(&bits, static_cast<double const*>(data) + i, sizeof bits);
    return bits;
  }
  uint32_t bits;
  if (type == dtype::float16) {
    uint16_t const half = static_cast<float16 const*>(data)[i].bits;
    bool const finite = (half & 0x7c00u) != 0x7c00u;
    bits = finite ? bits_to<uint32_t>(half_value(half)) : (half & 0x8000u) << 16 | 0x7f800000u | (half & 0x3ffu) << 13;
  } else if (type == dtype::bfloat16) {
    bits = static_cast<uint32_t>(static_cast<bfloat16 const*>(data)[i].bits) << 16;
  } else {
    __builtin_memcpy(&bits, static_cast<float const*>(data) + i, sizeof bits);
  }
  return widened(bits);
}

[[gnu::cold]] inline int64_t integer_at(dtype type, void const* data, int64_t i) {
  switch (type) {
    case dtype::boolean: return static_cast<unsigned char const*>(data)[i] != 0;
    case dtype::uint8: return static_cast<uint8_t const*>(data)[i];
    case dtype::int8: return static_cast<int8_t const*>(data)[i];
    case dtype::int16: return static_cast<int16_t const*>(data)[i];
    case dtype::int32: return static_cast<int32_t const*>(data)[i];
    default: return static_cast<int64_t const*>(data)[i];
  }
}

inline constexpr int number_room = 352;  // for any double, written out

/// A finite number with `precision` digits behind the point, which is a point whatever the locale's is; returns the
/// length.
[[gnu::cold]] inline int write_decimal(char* buffer, double value, int precision, bool scientific) {
  int const length = scientific ? std::snprintf(buffer, number_room, "%.*e", precision, value)
                                : std::snprintf(buffer, number_room, "%.*f", precision, value);
  if (precision == 0) return length;
  auto const is_digit = [](char c) { return c >= '0' && c <= '9'; };
  int from = 0;
  while (is_digit(buffer[from]) || buffer[from] == '-') ++from;
  int to = from;
  while (from < length && !is_digit(buffer[from])) ++from;
  buffer[to++] = '.';
  while (from < length) buffer[to++] = buffer[from++];
  buffer[to] = '\0';
  return to;
}

/// The elements of one tensor in host memory, all in the same notation and width. Without strides it is contiguous.
class PrintedElements {
 public:
  [[gnu::cold]] PrintedElements(dtype type, void const* data, int rank, int64_t const* sizes, int64_t const* strides)
      : type_(type), data_(data), rank_(rank), sizes_(sizes), strides_(strides) {
    uint64_t count = 1;  // may wrap where an extent is 0
    for (int dim = 0; dim < rank; ++dim) count *= static_cast<uint64_t>(sizes[dim]);
    count_ = static_cast<int64_t>(count);
    summarised_ = count_ > print_options::threshold;
    if (count_ == 0) return;
    if (is_real()) {
      for_each_shown(0, 0, &PrintedElements::see_range);
      if (max_bits_ == 0) return;  // nothing but zeros and what is not finite
      double const low = bits_to<double>(min_bits_), high = bits_to<double>(max_bits_);
      scientific_ = high > 1e8 || (!whole_ && low < 1e-4) || high / low > 1000.0;
    }
    for_each_shown(0, 0, &PrintedElements::see_width);
  }

  int64_t count() const { return count_; }

  /// Appends the elements in their brackets; `indent` is the column they begin in.
  [[gnu::cold]] void write(std::string& out, int indent) const {
    if (count_ == 0) put(out, "[]");
    else write(out, 0, 0, indent);
  }

 private:
  static constexpr uint64_t magnitude_mask = ~uint64_t{0} >> 1;
  static constexpr uint64_t infinity_bits = uint64_t{0x7ff} << 52;

  bool is_real() const {
    return type_ == dtype::float32 || type_ == dtype::float64 || type_ == dtype::float16 || type_ == dtype::bfloat16;
  }

  // An axis of n is shown as `shown(n)` items: all its elements, or both ends and an ellipsis between them.
  bool cuts(int64_t n) const { return summarised_ && n > 2 * print_options::edge; }
  int64_t shown(int64_t n) const { return cuts(n) ? 2 * print_options::edge + 1 : n; }

  /// The index of an item, −1 for the ellipsis.
  int64_t index(int64_t n, int64_t item) const {
    if (!cuts(n) || item < print_options::edge) return item;
    return item == print_options::edge ? -1 : n - shown(n) + item;
  }

  /// The number of elements in one step along `dim`.
  [[gnu::cold]] int64_t stride(int dim) const {
    if (strides_) return strides_[dim];
    int64_t product = 1;
    while (++dim < rank_) product *= sizes_[dim];
    return product;
  }

  [[gnu::cold]] void for_each_shown(int dim, int64_t offset, void (PrintedElements::*visit)(int64_t)) {
    if (dim == rank_) return (this->*visit)(offset);
    int64_t const n = sizes_[dim], step = stride(dim);
    for (int64_t item = 0; item < shown(n); ++item) {
      int64_t const i = index(n, item);
      if (i >= 0) for_each_shown(dim + 1, offset + i * step, visit);
    }
  }

  /// The bits of |x|, which order as the magnitudes do.
  uint64_t magnitude_bits(int64_t i) const { return real_bits_at(type_, data_, i) & magnitude_mask; }

  [[gnu::cold]] void see_range(int64_t i) {
    uint64_t const bits = magnitude_bits(i);
    if (bits == 0 || bits >= infinity_bits) return;
    if (bits < min_bits_) min_bits_ = bits;
    if (bits > max_bits_) max_bits_ = bits;
    double const magnitude = bits_to<double>(bits);
    if (magnitude < 1.0) whole_ = false;
    else if (magnitude < 0x1p53 && static_cast<double>(static_cast<int64_t>(magnitude)) != magnitude) whole_ = false;
  }

  /// Zeros, infinities and NaN have no say in the width of a column, as in PyTorch.
  [[gnu::cold]] void see_width(int64_t i) {
    if (is_real()) {
      uint64_t const bits = magnitude_bits(i);
      if (bits == 0 || bits >= infinity_bits) return;
    }
    char buffer[number_room];
    int const length = spell(buffer, i);
    if (length > width_) width_ = length;
  }

  /// Element i without padding, into number_room characters; returns the length.
  [[gnu::cold]] int spell(char* buffer, int64_t i) const {
    char const* word = nullptr;
    if (is_real()) {
      uint64_t const bits = real_bits_at(type_, data_, i), magnitude = bits & magnitude_mask;
      if (magnitude < infinity_bits) {
        double const value = bits_to<double>(bits);
        if (scientific_ || !whole_) return write_decimal(buffer, value, print_options::digits, scientific_);
        int const length = write_decimal(buffer, value, 0, false);
        buffer[length] = '.';
        buffer[length + 1] = '\0';
        return length + 1;
      }
      word = magnitude > infinity_bits ? "nan" : bits == magnitude ? "inf" : "-inf";
    } else {
      int64_t const value = integer_at(type_, data_, i);
      if (type_ != dtype::boolean) return std::snprintf(buffer, number_room, "%lld", static_cast<long long>(value));
      word = value != 0 ? "True" : "False";
    }
    return std::snprintf(buffer, number_room, "%s", word);
  }

  [[gnu::cold]] void write_element(std::string& out, int64_t i) const {
    char buffer[number_room];
    int const length = spell(buffer, i);
    if (length < width_) put(out, ' ', width_ - length);
    put(out, buffer);
  }

  /// Axis `dim` and those within it. The innermost runs along the line and is broken after as many columns as fit;
  /// the others have one line end less than there are axes left.
  [[gnu::cold]] void write(std::string& out, int dim, int64_t offset, int indent) const {
    if (dim == rank_) return write_element(out, offset);
    bool const row = dim == rank_ - 1;
    int64_t const n = sizes_[dim], step = stride(dim);
    int const fit = (print_options::line_width - indent) / (width_ + 2);
    int column = 0;
    put(out, "[");
    for (int64_t item = 0; item < shown(n); ++item) {
      if (item > 0) {
        put(out, ",");
        if (row && column < fit) {
          put(out, " ");
        } else {
          put(out, '\n', row ? 1 : rank_ - dim - 1);
          put(out, ' ', indent + 1);
          column = 0;
        }
      }
      ++column;
      int64_t const i = index(n, item);
      if (i < 0) put(out, row ? " ..." : "...");
      else write(out, dim + 1, offset + i * step, indent + 1);
    }
    put(out, "]");
  }

  dtype type_;
  void const* data_;
  int rank_;
  int64_t const* sizes_;
  int64_t const* strides_;
  int64_t count_;
  bool summarised_ = false;
  bool whole_ = true;  // floats that are all integers: "3."
  bool scientific_ = false;
  uint64_t min_bits_ = ~uint64_t{0}, max_bits_ = 0;  // of the finite magnitudes above zero
  int width_ = 1;
};

/// Appends `, suffix`, on a new line where it would not fit; `column` is how PyTorch counts the last line, with what it writes there besides.
[[gnu::cold]] SITU_NOINLINE inline void put_suffix(std::string& out, int indent, int& column, char const* suffix, char const* besides = "") {
  int const length = static_cast<int>(__builtin_strlen(suffix) + __builtin_strlen(besides));
  if (column + length + 2 > print_options::line_width) {
    put(out, ",\n");
    put(out, ' ', indent);
    column = indent + length;
  } else {
    put(out, ", ");
    column += length + 2;
  }
  put(out, suffix);
}

[[gnu::cold]] inline std::string format_tensor(dtype type, void const* data, int rank, int64_t const* sizes, int64_t const* strides,
                                               std::string const& device, std::vector<std::string> const& suffixes) {
  std::string out, suffix;
  put(out, "tensor(");
  int const indent = static_cast<int>(out.size());
  PrintedElements const elements(type, data, rank, sizes, strides);
  elements.write(out, indent);

  std::size_t const last_break = out.rfind('\n');
  int column = static_cast<int>(last_break == std::string::npos ? out.size() + 2 : out.size() - last_break + 1);
  if (!device.empty()) {
    put(suffix, "device='");
    put(suffix, device.c_str());
    put(suffix, "'");
    put_suffix(out, indent, column, suffix.c_str());
  }
  bool names_type = type != dtype::float32;
  if (elements.count() > 0) {
    names_type = names_type && type != dtype::int64 && type != dtype::boolean;
  } else if (rank != 1) {  // "[]" alone says neither shape nor type
    suffix.clear();
    for (int dim = 0; dim < rank; ++dim) {
      char buffer[32];
      std::snprintf(buffer, sizeof buffer, "%s%lld", dim == 0 ? "size=(" : ", ", static_cast<long long>(sizes[dim]));
      put(suffix, buffer);
    }
    put(suffix, ")");
    put_suffix(out, indent, column, suffix.c_str());
  }
  if (names_type) {
    suffix.clear();
    put(suffix, "dtype=");
    put(suffix, name(type));
    put_suffix(out, indent, column, suffix.c_str(), "torch.");
  }
  for (std::string const& extra : suffixes) put_suffix(out, indent, column, extra.c_str());
  put(out, ")");
  return out;
}

/// A tensor as PyTorch prints it, line by line, but that a dtype is written without `torch.`: `dtype=float64`.
///
/// `data` is in host memory, contiguous and row-major unless `strides` are given; only what is printed is read. `device` is
/// empty for the host, else `cuda:0`; `suffixes` are further texts such as `requires_grad=True`, in the order given.
///
///     [1.5, 2]     →  tensor([1.5000, 2.0000])
///     shape (0, 3) →  tensor([], size=(0, 3))
template <element T>
std::string format_tensor(T const* data, int rank, int64_t const* sizes, std::string const& device,
                          std::vector<std::string> const& suffixes = {}, int64_t const* strides = nullptr) {
  return format_tensor(dtype_of<T>, data, rank, sizes, strides, device, suffixes);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
