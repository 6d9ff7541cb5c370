/// Sorting on the CPU: short rows side by side in the lanes of vectors, others by radix or, whole numbers of a narrow range, by counting, long ones by all
/// threads together.
///
/// Source    the network is the merge exchange of Batcher, for any length: Knuth, The Art of Computer Programming 3, 5.2.2 M.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/ops/cpu/sort_buckets.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int network_lanes_bytes = 64;  // of a row of a network, whatever the instruction set

/// Sorts every column of n rows of 64 bytes of keys.
template <class K>
struct SortColumns {
  template <class Isa>
  SITU_INLINE static void run(K* keys, int64_t n) {
    using V = typename vector_of<K, Isa::bytes / static_cast<int>(sizeof(K))>::type;
    constexpr int vectors = network_lanes_bytes / Isa::bytes;
    V* const rows = reinterpret_cast<V*>(keys);
    int64_t top = 1;
    while (2 * top < n) top *= 2;
    for (int64_t p = top; p > 0; p /= 2) {
      int64_t r = 0, d = p;
      for (int64_t q = top;; q /= 2) {
        for (int64_t base = r; base < n - d; base += 2 * p) {
          int64_t const end = base + p < n - d ? base + p : n - d;
          for (int64_t i = base * vectors; i < end * vectors; ++i) {
            V const a = rows[i], b = rows[i + d * vectors];
            rows[i] = a < b ? a : b;
            rows[i + d * vectors] = a < b ? b : a;
          }
        }
        if (q == p) break;
        d = q - p;
        r = p;
      }
    }
  }
};


/// The type that a network sorts: keys alone, or keys with their index below them.
template <class T, bool Indexed>
using network_key = std::conditional_t<!Indexed, sort_key_t<T>, std::conditional_t<(sizeof(T) <= 2), uint32_t, uint64_t>>;

/// Whether rows of n elements are sorted by networks.
template <class T, bool Indexed>
bool fits_network(int64_t n) {
  if (Indexed && sizeof(T) == 8) return false;
  switch (current_instruction_set()) {
    case instruction_set::avx512: return n <= 4096;
    case instruction_set::avx2: return n <= 1024;
    default: return n <= 64;
  }
}

/// Keys of m rows of `count` elements that lie `step` apart, row after row.
template <class T>
struct EncodeColumns {
  using K = sort_key_t<T>;
  template <class Isa>
  SITU_INLINE static int run(T const* from, K* to, int64_t m, int64_t step, int count, K flip) {
    using Keys = KeyVector<T, Isa>;
    using V = typename Keys::V;
    for (int64_t i = 0; i < m; ++i, from += step, to += count) {
      int r = 0;
      for (; r + Keys::lanes <= count; r += Keys::lanes) {
        V const key = Keys(from + r).v ^ (V{} + flip);
        __builtin_memcpy(to + r, &key, sizeof key);
      }
      for (; r < count; ++r) to[r] = static_cast<K>(sort_key(from[r]) ^ flip);
    }
    return 0;
  }
};

/// As many rows as a vector has lanes, sorted at once. Rows are dense, or lie side by side.
template <class T, bool Indexed>
struct NetworkKernel {
  using K = sort_key_t<T>;
  using Key = network_key<T, Indexed>;
  static constexpr int index_bits = sizeof(Key) == 4 ? 16 : 32;
  static constexpr int lanes = network_lanes_bytes / static_cast<int>(sizeof(Key));
  SortProblem<T> problem;
  char* scratch;
  int64_t slot_count;  ///< each sorts its share of the groups in its own scratch memory

  /// Of one slot: the keys, and the elements of one row.
  static int64_t slot_bytes(int64_t n) { return (n * (network_lanes_bytes + static_cast<int64_t>(sizeof(T))) + 63) / 64 * 64; }

  /// Where element i of a row lies: rows of one group follow each other by row_step.
  struct Group {
    int64_t first, row_step, step;
    int rows;
  };
  Group group(int64_t g) const {
    if (problem.columns == 1) {
      int64_t const row = g * lanes;
      return {row * problem.n, problem.n, 1, static_cast<int>(problem.rows - row < lanes ? problem.rows - row : lanes)};
    }
    int64_t const groups = groups_of_columns(), outer = g / groups, column = g % groups * lanes;
    return {outer * problem.n * problem.columns + column, 1, problem.columns,
            static_cast<int>(problem.columns - column < lanes ? problem.columns - column : lanes)};
  }
  int64_t groups_of_columns() const { return (problem.columns + lanes - 1) / lanes; }
  int64_t groups() const { return problem.columns == 1 ? (problem.rows + lanes - 1) / lanes : problem.rows / problem.columns * groups_of_columns(); }

  void operator()(int64_t first, int64_t last) const {
    for (int64_t slot = first; slot < last; ++slot) {
      char* const memory = scratch + slot * slot_bytes(problem.n);
      Key* const keys = reinterpret_cast<Key*>(memory);
      T* const held = reinterpret_cast<T*>(memory + problem.n * network_lanes_bytes);
      for (int64_t g = groups() * slot / slot_count; g < groups() * (slot + 1) / slot_count; ++g) {
        Group const at = group(g);
        bool const shared = load(at, keys);
        dispatch<SortColumns<Key>>(keys, problem.n);
        if (at.step != 1 && !shared) store_columns(at, keys);
        else for (int r = 0; r < at.rows; ++r) store(at, r, keys, held, shared);
      }
    }
  }

  K flip() const { return problem.descending ? static_cast<K>(~K(0)) : K(0); }

  SITU_INLINE static Key joined(K key, [[maybe_unused]] int64_t i) {
    if constexpr (Indexed) return static_cast<Key>(static_cast<Key>(key) << index_bits | static_cast<Key>(i));
    else return key;
  }
  SITU_INLINE static K key_of(Key key) {
    if constexpr (Indexed) return static_cast<K>(key >> index_bits);
    else return key;
  }

  /// Returns whether keys occur that do not tell the element.
  bool load(Group const& at, Key* keys) const {
    K block[key_block];
    int64_t const n = problem.n;
    T const* const source = problem.source + at.first;
    int shared = 0;
    if (at.rows < lanes) std::memset(static_cast<void*>(keys), 0, static_cast<std::size_t>(n * lanes) * sizeof(Key));
    auto const note = [&](int64_t count) {
      if constexpr (floating<T>) {
        for (int64_t i = 0; i < count; ++i) shared |= is_shared_key<T>(static_cast<K>(block[i] ^ flip()));
      }
    };
    if (at.step != 1) {
      int64_t const rows_at_once = key_block / at.rows;
      for (int64_t base = 0; base < n; base += rows_at_once) {
        int64_t const m = n - base < rows_at_once ? n - base : rows_at_once;
        dispatch<EncodeColumns<T>>(source + base * at.step, &block[0], m, at.step, at.rows, flip());
        note(m * at.rows);
        for (int64_t i = 0; i < m; ++i) {
          for (int r = 0; r < at.rows; ++r) keys[(base + i) * lanes + r] = joined(block[i * at.rows + r], base + i);
        }
      }
    } else {
      int64_t i = 0, r = 0;  // rows follow each other without gaps
      for (int64_t base = 0; base < at.rows * n; base += key_block) {
        int64_t const m = at.rows * n - base < key_block ? at.rows * n - base : key_block;
        dispatch<EncodeKeys<T>>(source + base, &block[0], m, flip());
        note(m);
        for (int64_t k = 0; k < m;) {
          int64_t const end = m - k < n - i ? m : k + n - i;
          for (; k < end; ++k, ++i) keys[i * lanes + r] = joined(block[k], i);
          if (i == n) i = 0, ++r;
        }
      }
    }
    return shared != 0;
  }

  /// Where all keys tell the element, columns side by side.
  void store_columns(Group const& at, Key const* keys) const {
    constexpr Key low = Indexed ? static_cast<Key>((uint64_t{1} << index_bits) - 1) : Key(0);
    for (int64_t i = 0; i < problem.n; ++i) {
      Key const* const from = keys + i * lanes;
      if (T* const values = problem.values ? problem.values + at.first + i * at.step : nullptr) {
        for (int r = 0; r < at.rows; ++r) values[r] = of_sort_key<T>(static_cast<K>(key_of(from[r]) ^ flip()));
      }
      if constexpr (Indexed) {
        int64_t* const indices = problem.indices + at.first + i * at.step;
        for (int r = 0; r < at.rows; ++r) indices[r] = static_cast<int64_t>(from[r] & low);
      }
    }
  }

  void store(Group const& at, int r, Key const* keys, [[maybe_unused]] T* held, [[maybe_unused]] bool shared) const {
    int64_t const n = problem.n, first = at.first + r * at.row_step;
    if constexpr (Indexed) {
      constexpr Key low = (Key(1) << index_bits) - 1;
      for (int64_t i = 0; i < n; ++i) {
        int64_t const index = static_cast<int64_t>(keys[i * lanes + r] & low);
        problem.indices[first + i * at.step] = index;
        if (problem.values) problem.values[first + i * at.step] = problem.source[first + index * at.step];
      }
    } else {
      if constexpr (floating<T>) {
        if (shared) {
          for (int64_t i = 0; i < n; ++i) held[i] = problem.source[first + i * at.step];
        }
      }
      for (int64_t i = 0; i < n; ++i) problem.values[first + i * at.step] = of_sort_key<T>(static_cast<K>(keys[i * lanes + r] ^ flip()));
      if constexpr (floating<T>) {
        if (shared) restore(at, r, keys, held, first);
      }
    }
  }

  /// Writes the zeros and the NaN of a row as they were, in the order in which they stood.
  void restore(Group const& at, int r, Key const* keys, T const* held, int64_t first) const {
    int64_t zero = -1, nan = -1;
    for (int64_t i = problem.n - 1; i >= 0; --i) {
      K const key = static_cast<K>(keys[i * lanes + r] ^ flip());
      if (key == zero_key<T>) zero = i;
      if (key == nan_key<T>) nan = i;
    }
    for (int64_t i = 0; i < problem.n; ++i) {
      K const key = sort_key(held[i]);
      if (key == zero_key<T>) problem.values[first + zero++ * at.step] = held[i];
      if (key == nan_key<T>) problem.values[first + nan++ * at.step] = held[i];
    }
  }
};

/// Rows of a problem on one thread each: slot k of `slot_count` sorts its share of them in its own scratch memory.
template <class T, bool Indexed>
struct RowsKernel {
  SortProblem<T> problem;
  char* scratch;
  int64_t slot_count;
  int64_t slot_bytes;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t slot = first; slot < last; ++slot) {
      int64_t const rows = problem.rows;
      int64_t const begin = rows / slot_count * slot + (slot < rows % slot_count ? slot : rows % slot_count);
      int64_t const end = begin + rows / slot_count + (slot < rows % slot_count ? 1 : 0);
      for (int64_t r = begin; r < end; ++r) sort(problem.row(r), scratch + slot * slot_bytes);
    }
  }
  void sort(SortedRow<T> const& row, char* memory) const {
    int64_t const n = problem.n;
    bool const descending = problem.descending;
    if constexpr (is_counted<T>) {
      if (sort_by_counting(row, n, descending, memory)) return;
    }
    if (n <= insertion_limit) sort_short_row<T, Indexed>(row, n, descending);
    else if (is_long_row<T, Indexed>(n)) sort_by_buckets(LongRow<T, Indexed>::in(memory, row, n, descending));
    else if constexpr (Indexed) radix_sort_records(row, memory, n, descending);
    else radix_sort_values(row.source, row.values, reinterpret_cast<T*>(memory), n, descending);
  }
};

inline constexpr int64_t elements_per_part = 32768;  // less is not worth a thread

inline namespace SITU_ABI_THREADS {

/// Into how many parts work on `elements` elements is cut, at most `most`: several for each thread, which may be held up.
inline int64_t sort_parts(int64_t elements, int64_t most, int64_t per_thread = 4) {
  int64_t parts = elements / elements_per_part, threads = num_threads();
  if (threads == 1) return 1;
  if (parts > per_thread * threads) parts = per_thread * threads;
  return parts > most ? most : parts < 1 ? 1 : parts;
}

/// Sorts rows that no network does.
template <bool Indexed, class D, class T>
void sort_rows(SortProblem<T> const& problem) {
  using Row = LongRow<T, Indexed>;
  int64_t const n = problem.n, parts = sort_parts(n, n), slot_count = sort_parts(problem.rows * n, problem.rows);
  bool const shared = parts > slot_count;
  std::size_t const bytes = n <= insertion_limit ? 0 : shared || is_long_row<T, Indexed>(n) ? Row::scratch_bytes(n) : radix_scratch<T, Indexed>(n);
  Temporary<D> const scratch(bytes * static_cast<std::size_t>(shared ? 1 : slot_count));
  char* const memory = static_cast<char*>(scratch.get());
  if (!shared) return device_traits<D>::launch(RowsKernel<T, Indexed>{problem, memory, slot_count, static_cast<int64_t>(bytes)}, slot_count, 0);
  Temporary<D> const state(static_cast<std::size_t>(parts) * sizeof(typename LongRowKernel<T, Indexed>::State));
  for (int64_t r = 0; r < problem.rows; ++r) {
    sort_long_row<D>(Row::in(memory, problem.row(r), n, problem.descending), parts, state.get());
  }
}

}  // namespace SITU_ABI_THREADS

}  // namespace detail::cpu

namespace detail {

/// Whether rows that lie side by side are sorted where they are.
template <class T>
bool sorts_columns(cpu_kernels, int64_t n, bool indexed) {
  return indexed ? cpu::fits_network<T, true>(n) : cpu::fits_network<T, false>(n);
}

template <bool Indexed, class D, class T>
bool launch_network(SortProblem<T> const& problem) {
  if (!cpu::fits_network<T, Indexed>(problem.n)) return false;
  using Kernel = cpu::NetworkKernel<T, Indexed>;
  if (problem.columns == 1 && problem.rows < Kernel::lanes / 2) return false;
  Kernel kernel{problem, nullptr, 0};
  kernel.slot_count = cpu::sort_parts(problem.rows * problem.n, kernel.groups());
  Temporary<D> const scratch(static_cast<std::size_t>(kernel.slot_count * Kernel::slot_bytes(problem.n)));
  kernel.scratch = static_cast<char*>(scratch.get());
  device_traits<D>::launch(kernel, kernel.slot_count, 0);
  return true;
}

/// Sorts on D, which has the CPU's kernels; see SortProblem. `Indexed`: that there is a place for indices.
template <bool Indexed, class D, class T>
void launch_sort(cpu_kernels, SortProblem<T> const& problem) {
  if (problem.rows == 0 || problem.n == 0) return;
  if constexpr (!Indexed || sizeof(T) < 8) {
    if (launch_network<Indexed, D>(problem)) return;
  }
  cpu::sort_rows<Indexed, D>(problem);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
