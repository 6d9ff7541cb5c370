/// Sorting whole numbers of a narrow range, such as labels, by counting them: in linear time, however they are mixed.
#pragma once

#include <cstring>

#include <situ/expr/cpu/dispatch.hpp>
#include <situ/ops/cpu/sort_radix.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The smallest and the largest of n numbers, at least one, besides those that are there already.
template <class T>
struct Extremes {
  template <class Isa>
  SITU_INLINE static void run(T const* from, int64_t n, T* low, T* high) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(T));
    using P = pack<T, N, Isa>;
    P least(*low), most(*high);
    int64_t i = 0;
    for (; i + N <= n; i += N) {
      P const x = P::load(from + i);
      least = select(x < least, x, least);
      most = select(most < x, x, most);
    }
    for (int k = 0; k < N; ++k) {
      if (least[k] < *low) *low = least[k];
      if (*high < most[k]) *high = most[k];
    }
    for (; i < n; ++i) {
      if (from[i] < *low) *low = from[i];
      if (*high < from[i]) *high = from[i];
    }
  }
};

/// Whether numbers of this type may be sorted by counting: those of 16 bits take a radix sort two passes at most.
template <class T>
inline constexpr bool is_counted = std::is_integral_v<T> && sizeof(T) >= 4;
inline constexpr int64_t counted_elements = 2048;  ///< fewer are not worth it
inline constexpr int64_t most_counts = 65536;      ///< which the second cache holds
inline constexpr int64_t most_counted_parts = 32;  ///< more threads than eight or so sort by buckets in less time than one of them counts

/// How many whole numbers there are from the lowest of n elements to the highest; 0 where they are more than `most`, most often known from a few elements.
template <class T>
int64_t numbers_between(T const* from, int64_t n, int64_t most, T& low) {
  T high = low = from[0];
  auto const is_wide = [&] { return static_cast<uint64_t>(high) - static_cast<uint64_t>(low) >= static_cast<uint64_t>(most); };
  constexpr int64_t samples = 32, step = 16384;
  for (int64_t k = 1; k < samples; ++k) {
    T const x = from[n / samples * k];
    low = x < low ? x : low, high = high < x ? x : high;
  }
  for (int64_t i = 0; i < n && !is_wide(); i += step) dispatch<Extremes<T>>(from + i, n - i < step ? n - i : step, &low, &high);
  return is_wide() ? 0 : static_cast<int64_t>(high - low) + 1;
}

/// Sorts a row on this thread where its numbers are few next to n; false where they are not. The scratch memory has to hold n / 2 counts.
template <class T>
bool sort_by_counting(SortedRow<T> const& row, int64_t n, bool descending, void* scratch) {
  if (n < counted_elements || n > int64_t{0xFFFFFFFF}) return false;
  T low;
  int64_t const numbers = numbers_between(row.source, n, n / 4 < most_counts ? n / 4 : most_counts, low);
  if (numbers == 0) return false;
  auto* const places = static_cast<uint32_t*>(scratch);
  uint32_t* const counts = places + numbers;
  auto const number = [&](int64_t i) { return static_cast<std::size_t>(row.source[i] - low); };
  auto const in_order = [&](int64_t k) { return static_cast<std::size_t>(descending ? numbers - 1 - k : k); };
  std::memset(places, 0, 2 * static_cast<std::size_t>(numbers) * sizeof(uint32_t));
  for (int64_t i = 0; i + 1 < n; i += 2) ++counts[number(i)], ++places[number(i + 1)];  // apart: a count that was just written has to be waited for
  if (n % 2 != 0) ++counts[number(n - 1)];
  uint32_t before = 0;
  for (int64_t k = 0; k < numbers; ++k) {
    std::size_t const v = in_order(k);
    counts[v] += places[v];
    places[v] = before;
    before += counts[v];
  }
  if (row.indices) {
    for (int64_t i = 0; i < n; ++i) row.indices[places[number(i)]++] = i;
  }
  if (row.values) {
    T* to = row.values;
    for (int64_t k = 0; k < numbers; ++k) {
      std::size_t const v = in_order(k);
      T const value = static_cast<T>(low + static_cast<T>(v));
      for (uint32_t left = counts[v]; left > 0; --left) *to++ = value;
    }
  }
  return true;
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
