/// Sorting: sort, sort_values, argsort, topk.
///
///     auto [values, indices] = sort(x);            // along the last axis, ascending
///     sort_values(x * y, 0, descending)            // values alone: no indices are carried along
///     auto [best, where] = topk(scores, 5);        // the 5 largest
///
/// Order     stable: equal elements stay in the order in which they stand. -0.0 equals 0.0. NaN counts as larger than everything, so
///           it comes last, and first under `descending`, as in PyTorch.
/// Shape     as x; topk: with k in place of the sorted axis. Negative axes count from the end. A scalar is sorted along no axis.
/// Dtype     values as x, indices int64.
/// Device    runs where x lives; enqueued, not waited for. The same result for any number of threads.
/// Throws    AxisError when x has no such axis; ShapeError when k is not between 0 and its extent, or for an axis of 2³² elements or more where
///           indices are kept of elements of less than 8 bytes, or x lives on a GPU; OutOfMemory.
/// Cost      an expression is evaluated once, into the result or what is sorted. CPU: radix sort by the upper bits that tell elements apart, of long rows
///           in buckets that a cache holds, with as much scratch memory as x (long rows: twice) or 16 bytes for each element (32 for 8-byte types) with indices; several rows of at most
///           4096 elements (1024 with AVX2), and columns of as many, by networks in vector registers; int32 and int64 of a narrow range, as labels are, by
///           counting. An axis that is not the last costs a transposed copy beyond that.
/// Gradient  ∂values/∂x is the permutation: the gradient of values goes to the places that `indices` names.
#pragma once

#include <situ/ops/cpu/sort.hpp>
#include <situ/ops/cpu/sort_select.hpp>
#include <situ/tensor/tensor.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/sort_select.hpp>
#endif

namespace situ::inline SITU_ABI {

namespace error {
template <class Given>
struct descending_is_a_tag__as_in_sort_of_x_and_0_and_descending {};
}  // namespace error

/// Largest first: sort(x, -1, descending).
struct descending_t {
  explicit constexpr descending_t(int) {}
};
inline constexpr descending_t descending{0};

/// Smallest first, for topk: topk(x, 5, -1, smallest).
struct smallest_t {
  explicit constexpr smallest_t(int) {}
};
inline constexpr smallest_t smallest{0};

/// What sort and topk give: auto [values, indices] = sort(x).
template <class T, class D>
struct Sorted {
  Tensor<T, D> values;
  Tensor<int64_t, D> indices;
};

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <bool Indexed, class D, class T>
void launch_sort(cuda_kernels, SortProblem<T> const&) {
  static_assert(compiled_by_nvcc<T>, "situ: sorting_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
template <class D, class T>
void launch_topk(cuda_kernels, TopkProblem<T> const&) {
  static_assert(compiled_by_nvcc<T>, "situ: sorting_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// Indices of a row are kept in 32 bits where that halves what is moved.
template <class T, class Kernels>
void check_row_length(Kernels, int64_t n, bool indexed, char const* who) {
  constexpr bool on_cpu = std::is_same_v<Kernels, cpu_kernels>;
  if (on_cpu && (!indexed || sizeof(T) == 8)) return;
  constexpr int64_t most = (int64_t{1} << 32) - 1;
  if (n > most) fail<ShapeError>(who, ": ", n, " elements along the axis: there can be at most ", most, "; work on parts of it");
}

template <class T>
bool sorts_columns(cuda_kernels, int64_t, bool) {
  return false;
}

/// Axis `axis` moved to the end, and back: the axes of the moved tensor, and of the original.
struct MovedAxis {
  Shape there, back;
  MovedAxis(int rank, int axis) : there(Shape::filled(rank, 0)), back(there) {
    int at = 0;
    for (int k = 0; k < rank; ++k) {
      if (k != axis) there[at++] = k;
    }
    there[rank - 1] = axis;
    for (int k = 0; k < rank; ++k) back[there[k]] = k;
  }
  Shape moved(Shape const& shape) const {
    Shape result = shape;
    for (int k = 0; k < shape.rank(); ++k) result[k] = shape[there[k]];
    return result;
  }
};

/// How many elements lie side by side within one index of `axis`.
inline int64_t columns_of(Shape const& shape, int axis) {
  int64_t columns = 1;
  for (int k = axis + 1; k < shape.rank(); ++k) columns = extended(columns, shape[k]);
  return columns;
}

/// e as a fresh tensor with `axis` last and dense.
template <class E>
auto with_axis_last(E const& e, int axis, char const* who) {
  using Result = Tensor<value_of<E>, result_device_t<device_of<E>>>;
  MovedAxis const axes(e.rank(), axis);
  Result moved = Result::uninitialized(axes.moved(e.shape()), who);
  moved.permute(axes.back).assign(e);
  return moved;
}
/// The reverse, into a fresh contiguous tensor.
template <class T, class D>
Tensor<T, D> with_axis_back(Tensor<T, D> const& moved, int axis) {
  return moved.permute(MovedAxis(moved.rank(), axis).back).clone();
}

/// A tensor that is contiguous as it stands, whose memory can be read without evaluating anything.
template <class E>
auto contiguous_source(E const& e) -> value_of<E> const* {
  if constexpr (requires { e.data(); e.is_contiguous(); }) {
    if (e.is_contiguous()) return e.data();
  }
  return nullptr;
}

template <bool Values, bool Indices, class E>
auto sorted(E const& e, int64_t axis, bool descending, char const* who) {
  using T = value_of<E>;
  using D = result_device_t<device_of<E>>;
  using kernels = typename device_traits<D>::kernels;
  Shape const& shape = e.shape();
  int const rank = shape.rank(), k = line_axis(axis, shape, who);
  int64_t const n = rank == 0 ? 1 : shape[k], columns = rank == 0 ? 1 : columns_of(shape, k);
  if (e.size() > 0) check_row_length<T>(kernels{}, n, Indices, who);
  Sorted<T, D> result;
  bool const moves = columns > 1 && n > 1 && e.size() > 0 && !sorts_columns<T>(kernels{}, n, Indices);
  if (moves) {
    Tensor<T, D> const source = with_axis_last(e, k, who);
    if constexpr (Indices) result.indices = Tensor<int64_t, D>::uninitialized(source.shape(), who);
    if constexpr (Values) result.values = Indices ? Tensor<T, D>::uninitialized(source.shape(), who) : source;
    launch_sort<Indices, D>(kernels{}, SortProblem<T>{source.data(), Values ? result.values.data() : nullptr, Indices ? result.indices.data() : nullptr,
                                             source.size() / n, n, 1, descending});
    if constexpr (Values) result.values = with_axis_back(result.values, k);
    if constexpr (Indices) result.indices = with_axis_back(result.indices, k);
    return result;
  }
  if constexpr (Values) result.values = Tensor<T, D>::uninitialized(shape, who);
  if constexpr (Indices) result.indices = Tensor<int64_t, D>::uninitialized(shape, who);
  if (e.size() == 0) return result;
  T const* source = contiguous_source(e);
  Tensor<T, D> staged;
  if (!source) {
    staged = Values && !Indices ? result.values : Tensor<T, D>::uninitialized(shape, who);
    staged.assign(e);
    source = staged.data();
  }
  launch_sort<Indices, D>(kernels{}, SortProblem<T>{source, Values ? result.values.data() : nullptr, Indices ? result.indices.data() : nullptr,
                                           e.size() / n, n, columns, descending});
  return result;
}

template <class E>
auto topk(E const& e, int64_t k, int64_t axis, bool largest) -> Sorted<value_of<E>, result_device_t<device_of<E>>> {
  using T = value_of<E>;
  using D = result_device_t<device_of<E>>;
  using kernels = typename device_traits<D>::kernels;
  Shape const& shape = e.shape();
  int const rank = shape.rank(), a = line_axis(axis, shape, "topk");
  int64_t const n = rank == 0 ? 1 : shape[a];
  if (k < 0 || k > n) fail<ShapeError>("topk: ", k, k == 1 ? " element was" : " elements were", " asked for along axis ", axis, " of shape ", shape, ": there are ", n, "; k is 0 to ", n);
  Shape out = shape;
  if (rank > 0) out[a] = k;
  bool const moves = rank > 0 && columns_of(shape, a) > 1 && n > 1 && product(out) > 0;
  if (2 * k > n || n <= 32) {
    Sorted<T, D> all = sorted<true, true>(e, axis, largest, "topk");
    if (rank == 0 || k == n) return all;
    return {all.values.slice(a, 0, k).clone(), all.indices.slice(a, 0, k).clone()};
  }
  if (product(out) > 0) check_row_length<T>(kernels{}, n, true, "topk");
  Tensor<T, D> staged;
  T const* source = moves ? nullptr : contiguous_source(e);
  if (moves) {
    staged = with_axis_last(e, a, "topk");
    out = MovedAxis(rank, a).moved(out);
  } else if (!source) {
    staged = Tensor<T, D>::uninitialized(shape, "topk");
    staged.assign(e);
  }
  if (!source) source = staged.data();
  Sorted<T, D> result{Tensor<T, D>::uninitialized(out, "topk"), Tensor<int64_t, D>::uninitialized(out, "topk")};
  if (result.values.size() == 0) return result;
  launch_topk<D>(kernels{}, TopkProblem<T>{source, result.values.data(), result.indices.data(), e.size() / n, n, k, largest});
  if (moves) return {with_axis_back(result.values, a), with_axis_back(result.indices, a)};
  return result;
}

}  // namespace detail

/// The elements of each row along an axis in ascending order, and where each of them stood: {values, indices}.
template <class E>
  requires expression<E>
auto sort(E const& x, int64_t axis = -1) {
  return detail::sorted<true, true>(x, axis, false, "sort");
}
template <class E>
  requires expression<E>
auto sort(E const& x, int64_t axis, descending_t) {
  return detail::sorted<true, true>(x, axis, true, "sort");
}
template <class E>
  requires expression<E>
auto sort(E const& x, descending_t) {
  return detail::sorted<true, true>(x, -1, true, "sort");
}

/// The sorted elements alone: about 1.5 times as fast as sort(x).values, with a quarter of its scratch memory.
template <class E>
  requires expression<E>
auto sort_values(E const& x, int64_t axis = -1) {
  return detail::sorted<true, false>(x, axis, false, "sort_values").values;
}
template <class E>
  requires expression<E>
auto sort_values(E const& x, int64_t axis, descending_t) {
  return detail::sorted<true, false>(x, axis, true, "sort_values").values;
}
template <class E>
  requires expression<E>
auto sort_values(E const& x, descending_t) {
  return detail::sorted<true, false>(x, -1, true, "sort_values").values;
}

/// The indices that sort each row: gather(x, axis, argsort(x, axis)) is sorted.
template <class E>
  requires expression<E>
auto argsort(E const& x, int64_t axis = -1) {
  return detail::sorted<false, true>(x, axis, false, "argsort").indices;
}
template <class E>
  requires expression<E>
auto argsort(E const& x, int64_t axis, descending_t) {
  return detail::sorted<false, true>(x, axis, true, "argsort").indices;
}
template <class E>
  requires expression<E>
auto argsort(E const& x, descending_t) {
  return detail::sorted<false, true>(x, -1, true, "argsort").indices;
}

// What PyTorch's users would write: a truth for descending, which would otherwise be an axis.
#define SITU_SORT_MISUSED(NAME)                                                                                \
  template <class E, std::same_as<bool> B, class Error = error::descending_is_a_tag__as_in_sort_of_x_and_0_and_descending<B>> \
    requires(expression<E> || differentiable<E>)                                                               \
  void NAME(E const&, B) = delete;                                                                             \
  template <class E, std::same_as<bool> B, class Error = error::descending_is_a_tag__as_in_sort_of_x_and_0_and_descending<B>> \
    requires(expression<E> || differentiable<E>)                                                               \
  void NAME(E const&, int64_t, B) = delete;
SITU_SORT_MISUSED(sort)
SITU_SORT_MISUSED(sort_values)
SITU_SORT_MISUSED(argsort)
#undef SITU_SORT_MISUSED

/// The k largest elements along an axis, largest first, and where they stand: {values, indices}. The same as the first k of
/// sort(x, axis, descending): of equal elements those that come first.
/// Cost      one pass over x where k is small against its extent, then a sort of k elements; a sort of all beyond half of it.
template <class E>
  requires expression<E>
auto topk(E const& x, int64_t k, int64_t axis = -1) {
  return detail::topk(x, k, axis, true);
}
/// The k smallest, smallest first.
template <class E>
  requires expression<E>
auto topk(E const& x, int64_t k, int64_t axis, smallest_t) {
  return detail::topk(x, k, axis, false);
}
template <class E>
  requires expression<E>
auto topk(E const& x, int64_t k, smallest_t) {
  return detail::topk(x, k, -1, false);
}
template <class E, std::same_as<bool> B, class... Bs, class Error = error::topk_takes_the_largest__or_the_tag_smallest_for_the_others<B>>
  requires(expression<E> || differentiable<E>)
void topk(E const&, int64_t, B, Bs...) = delete;
template <class E, std::same_as<bool> B, class... Bs, class Error = error::topk_takes_the_largest__or_the_tag_smallest_for_the_others<B>>
  requires(expression<E> || differentiable<E>)
void topk(E const&, int64_t, int64_t, B, Bs...) = delete;

}  // namespace situ::inline SITU_ABI
