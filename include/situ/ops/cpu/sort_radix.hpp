/// Stable radix sort of a row that a cache holds: passes over digits of 8 bits, the least significant first.
///
/// Of the keys, only the bits in which they differ are looked at: small integers take fewer passes. Of wide keys, only the upper bits that
/// tell most of them from each other: how many these are, the gaps between a few keys say; the few keys that stand in a wrong order then
/// are put in their places one by one, and long runs of equal upper bits are sorted by their lower ones. Values alone are moved as they
/// are. With indices, records of the key and the index are moved (8 bytes for elements of up to 4 bytes).
/// Source    Knuth, The Art of Computer Programming 3, 5.2.5.
#pragma once

#include <situ/expr/cpu/dispatch.hpp>
#include <situ/ops/sort_keys.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// A vector of keys of elements that lie next to each other.
template <class T, class Isa>
struct KeyVector {
  using K = sort_key_t<T>;
  static constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(K));
  using V = typename vector_of<K, lanes>::type;
  using S = typename vector_of<signed_of_size<K>, lanes>::type;
  V v;

  SITU_INLINE explicit KeyVector(T const* from) {
    V bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    if constexpr (floating<T>) {
      S const sign = reinterpret_cast<S const&>(bits) < S{};
      V const magnitude = bits & (V{} + static_cast<K>(~sign_bit<T>));
      S const nan = reinterpret_cast<S const&>(magnitude) > (S{} + static_cast<signed_of_size<K>>(infinity_bits<T>));
      S const zero = magnitude == V{};
      v = bits ^ (reinterpret_cast<V const&>(sign) | (V{} + sign_bit<T>));
      v = v | reinterpret_cast<V const&>(nan);
      v = zero ? V{} + zero_key<T> : v;
    } else {
      v = bits ^ (V{} + sign_bit<T>);
    }
  }
};

/// Keys of n elements, with the bits of `flip` inverted. Returns the least of them.
template <class T>
struct EncodeKeys {
  using K = sort_key_t<T>;
  template <class Isa>
  SITU_INLINE static K run(T const* from, K* to, int64_t n, K flip) {
    using Keys = KeyVector<T, Isa>;
    using V = typename Keys::V;
    V least = V{} - K(1);
    int64_t i = 0;
    for (; i + Keys::lanes <= n; i += Keys::lanes) {
      V const key = Keys(from + i).v ^ (V{} + flip);
      __builtin_memcpy(to + i, &key, sizeof key);
      least = key < least ? key : least;
    }
    K result = static_cast<K>(~K(0));
    for (int k = 0; k < Keys::lanes; ++k) result = least[k] < result ? least[k] : result;
    for (; i < n; ++i) {
      K const key = static_cast<K>(sort_key(from[i]) ^ flip);
      to[i] = key;
      result = key < result ? key : result;
    }
    return result;
  }
};

/// The digits of n elements: (key >> shift) & mask.
template <class T>
struct EncodeDigits {
  using K = sort_key_t<T>;
  template <class Isa>
  SITU_INLINE static int run(T const* from, K* to, int64_t n, int shift, unsigned mask) {
    using Keys = KeyVector<T, Isa>;
    using V = typename Keys::V;
    K const kept = static_cast<K>(mask);
    int64_t i = 0;
    for (; i + Keys::lanes <= n; i += Keys::lanes) {
      V const digit = (Keys(from + i).v >> static_cast<K>(shift)) & (V{} + kept);
      __builtin_memcpy(to + i, &digit, sizeof digit);
    }
    for (; i < n; ++i) to[i] = static_cast<K>(static_cast<K>(sort_key(from[i]) >> shift) & kept);
    return 0;
  }
};

/// Bits that are set in some keys, and in all of them.
struct KeyBits {
  uint64_t any = 0, all = ~uint64_t{0};
  void add(KeyBits const& other) {
    any |= other.any;
    all &= other.all;
  }
  uint64_t difference() const { return any & ~all; }
};
template <class T>
struct FindKeyBits {
  using K = sort_key_t<T>;
  template <class Isa>
  SITU_INLINE static KeyBits run(T const* from, int64_t n) {
    using Keys = KeyVector<T, Isa>;
    using V = typename Keys::V;
    V some = V{}, every = V{} - K(1);
    int64_t i = 0;
    for (; i + Keys::lanes <= n; i += Keys::lanes) {
      V const key = Keys(from + i).v;
      some |= key;
      every &= key;
    }
    K any = 0, all = static_cast<K>(~K(0));
    for (int k = 0; k < Keys::lanes; ++k) any = static_cast<K>(any | some[k]), all = static_cast<K>(all & every[k]);
    for (; i < n; ++i) any = static_cast<K>(any | sort_key(from[i])), all = static_cast<K>(all & sort_key(from[i]));
    return {any, all};
  }
};

template <class T>
KeyBits key_bits(T const* from, int64_t n) {
  return dispatch<FindKeyBits<T>>(from, n);
}

inline constexpr int64_t key_block = 1024;  // elements whose keys are made at once

/// A key and the index that it came from, in one word where both fit 32 bits.
template <class K>
struct Records {
  using record = uint64_t;
  using word = uint64_t;
  static record make(K key, int64_t index) { return static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(index); }
  static K key(record r) { return static_cast<K>(r >> 32); }
  static int64_t index(record r) { return static_cast<int64_t>(r & 0xffffffffu); }
};
struct WideRecord {
  uint64_t key;
  int64_t index;
};
template <>
struct Records<uint64_t> {
  using record = WideRecord;
  static record make(uint64_t key, int64_t index) { return {key, index}; }
  static uint64_t key(record const& r) { return r.key; }
  static int64_t index(record const& r) { return r.index; }
};

/// Some bits of what a key exceeds `base` by.
struct Digit {
  int shift;
  unsigned mask;
  uint64_t base = 0;
  template <class K>
  SITU_INLINE unsigned of(K key) const {
    return static_cast<unsigned>(static_cast<K>(key - static_cast<K>(base)) >> shift) & mask;
  }
};

/// How often each digit occurs, for even and odd elements apart: equal digits in a row then need not wait for each other.
using Counts = int64_t[512];

/// What a pass counts for the one after it, where one thread does both: elements are then read once less.
struct NextPass {
  Digit digit;
  int64_t* counts;  ///< null: nothing
};

/// The digits by which keys are sorted, of at most 8 bits each; at least one.
struct Digits {
  int passes, width, lowest, top;  ///< from bit `lowest` on, below bit `top`
  uint64_t base;
  bool all;  ///< keys that are equal in them are equal
  /// Of keys that differ, or exceed the base, in no other bits.
  explicit Digits(uint64_t bits, uint64_t from = 0) : passes(1), width(0), lowest(0), top(0), base(from), all(true) {
    if (bits == 0) return;
    lowest = __builtin_ctzll(bits);
    top = 64 - __builtin_clzll(bits);
    passes = (top - lowest + 7) / 8;
    width = (top - lowest + passes - 1) / passes;
  }
  Digit operator[](int pass) const { return {pass * width + lowest, (1u << width) - 1u, base}; }
  /// Leaves out bits below `low`, where that saves so many passes.
  void cut(int low, int saved) {
    int const fewer = (top - low + 7) / 8;
    if (low >= top || fewer + saved > passes) return;
    passes = fewer, width = 8;
    lowest = top - fewer * 8;
    all = false;
  }
  /// What pass p counts for the next one, in the other of two tables.
  NextPass next(int p, Counts* tables) const {
    if (p + 1 == passes) return {{0, 0}, nullptr};
    int64_t* const counts = tables[(p + 1) % 2];
    std::memset(counts, 0, sizeof(Counts));
    return {(*this)[p + 1], counts};
  }
};

/// What a sort moves: the elements themselves.
template <class T, bool Indexed>
struct SortItems {
  using key = sort_key_t<T>;
  using item = T;
  static constexpr bool has_keys = false;
  SITU_INLINE static key key_of(item const& x) { return sort_key(x); }
  /// All digits of n items.
  static Digits digits(item const* from, int64_t n) { return Digits(key_bits(from, n).difference()); }
  /// f(item number, digit) for items [first, end).
  template <class F>
  SITU_INLINE static void for_each_digit(item const* from, int64_t first, int64_t end, Digit digit, F const& f) {
    key digits[key_block];
    for (int64_t base = first; base < end; base += key_block) {
      int64_t const m = end - base < key_block ? end - base : key_block;
      dispatch<EncodeDigits<T>>(from + base, &digits[0], m, digit.shift, digit.mask);
      for (int64_t i = 0; i < m; ++i) f(base + i, static_cast<std::size_t>(digits[i]));
    }
  }
};
/// Or records of their keys and indices.
template <class T>
struct SortItems<T, true> {
  using key = sort_key_t<T>;
  using item = typename Records<key>::record;
  static constexpr bool has_keys = true;
  SITU_INLINE static key key_of(item const& r) { return Records<key>::key(r); }
  static Digits digits(item const* from, int64_t n) {
    key least = key_of(from[0]), greatest = least;
    for (int64_t i = 1; i < n; ++i) {
      key const k = key_of(from[i]);
      least = k < least ? k : least;
      greatest = k > greatest ? k : greatest;
    }
    uint64_t const top = greatest == least ? 0 : 63 - static_cast<unsigned>(__builtin_clzll(static_cast<key>(greatest - least)));
    return Digits(greatest == least ? 0 : (uint64_t{2} << top) - 1, least);
  }
  template <class F>
  SITU_INLINE static void for_each_digit(item const* from, int64_t first, int64_t end, Digit digit, F const& f) {
    for (int64_t i = first; i < end; ++i) f(i, static_cast<std::size_t>(digit.of(key_of(from[i]))));
  }
};

template <class Items>
void count_digits(typename Items::item const* from, int64_t first, int64_t end, Digit digit, int64_t* counts) {
  Items::for_each_digit(from, first, end, digit, [=](int64_t i, std::size_t d) { ++counts[d + 256 * static_cast<std::size_t>(i & 1)]; });
}

/// Counts become the places of the first element of each digit, digits rising or falling.
inline void places_of(int64_t* counts, bool descending) {
  int64_t place = 0;
  for (int k = 0; k < 256; ++k) {
    int const digit = descending ? 255 - k : k;
    int64_t const here = counts[digit] + counts[digit + 256];
    counts[digit] = place;
    place += here;
  }
}

/// One pass: n items go to their places.
template <class Items>
void scatter_items(typename Items::item const* from, typename Items::item* to, int64_t n, Digit digit, int64_t* places, NextPass next) {
  if constexpr (Items::has_keys) {
    if (!next.counts) return Items::for_each_digit(from, 0, n, digit, [=](int64_t i, std::size_t d) { to[places[d]++] = from[i]; });
    for (int64_t i = 0; i < n; ++i) {
      auto const item = from[i];
      ++next.counts[next.digit.of(Items::key_of(item))];
      to[places[digit.of(Items::key_of(item))]++] = item;
    }
  } else {
    for (int64_t base = 0; base < n; base += key_block) {
      int64_t const last = n - base < key_block ? n : base + key_block;
      Items::for_each_digit(from, base, last, digit, [=](int64_t i, std::size_t d) { to[places[d]++] = from[i]; });
      if (next.counts) count_digits<Items>(from, base, last, next.digit, next.counts);
    }
  }
}

/// Which of the places a digit goes to: its own.
struct OwnPlace {
  SITU_INLINE std::size_t of(std::size_t digit) const { return digit; }
};

/// Elements to records: the first of several passes.
template <class T, class Where = OwnPlace>
void scatter_first(T const* from, typename Records<sort_key_t<T>>::record* to, int64_t first, int64_t end, Digit digit, int64_t* places,
                   NextPass next, Where const& where = {}) {
  using K = sort_key_t<T>;
  K keys[key_block];
  for (int64_t base = first; base < end; base += key_block) {
    int64_t const m = end - base < key_block ? end - base : key_block;
    dispatch<EncodeKeys<T>>(from + base, &keys[0], m, K(0));
    for (int64_t i = 0; i < m; ++i) to[places[where.of(digit.of(keys[i]))]++] = Records<K>::make(keys[i], base + i);
    if (next.counts) count_digits<SortItems<T, false>>(from, base, base + m, next.digit, next.counts);
  }
}
/// Records to the result, whose places are counted from `place`: the last of several passes.
template <class T>
void scatter_last(typename Records<sort_key_t<T>>::record const* from, SortedRow<T> to, int64_t place, int64_t n, Digit digit, int64_t* places) {
  using R = Records<sort_key_t<T>>;
  for (int64_t i = 0; i < n; ++i) {
    auto const record = from[i];
    to.put(place + places[digit.of(R::key(record))]++, R::key(record), R::index(record));
  }
}
/// Elements to the result: the only pass.
template <class T, class Where = OwnPlace>
void scatter_once(SortedRow<T> const& row, int64_t first, int64_t end, Digit digit, int64_t* places, Where const& where = {}) {
  SortItems<T, false>::for_each_digit(row.source, first, end, digit, [=, &where, to = row](int64_t i, std::size_t d) {
    int64_t const place = places[where.of(d)]++;
    if (to.indices) to.indices[place] = i;
    if (to.values) to.values[place] = to.source[i];
  });
}

/// The digits that n items are sorted by: all, or fewer where that saves more passes than it costs to settle the order afterwards.
template <class Items>
Digits digits_of(typename Items::item const* from, int64_t n, int cost) {
  using K = typename Items::key;
  constexpr int most = 32;
  Digits digits = Items::digits(from, n);
  if (digits.passes < 2 + cost || n < 64) return digits;
  int const count = n < 1024 ? most / 2 : most;
  K keys[most];
  int gaps[most], found = 0;  // powers of two, rising
  for (int k = 0; k < count; ++k) {
    K const key = Items::key_of(from[n / count * k]);
    int j = k;
    for (; j > 0 && keys[j - 1] > key; --j) keys[j] = keys[j - 1];
    keys[j] = key;
  }
  for (int k = 1; k < count; ++k) {
    if (keys[k] == keys[k - 1]) continue;
    int const gap = 63 - __builtin_clzll(static_cast<K>(keys[k] - keys[k - 1]));
    int j = found++;
    for (; j > 0 && gaps[j - 1] > gap; --j) gaps[j] = gaps[j - 1];
    gaps[j] = gap;
  }
  if (found >= count / 2) digits.cut(gaps[found / 4] - (63 - __builtin_clzll(static_cast<uint64_t>(n / count))), cost);
  return digits;
}

inline constexpr int64_t insertion_limit = 24;
/// Bytes of scratch memory that a row of n takes.
template <class T, bool Indexed>
constexpr std::size_t radix_scratch(int64_t n) {
  return (static_cast<std::size_t>(n) * sizeof(typename SortItems<T, Indexed>::item) * (Indexed ? 2 : 1) + 63) / 64 * 64;
}

/// Whether an insertion sort of n items takes less time than so many passes, each of which clears and sums up its counts.
constexpr bool is_few(int64_t n, int passes) { return n < 100 && n * n < 1024 * passes; }

inline constexpr int64_t cached_bytes = int64_t{1} << 20;  // of items that passes go over

/// Stable insertion sort of a few items.
template <class Items>
void insertion_sort_items(typename Items::item* items, int64_t n, typename Items::key flip) {
  using K = typename Items::key;
  for (int64_t i = 1; i < n; ++i) {
    auto const item = items[i];
    K const key = static_cast<K>(Items::key_of(item) ^ flip);
    int64_t j = i;
    for (; j > 0 && static_cast<K>(Items::key_of(items[j - 1]) ^ flip) > key; --j) items[j] = items[j - 1];
    items[j] = item;
  }
}

template <class Items>
typename Items::item* sort_items(typename Items::item* items, typename Items::item* spare, int64_t n, bool descending);

/// Sorts n items that are sorted by these digits.
template <class Items>
void settle(typename Items::item* items, typename Items::item* spare, int64_t n, Digits const& digits, bool descending) {
  using K = typename Items::key;
  using item = typename Items::item;
  constexpr int64_t most_steps = 16;
  K const flip = static_cast<K>(descending ? ~K(0) : K(0));
  auto const key_at = [&](int64_t i) { return static_cast<K>(Items::key_of(items[i]) ^ flip); };
  auto const upper_at = [&](int64_t i) { return static_cast<K>(Items::key_of(items[i]) - static_cast<K>(digits.base)) >> digits.lowest; };
  K before = key_at(0);
  for (int64_t i = 1; i < n; ++i) {
    K const key = key_at(i);
    if (SITU_LIKELY(key >= before)) {
      before = key;
      continue;
    }
    item const moved = items[i];
    int64_t j = i;
    for (; j > 0 && i - j < most_steps && key_at(j - 1) > key; --j) items[j] = items[j - 1];
    items[j] = moved;
    if (j == 0 || key_at(j - 1) <= key) continue;
    auto const upper = upper_at(j);  // a long run
    int64_t first = j, last = i + 1;
    while (first > 0 && upper_at(first - 1) == upper) --first;
    while (last < n && upper_at(last) == upper) ++last;
    item* const run = sort_items<Items>(items + first, spare + first, last - first, descending);
    if (run != items + first) std::memcpy(static_cast<void*>(items + first), run, static_cast<std::size_t>(last - first) * sizeof(item));
    i = last - 1;
    before = key_at(i);
  }
}

/// Sorts n items, between where they are and as much spare memory. Returns where they are then.
template <class Items>
typename Items::item* sort_items(typename Items::item* items, typename Items::item* spare, int64_t n, bool descending) {
  using K = typename Items::key;
  if (n <= insertion_limit) {
    insertion_sort_items<Items>(items, n, static_cast<K>(descending ? ~K(0) : K(0)));
    return items;
  }
  Digits const digits = digits_of<Items>(items, n, 1);
  if (digits.width == 0) return items;
  if (is_few(n, digits.passes)) {
    insertion_sort_items<Items>(items, n, static_cast<K>(descending ? ~K(0) : K(0)));
    return items;
  }
  Counts counts[2] = {};
  if (n * static_cast<int64_t>(sizeof(typename Items::item)) > cached_bytes && digits.passes > 1) {  // by the upper digit first
    Digit const upper = digits[digits.passes - 1];
    count_digits<Items>(items, 0, n, upper, counts[0]);
    places_of(counts[0], descending);
    scatter_items<Items>(items, spare, n, upper, counts[0], NextPass{{0, 0}, nullptr});
    int64_t first = 0;
    for (int k = 0; k < 256; ++k) {
      int64_t const end = counts[0][descending ? 255 - k : k];  // where the next digit begins
      auto* const sorted = sort_items<Items>(spare + first, items + first, end - first, descending);
      if (sorted != spare + first) std::memcpy(static_cast<void*>(spare + first), sorted, static_cast<std::size_t>(end - first) * sizeof(typename Items::item));
      first = end;
    }
    return spare;
  }
  count_digits<Items>(items, 0, n, digits[0], counts[0]);
  for (int p = 0; p < digits.passes; ++p) {
    places_of(counts[p % 2], descending);
    scatter_items<Items>(items, spare, n, digits[p], counts[p % 2], digits.next(p, counts));
    auto* const sorted = spare;
    spare = items, items = sorted;
  }
  if (!digits.all) settle<Items>(items, spare, n, digits, descending);
  return items;
}

/// Sorts one row on this thread. `values` may be the source.
template <class T>
void radix_sort_values(T const* source, T* values, T* scratch, int64_t n, bool descending) {
  using Items = SortItems<T, false>;
  Digits const digits = digits_of<Items>(source, n, 2);
  if (is_few(n, digits.passes)) {
    if (source != values) std::memcpy(static_cast<void*>(values), source, static_cast<std::size_t>(n) * sizeof(T));
    return insertion_sort_items<Items>(values, n, static_cast<typename Items::key>(descending ? ~uint64_t{0} : uint64_t{0}));
  }
  if (source == values && digits.passes % 2 == 1) {
    std::memcpy(static_cast<void*>(scratch), source, static_cast<std::size_t>(n) * sizeof(T));
    source = scratch;
  }
  Counts counts[2] = {};
  count_digits<Items>(source, 0, n, digits[0], counts[0]);
  for (int p = 0; p < digits.passes; ++p) {
    T* const to = (digits.passes - p) % 2 == 1 ? values : scratch;
    places_of(counts[p % 2], descending);
    scatter_items<Items>(source, to, n, digits[p], counts[p % 2], digits.next(p, counts));
    source = to;
  }
  if (!digits.all) settle<Items>(values, scratch, n, digits, descending);
}

/// Writes n sorted records to the places from `place` on.
template <class T>
void put_records(typename Records<sort_key_t<T>>::record const* from, SortedRow<T> const& to, int64_t place, int64_t n) {
  using R = Records<sort_key_t<T>>;
  for (int64_t i = 0; i < n; ++i) to.put(place + i, R::key(from[i]), R::index(from[i]));
}

/// Sorts a row of a few elements.
template <class T, bool Indexed>
void sort_short_row(SortedRow<T> const& row, int64_t n, bool descending) {
  using K = sort_key_t<T>;
  using Items = SortItems<T, Indexed>;
  K const flip = static_cast<K>(descending ? ~K(0) : K(0));
  if constexpr (Indexed) {
    typename Items::item records[insertion_limit];
    for (int64_t i = 0; i < n; ++i) records[i] = Records<K>::make(sort_key(row.source[i]), i);
    insertion_sort_items<Items>(records, n, flip);
    put_records(records, row, 0, n);
  } else {
    if (row.source != row.values) std::memcpy(static_cast<void*>(row.values), row.source, static_cast<std::size_t>(n) * sizeof(T));
    insertion_sort_items<Items>(row.values, n, flip);
  }
}

template <class T>
void radix_sort_records(SortedRow<T> const& row, void* scratch, int64_t n, bool descending) {
  using Items = SortItems<T, true>;
  using Elements = SortItems<T, false>;
  using Record = typename Items::item;
  Record* buffers[2] = {static_cast<Record*>(scratch), static_cast<Record*>(scratch) + n};
  Digits const digits = digits_of<Elements>(row.source, n, 2);
  if (is_few(n, digits.passes)) {
    using K = typename Items::key;
    for (int64_t i = 0; i < n; ++i) buffers[0][i] = Records<K>::make(sort_key(row.source[i]), i);
    insertion_sort_items<Items>(buffers[0], n, static_cast<K>(descending ? ~K(0) : K(0)));
    return put_records(buffers[0], row, 0, n);
  }
  Counts counts[2] = {};
  count_digits<Elements>(row.source, 0, n, digits[0], counts[0]);
  for (int p = 0; p < digits.passes; ++p) {
    bool const last = p + 1 == digits.passes && digits.all;
    Record* const before = buffers[(p + 1) % 2];
    int64_t* const places = counts[p % 2];
    places_of(places, descending);
    NextPass const next = digits.next(p, counts);
    if (p == 0 && last) scatter_once(row, 0, n, digits[p], places);
    else if (p == 0) scatter_first(row.source, buffers[0], 0, n, digits[p], places, next);
    else if (last) scatter_last(before, row, 0, n, digits[p], places);
    else scatter_items<Items>(before, buffers[p % 2], n, digits[p], places, next);
  }
  if (digits.all) return;
  Record* const sorted = buffers[(digits.passes + 1) % 2];
  settle<Items>(sorted, buffers[digits.passes % 2], n, digits, descending);
  put_records(sorted, row, 0, n);
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
