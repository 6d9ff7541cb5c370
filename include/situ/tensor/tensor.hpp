/// Tensor: a counted handle to elements on a device that is part of its type.
#pragma once

#include <vector>

#include <situ/core/storage.hpp>
#include <situ/expr/evaluate.hpp>
#include <situ/expr/functions.hpp>
#include <situ/tensor/indexing.hpp>
#include <situ/tensor/nested.hpp>

namespace situ::inline SITU_ABI {

namespace detail {

/// Whether values of E may become elements of T on D without being asked.
template <class E, class T, class D>
concept becomes = expression<E> && mixes_with<device_of<E>, D> && implicitly_converts_to<value_of<E>, T>;

template <class R, class T>
concept range_of = !expression<R> && requires(R const& r) {
  { r.data() } -> std::convertible_to<T const*>;
  { r.size() } -> std::convertible_to<std::size_t>;
};

[[noreturn]] __attribute__((noinline, cold)) inline void fail_broadcast_write(char const* who, Layout const& layout) {
  fail<LayoutError>(who, ": writing to a broadcast view of shape ", layout.shape, " with strides ", layout.strides,
                    " would write elements more than once; write to a clone() of it");
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_view(Layout const& layout, Shape const& to) {
  fail<LayoutError>("view: shape ", layout.shape, " with strides ", layout.strides, " cannot be viewed as ", to,
                    " without a copy; use reshape(), which copies where it must");
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_read_only(char const* who) {
  fail<TypeError>(who, ": the storage is read-only: it was given as a pointer to const; write to a clone() of it");
}

/// Copies bools to a std::vector<bool>: by words where the library shows them, which are written bit by bit otherwise.
template <class Bits>
void copy_to_bits(bool const* from, Bits& to) {
  std::size_t k = 0;
  if constexpr (requires { to.begin()._M_p; } && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) {
    auto* word = to.begin()._M_p;
    constexpr std::size_t bits = 8 * sizeof *word;
    for (; k + bits <= to.size(); k += bits, ++word) {
      *word = 0;
      for (std::size_t b = 0; b < bits; b += 8) {
        uint64_t bytes;
        __builtin_memcpy(&bytes, from + k + b, 8);
        *word |= static_cast<std::remove_reference_t<decltype(*word)>>(bytes * 0x0102040810204080 >> 56) << b;  // byte n comes to bit 56 + n
      }
    }
  }
  for (; k < to.size(); ++k) to[k] = from[k];
}

/// Refuses to write a tensor's elements in place, if they may not be.
inline void check_write(Body const& body, char const* who) {
  if (SITU_UNLIKELY(body.layout.is_broadcast()) && body.size > 0) fail_broadcast_write(who, body.layout);
  if (StorageHead const* const head = body.storage.head(); SITU_UNLIKELY(head && head->read_only)) fail_read_only(who);
}
/// Notes that a tensor's elements are written in place, if they may be.
SITU_NOINLINE inline void begin_write(Body const& body, char const* who) {
  check_write(body, who);
  if (StorageHead* const head = body.storage.head()) head->note_write(who);
}

}  // namespace detail

/// Elements of type T on device D: a handle of shape, strides and a counted storage.
///
/// Copying a handle shares the storage; clone() copies the elements. Assigning an expression to a named tensor rebinds it;
/// assigning to a temporary view, as in `x[1] = e`, writes in place, and so do assign(), `+=`, `-=`, `*=` and `/=`. A const handle gives
/// const views. A default-constructed tensor is empty, of shape [0].
/// *contiguous* means row-major without gaps; strides count elements and may be zero (broadcast) or negative.
template <element T, device D>
class Tensor : public detail::ExpressionMembers<Tensor<T, D>> {
 public:
  using value_type = T;
  using device_type = D;

  // ---- construction -----------------------------------------------------------------------------------------------

  Tensor() = default;
  Tensor(Tensor const&) = default;
  Tensor(Tensor&&) noexcept = default;

  /// Values in braces, of any rank: {{1, 2}, {3, 4}}. Never a shape. Throws ShapeError when they are ragged.
  Tensor(std::initializer_list<detail::Nested<T>> values) {
    detail::Nested<T> const list(values);
    Shape shape;
    list.measure(shape);
    Tensor<T, Cpu> host = Tensor<T, Cpu>::uninitialized(shape);
    list.copy_to(host.raw(), shape, 0);
    if constexpr (std::is_same_v<D, Cpu>) *this = host;
    else *this = detail::transfer<D>(host);
  }

  /// Copies the numbers of a contiguous range, such as std::vector or std::span. Throws ShapeError when the shape has
  /// another number of elements.
  template <detail::range_of<T> R>
  Tensor(R const& values, Shape const& shape) {
    check_count(values.size(), shape);
    *this = uninitialized(shape);
    if (size() > 0) device_traits<D>::copy_from_host(raw(), values.data(), bytes());
  }
  /// The same in one dimension.
  template <detail::range_of<T> R>
  explicit Tensor(R const& values) : Tensor(values, Shape(static_cast<int64_t>(values.size()))) {}
  /// The same of std::vector<bool>, which to_vector() gives, and which holds bits.
  Tensor(std::vector<bool> const& values, Shape const& shape)
    requires std::is_same_v<T, bool>
  {
    check_count(values.size(), shape);
    Tensor<T, Cpu> host = Tensor<T, Cpu>::uninitialized(shape);
    T* to = host.raw();
    for (bool const x : values) *to++ = x;
    if constexpr (std::is_same_v<D, Cpu>) *this = host;
    else *this = detail::transfer<D>(host);
  }
  explicit Tensor(std::vector<bool> const& values)
    requires std::is_same_v<T, bool>
      : Tensor(values, Shape(static_cast<int64_t>(values.size()))) {}

  /// Evaluates an expression on its own device, into one kernel and one allocation.
  template <class E>
    requires(detail::becomes<E, T, D> && !std::is_same_v<std::remove_cvref_t<E>, Tensor>)
  Tensor(E&& e) {
    detail::assign_value<D, T>(handle_, e, true);
  }
  /// An expression of another device: direct initialisation is explicit, so it transfers.
  template <class U, class From>
    requires(!mixes_with<From, D> && implicitly_converts_to<U, T>)
  explicit Tensor(Tensor<U, From> const& from, detail::CallSite site = detail::CallSite::here()) : Tensor(from.template to<T>(D{}, site)) {}
  template <template <class, class...> class Formula, class Op, class... Es>
    requires(expression<Formula<Op, Es...>> && !mixes_with<device_of<Formula<Op, Es...>>, D> &&
             implicitly_converts_to<value_of<Formula<Op, Es...>>, T>)
  explicit Tensor(Formula<Op, Es...> const& from, detail::CallSite site = detail::CallSite::here()) : Tensor(from.template to<T>(D{}, site)) {}
  /// Without direct initialisation it does not compile.
  template <class E, class Error = error::conversion_across_devices_is_explicit__use_to<D, device_of<E>>>
    requires(expression<E> && !mixes_with<device_of<E>, D>)
  Tensor(E const&) = delete;
  template <class E, class Error = error::conversion_would_lose_values__use_cast<value_of<E>, T>>
    requires(expression<E> && mixes_with<device_of<E>, D> && !implicitly_converts_to<value_of<E>, T>)
  Tensor(E&&) = delete;
  /// What records does not become a Tensor unasked: its gradient would be lost.
  template <class E, class Error = error::a_Tensor_would_lose_the_gradient__use_a_Variable_or_value_or_detach<value_of<E>, device_of<E>>>
    requires differentiable<E>
  Tensor(E&&) = delete;

  /// Nor do numbers without braces: are they values or extents?
  template <number A, number... As, class Error = error::a_Tensor_is_made_of_values_in_braces__or_of_a_shape_by_zeros_or_empty<A>>
  explicit Tensor(A, As...) = delete;
  /// Nor does a shape with a device, as in the factories.
  template <device At, class Error = error::a_Tensor_is_made_of_values_in_braces__or_of_a_shape_by_zeros_or_empty<At>>
  Tensor(Shape const&, At) = delete;

  /// Uninitialised memory for a shape. Throws ShapeError, OutOfMemory, DeviceUnavailable. Prefer `empty`.
  static Tensor uninitialized(Shape const& shape, char const* who = "empty") {
    return from_handle(detail::make_uninitialized<D>(shape, sizeof(T), who));
  }
  /// A tensor from its handle; for situ's own use.
  static Tensor from_handle(detail::Handle handle) {
    Tensor result;
    result.handle_ = std::move(handle);
    return result;
  }

  // ---- assignment -------------------------------------------------------------------------------------------------

  Tensor& operator=(Tensor const&) & = default;
  Tensor& operator=(Tensor&&) & noexcept = default;
  /// Rebinds this handle to the value of an expression. The old storage is written again where nobody can tell.
  template <class E>
    requires(detail::becomes<E, T, D> && !std::is_same_v<std::remove_cvref_t<E>, Tensor>)
  Tensor& operator=(E&& e) & {
    detail::assign_value<D, T>(handle_, e, !std::is_lvalue_reference_v<E>);
    return *this;
  }
  template <class E, class Error = error::conversion_across_devices_is_explicit__use_to<D, device_of<E>>>
    requires(expression<E> && !mixes_with<device_of<E>, D>)
  Tensor& operator=(E&&) = delete;
  template <class E, class Error = error::conversion_would_lose_values__use_cast<value_of<E>, T>>
    requires(expression<E> && mixes_with<device_of<E>, D> && !implicitly_converts_to<value_of<E>, T>)
  Tensor& operator=(E&&) = delete;
  template <class E, class Error = error::a_Tensor_would_lose_the_gradient__use_a_Variable_or_value_or_detach<value_of<E>, device_of<E>>>
    requires differentiable<E>
  Tensor& operator=(E&&) = delete;

  /// A number is no tensor that a name could be rebound to.
  template <number S, class Error = error::a_number_is_not_a_tensor__use_assign_to_write_it_or_full_to_make_one<S>>
  Tensor& operator=(S) & = delete;

  /// Writes in place: the left side is a temporary view, as in `x[1] = e` or `x(all(), 0) = 0`.
  /// Axes of one index that the source has in front of this shape's are left out, as in PyTorch.
  Tensor operator=(Tensor const& other) && { return write("assign", other, true); }
  template <class E>
    requires(detail::becomes<E, T, D> && !std::is_same_v<std::remove_cvref_t<E>, Tensor>)
  Tensor operator=(E&& e) && {
    return write("assign", e, true);
  }
  template <number S>
    requires implicitly_converts_to<weak_t<T, typename detail::canonical<S>::type>, T>
  Tensor operator=(S value) && {
    return assign(value);
  }
  template <number S, class Error = error::conversion_would_lose_values__use_cast<S, T>>
    requires(!implicitly_converts_to<weak_t<T, typename detail::canonical<S>::type>, T>)
  Tensor operator=(S) && = delete;
  /// A const handle yields const views: nothing is written through them.
  template <class X, class Error = error::a_const_tensor_is_not_written_to__take_it_without_const<std::remove_cvref_t<X>>>
    requires((expression<X> && !std::is_same_v<std::remove_cvref_t<X>, Tensor>) || number<std::remove_cvref_t<X>>)
  Tensor operator=(X&&) const = delete;
  template <class Error = error::a_const_tensor_is_not_written_to__take_it_without_const<Tensor>>
  Tensor operator=(Tensor const&) const = delete;

  /// Writes the values of an expression, broadcast to this shape, into this storage. A source that overlaps it differently is
  /// evaluated first. Throws ShapeError, LayoutError for a broadcast view, TypeError for read-only storage.
  template <class E>
    requires detail::becomes<E, T, D>
  Tensor& assign(E&& e) {
    return write("assign", e);
  }
  template <class E, class Error = error::operands_on_different_devices__move_one_with_to<D, device_of<E>>>
    requires(expression<E> && !mixes_with<device_of<E>, D>)
  Tensor& assign(E&&) = delete;
  template <class E, class Error = error::conversion_would_lose_values__use_cast<value_of<E>, T>>
    requires(expression<E> && mixes_with<device_of<E>, D> && !implicitly_converts_to<value_of<E>, T>)
  Tensor& assign(E&&) = delete;
  template <number S>
    requires implicitly_converts_to<weak_t<T, typename detail::canonical<S>::type>, T>
  Tensor& assign(S value) {
    (void)detail::fitting<T>(value, "assign");
    begin_write("assign");
    detail::evaluate<D>(raw(), layout(), is_contiguous(), detail::Constant<T>{detail::compute_scalar<T>(value)});
    return *this;
  }
  template <number S, class Error = error::conversion_would_lose_values__use_cast<S, T>>
    requires(!implicitly_converts_to<weak_t<T, typename detail::canonical<S>::type>, T>)
  Tensor& assign(S) = delete;
  template <class X, class Error = error::a_const_tensor_is_not_written_to__take_it_without_const<std::remove_cvref_t<X>>>
    requires(expression<X> || number<std::remove_cvref_t<X>>)
  Tensor& assign(X&&) const = delete;

#define SITU_IN_PLACE(SYMBOL)                                                          \
  template <class X>                                                                   \
    requires detail::becomes<decltype(std::declval<Tensor&>() SYMBOL std::declval<X>()), T, D> \
  Tensor& operator SYMBOL##=(X&& x) {                                                  \
    return write("operator" #SYMBOL "=", *this SYMBOL static_cast<X&&>(x));            \
  }                                                                                    \
  template <class E, class Error = error::operands_on_different_devices__move_one_with_to<D, device_of<E>>> \
    requires(expression<E> && !mixes_with<device_of<E>, D>)                            \
  Tensor& operator SYMBOL##=(E&&) = delete;                                            \
  template <class X, class U = value_of<decltype(std::declval<Tensor&>() SYMBOL std::declval<X>())>, \
            class Error = error::conversion_would_lose_values__use_cast<U, T>>         \
    requires(!implicitly_converts_to<U, T>)                                            \
  Tensor& operator SYMBOL##=(X&&) = delete;                                            \
  template <class X, class Error = error::a_const_tensor_is_not_written_to__take_it_without_const<std::remove_cvref_t<X>>> \
    requires(expression<X> || number<std::remove_cvref_t<X>>)                          \
  Tensor& operator SYMBOL##=(X&&) const = delete;
  SITU_IN_PLACE(+)
  SITU_IN_PLACE(-)
  SITU_IN_PLACE(*)
  SITU_IN_PLACE(/)
#undef SITU_IN_PLACE

  // ---- what it is -------------------------------------------------------------------------------------------------

  Shape const& shape() const { return layout().shape; }
  /// In elements.
  Shape const& strides() const { return layout().strides; }
  Layout const& layout() const { return handle_.body() ? handle_.body()->layout : detail::empty_layout; }
  int rank() const { return layout().rank(); }
  /// The number of elements.
  int64_t size() const { return handle_.body() ? handle_.body()->size : 0; }
  int64_t size(int64_t axis) const { return shape()[detail::checked_axis(axis, rank(), shape(), "size")]; }
  bool is_contiguous() const { return handle_.body() ? handle_.body()->contiguous : true; }
  D device() const { return {}; }
  static constexpr situ::dtype dtype() { return dtype_of<T>; }
  static constexpr bool is_cuda() { return std::is_same_v<typename device_traits<D>::kernels, cuda_kernels>; }
  /// How many handles share the storage: copies of this one, and views of it (copies of a view count as one).
  int64_t use_count() const { return handle_.use_count(); }
  /// The first element, in the device's memory. Throws TypeError from a non-const handle to read-only storage.
  T* data() {
    if (read_only()) detail::fail_read_only("data");
    detail::before_write<D>(head());
    return raw();
  }
  T const* data() const {
    detail::before_read<D>(head());
    return raw();
  }
  detail::Storage storage() const { return handle_.body() ? handle_.body()->storage : detail::Storage(); }
  detail::Body const* body() const { return handle_.body(); }
  detail::Handle const& handle() const { return handle_; }
  detail::StorageHead const* storage_head() const { return handle_.body() ? handle_.body()->storage.head() : nullptr; }

  // ---- views: the same storage, seen differently --------------------------------------------------------------------

#define SITU_VIEW(NAME, PARAMETERS, BODY) \
  Tensor NAME PARAMETERS { return BODY; } \
  const Tensor NAME PARAMETERS const { return BODY; }

  /// The same elements with another shape (one -1 is inferred). Throws LayoutError when the strides do not allow it.
  SITU_VIEW(view, (Shape const& to), viewed_as(to))
  SITU_VIEW(transpose, (int64_t axis0, int64_t axis1), viewed({detail::transposed(layout(), axis0, axis1), 0}))
  /// The matrix transposed; a tensor of less than two axes stays as it is. Throws ShapeError beyond two.
  SITU_VIEW(t, (), viewed({detail::matrix_transposed(layout()), 0}))
  SITU_VIEW(permute, (Shape const& axes), viewed({detail::permuted(layout(), axes), 0}))
  SITU_VIEW(unsqueeze, (int64_t axis), viewed({detail::unsqueezed(layout(), axis), 0}))
  SITU_VIEW(squeeze, (), viewed({detail::squeezed(layout()), 0}))
  SITU_VIEW(squeeze, (int64_t axis), viewed({detail::squeezed(layout(), axis), 0}))
  /// Repeats axes of one index without copying; -1 keeps an extent.
  SITU_VIEW(expand, (Shape const& to), viewed({detail::expanded(layout(), to), 0}))
  SITU_VIEW(select, (int64_t axis, int64_t index), viewed(detail::select_view(layout(), axis, index)))
  SITU_VIEW(slice, (int64_t axis, int64_t start, int64_t stop, int64_t step = 1),
            viewed(detail::slice_view(layout(), axis, start, stop, step)))
  SITU_VIEW(slice, (int64_t axis, int64_t start, end_t, int64_t step = 1),
            viewed(detail::slice_view(layout(), axis, start, 0, step, false, true)))
  SITU_VIEW(flip, (int64_t axis), viewed(detail::flip_view(layout(), axis)))
  SITU_VIEW(operator[], (int64_t index), viewed(detail::index_first(layout(), index)))
  template <any_formula Ix, class Error = error::one_index_is_an_integer__masked_select_takes_a_mask_and_index_select_a_tensor_of_indices<value_of<Ix>>>
  void operator[](Ix const&) const = delete;
  template <detail::no_index Ix, class Error = error::an_index_is_an_integer<Ix>>
  Tensor operator[](Ix) = delete;
  template <detail::no_index Ix, class Error = error::an_index_is_an_integer<Ix>>
  Tensor operator[](Ix) const = delete;
#undef SITU_VIEW
  SITU_IN_BRACES(view, a_shape_stands_in_braces__as_in_zeros_of_braces_2_3)
  SITU_IN_BRACES(reshape, a_shape_stands_in_braces__as_in_zeros_of_braces_2_3)
  SITU_IN_BRACES(expand, a_shape_stands_in_braces__as_in_zeros_of_braces_2_3)
  SITU_IN_BRACES(permute, axes_stand_in_braces__as_in_permute_of_braces_1_0)

  /// x(all(), range(1, end()), -1): one index per axis; axes that are not named are kept whole.
  template <class... Is>
    requires((detail::any_index<Is> && ...) && (detail::view_index<Is> || ...))
  Tensor operator()(Is... indices) {
    return viewed(detail::index_view(layout(), indices...));
  }
  template <class... Is>
    requires((detail::any_index<Is> && ...) && (detail::view_index<Is> || ...))
  const Tensor operator()(Is... indices) const {
    return viewed(detail::index_view(layout(), indices...));
  }

  template <class... Is, class Error = error::one_index_is_an_integer__masked_select_takes_a_mask_and_index_select_a_tensor_of_indices<Tensor>>
    requires(any_formula<Is> || ...)
  void operator()(Is const&...) const = delete;

  /// The same elements with another shape: a view where the strides allow it, else a contiguous copy.
  Tensor reshape(Shape const& to) { return reshaped(to); }
  const Tensor reshape(Shape const& to) const { return reshaped(to); }
  /// The axes from `first` to `last`, with both, as one axis; like reshape.
  Tensor flatten(int64_t first = 0, int64_t last = -1) { return reshaped(detail::flattened(shape(), first, last)); }
  const Tensor flatten(int64_t first = 0, int64_t last = -1) const { return reshaped(detail::flattened(shape(), first, last)); }
  /// This tensor where it is contiguous, else a contiguous copy.
  Tensor contiguous() { return is_contiguous() ? *this : clone(); }
  const Tensor contiguous() const { return is_contiguous() ? *this : clone(); }
  /// A contiguous copy in storage of its own.
  Tensor clone() const {
    constexpr std::size_t little = 128 * 1024;  // of more the CPU's kernels write past the caches what does not fit them
    Tensor result = uninitialized(shape(), "clone");
    if (is_contiguous() && (!is_immediate<D> || bytes() <= little)) {
      if (size() > 0) device_traits<D>::copy(result.raw(), data(), bytes());
    } else {
      detail::evaluate<D>(result.raw(), result.layout(), true, *this);
    }
    return result;
  }

  // ---- elements ---------------------------------------------------------------------------------------------------

  /// One element: as many indices as axes; negative ones count from the end. Throws IndexError. Host memory only.
  template <std::integral... Is>
    requires host_device<D>
  T& operator()(Is... indices) {
    if (SITU_UNLIKELY(read_only())) detail::fail_read_only("operator()");
    detail::before_write<D>(head());
    return raw()[offset_of("operator()", indices...)];
  }
  template <std::integral... Is>
    requires host_device<D>
  T const& operator()(Is... indices) const {
    detail::before_read<D>(head());
    return raw()[offset_of("operator()", indices...)];
  }
  template <std::integral... Is, class Error = error::element_access_on_a_device__use_item_for_one_element_or_cpu_for_all<D>>
    requires(!host_device<D>)
  T& operator()(Is...) const = delete;

  /// One element by value, from any device: waits for what is enqueued there. Without indices, the only element.
  template <std::integral... Is>
    requires(sizeof...(Is) > 0)
  T item(Is... indices) const {
    return element(offset_of("item", indices...), {nullptr, 0, "item"});
  }
  T item(detail::CallSite site = detail::CallSite::here("item")) const {
    if (size() != 1) detail::fail<ShapeError>("item: shape ", shape(), " has ", size(), " elements; without indices there must be exactly one");
    return element(0, site);
  }
  /// All elements in row-major order.
  std::vector<T> to_vector(detail::CallSite site = detail::CallSite::here("to_vector")) const {
    detail::TransferSite const scope(site, detail::place_of<D>, detail::place_of<Cpu>);
    detail::count_of(shape(), "to_vector", sizeof(T));  // of a broadcast view, which may be larger than memory
    if constexpr (std::is_same_v<T, bool>) {
      Tensor<T, Cpu> const host = detail::transfer<Cpu>(*this).contiguous();
      std::vector<T> result(static_cast<std::size_t>(size()));
      detail::copy_to_bits(host.data(), result);
      return result;
    } else {
      std::vector<T> result(static_cast<std::size_t>(size()));
      copy_out(result.data());
      return result;
    }
  }

 private:
  template <element U, situ::device Other>
  friend class Tensor;

  static void check_count(std::size_t values, Shape const& shape) {
    if (detail::count_of(shape, "Tensor", sizeof(T)) == static_cast<int64_t>(values)) return;
    detail::fail<ShapeError>("Tensor: ", values, values == 1 ? " value was" : " values were", " given for shape ", shape, ", which has ", detail::product(shape));
  }
  detail::StorageHead* head() const { return handle_.body() ? handle_.body()->storage.head() : nullptr; }
  T* raw() const { return handle_.body() ? static_cast<T*>(handle_.body()->first) : nullptr; }
  bool read_only() const {
    auto const* const head = storage_head();
    return head && head->read_only;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * sizeof(T); }

  Tensor viewed(detail::Viewed const& view) const {
    return from_handle(detail::make_view(handle_, view, sizeof(T)));
  }

  Tensor reshaped(Shape const& to) const {
    detail::Reshaped const seen = detail::reshaped(layout(), to, "reshape");
    return seen.shares ? viewed(seen.view) : clone().viewed(seen.view);
  }

  Tensor viewed_as(Shape const& to) const {
    detail::Reshaped const seen = detail::reshaped(layout(), to, "view");
    if (!seen.shares) detail::fail_view(layout(), seen.view.layout.shape);
    return viewed(seen.view);
  }

  template <class... Is>
  int64_t offset_of(char const* who, Is... indices) const {
    constexpr int count = sizeof...(Is);
    if (SITU_UNLIKELY(count != rank())) {
      detail::fail<IndexError>(who, ": ", count, count == 1 ? " index was" : " indices were", " given for shape ", shape(), ": it has ", rank(), rank() == 1 ? " axis" : " axes");
    }
    int64_t offset = 0;
    int axis = 0;
    ((offset += detail::checked_index(static_cast<int64_t>(indices), shape()[axis], axis, shape(), who) * strides()[axis], ++axis), ...);
    return offset;
  }

  T element(int64_t offset, detail::CallSite const& site) const {
    detail::TransferSite const scope(site, detail::place_of<D>, detail::place_of<Cpu>);
    T const* const from = data();
    if (!from) __builtin_unreachable();  // there is an element; g++'s -Wnull-dereference does not know
    T value;
    device_traits<D>::copy_to_host(&value, from + offset, sizeof(T));
    return value;
  }
  void copy_out(T* to) const {
    if (size() == 0) return;
    if (is_contiguous()) return device_traits<D>::copy_to_host(to, data(), bytes());
    Tensor<T, Cpu> const host = detail::transfer<Cpu>(*this).contiguous();
    device_traits<Cpu>::copy(to, host.data(), bytes());
  }

  /// What every write in place begins with: it is allowed, and whoever saved the old elements will know.
  void begin_write(char const* who) const {
    if (detail::Body* const body = handle_.body()) detail::begin_write(*body, who);
    detail::before_write<D>(head());
  }

  /// `leads`: axes of one index may lead the source's shape.
  template <class E>
  Tensor& write(char const* who, E const& e, bool leads = false) {
    Shape const& from = e.shape();
    if (!detail::same_shape(from, shape())) {
      if (leads && from.rank() > rank()) {
        viewed({detail::led_by_ones(layout(), from), 0}).write(who, e);
        return *this;
      }
      detail::check_expands(from, shape(), who);
    }
    if (overlaps_differently(e)) {
      detail::check_write(*handle_.body(), who);
      Tensor const apart = computed_apart(who, e);  // before the write counts as one: there may be no memory for it
      begin_write(who);
      detail::evaluate<D>(raw(), layout(), is_contiguous(), apart);
    } else {
      begin_write(who);
      detail::evaluate<D>(raw(), layout(), is_contiguous(), e);
    }
    return *this;
  }

  /// The values of e in storage of their own.
  template <class E>
  static Tensor computed_apart(char const* who, E const& e) {
    Tensor value = uninitialized(e.shape(), who);
    detail::evaluate<D>(value.raw(), value.layout(), true, e);
    return value;
  }

  /// Whether e reads elements of this storage at other indices than those they are written at.
  template <class E>
  bool overlaps_differently(E const& e) const {
    bool result = false;
    detail::for_each_leaf(e, [&](auto const& leaf) {
      result = result || detail::overlap_differently(body(), sizeof(T), leaf.body(), sizeof(value_of<decltype(leaf)>));
    });
    return result;
  }

  detail::Handle handle_;
};

// `Tensor y = e;` deduces the element type and the device of e. Each of these is more specialised than the constructors above,
// which would deduce the defaults.
template <class Op, class... Es>
Tensor(Map<Op, Es...> const&) -> Tensor<value_of<Map<Op, Es...>>, detail::result_device_t<device_of<Map<Op, Es...>>>>;
template <class Op, class... Es>
Tensor(Map<Op, Es...>&) -> Tensor<value_of<Map<Op, Es...>>, detail::result_device_t<device_of<Map<Op, Es...>>>>;
template <class Op, class... Es>
Tensor(Map<Op, Es...>&&) -> Tensor<value_of<Map<Op, Es...>>, detail::result_device_t<device_of<Map<Op, Es...>>>>;
template <class T, class D>
Tensor(Variable<T, D> const&) -> Tensor<T, D>;
template <class T, class D>
Tensor(Tensor<T, D> const&) -> Tensor<T, D>;
template <class T, class D>
Tensor(Tensor<T, D>&) -> Tensor<T, D>;
template <class T, class D>
Tensor(Tensor<T, D>&&) -> Tensor<T, D>;
template <number A, number... As>
Tensor(A, As...) -> Tensor<float>;  // T is never deduced from numbers
template <class R>
  requires requires(R const& r) { r.data(); r.size(); }
Tensor(R const&, Shape) -> Tensor<std::remove_cvref_t<decltype(*std::declval<R const&>().data())>>;

/// The value of an expression as a tensor; a tensor is returned as it is.
template <class E>
  requires expression<E>
detail::evaluated_t<std::remove_cvref_t<E>> eval(E&& e) {
  return detail::evaluated(static_cast<E&&>(e));
}

}  // namespace situ::inline SITU_ABI
