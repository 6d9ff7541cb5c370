/// The k best of a row on the CPU, in one pass: what beats the k-th best so far is collected, and whenever the room is full, all
/// but the k best are dropped. Linear in the length of the row, for any order of its elements. The best of a few are kept sorted instead.
#pragma once

#include <situ/ops/cpu/sort.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The candidates of one row in room for `capacity` records; keys are such that the least is the best.
template <class T>
struct Candidates {
  using K = sort_key_t<T>;
  using R = Records<K>;
  using Record = typename R::record;
  Record* records;
  int64_t k, capacity;
  int64_t count = 0;
  bool full = false;  ///< k have been found, and only what is less than `limit` matters
  K limit = static_cast<K>(~K(0));
  int64_t room = 2 * k + 2 * block;  ///< how many are collected until the k best of them are kept: a limit that is soon found is seldom passed
  int64_t selected_at = 0;

  static constexpr int64_t few = 32;
  static constexpr int block = 128;  // elements looked at together: a block without a candidate costs one comparison
  static int64_t capacity_for(int64_t k) { return 2 * k + 2 * key_block; }

  /// Elements [first, end) of a row.
  void take(T const* row, int64_t first, int64_t end, K flip) {
    K keys[block];
    for (int64_t base = first; base < end; base += block) {
      int const m = end - base < block ? static_cast<int>(end - base) : block;
      K const least = dispatch<EncodeKeys<T>>(row + base, &keys[0], int64_t{m}, flip);
      if (full && least >= limit) continue;
      if (k <= few) insert(keys, base, m);
      else append(keys, base, m);
    }
  }

 private:
  void insert(K const* keys, int64_t base, int m) {
    unsigned char better[block];
    int i = 0, found = 0;
    for (; i < m && !full; ++i) keep(R::make(keys[i], base + i));
    for (; i < m; ++i) {
      better[found] = static_cast<unsigned char>(i);
      found += keys[i] < limit;
    }
    for (int f = 0; f < found; ++f) {
      if (keys[better[f]] < limit) keep(R::make(keys[better[f]], base + better[f]));
    }
  }
  void append(K const* keys, int64_t base, int m) {
    if (count + m > room) {
      room = full && base - selected_at < 3 * (count - k) ? capacity : 2 * k + 2 * block;  // many pass: they come in order, the best last
      selected_at = base;
      select();
    }
    Record* to = records + count;
    for (int i = 0; i < m; ++i) {
      *to = R::make(keys[i], base + i);
      to += !full || keys[i] < limit;
    }
    count = to - records;
  }
  /// Puts a record that is one of the best behind those that are no worse.
  void keep(Record const& record) {
    K const key = static_cast<K>(R::key(record));
    int64_t at = full ? k - 1 : count++;
    for (; at > 0 && static_cast<K>(R::key(records[at - 1])) > key; --at) records[at] = records[at - 1];
    records[at] = record;
    full = count == k;
    if (full) limit = static_cast<K>(R::key(records[k - 1]));
  }

 public:
  /// Keeps the k best, in the order of their indices or of their keys.
  void select() {
    if (count <= k) return;
    uint64_t any = 0, all = ~uint64_t{0};
    for (int64_t i = 0; i < count; ++i) {
      any |= R::key(records[i]);
      all &= R::key(records[i]);
    }
    // The k-th least key, digit by digit from the top; `rank` counts within those that share the digits above.
    uint64_t prefix = all;
    int64_t rank = k;
    for (int shift = 8 * static_cast<int>(sizeof(K)) - 8; shift >= 0; shift -= 8) {
      if (((any & ~all) >> shift & 255) == 0) continue;
      int64_t counts[256] = {};
      uint64_t const above = shift == 56 ? 0 : ~uint64_t{0} << (shift + 8);
      for (int64_t i = 0; i < count; ++i) {
        uint64_t const key = R::key(records[i]);
        if (((key ^ prefix) & above) == 0) ++counts[key >> shift & 255];
      }
      unsigned digit = 0;
      while (rank > counts[digit]) rank -= counts[digit++];
      prefix = (prefix & ~(uint64_t{255} << shift)) | uint64_t{digit} << shift;
    }
    limit = static_cast<K>(prefix);
    int64_t kept = 0;  // `rank` of those that equal the limit stay: the first ones
    for (int64_t i = 0; i < count; ++i) {
      Record const record = records[i];
      K const key = R::key(record);
      records[kept] = record;
      if (key < limit) ++kept;
      else if (key == limit && rank > 0) ++kept, --rank;
    }
    count = kept;
    full = true;
  }
};

/// The k best of every row, or of parts of it that are joined by a second launch.
template <class T>
struct TopkKernel {
  using K = sort_key_t<T>;
  using R = Records<K>;
  using Record = typename R::record;
  TopkProblem<T> problem;
  Record* scratch;     ///< 2 * capacity for each slot
  int64_t* counts;     ///< of a row in parts: how many candidates each has
  int64_t capacity;
  int64_t slot_count;  ///< of rows, or the parts of each row
  bool parts, join;

  K flip() const { return problem.largest ? static_cast<K>(~K(0)) : K(0); }

  void operator()(int64_t first, int64_t last) const {
    if (join) return join_rows(first, last);
    for (int64_t slot = first; slot < last; ++slot) {
      if (parts) {
        int64_t const row = slot / slot_count, part = slot % slot_count, n = problem.n;
        Candidates<T> best{scratch + slot * capacity, problem.k, capacity};
        best.take(problem.source + row * n, n / slot_count * part, part + 1 == slot_count ? n : n / slot_count * (part + 1), flip());
        best.select();
        counts[slot] = best.count;
      } else {
        Record* const room = scratch + slot * 2 * capacity;
        for (int64_t row = problem.rows * slot / slot_count; row < problem.rows * (slot + 1) / slot_count; ++row) {
          Candidates<T> best{room, problem.k, capacity};
          best.take(problem.source + row * problem.n, 0, problem.n, flip());
          best.select();
          put(row, sort_items<SortItems<T, true>>(room, room + capacity, best.count, false));
        }
      }
    }
  }

  /// The parts follow each other in the order of their indices, so joining them keeps equal elements in order.
  void join_rows(int64_t first, int64_t last) const {
    for (int64_t row = first; row < last; ++row) {
      Record* const room = scratch + row * slot_count * capacity;
      int64_t count = 0;
      for (int64_t part = 0; part < slot_count; ++part) {
        for (int64_t i = 0; i < counts[row * slot_count + part]; ++i) room[count++] = room[part * capacity + i];
      }
      Candidates<T> best{room, problem.k, capacity, count};
      best.select();
      put(row, sort_items<SortItems<T, true>>(room, room + best.count, best.count, false));
    }
  }

  void put(int64_t row, Record const* sorted) const {
    int64_t const at = row * problem.k;
    for (int64_t i = 0; i < problem.k; ++i) {
      int64_t const index = R::index(sorted[i]);
      problem.indices[at + i] = index;
      problem.values[at + i] = problem.source[row * problem.n + index];
    }
  }
};

}  // namespace detail::cpu

namespace detail {

/// The k best of every row on D, which has the CPU's kernels. 2 k <= n.
template <class D, class T>
void launch_topk(cpu_kernels, TopkProblem<T> const& problem) {
  using Kernel = cpu::TopkKernel<T>;
  int64_t const capacity = cpu::Candidates<T>::capacity_for(problem.k);
  int64_t const slot_count = cpu::sort_parts(problem.rows * problem.n, problem.rows);
  int64_t const parts = cpu::sort_parts(problem.n, problem.n / (256 * problem.k + 1) + 1, 1);  // each part finds its own k best
  bool const in_parts = parts > slot_count && parts > 1;
  int64_t const rooms = in_parts ? parts : 2 * slot_count;
  Temporary<D> const scratch(static_cast<std::size_t>(rooms * capacity) * sizeof(typename Kernel::Record));
  Temporary<D> const counts(static_cast<std::size_t>(in_parts ? parts : 0) * sizeof(int64_t));
  Kernel kernel{problem, static_cast<typename Kernel::Record*>(scratch.get()), static_cast<int64_t*>(counts.get()), capacity, in_parts ? parts : slot_count, in_parts, false};
  if (!in_parts) return device_traits<D>::launch(kernel, slot_count, 0);
  for (int64_t row = 0; row < problem.rows; ++row) {  // fewer than there are threads
    kernel.problem.source = problem.source + row * problem.n;
    kernel.problem.values = problem.values + row * problem.k;
    kernel.problem.indices = problem.indices + row * problem.k;
    kernel.problem.rows = 1;
    kernel.join = false;
    device_traits<D>::launch(kernel, parts, 0);
    kernel.join = true;
    device_traits<D>::launch(kernel, int64_t{1}, 1);
  }
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
