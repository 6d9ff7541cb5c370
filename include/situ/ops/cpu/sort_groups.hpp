/// Runs of equal elements in a sorted row on the CPU: counted in parts, then written in parts.
#pragma once

#include <vector>

#include <situ/ops/cpu/sort.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

template <class T>
struct GroupsKernel {
  enum Stage { count, write, lengths };
  GroupsProblem<T> problem;
  int64_t parts;
  Stage stage;

  int64_t begin(int64_t part) const { return problem.n / parts * part + (part < problem.n % parts ? part : problem.n % parts); }

  void operator()(int64_t first, int64_t last) const {
    if (stage == lengths) {
      for (int64_t g = first; g < last; ++g) problem.counts[g] = (g + 1 < problem.groups ? problem.starts[g + 1] : problem.n) - problem.starts[g];
      return;
    }
    for (int64_t part = first; part < last; ++part) stage == count ? count_part(part) : write_part(part);
  }

  /// Whether a group begins at each of the m elements from `base` on.
  void find_begins(int64_t base, int64_t m, unsigned char* begins) const {
    if constexpr (std::is_integral_v<T>) {
      T const* const at = problem.sorted + base;
      begins[0] = base == 0 || at[0] != at[-1];
      for (int64_t i = 1; i < m; ++i) begins[i] = at[i] != at[i - 1];
    } else {
      sort_key_t<T> keys[key_block + 1];
      dispatch<EncodeKeys<T>>(problem.sorted + base, &keys[1], m, sort_key_t<T>(0));
      keys[0] = base > 0 ? sort_key(problem.sorted[base - 1]) : static_cast<sort_key_t<T>>(~keys[1]);
      for (int64_t i = 0; i < m; ++i) begins[i] = static_cast<unsigned char>((keys[i + 1] != keys[i]) | (keys[i + 1] == nan_key<T>));
    }
  }

  /// Whether a group that has begun goes on to the last of these m elements: in order, they are equal where the ends are.
  bool goes_on(int64_t base, int64_t m) const { return std::is_integral_v<T> && base > 0 && problem.sorted[base - 1] == problem.sorted[base + m - 1]; }

  void count_part(int64_t part) const {
    unsigned char begins[key_block];
    int64_t found = 0;
    for (int64_t base = begin(part), end = begin(part + 1); base < end; base += key_block) {
      int64_t const m = end - base < key_block ? end - base : key_block;
      if (goes_on(base, m)) continue;
      find_begins(base, m, begins);
      for (int64_t i = 0; i < m; ++i) found += begins[i];
    }
    problem.totals[part + 1] = found;
    if (part == 0) problem.totals[0] = 0;
  }

  void write_part(int64_t part) const {
    unsigned char begins[key_block];
    int places[key_block + 1];
    int64_t group = -1;
    for (int64_t k = 0; k <= part; ++k) group += problem.totals[k];  // totals[k] is what part k - 1 has found
    for (int64_t base = begin(part), end = begin(part + 1); base < end; base += key_block) {
      int const m = static_cast<int>(end - base < key_block ? end - base : key_block);
      if (!problem.inverse && goes_on(base, m)) continue;
      find_begins(base, m, begins);
      int found = 0;
      for (int i = 0; i < m; ++i) places[found] = i, found += begins[i];  // no branches that cannot be predicted
      if (problem.inverse) {
        int64_t mine = group;
        for (int i = 0; i < m; ++i) problem.put(mine += begins[i], base + i);
      }
      for (int k = 0; k < found; ++k) problem.begin_group(++group, base + places[k]);
    }
  }
};

}  // namespace detail::cpu

namespace detail {

/// Counts the groups. Waits for the device, because their number is read back.
template <class D, class T>
int64_t count_groups(cpu_kernels, GroupsProblem<T>& problem, Temporary<D>& totals, int64_t parts) {
  problem.totals = static_cast<int64_t*>(totals.get());
  cpu::GroupsKernel<T> const kernel{problem, parts, cpu::GroupsKernel<T>::count};
  device_traits<D>::launch(kernel, parts, 0);
  std::vector<int64_t> found(static_cast<std::size_t>(parts + 1));
  device_traits<D>::copy_to_host(found.data(), problem.totals, found.size() * sizeof(int64_t));
  int64_t groups = 0;
  for (int64_t n : found) groups += n;
  return groups;
}

template <class D, class T>
void write_groups(cpu_kernels, GroupsProblem<T> const& problem, int64_t parts) {
  cpu::GroupsKernel<T> kernel{problem, parts, cpu::GroupsKernel<T>::write};
  device_traits<D>::launch(kernel, parts, 0);
  if (!problem.counts) return;
  kernel.stage = cpu::GroupsKernel<T>::lengths;
  device_traits<D>::launch(kernel, problem.groups, cpu::elements_per_part);
}

inline int64_t group_parts(cpu_kernels, int64_t n) { return cpu::sort_parts(n, n); }

}  // namespace detail
}  // namespace situ::inline SITU_ABI
