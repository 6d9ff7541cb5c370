/// Sort keys: every element type mapped to unsigned integers that stand in the same order.
///
/// -0.0 and 0.0 have one key, and so have all NaN, which come last: sorting keys stably sorts elements as NumPy and
/// PyTorch do. Only bits are looked at, so that it holds under -ffast-math too.
#pragma once

#include <situ/core/scalar.hpp>
#include <situ/expr/pack.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class T>
using sort_key_t = unsigned_of_size<T>;

/// The constants of a type's keys, as variables that device code may read.
template <class T>
inline constexpr sort_key_t<T> sign_bit = static_cast<sort_key_t<T>>(std::is_same_v<T, bool> || std::is_same_v<T, uint8_t> ? 0 : sort_key_t<T>(1) << (8 * sizeof(T) - 1));
template <class T>
inline constexpr sort_key_t<T> infinity_bits = static_cast<sort_key_t<T>>(std::is_same_v<T, double>     ? 0x7ff0000000000000u
                                                                           : std::is_same_v<T, float>    ? 0x7f800000u
                                                                           : std::is_same_v<T, bfloat16> ? 0x7f80u
                                                                                                         : 0x7c00u);
template <class T>
inline constexpr sort_key_t<T> nan_key = static_cast<sort_key_t<T>>(~sort_key_t<T>(0));
template <class T>
inline constexpr sort_key_t<T> zero_key = sign_bit<T>;

/// The key of one element.
template <class T>
SITU_HOST_DEVICE inline sort_key_t<T> sort_key(T x) {
  using K = sort_key_t<T>;
  K const bits = bits_to<K>(x);
  if constexpr (floating<T>) {
    K const magnitude = static_cast<K>(bits & static_cast<K>(~sign_bit<T>));
    if (magnitude > infinity_bits<T>) return nan_key<T>;
    if (magnitude == 0) return zero_key<T>;
    return (bits & sign_bit<T>) != 0 ? static_cast<K>(~bits) : static_cast<K>(bits | sign_bit<T>);
  } else {
    return static_cast<K>(bits ^ sign_bit<T>);
  }
}

/// An element that has this key: +0.0 of the zeros, one of the NaN.
template <class T>
SITU_HOST_DEVICE inline T of_sort_key(sort_key_t<T> key) {
  using K = sort_key_t<T>;
  if constexpr (floating<T>) return bits_to<T>((key & sign_bit<T>) != 0 ? static_cast<K>(key ^ sign_bit<T>) : static_cast<K>(~key));
  else return bits_to<T>(static_cast<K>(key ^ sign_bit<T>));
}

/// Whether elements that differ share this key, so that the key alone does not tell which one it was.
template <class T>
SITU_HOST_DEVICE inline bool is_shared_key(sort_key_t<T> key) {
  if constexpr (floating<T>) return key == zero_key<T> || key == nan_key<T>;
  else return false;
}

/// One dense row, and where its sorted elements and their indices go.
template <class T>
struct SortedRow {
  T const* source;
  T* values;
  int64_t* indices;
  SITU_INLINE void put(int64_t place, sort_key_t<T> key, int64_t index) const {
    if (indices) indices[place] = index;
    if (values) values[place] = is_shared_key<T>(key) ? source[index] : of_sort_key<T>(key);
  }
};

/// What is sorted, as every device's kernels see it: `rows` rows of n elements, each row dense. Element i of row r goes to place
/// r * n + i of `values`, and its index before sorting to the same place of `indices`; either may be null. `values` may be `source` where
/// `indices` is null. With `columns` > 1, rows lie side by side instead: element i of row r at (r / columns * n + i) * columns + r % columns.
template <class T>
struct SortProblem {
  T const* source;
  T* values;
  int64_t* indices;
  int64_t rows, n;
  int64_t columns;
  bool descending;

  SortedRow<T> row(int64_t r) const { return {source + r * n, values ? values + r * n : nullptr, indices ? indices + r * n : nullptr}; }
};

/// The k smallest (or largest) of each dense row, sorted; equal ones in the order in which they stand.
template <class T>
struct TopkProblem {
  T const* source;
  T* values;
  int64_t* indices;
  int64_t rows, n, k;
  bool largest;
};

/// Groups of equal elements in a sorted row, numbered from 0; every NaN is a group of its own. What is null is not written.
template <class T>
struct GroupsProblem {
  T const* sorted;
  int64_t const* order;  ///< where the sorted elements stood
  int64_t n;
  int64_t groups;
  T* values;         ///< of each group, the first element
  int64_t* indices;  ///< of each group, where its first element stood
  int64_t* starts;   ///< of each group, its first place in the sorted row
  int64_t* counts;   ///< of each group, its size: from `starts`
  int64_t* inverse;  ///< for every element, in the order in which they stood, its group
  int64_t* totals;   ///< 1 + one for each part: 0, then how many groups begin in the parts

  SITU_HOST_DEVICE bool begins(int64_t i) const {
    if (i == 0) return true;
    sort_key_t<T> const key = sort_key(sorted[i]);
    return key != sort_key(sorted[i - 1]) || (floating<T> && key == nan_key<T>);
  }
  SITU_HOST_DEVICE void begin_group(int64_t group, int64_t i) const {
    values[group] = sorted[i];
    if (indices) indices[group] = order[i];
    if (starts) starts[group] = i;
  }
  SITU_HOST_DEVICE void put(int64_t group, int64_t i) const {
    if (inverse) inverse[order[i]] = group;
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
