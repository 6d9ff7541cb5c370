/// Writing into Variables: parts of them, and v += e.
#pragma once

#include <situ/autograd/formula.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// A part of a tensor, as it lies in one that is contiguous.
struct Window {
  Layout layout;
  int64_t offset = 0;

  template <class T, class D>
  static Window of(Tensor<T, D> const& whole, Tensor<T, D> const& part) {
    return of(whole.layout(), part.layout(), part.size() > 0 ? part.data() - whole.data() : 0);
  }
  /// From a part of a tensor of any strides, but broadcast: `from` is the distance of their first elements in memory.
  SITU_NOINLINE static Window of(Layout const& whole, Layout const& part, int64_t from) {
    if (whole.is_contiguous()) return {part, from};
    Layout const contiguous(whole.shape);
    int order[max_rank];  // the axes, longest strides first
    int count = 0;
    auto const length = [&](int k) { return whole.strides[k] < 0 ? -whole.strides[k] : whole.strides[k]; };
    int64_t lowest = 0;
    for (int k = 0; k < whole.rank(); ++k) {
      if (whole.shape[k] < 2 || length(k) == 0) continue;  // what is broadcast cannot be written anyway
      if (whole.strides[k] < 0) lowest += (whole.shape[k] - 1) * length(k);
      int at = count++;
      for (; at > 0 && length(order[at - 1]) < length(k); --at) order[at] = order[at - 1];
      order[at] = k;
    }
    auto const number_of = [&](int64_t distance) {
      int64_t number = 0;
      distance += lowest;
      for (int j = 0; j < count; ++j) {
        int const k = order[j];
        int64_t const i = distance / length(k);
        distance -= i * length(k);
        number += (whole.strides[k] < 0 ? whole.shape[k] - 1 - i : i) * contiguous.strides[k];
      }
      return number;
    };
    Window result{part, part.size() > 0 ? number_of(from) : 0};
    for (int k = 0; k < part.rank(); ++k) {
      if (part.size() > 0 && part.shape[k] > 1) result.layout.strides[k] = number_of(from + part.strides[k]) - result.offset;
    }
    return result;
  }

  template <class T, class D>
  Tensor<T, D> operator()(Tensor<T, D> const& whole) const {
    T* const first = const_cast<T*>(whole.data());
    return Tensor<T, D>::from_handle(make_view(whole.storage(), first ? first + offset : nullptr, layout));
  }
  template <class T, class D>
  Variable<T, D> operator()(Variable<T, D> const& whole) const {
    return record_part(whole.contiguous(), "Slice", *this);
  }
};

/// y with a part of it replaced: the part's gradient is that of what was written, and not y's.
struct CopySlices {
  using twice = void;
  Window window;
  template <class T, class D, class Y, class... Source>
  void operator()(Tensor<T, D> const& g, Y const& into, Source const&... source) const {
    bool const mine = State<T, D>::is_own(g);  // so that nobody can tell when it becomes what is passed on
    Tensor<T, D> rest = mine || !into.needed() ? g.contiguous() : g.clone();
    if ((source.needed() || ...)) {
      Tensor<T, D> part = window(rest);
      (source.add(into.needed() ? part.clone() : part), ...);
    }
    if (!into.needed()) return;
    window(rest).assign(0);
    into.add(rest);
  }
  template <class T, class D, class Y, class... Source>
  void operator()(Variable<T, D> const& g, Y const& into, Source const&... source) const {
    if ((source.needed() || ...)) (source.add(window(g)), ...);
    if (!into.needed()) return;
    Tensor<T, D> kept = ones<T>(g.shape(), D{});
    window(kept).assign(0);
    into.add(Variable<T, D>(g * kept));
  }
};

/// Whether an operand's gradient would be recorded.
template <class X>
bool wants_gradient(X const& x) {
  bool result = false;
  if constexpr (differentiable<X>) for_each_variable(x, [&](auto const& v) { result = result || v.requires_grad(); });
  return result;
}

/// Whether the write of a part is recorded. `whole` is null when it has left, and `records` tells what it wanted then: throws GradientError where it would
/// have to know.
template <class T, class D, class X>
bool records_write(Variable<T, D> const* whole, bool records, Variable<T, D> const& part, X const& x) {
  if (!records_gradients) return false;
  if (whole) return whole->requires_grad() || wants_gradient(x);
  StorageHead const* const head = part.state()->value.storage_head();
  if (records || part.requires_grad() || wants_gradient(x) || (head && head->recorded != 0)) {
    fail<GradientError>("operator=: the Variable that this part of shape ", part.shape(), " was taken of has ended since, or was moved or assigned to; take the part again");
  }
  return false;
}

/// A part that has a name, as a view of what `whole` is now, when that was written since, or the part was taken where nothing was recorded.
template <class T, class D>
void retake_part(Variable<T, D> const* whole, Variable<T, D>& part) {
  if (!records_gradients || !whole || whole == &part || !whole->requires_grad() || whole->is_leaf() || whole->state()->is_view) return;
  if (part.requires_grad() && !is_outdated(*part.state())) return;
  Tensor<T, D> const value = part.value();
  part = record_part(*whole, "Slice", value, Window::of(whole->value(), value));
}

/// Throws GradientError when the recorded write of a part would leave somebody with a history that does not know of it.
template <class X, class T, class D>
void check_write(Variable<T, D> const& whole, X const& x) {
  auto const* const state = whole.state();
  if (whole.is_leaf() && whole.requires_grad()) {
    fail<GradientError>("operator=: this Variable of shape ", whole.shape(),
                        " is a leaf that requires a gradient: a part of it cannot be written where gradients are recorded; write inside of a no_grad, or to a clone() of it");
  }
  if (state->is_view) {
    fail<GradientError>("operator=: this Variable of shape ", whole.shape(), " is itself a view of another one, which would not know of the write; write to a part of that one, or to a clone()");
  }
  if (state->value.size() > 0 && state->value.layout().is_broadcast()) fail_broadcast_write("operator=", state->value.layout());  // other parts have its elements too
  int64_t appearances = 0;
  if constexpr (differentiable<X> && !std::is_lvalue_reference_v<X>) {
    for_each_variable(x, [&](auto const& v) { appearances += static_cast<void const*>(v.state()) == state; });
  }
  if (__atomic_load_n(&state->handles, __ATOMIC_ACQUIRE) != 1 + appearances) {
    fail<GradientError>("operator=: other Variables or formulas share the history of this one of shape ", whole.shape(), ", and would not know of the write; write to a clone() of it");
  }
}

/// v becomes the result of a write.
template <class T, class D>
void rebind(Variable<T, D>& v, Variable<T, D>&& written) {
  State<T, D>& before = *v.state();
  if (SITU_UNLIKELY(before.retains_grad || before.hooks)) before.pass_wishes(*written.state());
  v = std::move(written);
}

/// target = x, which `whole` is told of: it becomes the result of the write.
template <class T, class D, class X>
void record_write(Variable<T, D>& whole, Tensor<T, D>& target, X const& x) {
  Tensor<T, D> const value = whole.value();
  CopySlices const rule{Window::of(value, std::as_const(target))};
  Variable<T, D> written = [&] {
    if constexpr (differentiable<X>) {
      auto const source = recorded_as<T, D>(x);
      auto result = record("CopySlices", value, rule, whole, source);
      target.assign(source.value());
      return result;
    } else {
      auto result = record("CopySlices", value, rule, whole);
      target.assign(x);
      return result;
    }
  }();
  if (auto* const head = value.storage().head()) head->writer = recorded_write, head->recorded = head->version;
  pass_whole(*whole.state(), *written.state(), &whole);
  rebind(whole, std::move(written));
}

/// part = x. x may have axes of one index in front that the part has not, as where a tensor's part is assigned to.
template <class T, class D, class X>
void write_part(Variable<T, D>* whole, bool records, Variable<T, D> const& part, X&& x) {
  Tensor<T, D> target = part.value();
  if constexpr (any_formula<X>) {
    if (x.rank() > target.rank()) target = view_of(target, [&](Layout const& layout) { return Viewed{led_by_ones(layout, x.shape()), 0}; });
  }
  if (!records_write(whole, records, part, x)) {
    if constexpr (any_formula<X>) target.assign(values_of(x));
    else target.assign(x);
    return;
  }
  check_write<X>(*whole, x);
  record_write(*whole, target, x);
}

/// part = part ∘ x.
template <class T, class D, class InPlace, class Recorded, class X>
void change_part(Variable<T, D>* whole, bool records, Variable<T, D>& part, InPlace const& in_place, Recorded const& recorded, X&& x) {
  Tensor<T, D> target = part.value();
  if (!records_write(whole, records, part, x)) {
    if constexpr (any_formula<X>) in_place(target, values_of(x));
    else in_place(target, x);
  } else {
    check_write<X>(*whole, x);
    retake_part(whole, part);
    Variable<T, D> const changed = recorded_as<T, D>(recorded(part.clone(), x));  // a clone, because x's gradient may need what is written over
    record_write(*whole, target, changed);
  }
}

/// v = v ∘ x.
template <class T, class D, class InPlace, class Recorded, class X>
void change(Variable<T, D>& v, char const* who, InPlace const& in_place, Recorded const& recorded, X const& x) {
  if (!records_gradients || !(v.requires_grad() || wants_gradient(x))) {
    Tensor<T, D> target = v.value();
    if constexpr (any_formula<X>) in_place(target, values_of(x));
    else in_place(target, x);
    return;
  }
  if (v.is_leaf() && v.requires_grad()) {
    fail<GradientError>(who, ": this Variable of shape ", v.shape(),
                        " is a leaf that requires a gradient: it cannot be changed where gradients are recorded; do it inside of a no_grad, or name the result differently");
  }
  if (auto const* const body = v.state()->value.body(); v.state()->is_view && body && body->storage.use_count() > 1) {  // a view of what has ended may change
    fail<GradientError>(who, ": this Variable of shape ", v.shape(), " is itself a view of another one, which would not know of the change; change a part of that one, or name the result differently");
  }
  auto const formula = recorded(v, x);
  if (!(formula.shape() == v.shape())) expanded(Layout(formula.shape()), v.shape(), who);
  rebind(v, recorded_as<T, D>(formula));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
