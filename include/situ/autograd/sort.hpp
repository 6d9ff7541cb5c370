/// Sorting what records: sort, sort_values, argsort, topk. Order, shapes, types and errors are those of ops/sort.hpp.
///
///     auto [values, indices] = sort(x);    // a Variable, and a Tensor<int64_t>
///
/// Gradient  that of the values goes to the places that `indices` names.
#pragma once

#include <situ/autograd/index.hpp>
#include <situ/ops/sort.hpp>

namespace situ::inline SITU_ABI {

/// What sort and topk give: auto [values, indices] = sort(x).
template <class T, class D>
struct SortedVariable {
  Variable<T, D> values;
  Tensor<int64_t, D> indices;
};

namespace detail {

template <class E, class T, class D>
SortedVariable<T, D> recorded_sorted(char const* name, Sorted<T, D> const& sorted, E const& x, int64_t axis) {
  if (x.rank() == 0) return {record_on<false>(name, sorted.values, x, detail::linear([](auto const& g) { return g; })), sorted.indices};
  auto const saved = saved_constant(sorted.indices);
  auto values = record_on<false>(name, sorted.values, x, detail::linear([shape = Shape(x.shape()), axis, saved](auto const& g) { return added_at(g, shape, axis, saved.tensor()); }));
  return {std::move(values), sorted.indices};
}

}  // namespace detail

/// The elements of each row along an axis in ascending order, and where each of them stood.
template <class E>
  requires differentiable<E>
auto sort(E const& x, int64_t axis = -1) {
  return detail::recorded_sorted("Sort", sort(detail::values_of(x), axis), x, axis);
}
template <class E>
  requires differentiable<E>
auto sort(E const& x, int64_t axis, descending_t) {
  return detail::recorded_sorted("Sort", sort(detail::values_of(x), axis, descending), x, axis);
}
template <class E>
  requires differentiable<E>
auto sort(E const& x, descending_t) {
  return detail::recorded_sorted("Sort", sort(detail::values_of(x), descending), x, -1);
}

/// The sorted elements alone; their gradient needs the indices, so that this costs what sort does.
template <class E>
  requires differentiable<E>
auto sort_values(E const& x, int64_t axis = -1) {
  return sort(x, axis).values;
}
template <class E>
  requires differentiable<E>
auto sort_values(E const& x, int64_t axis, descending_t) {
  return sort(x, axis, descending).values;
}
template <class E>
  requires differentiable<E>
auto sort_values(E const& x, descending_t) {
  return sort(x, -1, descending).values;
}

/// The indices that sort each row: a Tensor.
template <class E, class... Args>
  requires differentiable<E>
auto argsort(E const& x, Args const&... args) {
  return argsort(detail::values_of(x), args...);
}

/// The k largest elements along an axis, largest first, and where they stand; the k smallest.
template <class E>
  requires differentiable<E>
auto topk(E const& x, int64_t k, int64_t axis = -1) {
  return detail::recorded_sorted("Topk", topk(detail::values_of(x), k, axis), x, axis);
}
template <class E>
  requires differentiable<E>
auto topk(E const& x, int64_t k, int64_t axis, smallest_t) {
  return detail::recorded_sorted("Topk", topk(detail::values_of(x), k, axis, smallest), x, axis);
}
template <class E>
  requires differentiable<E>
auto topk(E const& x, int64_t k, smallest_t) {
  return detail::recorded_sorted("Topk", topk(detail::values_of(x), k, smallest), x, -1);
}

}  // namespace situ::inline SITU_ABI
