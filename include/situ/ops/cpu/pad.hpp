/// Padding on the CPU: planes with a constant around them, a few rows at a time while they are in the nearest cache.
#pragma once

#include <situ/expr/cpu/launch.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Items are the rows of planes that are `padded_rows` high: those before `top`, and behind `rows` of the input, are made of `value` alone, and so is
/// what stands around each of the others. Lengths of rows in bytes.
struct PadPlanesKernel {
  static constexpr char const* operation = "pad";
  static constexpr int64_t chunk = 16384;  ///< bytes
  char* to;
  char const* from;
  unsigned char value[8];  ///< of `size` bytes
  int size;
  int64_t top, rows, padded_rows;
  int64_t left, row, padded_row;

  int64_t elements(int64_t items) const { return items * (padded_row / size); }
  void operator()(int64_t first, int64_t last) const {
    int64_t const most = padded_row < chunk ? chunk / padded_row : 1;
    while (first < last) {
      int64_t const plane = first / padded_rows, begin = first % padded_rows;
      int64_t const count = smaller(smaller(padded_rows - begin, last - first), most);
      char* const at = to + first * padded_row;
      fill(at, count * padded_row);
      int64_t const begun = begin < top ? top : begin, end = smaller(begin + count, top + rows);
      if (begun < end) copy_rows(at + (begun - begin) * padded_row + left, padded_row, from + (plane * rows + begun - top) * row, row, end - begun, row);
      first += count;
    }
  }

 private:
  void fill(char* at, int64_t bytes) const {
    if (bytes >= 64) return splat_rows(at, 0, reinterpret_cast<char const*>(value), 0, size, 1, bytes);
    for (int64_t k = 0; k < bytes; k += size) std::memcpy(at + k, value, static_cast<std::size_t>(size));
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
