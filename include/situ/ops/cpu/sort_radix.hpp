/// Stable radix sort of one row: passes over digits of 8 bits, the least significant first.
///
/// Of the keys, only the bits in which they differ are looked at: small integers take fewer passes. A pass scatters to 256 places at
/// once, which caches and address translation still follow; wider digits with buffered writes were slower. Values alone are
/// moved as they are. With indices, records of the key and the index are moved (8 bytes for elements of up to 4 bytes).
/// Source    Knuth, The Art of Computer Programming 3, 5.2.5; the parts of a row are counted apart, as in Zagha & Blelloch 1991,
///           doi:10.1145/125826.126164.
#pragma once

#include <situ/core/device.hpp>
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

struct Digit {
  int shift;
  unsigned mask;
  template <class K>
  SITU_INLINE unsigned of(K key) const {
    return static_cast<unsigned>(key >> shift) & mask;
  }
};

/// How often each digit occurs, for even and odd elements apart: equal digits in a row then need not wait for each other.
using Counts = int64_t[512];

/// What a pass counts for the one after it, where one thread does both: elements are then read once less.
struct NextPass {
  Digit digit;
  int64_t* counts;  ///< null: nothing
};

/// The digits in which keys differ, of at most 8 bits each; at least one.
struct Digits {
  int passes, width, lowest;
  explicit Digits(uint64_t difference) : passes(1), width(0), lowest(0) {
    if (difference == 0) return;
    lowest = __builtin_ctzll(difference);
    int const bits = 64 - __builtin_clzll(difference) - lowest;
    passes = (bits + 7) / 8;
    width = (bits + passes - 1) / passes;
  }
  Digit operator[](int pass) const { return {pass * width + lowest, (1u << width) - 1u}; }
  /// What pass p counts for the next one, in the other of two tables.
  NextPass next(int p, Counts* tables) const {
    if (p + 1 == passes) return {{0, 0}, nullptr};
    int64_t* const counts = tables[(p + 1) % 2];
    std::memset(counts, 0, sizeof(Counts));
    return {(*this)[p + 1], counts};
  }
};

template <class T>
KeyBits key_bits(T const* from, int64_t n) {
  return dispatch<FindKeyBits<T>>(from, n);
}

/// f(element number, digit) for elements [first, end).
template <class T, class F>
SITU_INLINE void for_each_digit(T const* from, int64_t first, int64_t end, Digit digit, F const& f) {
  sort_key_t<T> digits[key_block];
  for (int64_t base = first; base < end; base += key_block) {
    int64_t const m = end - base < key_block ? end - base : key_block;
    dispatch<EncodeDigits<T>>(from + base, &digits[0], m, digit.shift, digit.mask);
    for (int64_t i = 0; i < m; ++i) f(base + i, static_cast<std::size_t>(digits[i]));
  }
}

template <class T>
void count_digits(T const* from, int64_t first, int64_t end, Digit digit, int64_t* counts) {
  for_each_digit(from, first, end, digit, [=](int64_t i, std::size_t d) { ++counts[d + 256 * static_cast<std::size_t>(i & 1)]; });
}
template <class T>
void count_digits_of_records(typename Records<sort_key_t<T>>::record const* from, int64_t first, int64_t end, Digit digit, int64_t* counts) {
  for (int64_t i = first; i < end; ++i) ++counts[digit.of(Records<sort_key_t<T>>::key(from[i])) + 256 * static_cast<std::size_t>(i & 1)];
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

/// One pass: elements [first, end) go to their places.
template <class T>
void scatter_values(T const* from, T* to, int64_t first, int64_t end, Digit digit, int64_t* places, NextPass next) {
  for (int64_t base = first; base < end; base += key_block) {
    int64_t const last = end - base < key_block ? end : base + key_block;
    for_each_digit(from, base, last, digit, [=](int64_t i, std::size_t d) { to[places[d]++] = from[i]; });
    if (next.counts) count_digits(from, base, last, next.digit, next.counts);
  }
}

/// Where a sorted element with its index goes.
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

/// Elements to records: the first of several passes.
template <class T>
void scatter_first(T const* from, typename Records<sort_key_t<T>>::record* to, int64_t first, int64_t end, Digit digit, int64_t* places,
                   NextPass next) {
  using K = sort_key_t<T>;
  K keys[key_block];
  for (int64_t base = first; base < end; base += key_block) {
    int64_t const m = end - base < key_block ? end - base : key_block;
    dispatch<EncodeKeys<T>>(from + base, &keys[0], m, K(0));
    for (int64_t i = 0; i < m; ++i) to[places[digit.of(keys[i])]++] = Records<K>::make(keys[i], base + i);
    if (next.counts) count_digits(from, base, base + m, next.digit, next.counts);
  }
}
template <class K>
void scatter_records(typename Records<K>::record const* from, typename Records<K>::record* to, int64_t first, int64_t end, Digit digit, int64_t* places,
                     NextPass next) {
  for (int64_t i = first; i < end; ++i) {
    auto const record = from[i];
    K const key = Records<K>::key(record);
    if (next.counts) ++next.counts[next.digit.of(key)];
    to[places[digit.of(key)]++] = record;
  }
}
/// Records to the result: the last of several passes.
template <class T>
void scatter_last(typename Records<sort_key_t<T>>::record const* from, SortedRow<T> to, int64_t first, int64_t end, Digit digit, int64_t* places) {
  using R = Records<sort_key_t<T>>;
  for (int64_t i = first; i < end; ++i) {
    auto const record = from[i];
    to.put(places[digit.of(R::key(record))]++, R::key(record), R::index(record));
  }
}
/// Elements to the result: the only pass.
template <class T>
void scatter_once(T const* from, SortedRow<T> to, int64_t first, int64_t end, Digit digit, int64_t* places) {
  for_each_digit(from, first, end, digit, [=](int64_t i, std::size_t d) {
    int64_t const place = places[d]++;
    if (to.indices) to.indices[place] = i;
    if (to.values) to.values[place] = from[i];
  });
}

/// Bytes of scratch memory that a row of n elements takes.
template <class T>
constexpr std::size_t radix_scratch(int64_t n, bool with_indices) {
  return static_cast<std::size_t>(n) * (with_indices ? 2 * sizeof(typename Records<sort_key_t<T>>::record) : sizeof(T));
}

/// Sorts one row on this thread.
template <class T>
void radix_sort_values(T const* source, T* values, T* scratch, int64_t n, bool descending) {
  Digits const digits(key_bits(source, n).difference());
  if (source == values && digits.passes % 2 == 1) {
    std::memcpy(static_cast<void*>(scratch), source, static_cast<std::size_t>(n) * sizeof(T));
    source = scratch;
  }
  Counts counts[2] = {};
  count_digits(source, 0, n, digits[0], counts[0]);
  for (int p = 0; p < digits.passes; ++p) {
    T* const to = (digits.passes - p) % 2 == 1 ? values : scratch;
    places_of(counts[p % 2], descending);
    scatter_values(source, to, 0, n, digits[p], counts[p % 2], digits.next(p, counts));
    source = to;
  }
}

template <class T>
void radix_sort_records(SortedRow<T> const& row, void* scratch, int64_t n, bool descending) {
  using K = sort_key_t<T>;
  using Record = typename Records<K>::record;
  Record* buffers[2] = {static_cast<Record*>(scratch), static_cast<Record*>(scratch) + n};
  Digits const digits(key_bits(row.source, n).difference());
  Counts counts[2] = {};
  count_digits(row.source, 0, n, digits[0], counts[0]);
  for (int p = 0; p < digits.passes; ++p) {
    bool const last = p + 1 == digits.passes;
    Record* const before = buffers[(p + 1) % 2];
    int64_t* const places = counts[p % 2];
    places_of(places, descending);
    NextPass const next = digits.next(p, counts);
    if (p == 0 && last) scatter_once(row.source, row, 0, n, digits[p], places);
    else if (p == 0) scatter_first(row.source, buffers[0], 0, n, digits[p], places, next);
    else if (last) scatter_last(before, row, 0, n, digits[p], places);
    else scatter_records<K>(before, buffers[p % 2], 0, n, digits[p], places, next);
  }
}

/// One long row, cut into parts that threads sort together. Each stage is a launch; what a stage needs to know of those before it stands
/// in device memory.
template <class T>
struct SortRowKernel {
  enum Stage { look, copy, count, scatter };
  using K = sort_key_t<T>;
  using Record = typename Records<K>::record;
  struct State {
    KeyBits bits;
    Counts counts;
  };
  SortedRow<T> row;
  T* spare;            ///< n elements, for values alone
  Record* records[2];  ///< n records each, with indices
  State* state;        ///< one for each part
  int64_t n, parts;
  bool descending;
  Stage stage;
  int pass;

  int64_t begin(int64_t part) const { return n / parts * part + (part < n % parts ? part : n % parts); }

  Digits digits() const {
    KeyBits bits;
    for (int64_t k = 0; k < parts; ++k) bits.add(state[k].bits);
    return Digits(bits.difference());
  }
  /// Where elements stand before pass p, of values alone.
  T const* values_before(Digits const& digits, int p) const {
    if (p == 0) return row.source == row.values && digits.passes % 2 == 1 ? spare : row.source;
    return (digits.passes - p) % 2 == 0 ? row.values : spare;
  }

  void operator()(int64_t first, int64_t last) const {
    if (stage == look) {
      for (int64_t part = first; part < last; ++part) state[part].bits = key_bits(row.source + begin(part), begin(part + 1) - begin(part));
      return;
    }
    Digits const all = digits();
    if (pass >= all.passes) return;
    for (int64_t part = first; part < last; ++part) run(all, part);
  }

  void run(Digits const& all, int64_t part) const {
    int64_t const from = begin(part), end = begin(part + 1);
    Digit const digit = all[pass];
    bool const final = pass + 1 == all.passes;
    Record const* const before = records[(pass + 1) % 2];
    if (stage == copy) {
      if (all.passes % 2 == 1) std::memcpy(static_cast<void*>(spare + from), row.source + from, static_cast<std::size_t>(end - from) * sizeof(T));
    } else if (stage == count) {
      std::memset(state[part].counts, 0, sizeof(Counts));
      if (!row.indices) count_digits(values_before(all, pass), from, end, digit, state[part].counts);
      else if (pass == 0) count_digits(row.source, from, end, digit, state[part].counts);
      else count_digits_of_records<T>(before, from, end, digit, state[part].counts);
    } else {
      Counts places = {};
      for (int64_t k = 0; k < parts; ++k) {
        for (int d = 0; d < 512; ++d) places[d] += state[k].counts[d];
      }
      places_of(places, descending);
      for (int64_t k = 0; k < part; ++k) {
        for (int d = 0; d < 256; ++d) places[d] += state[k].counts[d] + state[k].counts[d + 256];
      }
      NextPass const next{{0, 0}, nullptr};
      if (!row.indices) {
        scatter_values(values_before(all, pass), (all.passes - pass) % 2 == 1 ? row.values : spare, from, end, digit, places, next);
      } else if (pass == 0 && final) {
        scatter_once(row.source, row, from, end, digit, places);
      } else if (pass == 0) {
        scatter_first(row.source, records[0], from, end, digit, places, next);
      } else if (final) {
        scatter_last(before, row, from, end, digit, places);
      } else {
        scatter_records<K>(before, records[pass % 2], from, end, digit, places, next);
      }
    }
  }
};

/// Sorts one row with `parts` parts side by side, on D.
template <class D, class T>
void sort_long_row(SortedRow<T> const& row, int64_t n, int64_t parts, bool descending, void* scratch, void* state) {
  using Kernel = SortRowKernel<T>;
  using Record = typename Kernel::Record;
  auto* const records = static_cast<Record*>(scratch);
  Kernel kernel{row, static_cast<T*>(scratch), {records, row.indices ? records + n : nullptr}, static_cast<typename Kernel::State*>(state), n, parts, descending, Kernel::look, 0};
  auto const run = [&](typename Kernel::Stage stage) {
    kernel.stage = stage;
    device_traits<D>::launch(kernel, parts, 0);
  };
  run(Kernel::look);
  if (row.source == row.values) run(Kernel::copy);
  for (kernel.pass = 0; kernel.pass < static_cast<int>(sizeof(T)); ++kernel.pass) {
    run(Kernel::count);
    run(Kernel::scatter);
  }
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
