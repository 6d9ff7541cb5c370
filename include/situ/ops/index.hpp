/// Selecting by index: gather, scatter, scatter_add, index_select, take, repeat with counts, one_hot.
///
///     gather(x, 1, index)   scatter_add(x, 0, index, src)   index_select(x, 0, rows)   take(x, places)   one_hot(labels, 10)
///
/// An index is a tensor or expression of any integer type; negative ones count from the end of the axis, as in NumPy.
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    AxisError when x has no such axis, ShapeError when shapes do not fit; IndexError for an index out of range: at once on the host,
///           where the result is not made then; from the next synchronisation of an asynchronous device (`synchronize`, `item`,
///           `to(Cpu{})`, …), whose kernel has left the index out: it gave 0 for it, or wrote nothing. No memory outside of the
///           tensors is touched, and nothing waits for the check.
/// Special   functions of values: none of them writes to its arguments. All are deterministic, also with equal indices.
#pragma once

#include <vector>

#include <situ/ops/cpu/index.hpp>
#include <situ/ops/formula_view.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor/factories.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/index.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
#define SITU_NEEDS_NVCC(P) \
  static_assert(compiled_by_nvcc<P>, "situ: indexing_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host")
template <class D, class P>
void launch_gather(cuda_kernels, P const&) {
  SITU_NEEDS_NVCC(P);
}
template <class D, class P>
void launch_scatter(cuda_kernels, P const&) {
  SITU_NEEDS_NVCC(P);
}
template <class D, class P>
void launch_one_hot(cuda_kernels, P const&) {
  SITU_NEEDS_NVCC(P);
}
template <class D, class T, class E, class Ix>
bool launch_index_select(cuda_kernels, T*, E const&, int, Ix const*, int64_t, IndexBounds const&) {
  SITU_NEEDS_NVCC(E);
  return true;
}
#undef SITU_NEEDS_NVCC
}  // namespace SITU_ABI_COMPILER
#endif

/// An index, or an expression of one.
template <class E>
concept index_expression = expression<E> && integer<value_of<E>>;

/// The indices, one after the other in memory.
template <class E>
auto packed_indices(E const& index) {
  return evaluated(index).contiguous();
}

/// Indices as D's scatter kernels read them: the CPU's take any strides, so that an index that repeats along rows moves rows at once.
template <class D, class E>
auto scatter_indices(E const& index) {
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) return evaluated(index);
  else return packed_indices(index);
}

/// Where kernels of D write down an index that is out of range, and what becomes of it.
template <class D>
class IndexCheck {
 public:
  IndexCheck(char const* operation, int64_t extent, int axis, bool counts_from_end = true) : bounds_{&here_, operation, extent, axis, counts_from_end} {
    if constexpr (reports_faults_later<D>) bounds_.fault = device_traits<D>::fault();
  }
  IndexCheck(IndexCheck const&) = delete;
  IndexCheck& operator=(IndexCheck const&) = delete;
  IndexBounds const& bounds() const { return bounds_; }

  /// To be called after the launch. Throws IndexError for the first bad index, unless the device tells later.
  template <class Index>
  void finish(Index const& index, Shape const& shape, bool counts_from_end = true) {
    if constexpr (!reports_faults_later<D>) {
      if constexpr (!host_device<D>) device_traits<D>::synchronize();
      if (SITU_LIKELY(here_.state == IndexFault::none)) return;
      fail_for(index, shape, counts_from_end);
    }
  }

 private:
  template <class Index>
  __attribute__((noinline, cold)) void fail_for(Index const& index, Shape const& shape, bool counts_from_end) const {
    auto const values = index.to_vector();
    for (std::size_t k = 0; k < values.size(); ++k) {
      int64_t i = static_cast<int64_t>(values[k]);
      if (bounds_.resolve(i) && (counts_from_end || values[k] >= 0)) continue;
      fail_at(static_cast<int64_t>(values[k]), static_cast<int64_t>(k), index.shape(), shape, counts_from_end);
    }
  }
  [[noreturn]] __attribute__((noinline, cold)) void fail_at(int64_t found, int64_t position, Shape const& indices, Shape const& shape, bool counts_from_end) const {
    Shape place = indices;
    for (int k = indices.rank() - 1; k >= 0; --k) {
      place[k] = position % indices[k];
      position /= indices[k];
    }
    std::string const where = bounds_.axis == IndexFault::elements ? std::string() : text("axis ", bounds_.axis, " of ");
    std::string const range = bounds_.extent == 0 ? std::string("it has no elements")
                                                  : text("indices are ", counts_from_end ? -bounds_.extent : 0, " to ", bounds_.extent - 1);
    if (bounds_.axis == IndexFault::classes) {
      fail<IndexError>(bounds_.operation, ": index ", found, " at ", place, " is out of range for ", bounds_.extent, bounds_.extent == 1 ? " class: " : " classes: ", range);
    }
    fail<IndexError>(bounds_.operation, ": index ", found, " at ", place, " is out of range for ", where, "shape ", shape, ": ", range);
  }

  IndexFault here_{};
  IndexBounds bounds_;
};

/// Throws ShapeError unless `index` has as many axes as `shape` (no axes count as one), and no more indices along all but `axis`.
inline void check_index_shape(Shape const& index, Shape const& shape, int axis, char const* who) {
  if (line_shape(index).rank() != line_shape(shape).rank()) {
    fail<ShapeError>(who, ": the index of shape ", index, " has ", index.rank(), index.rank() == 1 ? " axis" : " axes", ", x of shape ", shape, " has ",
                     shape.rank(), "; they must be the same");
  }
  for (int k = 0; k < shape.rank(); ++k) {
    if (k != axis && index[k] > shape[k]) {
      fail<ShapeError>(who, ": the index of shape ", index, " does not fit x of shape ", shape, " along axis ", k, ": ", index[k], " > ", shape[k]);
    }
  }
}

/// The axis that index_select goes along. Throws ShapeError where x has none such, or the index has more than one.
SITU_NOINLINE inline int selection_axis(int64_t axis, Shape const& shape, Shape const& index) {
  int const k = line_axis(axis, shape, "index_select");
  if (index.rank() > 1) {
    fail<ShapeError>("index_select: the index of shape ", index, " has ", index.rank(), " axes; it must have 1: index.flatten() has, and gather picks single elements");
  }
  if (shape.rank() == 0 && product(index) != 1) {
    fail<ShapeError>("index_select: ", product(index), " indices were given for shape []: of a number one is selected");
  }
  return k;
}

/// index_select for the operation `who`, where negative indices count from the end or are out of range.
template <class X, class Ix>
auto selected(X const& x, int64_t axis, Ix const& index, char const* who, bool counts_from_end) -> Tensor<value_of<X>, result_device_t<device_of<X>>> {
  using T = value_of<X>;
  using D = result_device_t<device_of<X>>;
  using kernels = typename device_traits<D>::kernels;
  Shape const whole = x.shape();
  int const k = selection_axis(axis, whole, index.shape());
  if (whole.rank() == 0) {
    auto const line = view_of(x, [](Layout const& layout) { return Viewed{unsqueezed(layout, 0), 0}; });
    return selected(line, 0, index, who, counts_from_end).reshape({});
  }
  auto const indices = packed_indices(index);
  Shape shape = whole;
  shape[k] = indices.size();
  auto result = Tensor<T, D>::uninitialized(shape, who);
  IndexCheck<D> check(who, whole[k], k, counts_from_end);
  if (result.size() == 0) {  // the indices are checked all the same, by picking what nobody looks at
    auto const line = Tensor<T, D>::uninitialized({1}, who).expand({whole[k]});
    auto picked = Tensor<T, D>::uninitialized({indices.size()}, who);
    (void)launch_index_select<D>(kernels{}, picked.data(), line, 0, indices.data(), indices.size(), check.bounds());
  } else if (!launch_index_select<D>(kernels{}, result.data(), x, k, indices.data(), indices.size(), check.bounds())) {
    auto const value = evaluated(x);
    (void)launch_index_select<D>(kernels{}, result.data(), value, k, indices.data(), indices.size(), check.bounds());
  }
  check.finish(indices, whole, counts_from_end);
  return result;
}

}  // namespace detail

/// Elements of x picked along one axis: for two axes,
///
///     y(i, j) = x(index(i, j), j)   for axis 0,     y(i, j) = x(i, index(i, j))   for axis 1
///
/// Shape     the index's, which has as many axes as x; along the other axes it may be shorter than x. No axes count as one of length 1, here
///           and in scatter and scatter_add, as in PyTorch.
/// Cost      x is evaluated first where it is an expression; then one read and one write for each index.
/// Gradient  scatter_add(zeros_like(x), axis, index, g).
template <class X, class Ix>
  requires(expression<X> && detail::index_expression<Ix> && on_same_device<X, Ix>)
auto gather(X const& x, int64_t axis, Ix const& index) {
  using T = value_of<X>;
  using D = detail::result_device_t<device_of<X>>;
  using Word = detail::moved_as<T>;
  Shape const shape = x.shape();
  int const k = detail::line_axis(axis, shape, "gather");
  detail::check_index_shape(index.shape(), shape, k, "gather");
  auto const from = detail::evaluated(x);
  auto const indices = detail::packed_indices(index);
  auto result = Tensor<T, D>::uninitialized(indices.shape(), "gather");
  if (result.size() == 0) return result;
  detail::IndexCheck<D> check("gather", detail::line_shape(shape)[k], k);
  Shape steps[3] = {result.strides(), from.strides(), result.strides()};
  int64_t const step = steps[1][k];  // of a number 0
  steps[1][k] = 0;
  detail::launch_gather<D>(typename device_traits<D>::kernels{},
                           detail::GatherProgram<Word, value_of<Ix>>{reinterpret_cast<Word*>(result.data()), reinterpret_cast<Word const*>(from.data()), indices.data(), step, check.bounds(),
                                                                    detail::IndexSpace<3>(result.shape(), steps)});
  check.finish(indices, shape);
  return result;
}
template <class X, class Ix, class Error = detail::apart_t<X, Ix>>
void gather(X const&, int64_t, Ix const&) = delete;
template <class X, class Ix, std::integral Axis, class Error = error::the_axis_stands_before_the_index__as_in_gather_of_x_and_1_and_index<Axis>>
  requires((expression<X> || differentiable<X>) && expression<Ix>)
void gather(X const&, Ix const&, Axis) = delete;

/// Elements of x by their number in row-major order: y(i…) = x.flatten()(index(i…)).
/// Shape     the index's.
/// Cost      x is made contiguous first where it is not.
template <class X, class Ix>
  requires(expression<X> && detail::index_expression<Ix> && on_same_device<X, Ix>)
auto take(X const& x, Ix const& index) {
  using T = value_of<X>;
  using D = detail::result_device_t<device_of<X>>;
  using Word = detail::moved_as<T>;
  auto const from = detail::evaluated(x).contiguous();
  auto const indices = detail::packed_indices(index);
  auto result = Tensor<T, D>::uninitialized(indices.shape(), "take");
  if (result.size() == 0) return result;
  detail::IndexCheck<D> check("take", from.size(), detail::IndexFault::elements);
  Shape const steps[3] = {result.strides(), Shape::filled(result.rank(), 0), result.strides()};
  detail::launch_gather<D>(typename device_traits<D>::kernels{},
                           detail::GatherProgram<Word, value_of<Ix>>{reinterpret_cast<Word*>(result.data()), reinterpret_cast<Word const*>(from.data()), indices.data(), 1,
                                                                    check.bounds(), detail::IndexSpace<3>(result.shape(), steps)});
  check.finish(indices, x.shape());
  return result;
}
/// Along an axis, as index_select, in the array API's order.
template <class X, class Ix>
  requires requires(X const& x, Ix const& index, int64_t axis) { index_select(x, axis, index); }
auto take(X const& x, Ix const& index, int64_t axis) {
  return index_select(x, axis, index);
}
template <class X, class Ix, class Error = detail::apart_t<X, Ix>>
void take(X const&, Ix const&) = delete;
template <class X, class Ix, class Error = detail::apart_t<X, Ix>>
void take(X const&, Ix const&, int64_t) = delete;

/// Whole slices of x along one axis: y.select(axis, j) = x.select(axis, index(j)). Of an expression only the selected slices
/// are computed, straight into the result (where slices of fewer than 8 elements are selected, it is evaluated first).
/// Shape     that of x, with the number of indices for the axis's extent; the index has one axis, or none. Of a number, shape [], one index
///           selects the number.
/// Gradient  for each j, g.select(axis, j) is added to slice index(j).
template <class X, class Ix>
  requires(expression<X> && detail::index_expression<Ix> && on_same_device<X, Ix>)
auto index_select(X const& x, int64_t axis, Ix const& index) {
  return detail::selected(x, axis, index, "index_select", true);
}
template <class X, class Ix, class Error = detail::apart_t<X, Ix>>
void index_select(X const&, int64_t, Ix const&) = delete;
template <class X, class Ix, std::integral Axis, class Error = error::the_axis_stands_before_the_index__as_in_gather_of_x_and_1_and_index<Axis>>
  requires((expression<X> || differentiable<X>) && expression<Ix>)
void index_select(X const&, Ix const&, Axis) = delete;

/// Index j of an axis `counts[j]` times in a row; PyTorch's repeat_interleave.
template <class X>
  requires expression<X>
auto repeat(X const& x, std::vector<int64_t> const& counts, int64_t axis) {
  using D = detail::result_device_t<device_of<X>>;
  int const k = detail::checked_axis(axis, x.rank(), x.shape(), "repeat");
  if (static_cast<int64_t>(counts.size()) != x.shape()[k]) {
    detail::fail<ShapeError>("repeat: ", counts.size(), counts.size() == 1 ? " count was" : " counts were", " given for axis ", k, " of shape ", x.shape(), ": one for each of its ",
                             x.shape()[k], x.shape()[k] == 1 ? " index" : " indices", " is needed");
  }
  Shape shape = x.shape();
  shape[k] = 0;
  for (int64_t count : counts) {
    if (count < 0) detail::fail<ShapeError>("repeat: ", count, " repetitions were asked for; a count is 0 or more");
    if (__builtin_add_overflow(shape[k], count, &shape[k])) {
      detail::fail<ShapeError>("repeat: the counts for axis ", k, " of shape ", x.shape(), " add up to more elements than can be addressed");
    }
  }
  (void)detail::count_of(shape, "repeat", sizeof(value_of<X>));
  auto const indices = Tensor<int64_t>::uninitialized({shape[k]}, "repeat");
  int64_t* to = const_cast<int64_t*>(indices.data());
  for (std::size_t j = 0; j < counts.size(); ++j) {
    for (int64_t n = counts[j]; n > 0; --n) *to++ = static_cast<int64_t>(j);
  }
  if constexpr (std::is_same_v<D, Cpu>) {
    return index_select(x, k, indices);
  } else {
    auto const there = Tensor<int64_t, D>::uninitialized(indices.shape(), "repeat");
    if (there.size() > 0) device_traits<D>::copy_from_host(const_cast<int64_t*>(there.data()), indices.data(), static_cast<std::size_t>(there.size()) * sizeof(int64_t));
    return index_select(x, k, there);
  }
}

namespace detail {

template <class Join, class T, class D, class X, class Ix, class S>
Tensor<T, D> scattered(X const& x, int64_t axis, Ix const& index, S const& src, char const* who) {
  using Moved = typename Join::value_type;
  Shape const shape = x.shape();
  int const k = line_axis(axis, shape, who);
  check_index_shape(index.shape(), shape, k, who);
  auto const indices = scatter_indices<D>(index);
  Shape source_steps = Shape::filled(shape.rank(), 0);
  auto const value = [&] {
    if constexpr (!expression<S>) return full<T>({}, detail::fitting<T>(src, who), D{});
    else if constexpr (std::is_same_v<value_of<S>, T>) return evaluated(src);
    else return evaluated(cast<T>(src));
  }();
  if constexpr (expression<S>) {
    Shape const wanted = line_shape(indices.shape()), found = line_shape(value.shape());
    bool fits = found.rank() == wanted.rank();
    for (int a = 0; fits && a < wanted.rank(); ++a) fits = wanted[a] <= found[a];
    if (!fits) {
      fail<ShapeError>(who, ": src of shape ", src.shape(), " has too few elements for the index of shape ", indices.shape(), ": an element for each index is needed");
    }
    source_steps = value.strides();
  }
  auto result = Tensor<T, D>::uninitialized(shape, who);
  write_into(result, {result.layout(), 0}, x);
  if (indices.size() == 0) return result;
  IndexCheck<D> check(who, line_shape(shape)[k], k);
  Shape steps[3] = {indices.strides(), result.strides(), source_steps};
  int64_t const step = steps[1][k];  // of a number 0
  steps[1][k] = 0;
  launch_scatter<D>(typename device_traits<D>::kernels{},
                    ScatterProgram<Join, value_of<Ix>>{reinterpret_cast<Moved*>(result.data()), reinterpret_cast<Moved const*>(std::as_const(value).data()), indices.data(), step,
                                                      result.size(), check.bounds(), IndexSpace<3>(indices.shape(), steps)});
  check.finish(indices, shape);
  return result;
}

template <class T, class S>
concept source_of = (expression<S> && implicitly_converts_to<value_of<S>, T>) || (number<S> && implicitly_converts_to<weak_t<T, typename canonical<S>::type>, T>);

}  // namespace detail

/// A copy of x with elements replaced: for two axes,
///
///     y(index(i, j), j) = src(i, j)   for axis 0,     y(i, index(i, j)) = src(i, j)   for axis 1
///
/// src is an expression that has an element for each index, or a number.
/// Special   of several elements for one place the last in row-major order of the index stays.
/// Gradient  of x: g with 0 at those places; of src: gather(g, axis, index).
template <class X, class Ix, class S>
  requires(expression<X> && detail::index_expression<Ix> && detail::source_of<value_of<X>, S> && on_same_device<X, Ix> && on_same_device<X, S>)
auto scatter(X const& x, int64_t axis, Ix const& index, S const& src) {
  using T = value_of<X>;
  using D = detail::result_device_t<device_of<X>>;
  return detail::scattered<detail::replaces<detail::moved_as<T>>, T, D>(x, axis, index, src, "scatter");
}
template <class X, class Ix, class S, class Error = detail::apart_t<X, Ix, S>>
void scatter(X const&, int64_t, Ix const&, S const&) = delete;
template <class X, class Ix, number S, class Error = detail::apart_t<X, Ix>>
void scatter(X const&, int64_t, Ix const&, S) = delete;

/// As scatter, but the elements are added to those of x. Integers wrap; bools are or-ed; 16-bit floats are added in float.
/// Special   elements for one place are added in an order that shapes and indices alone decide: the same result for any number
///           of threads, and from run to run, on CUDA too.
/// Gradient  of x: g; of src: gather(g, axis, index).
template <class X, class Ix, class S>
  requires(expression<X> && detail::index_expression<Ix> && detail::source_of<value_of<X>, S> && on_same_device<X, Ix> && on_same_device<X, S>)
auto scatter_add(X const& x, int64_t axis, Ix const& index, S const& src) {
  using T = value_of<X>;
  using D = detail::result_device_t<device_of<X>>;
  using C = compute_t<T>;
  if constexpr (std::is_same_v<T, C>) return detail::scattered<detail::adds_to<T>, T, D>(x, axis, index, src, "scatter_add");
  else return Tensor<T, D>(cast<T>(detail::scattered<detail::adds_to<C>, C, D>(cast<C>(x), axis, index, src, "scatter_add")));
}
template <class X, class Ix, class S, class Error = detail::apart_t<X, Ix, S>>
void scatter_add(X const&, int64_t, Ix const&, S const&) = delete;
template <class X, class Ix, number S, class Error = detail::apart_t<X, Ix>>
void scatter_add(X const&, int64_t, Ix const&, S) = delete;

/// Classes as rows of zeros with a single one: y(i…, c) = 1 where index(i…) = c, else 0. int64 unless another type is written:
/// one_hot<float>(labels, 10).
/// Throws    IndexError for an index outside of 0 to classes - 1 (negative ones are not counted from the end).
template <element T = int64_t, class Ix>
  requires detail::index_expression<Ix>
auto one_hot(Ix const& index, int64_t classes) {
  using D = detail::result_device_t<device_of<Ix>>;
  using Word = detail::moved_as<T>;
  if (classes < 0) detail::fail<ShapeError>("one_hot: ", classes, " classes were asked for; there are 0 or more");
  auto const indices = detail::packed_indices(index);
  Shape shape = indices.shape();
  shape.push_back(classes);
  auto result = Tensor<T, D>::uninitialized(shape, "one_hot");
  if (indices.size() == 0) return result;
  detail::IndexCheck<D> check("one_hot", classes, detail::IndexFault::classes);
  detail::launch_one_hot<D>(typename device_traits<D>::kernels{},
                            detail::OneHotProgram<Word, value_of<Ix>>{reinterpret_cast<Word*>(result.data()), indices.data(), indices.size(), classes,
                                                                     detail::bits_to<Word>(detail::convert_scalar<T>(1)), check.bounds()});
  check.finish(indices, shape, false);
  return result;
}
/// With as many classes as the greatest index asks for: max(index) + 1. Waits for the device.
/// Throws    ShapeError of no indices, which leave the number of classes open.
template <element T = int64_t, class Ix>
  requires detail::index_expression<Ix>
auto one_hot(Ix const& index) {
  auto const indices = detail::packed_indices(index);
  if (indices.size() == 0) detail::fail<ShapeError>("one_hot: shape ", indices.shape(), " has no indices to count the classes from; give their number");
  auto const most = static_cast<int64_t>(max(indices).item());
  return one_hot<T>(indices, most < 0 ? 1 : most < INT64_MAX ? most + 1 : most);
}

// An index of floats, or of truths.
template <class X, class Ix, class Error = error::an_index_is_an_integer<value_of<Ix>>>
  requires((expression<X> || differentiable<X>) && expression<Ix> && !detail::index_expression<Ix>)
void gather(X const&, int64_t, Ix const&) = delete;
template <class X, class Ix, class... Axis, class Error = error::an_index_is_an_integer<value_of<Ix>>>
  requires((expression<X> || differentiable<X>) && expression<Ix> && !detail::index_expression<Ix>)
void take(X const&, Ix const&, Axis const&...) = delete;
template <class X, class Ix, class Error = error::an_index_is_an_integer<value_of<Ix>>>
  requires((expression<X> || differentiable<X>) && expression<Ix> && !detail::index_expression<Ix>)
void index_select(X const&, int64_t, Ix const&) = delete;
template <element T = int64_t, class Ix, class... Classes, class Error = error::an_index_is_an_integer<value_of<Ix>>>
  requires(expression<Ix> && !detail::index_expression<Ix>)
void one_hot(Ix const&, Classes const&...) = delete;

}  // namespace situ::inline SITU_ABI
