/// Variable: a tensor that records, so that gradients can flow back.
///
/// It is a type of its own, so that code without gradients pays nothing, and a gradient is not lost by accident: a Variable becomes a
/// Tensor by `v.value()` or `v.detach()` only. Elementwise functions of Variables are formulas as those of Tensors are; a formula
/// becomes a Variable, and one node of the graph, by `Variable y = e;` or as the argument of an operation.
/// Tensors beside Variables are constants; so are comparisons and conversions to integers.
#pragma once

#include <situ/autograd/node.hpp>
#include <situ/tensor/transfer.hpp>

namespace situ::inline SITU_ABI {

/// Keeps the graph after a backward pass, for another one: y.backward(retain_graph).
struct retain_graph_t {};
inline constexpr retain_graph_t retain_graph{};

namespace detail {

template <class T, class D>
struct State;
// Defined by record.hpp, formula.hpp and backward.hpp.
template <class T, class D>
Variable<T, D> recorded(Variable<T, D> const& v);
template <class Op, class... Es>
auto recorded(Map<Op, Es...> const& e);
template <class T, class D, class E>
Variable<T, D> recorded_as(E const& e);
template <class Back, class T, class D>
SITU_NOINLINE Variable<T, D> record_view(Variable<T, D> const& v, char const* name, Tensor<T, D> value, Shape const& parameters);
template <class T, class D, class View>
Variable<T, D> record_part(Variable<T, D> const& v, char const* name, View const& view);
template <class View, class T, class D>
Variable<T, D> record_placed(View const& view, Variable<T, D> const& v, Shape const& whole);
template <class To, class T, class D>
Variable<T, To> record_transfer(Variable<T, D> const& v);
template <class G>
auto summed_to(G const& gradient, Shape const& shape);
Shape inverse_permutation(Shape const& axes);
template <class T, class D>
Tensor<T, D> one_gradient(Shape const& shape);
// Defined by writes.hpp.
template <class T, class D, class X>
void write_part(Variable<T, D>* whole, bool records, Variable<T, D> const& part, X&& x);
template <class T, class D, class InPlace, class Recorded, class X>
void change_part(Variable<T, D>* whole, bool records, Variable<T, D>& part, InPlace const& in_place, Recorded const& recorded, X&& x);
template <class T, class D>
void retake_part(Variable<T, D> const* whole, Variable<T, D>& part);
template <class T, class D, class InPlace, class Recorded, class X>
void change(Variable<T, D>& v, char const* who, InPlace const& in_place, Recorded const& recorded, X const& x);
template <class T, class D>
void run_backward(Variable<T, D> const& root, Tensor<T, D> const& seed, bool keeps_graph);

/// What may be written to elements of T on D.
template <class X, class T, class D>
concept written_to = (any_formula<X> && mixes_with<device_of<X>, D> && implicitly_converts_to<value_of<X>, T>) ||
                     (number<std::remove_cvref_t<X>> && implicitly_converts_to<weak_t<T, typename canonical<std::remove_cvref_t<X>>::type>, T>);

// How views are undone: of(g, whole, parameters) for a gradient g of the view, and the shape of what it is a view of.
#define SITU_UNDONE_VIEW(NAME, BACK)                                                                                       \
  struct NAME {                                                                                                            \
    template <class G>                                                                                                     \
    static auto of(G const& g, [[maybe_unused]] Shape const& whole, [[maybe_unused]] Shape const& parameters) { return BACK; } \
  };
SITU_UNDONE_VIEW(reshaped_back, g.reshape(whole))
SITU_UNDONE_VIEW(transposed_back, g.transpose(parameters[0], parameters[1]))
SITU_UNDONE_VIEW(t_back, g.t())
SITU_UNDONE_VIEW(permuted_back, g.permute(inverse_permutation(parameters)))
SITU_UNDONE_VIEW(flipped_back, g.flip(parameters[0]))
SITU_UNDONE_VIEW(copied_back, g)
SITU_UNDONE_VIEW(summed_back, summed_to(g, whole))
#undef SITU_UNDONE_VIEW

/// A function that sees a gradient on its way, and may replace it.
template <class T, class D>
struct Hook {
  Hook* next = nullptr;
  int64_t number = 0;
  bool removed = false;
  virtual ~Hook() = default;
  /// `recorded`: under create_graph.
  virtual void call(Tensor<T, D>& gradient, bool recorded) = 0;
  /// Whose hooks, from before a recorded write, this one stands for.
  virtual State<T, D>* before() { return nullptr; }
};
template <class T, class D, class F>
struct HookOf final : Hook<T, D> {
  F f;
  explicit HookOf(F&& function) : f(std::move(function)) {}
  void call(Tensor<T, D>& gradient, [[maybe_unused]] bool recorded) override {
    if constexpr (std::is_void_v<decltype(f(std::as_const(gradient)))>) {
      f(std::as_const(gradient));
    } else {
      if (recorded) fail<GradientError>("grad: a hook that replaces a gradient has no derivative; call grad without create_graph, or return nothing from the hook");
      Tensor<T, D> other(f(std::as_const(gradient)));
      if (!(other.shape() == gradient.shape())) {
        fail<GradientError>("backward: a hook gave a gradient of shape ", other.shape(), " for a Variable of shape ", gradient.shape(), "; it must have that shape");
      }
      gradient = std::move(other);
    }
  }
};

[[noreturn, gnu::cold]] SITU_NOINLINE inline void fail_moved_from() { fail<GradientError>("Variable: it was moved from, and holds nothing; assign to it before it is used"); }

}  // namespace detail

/// Elements of a floating type T on device D, with their history: a counted handle. One that was moved from can be assigned to; all else of it throws GradientError.
template <class T, class D>
class Variable {
  static_assert(floating<T>, "situ::Variable<T, D>: only float, double, float16 and bfloat16 have gradients; keep other elements in a Tensor");

 public:
  using value_type = T;
  using device_type = D;

  // ---- construction -----------------------------------------------------------------------------------------------

  Variable() : Variable(Tensor<T, D>()) {}
  Variable(Variable const& other) noexcept : state_(other.state_) {
    if (state_) hold(state_);
  }
  Variable(Variable&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {
    if (state_) detail::leave(*state_, &other);
  }
  Variable& operator=(Variable other) & noexcept {
    if (state_ && state_ != other.state_) detail::leave(*state_, this);
    std::swap(state_, other.state_);
    return *this;
  }
  ~Variable() {
    if (state_) end(state_, this);
  }

  /// A leaf that shares the tensor's storage and wants a gradient.
  explicit Variable(Tensor<T, D> value) : Variable(std::move(value), true) {}
  SITU_NOINLINE explicit Variable(Tensor<T, D> value, bool requires_grad) : state_(new detail::State<T, D>(std::move(value))) { state_->requires_grad = requires_grad; }
  /// A leaf with the value of an expression of tensors.
  template <class E>
    requires(expression<E> && !std::is_same_v<std::remove_cvref_t<E>, Tensor<T, D>> && detail::becomes<E, T, D>)
  explicit Variable(E&& e) : Variable(Tensor<T, D>(static_cast<E&&>(e))) {}
  /// A leaf with values in braces.
  Variable(std::initializer_list<detail::Nested<T>> values) : Variable(Tensor<T, D>(values)) {}
  /// The result of a formula: one node.
  template <class E>
    requires(differentiable<E> && mixes_with<device_of<E>, D> && implicitly_converts_to<value_of<E>, T> &&
             !std::derived_from<std::remove_cvref_t<E>, Variable>)
  Variable(E&& e) : Variable(detail::recorded_as<T, D>(e)) {}
  template <class E, class Error = error::conversion_across_devices_is_explicit__use_to<D, device_of<E>>>
    requires((expression<E> || differentiable<E>) && !mixes_with<device_of<E>, D>)
  Variable(E const&) = delete;
  template <class E, class Error = error::conversion_would_lose_values__use_cast<value_of<E>, T>>
    requires((expression<E> || differentiable<E>) && mixes_with<device_of<E>, D> && !implicitly_converts_to<value_of<E>, T>)
  Variable(E&&) = delete;

  // ---- what it is -------------------------------------------------------------------------------------------------

  Shape const& shape() const { return state()->value.shape(); }
  Shape const& strides() const { return state()->value.strides(); }
  Layout const& layout() const { return state()->value.layout(); }
  int rank() const { return shape().rank(); }
  /// The number of elements.
  int64_t size() const { return state()->value.size(); }
  int64_t size(int64_t axis) const { return state()->value.size(axis); }
  bool is_contiguous() const { return state()->value.is_contiguous(); }
  D device() const { return {}; }
  static constexpr situ::dtype dtype() { return dtype_of<T>; }
  static constexpr bool is_cuda() { return Tensor<T, D>::is_cuda(); }
  template <std::integral... Is>
    requires(sizeof...(Is) > 0)
  T item(Is... indices) const {
    return state()->value.item(indices...);
  }
  T item(detail::CallSite site = detail::CallSite::here("item")) const { return state()->value.item(site); }
  auto to_vector(detail::CallSite site = detail::CallSite::here("to_vector")) const { return state()->value.to_vector(site); }

  // ---- gradients --------------------------------------------------------------------------------------------------

  /// The value alone: shares the storage. What is written in place there is noticed by a backward that needs it.
  Tensor<T, D> value() const { return state()->value; }
  Tensor<T, D> detach() const { return state()->value; }
  /// What backward has accumulated; empty, of shape [0], before.
  Tensor<T, D> grad() const { return state()->grad; }
  bool has_grad() const { return state()->has_grad; }
  /// Forgets the gradient.
  void zero_grad() {
    state()->grad = {};
    state()->has_grad = false;
  }
  bool requires_grad() const { return state()->requires_grad; }
  /// Whether a leaf wants a gradient: also of what was recorded before, since a pass asks when it comes by. Throws GradientError for what is not a leaf.
  Variable& requires_grad(bool wanted) {
    if (!is_leaf() && !wanted) {
      detail::fail<GradientError>("requires_grad: this Variable is the result of ", state()->name, ": only a leaf can be frozen; use value() or no_grad");
    }
    state()->requires_grad = wanted;
    return *this;
  }
  /// Whether it was made by the user, and not recorded.
  bool is_leaf() const { return state()->name == nullptr; }
  /// Keeps the gradient of what is not a leaf. After a recorded write, as v += e, that of the new value.
  void retain_grad() {
    check_requires_grad("retain_grad");
    state()->retains_grad = true;
    state()->takes_late = false;
  }
  /// The name of the operation that made it, as `Mean`; null for a leaf.
  char const* grad_fn() const { return state()->name; }

  /// Computes the gradients of everything that this one number was made of, and adds them to their `grad()`.
  /// Throws    GradientError when it has no history, has more than one element, when a backward before has given back what is needed, or
  ///           when something that is needed was written in place.
  /// Cost      one kernel for each formula; memory that was saved is given back on the way, unless retain_graph is asked for.
  void backward() const { start_backward(false); }
  void backward(retain_graph_t) const { start_backward(true); }
  /// The same from a gradient of this Variable's shape: the vector of a vector-Jacobian product.
  template <class E>
    requires(expression<E> && detail::becomes<E, T, D>)
  void backward(E const& seed) const {
    start_backward(seed, false);
  }
  template <class E>
    requires(expression<E> && detail::becomes<E, T, D>)
  void backward(E const& seed, retain_graph_t) const {
    start_backward(seed, true);
  }
  void backward(Tensor<T, D> const& seed) const { start_backward(seed, false); }  // also in braces
  void backward(Tensor<T, D> const& seed, retain_graph_t) const { start_backward(seed, true); }
  template <number X, class Error = error::backward_takes_a_gradient__and_retain_graph<X>>
  void backward(X) const = delete;
  template <class E, number X, class Error = error::backward_takes_a_gradient__and_retain_graph<X>>
  void backward(E const&, X) const = delete;

  /// Calls f(gradient) when this Variable's gradient is known, before it is passed on; what f returns, if anything, replaces it.
  /// Gives a number for remove_hook, which f may call. In a backward() f may call another backward(); in a grad() it may start none.
  /// A recorded write, as v += e, leaves the hooks with the value that was there before; their numbers stay good.
  /// Throws    GradientError from a backward pass when what f returns has another shape, or replaces a gradient under create_graph.
  template <class F>
  int64_t register_hook(F f) {
    check_requires_grad("register_hook");
    return state()->add_hook(new detail::HookOf<T, D, F>(std::move(f)));
  }
  void remove_hook(int64_t number) { state()->remove_hook(number); }

  // ---- views, recorded ----------------------------------------------------------------------------------------------

#define SITU_RECORDED_VIEW(NODE, NAME, PARAMETERS, CALL, BACK, NUMBERS) \
  Variable NAME PARAMETERS const { return detail::record_view<detail::BACK>(*this, NODE, value().CALL, NUMBERS); }
#define SITU_RECORDED_PART(NODE, NAME, PARAMETERS, CALL) \
  Variable NAME PARAMETERS const { return detail::record_part(*this, NODE, [=](auto const& x) { return x.CALL; }); }

  SITU_RECORDED_VIEW("View", view, (Shape const& to), view(to), reshaped_back, {})
  SITU_RECORDED_VIEW("View", reshape, (Shape const& to), reshape(to), reshaped_back, {})
  SITU_RECORDED_VIEW("View", flatten, (int64_t first = 0, int64_t last = -1), flatten(first, last), reshaped_back, {})
  SITU_RECORDED_VIEW("Transpose", transpose, (int64_t axis0, int64_t axis1), transpose(axis0, axis1), transposed_back, Shape(axis0, axis1))
  SITU_RECORDED_VIEW("T", t, (), t(), t_back, {})
  SITU_RECORDED_VIEW("Permute", permute, (Shape const& axes), permute(axes), permuted_back, axes)
  SITU_RECORDED_VIEW("Unsqueeze", unsqueeze, (int64_t axis), unsqueeze(axis), reshaped_back, {})
  SITU_RECORDED_VIEW("Squeeze", squeeze, (), squeeze(), reshaped_back, {})
  SITU_RECORDED_VIEW("Squeeze", squeeze, (int64_t axis), squeeze(axis), reshaped_back, {})
  SITU_RECORDED_VIEW("Flip", flip, (int64_t axis), flip(axis), flipped_back, Shape(axis))
  SITU_RECORDED_VIEW("Clone", contiguous, (), contiguous(), copied_back, {})
  SITU_RECORDED_VIEW("Clone", clone, (), clone(), copied_back, {})
  SITU_RECORDED_VIEW("Expand", expand, (Shape const& to), expand(to), summed_back, {})
  SITU_RECORDED_PART("Select", select, (int64_t axis, int64_t index), select(axis, index))
  SITU_RECORDED_PART("Slice", slice, (int64_t axis, int64_t start, int64_t stop, int64_t step = 1), slice(axis, start, stop, step))
  SITU_RECORDED_PART("Slice", slice, (int64_t axis, int64_t start, end_t stop, int64_t step = 1), slice(axis, start, stop, step))
#undef SITU_RECORDED_VIEW
#undef SITU_RECORDED_PART
  SITU_IN_BRACES(view, a_shape_stands_in_braces__as_in_zeros_of_braces_2_3)
  SITU_IN_BRACES(reshape, a_shape_stands_in_braces__as_in_zeros_of_braces_2_3)
  SITU_IN_BRACES(expand, a_shape_stands_in_braces__as_in_zeros_of_braces_2_3)
  SITU_IN_BRACES(permute, axes_stand_in_braces__as_in_permute_of_braces_1_0)
  SITU_NO_TRUTH(Variable)
  /// A part of a named Variable reads as any other, and can be written: y[1] = e, y(all(), 0) *= 2. What is written is recorded; see
  /// VariablePart.
  Variable operator[](int64_t index) const& {
    return detail::record_part(*this, "Select", [=](auto const& x) { return x[index]; });
  }
  VariablePart<T, D> operator[](int64_t index) & { return {std::as_const(*this)[index], detail::WholePointer(*state(), this)}; }
  template <any_formula Ix, class Error = error::one_index_is_an_integer__masked_select_takes_a_mask_and_index_select_a_tensor_of_indices<value_of<Ix>>>
  void operator[](Ix const&) const& = delete;
  template <detail::no_index Ix, class Error = error::an_index_is_an_integer<Ix>>
  void operator[](Ix) const& = delete;
  template <detail::no_index Ix, class Error = error::an_index_is_an_integer<Ix>>
  void operator[](Ix) & = delete;
  template <class... Is>
    requires((detail::any_index<Is> && ...) && (detail::view_index<Is> || ...))
  Variable operator()(Is... indices) const& {
    return detail::record_part(*this, "Slice", [=](auto const& x) { return x(indices...); });
  }
  template <class... Is>
    requires((detail::any_index<Is> && ...) && (detail::view_index<Is> || ...))
  VariablePart<T, D> operator()(Is... indices) & {
    return {std::as_const(*this)(indices...), detail::WholePointer(*state(), this)};
  }
  /// One element, as a Variable of no axes.
  template <std::integral... Is>
  Variable operator()(Is... indices) const& {
    return (*this)(static_cast<int64_t>(indices)..., ellipsis());
  }
  template <std::integral... Is>
  VariablePart<T, D> operator()(Is... indices) & {
    return (*this)(static_cast<int64_t>(indices)..., ellipsis());
  }

  /// v += e is recorded: v becomes the Variable of v + e, and copies of it keep what they were. Without anything to record, as in the scope of a no_grad,
  /// the value is written in place.
  /// Throws    GradientError where gradients are recorded, for a leaf that requires one (`{ no_grad guard; w -= 0.1f * w.grad(); }`), and for a view
  ///           of another Variable, which would not know of e.
#define SITU_RECORDED_IN_PLACE(SYMBOL)                                                                        \
  template <class X>                                                                                          \
    requires detail::written_to<decltype(std::declval<Variable const&>() SYMBOL std::declval<X const&>()), T, D> \
  Variable& operator SYMBOL##=(X const& x)& {                                                                 \
    detail::change(*this, "operator" #SYMBOL "=", [](auto& t, auto const& e) { t SYMBOL##= e; },              \
                   [](auto const& a, auto const& e) { return a SYMBOL e; }, x);                               \
    return *this;                                                                                             \
  }                                                                                                           \
  template <class E, class Error = error::operands_on_different_devices__move_one_with_to<D, device_of<E>>>   \
    requires(any_formula<E> && !mixes_with<device_of<E>, D>)                                                  \
  Variable& operator SYMBOL##=(E const&)& = delete;                                                           \
  template <class X, class Error = error::a_Variable_is_written_by_its_parts_as_in_y_of_1__or_as_a_value_in_a_no_grad<X>>    \
    requires(any_formula<X> || number<X>)                                                                     \
  void operator SYMBOL##=(X const&) const&& = delete;
  SITU_RECORDED_IN_PLACE(+)
  SITU_RECORDED_IN_PLACE(-)
  SITU_RECORDED_IN_PLACE(*)
  SITU_RECORDED_IN_PLACE(/)
#undef SITU_RECORDED_IN_PLACE
  template <class X, class Error = error::a_Variable_is_written_by_its_parts_as_in_y_of_1__or_as_a_value_in_a_no_grad<X>>
    requires(any_formula<X> || number<X>)
  void operator=(X const&) const&& = delete;
  template <class X, class Error = error::a_Variable_is_written_by_its_parts_as_in_y_of_1__or_as_a_value_in_a_no_grad<X>>
    requires(any_formula<X> || number<X>)
  void assign(X const&) const = delete;

  // ---- transfers and conversions, recorded ---------------------------------------------------------------------------

  template <situ::device To>
  Variable<T, To> to(To, detail::CallSite site = detail::CallSite::here()) const {
    detail::TransferSite const scope(site, detail::place_of<D>, detail::place_of<To>);
    return detail::record_transfer<To>(*this);
  }
  template <element U>
  Variable<U, D> to() const {
    return detail::recorded(cast<U>(*this));
  }
  template <element U, situ::device To>
  Variable<U, To> to(To device, detail::CallSite site = detail::CallSite::here()) const {
    if constexpr (sizeof(U) <= sizeof(T)) return this->template to<U>().to(device, site);
    else return to(device, site).template to<U>();
  }
  SITU_NO_DEVICE_NAME
  Variable<T, Cpu> cpu(detail::CallSite site = detail::CallSite::here()) const { return to(Cpu{}, site); }
  template <int N = 0>
  Variable<T, Cuda<N>> cuda(detail::CallSite site = detail::CallSite::here()) const {
    return to(Cuda<N>{}, site);
  }

  detail::State<T, D>* state() const {
    if (SITU_UNLIKELY(!state_)) detail::fail_moved_from();
    return state_;
  }
  /// Another handle of a state; for situ's own use.
  static Variable from_state(detail::State<T, D>* state) {
    if (__atomic_fetch_add(&state->handles, 1, __ATOMIC_ACQ_REL) == 0) detail::count_up(state->references);
    return Variable(state, adopted{});
  }
  /// The first handle of a new state; for situ's own use.
  static Variable adopt(detail::State<T, D>* state) { return Variable(state, adopted{}); }

 private:
  struct adopted {};
  Variable(detail::State<T, D>* state, adopted) : state_(state) {}

  static SITU_NOINLINE void hold(detail::State<T, D>* state) noexcept { detail::count_up(state->handles); }  // every formula copies its Variables
  static SITU_NOINLINE void end(detail::State<T, D>* state, Variable const* handle) noexcept {
    detail::leave(*state, handle);
    if (SITU_LIKELY(!detail::count_down(state->handles))) return;
    __atomic_store_n(&state->handles, 0, __ATOMIC_RELAXED);
    if (state->name) state->value = {};  // nobody can read it any more; what a backward needs has been saved
    detail::drop(state);
  }
  void check_requires_grad(char const* who) const {
    if (!state()->requires_grad) {
      detail::fail<GradientError>(who, ": this Variable requires no gradient: nothing that it was made of does, or nothing was recorded there, as in a no_grad; call requires_grad(true) on a leaf");
    }
  }
  SITU_NOINLINE void start_backward(bool keeps_graph) const {
    check_requires_grad("backward");
    if (size() != 1) {
      detail::fail<GradientError>("backward: shape ", shape(), " has ", size(), " elements: gradients start at one number; reduce it, as with sum, or give a gradient of this shape");
    }
    detail::run_backward(*this, detail::one_gradient<T, D>(shape()), keeps_graph);
  }
  template <class E>
  void start_backward(E const& seed, bool keeps_graph) const {
    check_requires_grad("backward");
    if (!(seed.shape() == shape())) detail::fail<ShapeError>("backward: a gradient of shape ", seed.shape(), " was given for a Variable of shape ", shape());
    detail::run_backward(*this, Tensor<T, D>(seed), keeps_graph);
  }

  detail::State<T, D>* state_;
};

/// A part of a named Variable: `y[1]`, `y(all(), range(0, 2))`, `y[1][2]`.
///
/// As an operand it is a Variable. On the left side it is written: `y[1] = e`, `y[1] += e`, where e is a Variable, a formula, a Tensor or a number that
/// broadcasts to it. So is one that has a name, by `row += e`, while `row = e` gives the name to e. The elements of y are written in place, which a
/// backward that needs them notices; y becomes the result of the write, and of what y and e were made of.
///
/// Gradient  of e: the part's; of what y was before: that of y, with 0 in the part.
/// A part may outlive y, as where a function returns one: it can be read then, and written inside of a no_grad.
/// Throws    GradientError where gradients are recorded, and y is a leaf that requires one (write inside of a no_grad), is itself a view of
///           another Variable, or has its history held by other Variables or formulas too: these would not know of e; and where y has ended, was moved or
///           assigned to since the part was taken. LayoutError where y is a broadcast view: other parts have the elements too.
template <class T, class D>
class VariablePart : public Variable<T, D> {
 public:
  VariablePart(Variable<T, D>&& part, detail::WholePointer whole) : Variable<T, D>(std::move(part)), whole_(whole) {}
  VariablePart(VariablePart const&) = default;

  /// A name for a part is a Variable like others: assigning to it rebinds it.
  VariablePart& operator=(VariablePart const& other) & noexcept {
    Variable<T, D>::operator=(other);
    whole_ = other.whole_;
    return *this;
  }
  template <class X>
    requires(std::constructible_from<Variable<T, D>, X> && !std::same_as<std::remove_cvref_t<X>, VariablePart>)
  VariablePart& operator=(X&& x) & {
    Variable<T, D>::operator=(Variable<T, D>(static_cast<X&&>(x)));
    whole_.forget();
    return *this;
  }

  void operator=(VariablePart const& other) && { detail::write_part<T, D>(whole(), records(), *this, static_cast<Variable<T, D> const&>(other)); }
  template <detail::written_to<T, D> X>
  void operator=(X&& x) && {
    detail::write_part<T, D>(whole(), records(), *this, static_cast<X&&>(x));
  }
  template <class E, class Error = error::operands_on_different_devices__move_one_with_to<D, device_of<E>>>
    requires(any_formula<E> && !mixes_with<device_of<E>, D>)
  void operator=(E&&) && = delete;

#define SITU_CHANGE_PART(SYMBOL)                                                                                   \
  template <class X>                                                                                               \
    requires detail::written_to<decltype(std::declval<Variable<T, D> const&>() SYMBOL std::declval<X const&>()), T, D> \
  void operator SYMBOL##=(X&& x)&& {                                                                               \
    detail::change_part<T, D>(whole(), records(), *this, [](auto& t, auto const& e) { t SYMBOL##= e; },                              \
                        [](auto const& a, auto const& e) { return a SYMBOL e; }, static_cast<X&&>(x));             \
  }                                                                                                                \
  template <class X>                                                                                               \
    requires detail::written_to<decltype(std::declval<Variable<T, D> const&>() SYMBOL std::declval<X const&>()), T, D> \
  VariablePart& operator SYMBOL##=(X&& x)& {                                                                       \
    if (!whole_) {                                                                                                 \
      Variable<T, D>::operator SYMBOL##=(x);                                                                       \
      return *this;                                                                                                \
    }                                                                                                              \
    std::move(*this) SYMBOL##= static_cast<X&&>(x);                                                                \
    detail::retake_part<T, D>(whole(), *this);                                                                     \
    return *this;                                                                                                  \
  }
  SITU_CHANGE_PART(+)
  SITU_CHANGE_PART(-)
  SITU_CHANGE_PART(*)
  SITU_CHANGE_PART(/)
#undef SITU_CHANGE_PART

  // A part of a part is one of the whole; one of a name that was rebound is one of that.
  VariablePart operator[](int64_t index) const& { return {static_cast<Variable<T, D> const&>(*this)[index], whole_}; }
  VariablePart operator[](int64_t index) & {
    if (!whole_) return Variable<T, D>::operator[](index);
    detail::retake_part<T, D>(whole(), *this);
    return std::as_const(*this)[index];
  }
  template <detail::no_index Ix, class Error = error::an_index_is_an_integer<Ix>>
  void operator[](Ix) const = delete;
  template <any_formula Ix, class Error = error::one_index_is_an_integer__masked_select_takes_a_mask_and_index_select_a_tensor_of_indices<value_of<Ix>>>
  void operator[](Ix const&) const = delete;
  template <class... Is>
    requires(detail::any_index<Is> && ...)
  VariablePart operator()(Is... indices) const& {
    return {static_cast<Variable<T, D> const&>(*this)(indices...), whole_};
  }
  template <class... Is>
    requires(detail::any_index<Is> && ...)
  VariablePart operator()(Is... indices) & {
    if (!whole_) return Variable<T, D>::operator()(indices...);
    detail::retake_part<T, D>(whole(), *this);
    return std::as_const(*this)(indices...);
  }

 private:
  /// Null when it has left.
  Variable<T, D>* whole() { return whole_ ? static_cast<Variable<T, D>*>(whole_.handle()) : this; }
  /// What the one that has left wanted.
  bool records() const { return whole_ && !whole_.handle() && whole_.records(); }

  detail::WholePointer whole_;  ///< none: it was rebound, and is no part
};

template <class T, class D>
Variable(VariablePart<T, D>) -> Variable<T, D>;
template <class T, class D>
Variable(Tensor<T, D>) -> Variable<T, D>;
template <class T, class D>
Variable(Tensor<T, D>, bool) -> Variable<T, D>;
template <number A, number... As>
  requires(!std::is_same_v<A, bool> && !(std::is_same_v<As, bool> || ...))  // which says whether a gradient is wanted
Variable(A, As...) -> Variable<float>;  // as of tensors
template <class Op, class... Es>
Variable(Map<Op, Es...>) -> Variable<value_of<Map<Op, Es...>>, detail::result_device_t<device_of<Map<Op, Es...>>>>;

}  // namespace situ::inline SITU_ABI
