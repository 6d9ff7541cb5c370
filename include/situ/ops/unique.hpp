/// The different elements of a tensor: unique, unique_counts, unique_inverse, unique_all.
///
///     auto v = unique(x);
///     auto [values, counts] = unique_counts(x);
///     auto [values, inverse] = unique_inverse(x);      // take(values, inverse) is x
///
/// Order     ascending. -0.0 equals 0.0 (the one that comes first in x stands for both); every NaN is an element of its own, at the end, as in the array
///           API and PyTorch.
/// Shape     values, counts and indices [m], where m is how many there are; inverse_indices as x. All axes are looked at together.
/// Dtype     values as x, the rest int64.
/// Device    runs where x lives. Waits for it: the number of elements is read back.
/// Throws    OutOfMemory.
/// Cost      that of sort_values (unique, unique_counts) or sort (with indices), and two passes over the sorted elements.
#pragma once

#include <situ/ops/cpu/sort_groups.hpp>
#include <situ/ops/sort.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/sort_groups.hpp>
#endif

namespace situ::inline SITU_ABI {

template <class T, class D>
struct UniqueCounts {
  Tensor<T, D> values;
  Tensor<int64_t, D> counts;
};
template <class T, class D>
struct UniqueInverse {
  Tensor<T, D> values;
  Tensor<int64_t, D> inverse_indices;
};
template <class T, class D>
struct UniqueAll {
  Tensor<T, D> values;
  Tensor<int64_t, D> indices, inverse_indices, counts;
};

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class T>
int64_t count_groups(cuda_kernels, GroupsProblem<T>&, Temporary<D>&, int64_t) {
  static_assert(compiled_by_nvcc<T>, "situ: sorting_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
  return 0;
}
template <class D, class T>
void write_groups(cuda_kernels, GroupsProblem<T> const&, int64_t) {}
inline int64_t group_parts(cuda_kernels, int64_t) { return 1; }
}  // namespace SITU_ABI_COMPILER
#endif

template <bool Indices, bool Inverse, bool Counts, class E>
auto unique(E const& e, char const* who) {
  using T = value_of<E>;
  using D = result_device_t<device_of<E>>;
  using kernels = typename device_traits<D>::kernels;
  UniqueAll<T, D> result;
  int64_t const n = e.size();
  check_row_length<T>(kernels{}, n, Indices || Inverse, who);
  if constexpr (Inverse) result.inverse_indices = Tensor<int64_t, D>::uninitialized(e.shape(), who);
  if (n == 0) return result;
  T const* const dense = contiguous_source(e);
  Tensor<T, D> staged;
  if (!dense) {
    staged = Tensor<T, D>::uninitialized(e.shape(), who);
    staged.assign(e);
  }
  constexpr bool ordered = Indices || Inverse;
  Tensor<T, D> const values = dense || ordered ? Tensor<T, D>::uninitialized({n}, who) : staged;
  Tensor<int64_t, D> order;
  if constexpr (ordered) order = Tensor<int64_t, D>::uninitialized({n}, who);
  launch_sort<ordered, D>(kernels{}, SortProblem<T>{dense ? dense : staged.data(), const_cast<T*>(values.data()), ordered ? order.data() : nullptr, 1, n, 1, false});

  GroupsProblem<T> problem{};
  problem.sorted = values.data();
  problem.order = ordered ? order.data() : nullptr;
  problem.n = n;
  int64_t const parts = group_parts(kernels{}, n);
  Temporary<D> totals(static_cast<std::size_t>(parts + 1) * sizeof(int64_t));
  int64_t const groups = problem.groups = count_groups<D>(kernels{}, problem, totals, parts);
  auto const fresh = [&]<class U>(Tensor<U, D>& tensor) { return (tensor = Tensor<U, D>::uninitialized({groups}, who)).data(); };
  Temporary<D> const starts(Counts ? static_cast<std::size_t>(groups) * sizeof(int64_t) : 0);
  problem.values = fresh(result.values);
  if constexpr (Indices) problem.indices = fresh(result.indices);
  if constexpr (Inverse) problem.inverse = result.inverse_indices.data();
  if constexpr (Counts) problem.counts = fresh(result.counts), problem.starts = static_cast<int64_t*>(starts.get());
  write_groups<D>(kernels{}, problem, parts);
  return result;
}

}  // namespace detail

/// The different elements of x, in ascending order.
template <class E>
  requires expression<E>
auto unique(E const& x) {
  return detail::unique<false, false, false>(x, "unique").values;
}
/// And how often each occurs: {values, counts}.
template <class E>
  requires expression<E>
auto unique_counts(E const& x) {
  auto all = detail::unique<false, false, true>(x, "unique_counts");
  return UniqueCounts<value_of<E>, detail::result_device_t<device_of<E>>>{all.values, all.counts};
}
/// And which of them every element of x is: {values, inverse_indices}.
template <class E>
  requires expression<E>
auto unique_inverse(E const& x) {
  auto all = detail::unique<false, true, false>(x, "unique_inverse");
  return UniqueInverse<value_of<E>, detail::result_device_t<device_of<E>>>{all.values, all.inverse_indices};
}
/// And where each occurs first (in row-major order): {values, indices, inverse_indices, counts}.
template <class E>
  requires expression<E>
auto unique_all(E const& x) {
  return detail::unique<true, true, true>(x, "unique_all");
}

}  // namespace situ::inline SITU_ABI
