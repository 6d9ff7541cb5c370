/// Products of Variables: matmul, bmm, dot, outer, linear, einsum.
///
/// Their gradients are products again, of operands as they lie: nothing is transposed in memory. They work on Variables too, so that they
/// can be differentiated in their turn. Shapes, dtypes, devices and what is thrown are those of the functions of tensors.
#pragma once

#include <situ/autograd/operands.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/ops/einsum.hpp>
#include <situ/ops/linear.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class C, class D>
__attribute__((noinline, cold)) Tensor<C, D> lane_product_value(Tensor<C, D> const* xs) {
  return matmul(xs[0], xs[1]);
}
template <class C, class D>
inline constexpr LaneFunction<C, D> lane_product{.name = "Matmul",
                                                 .operands = 2,
                                                 .reads_operands = true,
                                                 .reads_value = false,
                                                 .chooses = false,
                                                 .value = nullptr,
                                                 .slopes = nullptr,
                                                 .evaluate = &lane_product_value<C, D>};
/// A B in a gradient. Of Lanes, which are matrices or batches of them, it is a node.
template <class A, class B>
auto gradient_product(A const& a, B const& b) {
  return matmul(a, b);
}
template <class C, class D>
__attribute__((noinline, cold)) Lane<C, D> gradient_product(Lane<C, D> const& a, Lane<C, D> const& b) {
  Lane<C, D> const operands[] = {a, b};
  return lane_machine<C, D>().record(lane_product<C, D>, operands);
}

/// C = A B of matrices, vectors and batches.
///
///     ∂L/∂A = g Bᵀ,   ∂L/∂B = Aᵀ g, summed over the batches that an operand was broadcast along
template <class SavedA, class SavedB>
struct ProductRule {
  using twice = on_lanes;
  SavedA a;
  SavedB b;
  int a_rank, b_rank;

  template <class G, class IntoA, class IntoB>
  void operator()(G const& g_, IntoA const& into_a, IntoB const& into_b) const {
    G const rows = a_rank == 1 ? g_.unsqueeze(b_rank == 1 ? -1 : -2) : g_;
    G const g = b_rank == 1 ? rows.unsqueeze(-1) : rows;
    if (into_a.needed()) {
      auto const b_matrix = b_rank == 1 ? b.beside(g).unsqueeze(-1) : b.beside(g);
      auto const gradient = gradient_product(g, b_matrix.transpose(-2, -1));
      into_a.add(a_rank == 1 ? gradient.squeeze(-2) : gradient);
    }
    if (into_b.needed()) {
      auto const a_matrix = a_rank == 1 ? a.beside(g).unsqueeze(0) : a.beside(g);
      bool const folds = a_rank > 2 && b_rank <= 2;  // all batches meet the same B: one product
      auto const rows_of = [&](auto const& x) {
        int64_t rows_in_all = 1;
        for (int k = 0; k + 1 < x.shape().rank(); ++k) rows_in_all *= x.shape()[k];
        return folds ? x.reshape({rows_in_all, x.shape().back()}) : x;
      };
      auto const gradient = gradient_product(rows_of(a_matrix).transpose(-2, -1), rows_of(g));
      into_b.add(b_rank == 1 ? gradient.squeeze(-1) : gradient);
    }
  }
};

/// Records the product of two operands. `value` is its value.
template <class T, class D, class A, class B>
Variable<T, D> record_product(char const* name, Tensor<T, D> value, A const& a, B const& b) {
  using Rule = ProductRule<Saved<T, device_of<A>>, Saved<T, device_of<B>>>;
  if (!is_recording(a, b)) return Variable<T, D>(std::move(value), false);
  return record(name, std::move(value), Rule{saved_if(b.requires_grad(), a), saved_if(a.requires_grad(), b), a.shape().rank(), b.shape().rank()}, a, b);
}

}  // namespace detail

/// The product of matrices, vectors, or batches of them, one of which records; see ops/matmul.hpp.
///
/// Gradient  ∂L/∂A = g Bᵀ, ∂L/∂B = Aᵀ g: a product for each operand that wants one. Twice differentiable.
template <class A, class B>
  requires detail::recorded_operands<A, B>
auto matmul(A const& a_, B const& b_) {
  using T = promote_t<value_of<A>, value_of<B>>;
  auto const a = detail::operation_input<T>(a_);
  auto const b = detail::operation_input<T>(b_);
  return detail::record_product("Matmul", matmul(a.value(), b.value()), a, b);
}

/// Batches of matrices, of which nothing broadcasts.
template <class A, class B>
  requires detail::recorded_operands<A, B>
auto bmm(A const& a_, B const& b_) {
  using T = promote_t<value_of<A>, value_of<B>>;
  auto const a = detail::operation_input<T>(a_);
  auto const b = detail::operation_input<T>(b_);
  return detail::record_product("Bmm", bmm(a.value(), b.value()), a, b);
}

/// Σ aᵢ bᵢ, fused with formulas given as operands.
///
/// Gradient  g bᵢ and g aᵢ, in one kernel together with those of the formulas.
template <class A, class B>
  requires detail::recorded_operands<A, B>
auto dot(A const& a, B const& b) {
  return detail::record_on<false>("Dot", dot(detail::values_of(a), detail::values_of(b)), a * b, detail::sum_gradient{a.shape(), 1});
}

namespace detail {

/// aᵢ bⱼ:   ∂L/∂a = g b,   ∂L/∂b = gᵀ a
template <class SavedA, class SavedB>
struct OuterRule {
  using twice = on_lanes;
  SavedA a;
  SavedB b;
  template <class G, class IntoA, class IntoB>
  void operator()(G const& g, IntoA const& into_a, IntoB const& into_b) const {
    auto const times = [](auto const& matrix, auto const& vector) {
      if constexpr (is_lane<G>) return gradient_product(matrix, vector.unsqueeze(-1)).squeeze(-1);
      else return matmul(matrix, vector);
    };
    if (into_a.needed()) into_a.add(times(g, b.beside(g)));
    if (into_b.needed()) into_b.add(times(g.t(), a.beside(g)));
  }
};

}  // namespace detail

/// aᵢ bⱼ of two vectors.
///
/// Gradient  g b and gᵀ a: products of a matrix and a vector. Twice differentiable.
template <class A, class B>
  requires detail::recorded_operands<A, B>
auto outer(A const& a_, B const& b_) {
  using T = promote_t<value_of<A>, value_of<B>>;
  auto const a = detail::operation_input<T>(a_);
  auto const b = detail::operation_input<T>(b_);
  using Rule = detail::OuterRule<detail::Saved<T, device_of<decltype(a)>>, detail::Saved<T, device_of<decltype(b)>>>;
  return detail::record("Outer", outer(a.value(), b.value()), Rule{detail::saved_if(b.requires_grad(), a), detail::saved_if(a.requires_grad(), b)}, a, b);
}

namespace detail {

template <bool Relu, class X, class W, class... B>
auto recorded_linear(X const& x_, W const& w_, B const&... b_);

/// A B of matrices in the gradient of a linear layer: of Variables it is a linear layer again.
template <class A, class B>
auto linear_product(A const& a, B const& b) {
  if constexpr (is_recorded<A>) return recorded_linear<false>(a, b.t());
  else return gradient_product(a, b);
}
/// The same elements, row by row, in another shape.
template <class G>
SITU_NOINLINE G seen_as(G const& g, Shape const& shape) {
  return g.shape() == shape ? g : g.reshape(shape);
}
/// 0 where y is 0 or less, else g.
template <class G, class Y>
G where_positive(Y const& y, G const& g) {
  if constexpr (is_lane<G>) {
    G const zero(0);
    return select(G::of(y) <= zero, zero, g);
  } else {
    return G(where(y <= 0, 0, g));
  }
}

/// y = x wᵀ + b, with all leading axes of x as rows:   ∂L/∂x = g w,   ∂L/∂w = gᵀ x,   ∂L/∂b = Σ g
template <class SavedX, class SavedW>
struct LinearRule {
  using twice = on_lanes;
  SavedX x;
  SavedW w;
  Shape shape;  ///< of w

  template <class G, class IntoX, class IntoW, class IntoB>
  void operator()(G const& g_, IntoX const& into_x, IntoW const& into_w, IntoB const& into_b) const {
    int64_t const outputs = shape.rank() == 2 ? shape[0] : 1, inputs = shape.back();
    int64_t rows = 1;
    for (int k = 0; k < g_.rank() - (shape.rank() == 2 ? 1 : 0); ++k) rows *= g_.shape()[k];
    G const g = seen_as(g_, {rows, outputs});
    if (into_x.needed()) into_x.add(seen_as(linear_product(g, seen_as(w.beside(g), {outputs, inputs})), into_x.shape()));
    if (into_w.needed()) into_w.add(seen_as(linear_product(g.t(), seen_as(x.beside(g), {rows, inputs})), shape));
    if (into_b.needed()) into_b.add(sum(g, shape.rank() == 2 ? Shape{0} : Shape{0, 1}));
  }
};
/// max(x wᵀ + b, 0): the gradient of a linear layer where its result is positive.
template <class SavedX, class SavedW, class SavedY>
struct LinearReluRule {
  using twice = on_lanes;
  LinearRule<SavedX, SavedW> linear;
  SavedY y;
  template <class G, class... Intos>
  void operator()(G const& g, Intos const&... intos) const {
    linear(where_positive(y.tensor(), g), intos...);
  }
};

/// Without a bias where that is null.
template <bool Relu, class T, class DX, class DW, class DB>
SITU_NOINLINE auto linear_of(InputRef<T, DX> const& x, InputRef<T, DW> const& w, InputRef<T, DB> const* b) {
  auto value = [&] {
    if constexpr (Relu) return b ? linear_relu(x.value(), w.value(), b->value()) : linear_relu(x.value(), w.value());
    else return b ? linear(x.value(), w.value(), b->value()) : linear(x.value(), w.value());
  }();
  using D = device_of<decltype(value)>;
  InputRef<T, DB> const none;
  if (!b) b = &none;
  if (!is_recording(x, w, *b)) return Variable<T, D>(std::move(value), false);
  using Rule = LinearRule<Saved<T, DX>, Saved<T, DW>>;
  Rule rule{saved_if(w.requires_grad(), x), saved_if(x.requires_grad(), w), w.shape()};
  if constexpr (Relu) {
    using ReluRule = LinearReluRule<Saved<T, DX>, Saved<T, DW>, Saved<T, D>>;
    Saved<T, D> const y(value);
    return record("LinearRelu", std::move(value), ReluRule{std::move(rule), y}, x, w, *b);
  } else {
    return record("Linear", std::move(value), std::move(rule), x, w, *b);
  }
}
template <bool Relu, class X, class W, class... B>
auto recorded_linear(X const& x_, W const& w_, B const&... b_) {
  using T = promoted_t<value_of<X>, value_of<W>, value_of<B>...>;
  auto const x = operation_input<T>(x_);
  auto const w = operation_input<T>(w_);
  using DX = device_of<decltype(x)>;
  using DW = device_of<decltype(w)>;
  InputRef<T, DX> const x_ref(x);
  InputRef<T, DW> const w_ref(w);
  if constexpr (sizeof...(B) == 0) {
    return linear_of<Relu, T, DX, DW, DW>(x_ref, w_ref, nullptr);
  } else {
    auto const b = operation_input<T>(b_...);
    InputRef<T, device_of<decltype(b)>> const b_ref(b);
    return linear_of<Relu>(x_ref, w_ref, &b_ref);
  }
}

}  // namespace detail

/// x wᵀ + b; the bias may be left out. See ops/linear.hpp.
///
/// Gradient  ∂L/∂x = g w, ∂L/∂w = gᵀ x, ∂L/∂b = Σ g: two products and a sum. Twice differentiable.
template <class X, class W>
  requires detail::recorded_operands<X, W>
auto linear(X const& x, W const& w) {
  return detail::recorded_linear<false>(x, w);
}
template <class X, class W, class B>
  requires detail::recorded_operands<X, W, B>
auto linear(X const& x, W const& w, B const& b) {
  return detail::recorded_linear<false>(x, w, b);
}
/// relu(x wᵀ + b): one pass forward; backward as linear, with g only where the result is positive.
template <class X, class W>
  requires detail::recorded_operands<X, W>
auto linear_relu(X const& x, W const& w) {
  return detail::recorded_linear<true>(x, w);
}
template <class X, class W, class B>
  requires detail::recorded_operands<X, W, B>
auto linear_relu(X const& x, W const& w, B const& b) {
  return detail::recorded_linear<true>(x, w, b);
}
/// gelu(x wᵀ + b, approximate_tanh): two nodes, since backward needs the linear layer's result.
template <class X, class W>
  requires detail::recorded_operands<X, W>
auto linear_gelu_tanh(X const& x, W const& w) {
  return detail::recorded(gelu(linear(x, w), approximate_tanh));
}
template <class X, class W, class B>
  requires detail::recorded_operands<X, W, B>
auto linear_gelu_tanh(X const& x, W const& w, B const& b) {
  return detail::recorded(gelu(linear(x, w, b), approximate_tanh));
}

namespace detail {

/// Indices as letters of an equation: name number k of `all` is letter k.
inline void append_letters(std::string& to, Indices const& indices, Indices const& all) {
  for (int k = 0; k < indices.count; ++k) {
    int const place = all.find(indices.names[k]);
    to += static_cast<char>(place < 26 ? 'a' + place : 'A' + (place - 26));
  }
}

/// One step of an einsum: the indices of one or two operands, which may repeat, and of the result.
struct EinsumStep {
  Indices operands[2], result;
  int count;

  std::string equation(Indices const* first, Indices const* second, Indices const& to) const {
    Indices all;
    for (Indices const* each : {&operands[0], &operands[1], &result}) {
      for (int k = 0; k < each->count; ++k) all.add_once(each->names[k]);
    }
    std::string text;
    append_letters(text, *first, all);
    if (second) text += ',', append_letters(text, *second, all);
    text += "->";
    append_letters(text, to, all);
    return text;
  }
  std::string forward() const { return equation(&operands[0], count == 2 ? &operands[1] : nullptr, result); }
};

/// For an operand: the equation with that operand and the result exchanged. What only this operand has was summed: its gradient repeats.
/// A repeated index leads to the diagonal.
template <class... Ss>
struct EinsumRule {
  using twice = void;
  EinsumStep step;
  Fields<Ss...> saved;
  Shape shapes[2];

  template <class G, class Into>
  void operator()(G const& g, Into const& into) const {
    if (into.needed()) send<0>(into, g, g);
  }
  template <class G, class Into0, class Into1>
  void operator()(G const& g, Into0 const& into0, Into1 const& into1) const {
    if (into0.needed()) send<0>(into0, g, saved.tail.head.beside(g));
    if (into1.needed()) send<1>(into1, g, saved.head.beside(g));
  }

 private:
  template <int O, class Into, class G, class Other>
  void send(Into const& into, G const& g, Other const& other) const {
    Indices const& own = step.operands[O];
    Indices unique, known;
    Shape extents, with_ones;
    for (int k = 0; k < own.count; ++k) {
      char const name = own.names[k];
      if (unique.has(name)) continue;
      unique.add(name);
      int64_t const extent = shapes[O][k];
      extents.push_back(extent);
      bool const computed = extent != 1 && (step.result.has(name) || (step.count == 2 && step.operands[1 - O].has(name)));
      if (computed) known.add(name);
      with_ones.push_back(computed ? -1 : 1);  // what comes out, or once
    }
    auto const found = [&] {
      if (step.count == 1) return G(einsum(step.equation(&step.result, nullptr, known), g));
      if constexpr (O == 0) return G(einsum(step.equation(&step.result, &step.operands[1], known), g, other));
      else return G(einsum(step.equation(&step.operands[0], &step.result, known), other, g));
    }();
    int at = 0;
    for (int k = 0; k < with_ones.rank(); ++k) {
      if (with_ones[k] == -1) with_ones[k] = found.shape()[at++];
    }
    G const all = with_ones == extents ? (at == extents.rank() ? found : found.reshape(extents)) : found.reshape(with_ones).expand(extents);
    if (unique.count == own.count) return into.add(all);
    std::string const diagonal = step.equation(&own, nullptr, unique);
    into.add_part([diagonal](auto const& x) { return einsum(diagonal, x); }, all);
  }
};

/// Records one step. Tensors alone are not recorded.
template <class A>
auto einsum_step(EinsumStep const& step, A const& a) {
  auto value = einsum(step.forward(), a.value());
  return noted_view(record("Einsum", std::move(value), EinsumRule<>{step, {}, {a.shape(), {}}}, a), a);  // of one operand it may be a view
}
template <class A, class B>
auto einsum_step(EinsumStep const& step, A const& a, B const& b) {
  using T = value_of<A>;
  auto value = einsum(step.forward(), a.value(), b.value());
  using Result = decltype(value);
  if constexpr (!differentiable<A> && !differentiable<B>) {
    return ConstantInput<T, device_of<Result>>{value};
  } else {
    using Rule = EinsumRule<Saved<T, device_of<A>>, Saved<T, device_of<B>>>;
    if (!is_recording(a, b)) return Variable<T, device_of<Result>>(std::move(value), false);
    return record("Einsum", std::move(value), Rule{step, operand_fields(saved_if(b.requires_grad(), a), saved_if(a.requires_grad(), b)), {a.shape(), b.shape()}}, a, b);
  }
}

/// Joins operands from left to right. `indices` are those of the operands that are left, the joined ones first.
template <class A>
auto einsum_steps(Einsum const& sum, int, Indices const&, A const& joined) {
  static_cast<void>(sum);
  return joined;
}
template <class A, class B, class... Rest>
auto einsum_steps(Einsum const& sum, int next, Indices const& indices, A const& joined, B const& operand, Rest const&... rest) {
  EinsumStep step{{indices, sum.operands[next].indices}, sum.result, 2};
  if (sizeof...(Rest) > 0) {
    Indices wanted = sum.result;
    for (int later = next + 1; later < sum.count; ++later) {
      for (int k = 0; k < sum.operands[later].indices.count; ++k) wanted.add_once(sum.operands[later].indices.names[k]);
    }
    step.result = {};
    for (Indices const& each : step.operands) {
      for (int k = 0; k < each.count; ++k) {
        if (wanted.has(each.names[k])) step.result.add_once(each.names[k]);
      }
    }
  }
  if (step.result.count > max_rank) {
    fail<ShapeError>("einsum: in \"", sum.equation, "\" the product of operands 0 to ", int64_t{next}, " would have ", int64_t{step.result.count}, " axes; a tensor has at most ",
                     int64_t{max_rank}, ": write the operands in another order");
  }
  return einsum_steps(sum, next + 1, step.result, einsum_step(step, joined, operand), rest...);
}

}  // namespace detail

/// Σ over all indices that the result does not name, of the product of all operands, one of which records; see ops/einsum.hpp.
///
/// Gradient  for an operand: the equation with that operand and the result exchanged. Operands are joined two at a time from left to right, one node each.
///           Twice differentiable.
template <class E, class... Es>
  requires(detail::recorded_operands<E, Es...> && sizeof...(Es) < 32)
auto einsum(detail::Equation equation, E const& first, Es const&... others) {
  using T = detail::promoted_t<value_of<E>, value_of<Es>...>;
  using C = compute_t<T>;
  constexpr int count = 1 + static_cast<int>(sizeof...(Es));
  if constexpr (count > 2 && !std::is_same_v<C, T>) {
    return detail::recorded(cast<T>(einsum(equation, cast<C>(first), cast<C>(others)...)));  // nothing is rounded on the way
  } else {
    detail::EinsumOperand operands[count], once[count];
    auto const layout_of = [](Shape const& shape) { return Layout(shape); };
    int k = 0;
    for (Shape const* shape : {&first.shape(), &others.shape()...}) operands[k++].layout = layout_of(*shape);
    detail::Einsum sum{equation.text, operands, count, {}};
    sum.read();
    for (int o = 0; o < count; ++o) once[o] = operands[o];
    detail::Einsum{equation.text, once, count, sum.result}.take_diagonals();  // for what it throws
    if constexpr (count == 1) {
      return detail::einsum_step({{operands[0].indices, {}}, sum.result, 1}, detail::operation_input<T>(first));
    } else {
      return detail::einsum_steps(sum, 1, operands[0].indices, detail::operation_input<T>(first), detail::operation_input<T>(others)...);
    }
  }
}

#define SITU_RECORDED_REJECTION(NAME)                                              \
  template <class... Es, class Error = detail::different_devices_of<Es...>>        \
    requires detail::strange_recorded_operands<Es...>                              \
  void NAME(Es const&...) = delete;
SITU_RECORDED_REJECTION(matmul)
SITU_RECORDED_REJECTION(bmm)
SITU_RECORDED_REJECTION(dot)
SITU_RECORDED_REJECTION(outer)
SITU_RECORDED_REJECTION(linear)
SITU_RECORDED_REJECTION(linear_relu)
SITU_RECORDED_REJECTION(linear_gelu_tanh)
#undef SITU_RECORDED_REJECTION
template <class... Es, class Error = detail::different_devices_of<Es...>>
  requires detail::strange_recorded_operands<Es...>
void einsum(detail::Equation, Es const&...) = delete;

}  // namespace situ::inline SITU_ABI
