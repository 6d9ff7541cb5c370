/// Factories: tensors from shapes and numbers.
///
/// The shape comes first, the device tag last; T is float unless it is written and is never deduced from numbers.
///
///     zeros({2, 3});  ones<double>({2, 3});  full({2, 3}, 7.f, Cuda<0>{});  empty<float, Cuda<0>>({n, 3});
///
/// Throws    ShapeError for negative extents, more than eight of them, or more elements than can be addressed;
///           OutOfMemory; DeviceUnavailable.
/// Cost      one allocation, and one launch where elements are written.
#pragma once

#include <situ/tensor/transfer.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Writes f(index) to a fresh tensor, where f is a function object that runs on every device.
template <class T, class D, class F>
void fill_with(Tensor<T, D>& fresh, F f) {
  using Tree = Apply<functions::mapped<F>, Index>;
  Tree const tree{{f}, {Index{}, {}}};
  evaluate_tree<D>(fresh.data(), fresh.size(), tree);
}
template <element T, device D, class F>
Tensor<T, D> generate(Shape const& shape, F f, char const* who) {
  Tensor<T, D> result = Tensor<T, D>::uninitialized(shape, who);
  fill_with(result, f);
  return result;
}

template <class T>
struct arange_at {
  std::conditional_t<std::is_integral_v<T>, int64_t, double> start, step;
  SITU_HOST_DEVICE T operator()(int64_t i) const {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(added(start, multiplied(step, i)));
    else return convert_scalar<T>(start + step * static_cast<double>(i));
  }
};
/// From both ends, so that both are exact.
template <class T>
struct linspace_at {
  using packed = void;
  double start, stop, step;
  int64_t count;
  SITU_HOST_DEVICE T operator()(int64_t i) const {
    double const x = i < count / 2 ? start + step * static_cast<double>(i) : stop - step * static_cast<double>(count - 1 - i);
    return convert_scalar<T>(x);
  }
  template <int N, class Isa>
  SITU_INLINE pack<double, N, Isa> operator()(pack<int64_t, N, Isa> const& i) const {
    using P = pack<double, N, Isa>;
    using Ix = pack<int64_t, N, Isa>;
    P const before = math::detail::small_integers<double>(i), after = math::detail::small_integers<double>(Ix(count - 1) - i);
    return select(i < Ix(count / 2), P(start) + keep_order(P(step) * before), P(stop) - keep_order(P(step) * after));
  }
};

}  // namespace detail

/// Uninitialised elements.
template <element T = float, device D = Cpu>
Tensor<T, D> empty(Shape const& shape, D = {}) {
  return Tensor<T, D>::uninitialized(shape, "empty");
}

namespace detail {
template <element T, device D, number V>
Tensor<T, D> filled(Shape const& shape, V value, char const* who) {
  Tensor<T, D> result = Tensor<T, D>::uninitialized(shape, who);
  evaluate<D>(result.data(), result.layout(), true, Constant<T>{convert_scalar<compute_t<T>>(convert_scalar<T>(value))});
  return result;
}
}  // namespace detail

/// Every element is `value`. Throws TypeError for an integer that T cannot hold.
template <element T = float, device D = Cpu, number V>
Tensor<T, D> full(Shape const& shape, V value, D = {}) {
  return detail::filled<T, D>(shape, detail::fitting<T>(value, "full"), "full");
}
template <element T = float, device D = Cpu>
Tensor<T, D> zeros(Shape const& shape, D = {}) {
  return detail::filled<T, D>(shape, 0, "zeros");
}
template <element T = float, device D = Cpu>
Tensor<T, D> ones(Shape const& shape, D = {}) {
  return detail::filled<T, D>(shape, 1, "ones");
}

// One extent may stand alone, several stand in braces. A device is a type.
#define SITU_SHAPE_IN_BRACES(NAME)                                                                      \
  template <element T = float, class Name, class Error = error::a_device_is_a_type__as_in_x_to_Cuda_0_with_braces__or_try_gpu_and_visit_at_run_time<Name>> \
    requires(!device<Name>)                                                                             \
  void NAME(Shape const&, Name const&) = delete;                                                        \
  template <element T = float, device D = Cpu, std::integral Ix, std::integral J, std::integral... Is,  \
            class Error = error::a_shape_stands_in_braces__as_in_zeros_of_braces_2_3<Ix>>               \
  Tensor<T, D> NAME(Ix, J, Is...) = delete;
SITU_SHAPE_IN_BRACES(empty)
SITU_SHAPE_IN_BRACES(zeros)
SITU_SHAPE_IN_BRACES(ones)
template <element T = float, device D = Cpu, std::integral Ix, std::integral J, number V, number... Vs,
          class Error = error::a_shape_stands_in_braces__as_in_zeros_of_braces_2_3<Ix>>
Tensor<T, D> full(Ix, J, V, Vs...) = delete;
template <element T = float, number V, class Name, class Error = error::a_device_is_a_type__as_in_x_to_Cuda_0_with_braces__or_try_gpu_and_visit_at_run_time<Name>>
  requires(!device<Name>)
void full(Shape const&, V, Name const&) = delete;

/// start, start + step, ... before stop. Throws ShapeError when step is 0 or leads away from stop, or start or stop is not finite.
template <element T = float, device D = Cpu, number A, number B, number S = int>
Tensor<T, D> arange(A start, B stop, S step = S(1), D = {}) {
  double const from = static_cast<double>(start), to = static_cast<double>(stop), by = static_cast<double>(step);
  if (!(by != 0) || !((to - from) / by >= 0)) {  // NaN in any of them too
    detail::fail<ShapeError>("arange: from ", from, " to ", to, " in steps of ", by, ": the step must lead from start to stop and not be 0");
  }
  if (to - from > 1.7976931348623157e308 || to - from < -1.7976931348623157e308) {
    detail::fail<ShapeError>("arange: from ", from, " to ", to, ": start and stop must be finite, and not further apart than any number");
  }
  double const steps = (to - from) / by;
  int64_t count = detail::convert_scalar<int64_t>(steps);
  if (count < INT64_MAX && static_cast<double>(count) < steps) ++count;
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B> && std::is_integral_v<S>) {  // exact, also beyond 2^53
    uint64_t const distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start) : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
    uint64_t const width = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
    uint64_t const steps_taken = distance / width + (distance % width != 0);
    count = steps_taken < INT64_MAX ? static_cast<int64_t>(steps_taken) : INT64_MAX;
  }
  detail::arange_at<T> at{};
  at.start = detail::convert_scalar<decltype(at.start)>(start);
  at.step = detail::convert_scalar<decltype(at.step)>(step);
  return detail::generate<T, D>({count}, at, "arange");
}
template <element T = float, device D, number A, number B>
Tensor<T, D> arange(A start, B stop, D device) {
  return arange<T>(start, stop, 1, device);
}
/// 0, 1, ... before stop.
template <element T = float, device D = Cpu, number B>
Tensor<T, D> arange(B stop, D device = {}) {
  return arange<T>(0, stop, 1, device);
}

/// `count` numbers from start to stop, both included and exact.
template <element T = float, device D = Cpu, number A, number B>
Tensor<T, D> linspace(A start, B stop, int64_t count, D = {}) {
  double const from = static_cast<double>(start), to = static_cast<double>(stop);
  double const step = count > 1 ? (to - from) / static_cast<double>(count - 1) : 0;
  return detail::generate<T, D>({count}, detail::linspace_at<T>{from, count > 1 ? to : from, step, count}, "linspace");
}

/// The identity matrix, rows x columns (square when only rows are given).
template <element T = float, device D = Cpu>
Tensor<T, D> eye(int64_t rows, int64_t columns, D = {}) {
  Tensor<T, D> result = detail::filled<T, D>({rows, columns}, 0, "eye");
  int64_t const ones = rows < columns ? rows : columns;
  if (ones > 0) result.flatten().slice(0, 0, (ones - 1) * (columns + 1) + 1, columns + 1) = detail::convert_scalar<T>(1);
  return result;
}
template <element T = float, device D = Cpu>
Tensor<T, D> eye(int64_t rows, D device = {}) {
  return eye<T>(rows, rows, device);
}

/// The shape, element type and device of another tensor or expression; on the Cpu for what is Pinned, as all results.
template <expression E>
auto empty_like(E const& e) {
  return empty<value_of<E>>(e.shape(), detail::result_device_t<device_of<E>>{});
}
template <expression E, number V>
auto full_like(E const& e, V value) {
  return full<value_of<E>>(e.shape(), value, detail::result_device_t<device_of<E>>{});
}
template <expression E>
auto zeros_like(E const& e) {
  return full_like(e, 0);
}
template <expression E>
auto ones_like(E const& e) {
  return full_like(e, 1);
}

namespace detail {

struct no_deleter {
  void operator()(void*) const {}
};

template <class U, class D, class Deleter>
struct ForeignStorage : StorageHead {
  Deleter deleter;
  explicit ForeignStorage(Deleter&& d) : deleter(static_cast<Deleter&&>(d)) {}
  static void destroy_foreign(StorageHead* head) noexcept {
    auto* const self = static_cast<ForeignStorage*>(head);
    before_release<D>(head);
    self->deleter(static_cast<U*>(self->memory));
    delete self;
  }
};

}  // namespace detail

/// A tensor over memory that somebody else made, on device D: the pointer is kept, nothing is copied. `deleter(pointer)` is called
/// when the last handle goes. A pointer to const gives read-only storage: writing to it throws TypeError.
/// Throws    ShapeError when shape and strides differ in length, or for a shape that no tensor can have; Error for a null pointer to elements.
template <class T, device D = Cpu, class Deleter = detail::no_deleter>
  requires element<std::remove_const_t<T>>
Tensor<std::remove_const_t<T>, D> from_blob(T* pointer, Shape const& shape, Shape const& strides, Deleter deleter = {}, D = {}) {
  using U = std::remove_const_t<T>;
  detail::count_of(shape, "from_blob", sizeof(T));
  if (shape.rank() != strides.rank()) {
    detail::fail<ShapeError>("from_blob: shape ", shape, " and strides ", strides, " differ in length; one stride per axis is needed");
  }
  if (!pointer && detail::product(shape) > 0) detail::fail<Error>("from_blob: a null pointer was given for shape ", shape);
  auto* const head = new detail::ForeignStorage<U, D, Deleter>(static_cast<Deleter&&>(deleter));
  head->memory = const_cast<U*>(pointer);
  head->destroy = &detail::ForeignStorage<U, D, Deleter>::destroy_foreign;
  head->allocated_here = false;
  head->read_only = std::is_const_v<T>;
  Layout const layout(shape, strides);
  auto const extent = layout.extent();
  head->bytes = extent.last < extent.first ? 0 : static_cast<std::size_t>(extent.last - extent.first + 1) * sizeof(T);
  return Tensor<U, D>::from_handle(detail::make_view(detail::Storage(head), const_cast<U*>(pointer), layout));
}
template <class T, device D = Cpu>
  requires element<std::remove_const_t<T>>
Tensor<std::remove_const_t<T>, D> from_blob(T* pointer, Shape const& shape, D device = {}) {
  detail::count_of(shape, "from_blob", sizeof(T));
  return from_blob(pointer, shape, Layout(shape).strides, detail::no_deleter{}, device);
}

}  // namespace situ::inline SITU_ABI
