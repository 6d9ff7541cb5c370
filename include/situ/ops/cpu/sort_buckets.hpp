/// Stable sort of a long row: elements go to 256 buckets in one pass, then each bucket is sorted in a cache, by any thread.
///
/// Where the buckets end is chosen so that they hold about as many elements each: the upper 16 of the bits in which keys differ are looked up
/// in a table, which is made from a sample. A bucket that is still too long is cut again.
/// Source    samples: Frazer & McKellar 1970, doi:10.1145/321592.321600; the parts of a row are counted apart, as in Zagha & Blelloch 1991,
///           doi:10.1145/125826.126164.
#pragma once

#include <situ/core/device.hpp>
#include <situ/ops/cpu/sort_counts.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Which bucket a key goes to.
struct alignas(64) BucketTable {
  static constexpr int buckets = 256, cell_bits = 16, most_samples = 8192;
  Digit cell;
  bool once;  ///< keys of a bucket are equal: elements go where they stay
  bool counted;  ///< of is_counted numbers: the row is sorted
  unsigned char bucket[1 << cell_bits];
  uint16_t samples[1 << cell_bits];

  /// For n items whose keys differ in these bits.
  template <class Items>
  void make(typename Items::item const* from, int64_t n, uint64_t difference, bool descending) {
    int const lowest = difference == 0 ? 0 : __builtin_ctzll(difference), bits = difference == 0 ? 1 : 64 - __builtin_clzll(difference) - lowest;
    int const most = n < (int64_t{1} << 20) ? cell_bits - 2 : cell_bits, width = bits < most ? bits : most, cells = 1 << width;
    cell = Digit{lowest + bits - width, static_cast<unsigned>(cells) - 1u};
    once = width <= 8;
    if (once) {
      for (int c = 0; c < cells; ++c) bucket[c] = static_cast<unsigned char>(descending ? cells - 1 - c : c);
      return;
    }
    int64_t const count = n / 32 < most_samples ? n / 32 + 1 : most_samples;
    std::memset(samples, 0, static_cast<std::size_t>(cells) * sizeof(uint16_t));
    for (int64_t k = 0; k < count; ++k) {
      // Multiples of the golden ratio: spread evenly, and out of step with any period.
      int64_t const part = static_cast<int64_t>(static_cast<uint64_t>(k + 1) * 0x9E3779B97F4A7C15u >> 44), place = (n >> 20) * part + ((n & 0xfffff) * part >> 20);
      ++samples[cell.of(Items::key_of(from[place]))];
    }
    int64_t before = 0;
    for (int c = 0; c < cells; ++c) {
      int const at = descending ? cells - 1 - c : c;
      bucket[at] = static_cast<unsigned char>(before * buckets / (count + 1));
      before += samples[at];
    }
  }
  SITU_INLINE std::size_t of(std::size_t cell_of_key) const { return bucket[cell_of_key]; }
};

/// Whether a thread sorts a row of n by buckets.
template <class T, bool Indexed>
constexpr bool is_long_row(int64_t n) {
  return n * static_cast<int64_t>(sizeof(typename SortItems<T, Indexed>::item)) > cached_bytes;
}

/// One long row, in the stages that threads share: `parts` parts are counted and scattered, then buckets are sorted.
template <class T, bool Indexed>
struct LongRow {
  using Elements = SortItems<T, false>;
  using Items = SortItems<T, Indexed>;
  using Item = typename Items::item;
  SortedRow<T> row;
  Item* items;  ///< n, for the buckets; n more are spare
  BucketTable* table;
  int64_t n;
  bool descending;
  static constexpr std::size_t scratch_bytes(int64_t n) { return sizeof(BucketTable) + (2 * static_cast<std::size_t>(n) * sizeof(Item) + 63) / 64 * 64; }
  static LongRow in(char* scratch, SortedRow<T> const& row, int64_t n, bool descending) {
    return {row, reinterpret_cast<Item*>(scratch + sizeof(BucketTable)), reinterpret_cast<BucketTable*>(scratch), n, descending};
  }

  void make_table(uint64_t difference) const {
    table->make<Elements>(row.source, n, difference, descending);
    table->once = table->once && row.source != row.values;
  }
  void count(int64_t first, int64_t end, int64_t* counts) const {
    BucketTable const& t = *table;
    Elements::for_each_digit(row.source, first, end, t.cell, [&t, counts](int64_t i, std::size_t c) { ++counts[t.of(c) + 256 * static_cast<std::size_t>(i & 1)]; });
  }
  void scatter(int64_t first, int64_t end, int64_t* places) const {
    BucketTable const& t = *table;
    if (t.once) {
      scatter_once(row, first, end, t.cell, places, t);
    } else if constexpr (Indexed) {
      scatter_first(row.source, items, first, end, t.cell, places, NextPass{{0, 0}, nullptr}, t);
    } else {
      Elements::for_each_digit(row.source, first, end, t.cell, [&t, places, to = items, from = row.source](int64_t i, std::size_t c) { to[places[t.of(c)]++] = from[i]; });
    }
  }
  /// Sorts buckets [first, last), which begin there, and writes them. Spare memory as long as the longest of them is used again and again,
  /// so that it stays in a cache.
  void sort_buckets(int64_t const* begin, int64_t first, int64_t last) const {
    if (table->once) return;
    for (int64_t b = first; b < last; ++b) {
      int64_t const place = begin[b], count = begin[b + 1] - place;
      if (count == 0) continue;
      Item* const sorted = sort_items<Items>(items + place, items + n + begin[first], count, descending);
      if constexpr (Indexed) put_records(sorted, row, place, count);
      else std::memcpy(static_cast<void*>(row.values + place), sorted, static_cast<std::size_t>(count) * sizeof(Item));
    }
  }
};

/// Where the buckets begin, and where the last one ends, from the counts of all parts.
struct BucketBounds {
  int64_t begin[BucketTable::buckets + 1];
  BucketBounds() : begin{} {}
  void add(Counts const& counts) {
    for (int b = 0; b < BucketTable::buckets; ++b) begin[b + 1] += counts[b] + counts[b + 256];
  }
  void sum() {
    for (int b = 0; b < BucketTable::buckets; ++b) begin[b + 1] += begin[b];
  }
};

/// Sorts a long row on this thread.
template <class T, bool Indexed>
void sort_by_buckets(LongRow<T, Indexed> const& row) {
  row.make_table(key_bits(row.row.source, row.n).difference());
  Counts counts = {};
  row.count(0, row.n, counts);
  BucketBounds bounds;
  bounds.add(counts);
  bounds.sum();
  places_of(counts, false);
  row.scatter(0, row.n, counts);
  row.sort_buckets(bounds.begin, 0, BucketTable::buckets);
}

/// One long row, sorted by several threads: each stage is a launch. What a stage needs to know of those before it stands in device memory.
template <class T, bool Indexed>
struct LongRowKernel {
  enum Stage { by_counting, look, plan, count, scatter, sort };
  struct State {
    KeyBits bits;
    Counts counts;
  };
  LongRow<T, Indexed> row;
  State* state;  ///< one for each part
  int64_t parts;
  Stage stage;

  int64_t begin(int64_t part) const { return row.n / parts * part + (part < row.n % parts ? part : row.n % parts); }

  void operator()(int64_t first, int64_t last) const {
    if constexpr (is_counted<T>) {
      if (stage == by_counting) row.table->counted = parts <= most_counted_parts && sort_by_counting(row.row, row.n, row.descending, row.items);
      if (stage == by_counting || row.table->counted) return;
    }
    if (stage == plan) {
      KeyBits bits;
      for (int64_t k = 0; k < parts; ++k) bits.add(state[k].bits);
      row.make_table(bits.difference());
    } else if (stage == sort) {
      BucketBounds bounds;
      for (int64_t k = 0; k < parts; ++k) bounds.add(state[k].counts);
      bounds.sum();
      row.sort_buckets(bounds.begin, first, last);
    } else {
      for (int64_t part = first; part < last; ++part) run(part, begin(part), begin(part + 1));
    }
  }

  void run(int64_t part, int64_t from, int64_t end) const {
    State& own = state[part];
    if (stage == look) {
      own.bits = key_bits(row.row.source + from, end - from);
    } else if (stage == count) {
      std::memset(own.counts, 0, sizeof(Counts));
      row.count(from, end, own.counts);
    } else {
      Counts places = {};
      for (int64_t k = 0; k < parts; ++k) {
        for (int b = 0; b < 512; ++b) places[b] += state[k].counts[b];
      }
      places_of(places, false);
      for (int64_t k = 0; k < part; ++k) {
        for (int b = 0; b < 256; ++b) places[b] += state[k].counts[b] + state[k].counts[b + 256];
      }
      row.scatter(from, end, places);
    }
  }
};

/// Sorts one row with `parts` parts side by side, on D.
template <class D, class T, bool Indexed>
void sort_long_row(LongRow<T, Indexed> const& row, int64_t parts, void* state) {
  using Kernel = LongRowKernel<T, Indexed>;
  Kernel kernel{row, static_cast<typename Kernel::State*>(state), parts, Kernel::look};
  auto const run = [&](typename Kernel::Stage stage, int64_t count) {
    kernel.stage = stage;
    device_traits<D>::launch(kernel, count, 0);
  };
  if constexpr (is_counted<T>) run(Kernel::by_counting, 1);
  run(Kernel::look, parts);
  run(Kernel::plan, 1);
  run(Kernel::count, parts);
  run(Kernel::scatter, parts);
  run(Kernel::sort, BucketTable::buckets);
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
