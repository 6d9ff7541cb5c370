/// softmax, log_softmax, layer_norm and rms_norm of Variables and of formulas with Variables, fused with the formula that they take.
///
/// Shapes, types, options and errors are those of ops/softmax.hpp and ops/normalization.hpp.
/// Cost      backward: one pass where rows run along the last axes (on a GPU two reads of rows of more than 4096 elements, and one more pass for the
///           gradients of weight and bias); elsewhere, and for few rows of more than 4096 elements on a GPU, reductions and one fused pass.
///           Kept are the result (softmaxes), or the input and the weight (norms), and on the CPU three numbers for each row of 32 to 4096 elements.
#pragma once

#include <situ/autograd/cpu/rows.hpp>
#include <situ/autograd/operands.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/ops/normalization.hpp>
#include <situ/ops/softmax.hpp>
#if defined(__CUDACC__)
#include <situ/autograd/cuda/rows.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, cpu::RowGradient, class T>
void launch_row_gradient(cuda_kernels, T const*, bool, T const*, T*, compute_t<T> const*, compute_t<T>*, int64_t, int64_t, double, char const*) {
  static_assert(compiled_by_nvcc<T>, "situ: softmax_and_normalisation_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// An operand on the device that results live on: what is pinned is moved to the host's own memory.
template <class T, class E>
auto input_beside_result(E const& e) {
  using D = result_device_t<device_of<E>>;
  auto const input = operation_input<T>(e);
  if constexpr (std::is_same_v<device_of<decltype(input)>, D>) return input;
  else if constexpr (differentiable<E>) return record_transfer<D>(input);
  else return ConstantInput<T, D>{input.tensor.to(D{})};
}

/// Whether the axes whose bit is set are the last ones.
inline bool are_last(unsigned axes, int rank) {
  unsigned const others = ~axes & ((1u << rank) - 1u);
  return axes != 0 && (others & (others + 1u)) == 0;
}

/// Whether a GPU takes the gradient of a tensor's rows in one kernel, which has a block or less for each: rows along the last axes that its threads hold, or
/// many of them.
template <class C>
bool rows_fill_a_gpu(Shape const& whole, unsigned axes) {
  int64_t const elements = product(whole);
  if (!are_last(axes, whole.rank()) || elements == 0) return false;
  int64_t const count = reduced_count(whole, axes);
  return count <= 16384 / static_cast<int64_t>(sizeof(C)) || elements / count > 256;
}
/// A gradient as that kernel reads it: contiguous, or one element for all.
template <class T, class D>
Tensor<T, D> row_slopes(Tensor<T, D> const& g, bool& even) {
  even = true;
  for (int k = 0; k < g.rank(); ++k) even = even && (g.size(k) == 1 || g.strides()[k] == 0);
  return even ? g : g.contiguous();
}

/// What a row's gradient is made with, and where the gradients of weight and bias go: [block, row length] each.
template <class C, class D>
struct RowParameters {
  Tensor<C, D> weight, weight_gradients, bias_gradients, found;
  bool weighs = false, wants_input = true, wants_weight = false, wants_bias = false;
  double eps = 0;
  LateGradient const* late = nullptr;  ///< in place of g
};

/// The gradient by the input of an operation on contiguous rows; see RowGradientArguments. With `over_g` it is written over g.
template <cpu::RowGradient Kind, class T, class D>
Tensor<T, D> row_gradient(Tensor<T, D> const& g, Tensor<T, D> const& b, int64_t count, RowParameters<compute_t<T>, D>& parameters, char const* who, bool over_g = false) {
  using C = compute_t<T>;
  int64_t const rows = count > 0 ? b.size() / count : 0;
  bool const sums = parameters.wants_weight || parameters.wants_bias;
  int64_t const per_block = cpu::rows_per_block(rows, count, sums), blocks = (rows + per_block - 1) / per_block;
  Tensor<T, D> result;
  if (parameters.wants_input) result = over_g ? g : Tensor<T, D>::uninitialized(b.shape(), who);
  if (parameters.wants_weight) parameters.weight_gradients = Tensor<C, D>::uninitialized({blocks, count}, who);
  if (parameters.wants_bias) parameters.bias_gradients = Tensor<C, D>::uninitialized({blocks, count}, who);
  if (blocks == 0) return result;
  LateGradient const* const late = parameters.late;
  T const* const slopes = !late ? g.data() : static_cast<T const*>(late->lies_at);
  cpu::RowGradientKernel<Kind, T> const kernel{slopes, b.data(), parameters.wants_input ? result.data() : nullptr, rows, count, per_block,
                                               parameters.weighs ? parameters.weight.data() : nullptr,
                                               parameters.wants_weight ? parameters.weight_gradients.data() : nullptr,
                                               parameters.wants_bias ? parameters.bias_gradients.data() : nullptr, parameters.eps,
                                               !over_g && cpu::goes_past_caches(result.size() * static_cast<int64_t>(sizeof(T)), 2 * b.size() * static_cast<int64_t>(sizeof(T))),
                                               parameters.found.body() ? parameters.found.data() : nullptr, slopes ? nullptr : late};
  constexpr bool is_norm = Kind == cpu::RowGradient::layer_norm || Kind == cpu::RowGradient::rms_norm;
  constexpr int64_t grain = is_norm ? 160000 : 40000;  // elements: some 30 microseconds; less costs more to bring to another core
  device_traits<D>::launch(kernel, blocks, grain / (per_block * count) + 1);
  return result;
}

// ---- softmax, log_softmax -------------------------------------------------------------------------------------------------------

/// y (g - Σ g y), and g - exp(y) Σ g.
template <bool Logarithmic, class T, class D>
struct softmax_gradient : ReducedAxes {
  Saved<T, D> y;
  template <class G, class X>
  auto operator()(G const& g, X const&) const {
    if constexpr (std::is_same_v<X, Tensor<T, D>>) return alone(g);  // a Variable's
    else return fused(g);
  }
  template <class L>
  L twice(L const& g, L const&, L const& value) const {
    if constexpr (Logarithmic) return g - exp(value) * g.summed(axes).expand(whole);
    else return value * (g - (g * value).summed(axes).expand(whole));
  }
  Saved<T, D> const& result() const { return y; }

 private:
  template <class G>
  auto fused(G const& g) const {
    auto const& value = y.tensor();
    using C = compute_t<T>;
    if constexpr (Logarithmic) return g - exp(value) * over(reduce<reducers::sum<C>>(cast<C>(g), axes, true));
    else return value * (g - over(reduce<reducers::sum<C>>(cast<C>(g) * value, axes, true)));
  }
  template <class G>
  Tensor<T, D> alone(G const& g) const {
    if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
      if (are_last(axes, whole.rank())) {
        RowParameters<compute_t<T>, D> none;
        return row_gradient<Logarithmic ? cpu::RowGradient::log_softmax : cpu::RowGradient::softmax>(g.contiguous(), y.tensor(), reduced_count(whole, axes), none, "softmax");
      }
    } else if (rows_fill_a_gpu<compute_t<T>>(whole, axes)) {
      bool even = false;
      auto const dy = row_slopes(g, even);
      auto const value = y.tensor().contiguous();
      auto result = Tensor<T, D>::uninitialized(whole, "softmax");
      int64_t const count = reduced_count(whole, axes);
      launch_row_gradient<D, Logarithmic ? cpu::RowGradient::log_softmax : cpu::RowGradient::softmax>(
          typename device_traits<D>::kernels{}, dy.data(), even, value.data(), result.data(), static_cast<compute_t<T> const*>(nullptr), static_cast<compute_t<T>*>(nullptr),
          result.size() / count, count, 0.0, Logarithmic ? "gradient of log_softmax" : "gradient of softmax");
      return result;
    }
    return Tensor<T, D>(cast<T>(fused(g)));
  }
};

// ---- layer_norm, rms_norm -------------------------------------------------------------------------------------------------------

/// With z the normalised rows, r = 1 / sqrt(var + eps), h = g w: r (h - mean(h) - z mean(h z)), without the first mean about 0; Σ g z; Σ g.
template <bool Centred, class T, class D, class W>
struct NormRule {
  using twice = on_lanes;
  using C = compute_t<T>;
  Saved<T, D> x;
  Saved<W, D> weight;
  ReducedAxes rows;
  bool weighs;
  double eps;
  Tensor<C, D> found;  ///< what rows were made with, where that is kept

  template <class G, class IntoX, class... Parameters>
  void operator()(G const& g, IntoX const& into_x, Parameters const&... parameters) const {
    if constexpr (has_history<G>) recorded(g, into_x, parameters...);
    else if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) in_rows(g, into_x, parameters...);
    else if (rows_fill_a_gpu<C>(rows.whole, rows.axes)) in_rows_of_a_device(g, into_x, parameters...);
    else in_formulas(g, into_x, parameters...);
  }

 private:
  /// The weight's shape, with extent 1 along the other axes.
  Shape parameter_shape() const {
    Shape result = rows.whole;
    for (int k = 0; k < result.rank(); ++k) {
      if (!(rows.axes >> k & 1u)) result[k] = 1;
    }
    return result;
  }
  Tensor<C, D> weight_values() const {
    if constexpr (std::is_same_v<W, C>) return weight.tensor().contiguous();
    else return Tensor<C, D>(cast<C>(weight.tensor()));
  }

  /// One pass over rows, which are brought together where they do not lie so.
  template <class IntoX, class... Parameters>
  void in_rows(Tensor<T, D> const& g, IntoX const& into_x, Parameters const&... into) const {
    Shape order, along;
    for (int k = 0; k < rows.whole.rank(); ++k) {
      if (!(rows.axes >> k & 1u)) order.push_back(k);
    }
    for (int k = 0; k < rows.whole.rank(); ++k) {
      if (rows.axes >> k & 1u) order.push_back(k), along.push_back(rows.whole[k]);
    }
    bool const last = are_last(rows.axes, rows.whole.rank());
    auto const in_order = [&](Tensor<T, D> const& t) { return last ? t.contiguous() : t.permute(order).contiguous(); };
    struct Held {
      LateGradient* late;
      ~Held() { delete late; }
    } const held{into_x.flow().take_late()};
    RowParameters<C, D> parameters;
    parameters.late = held.late;
    parameters.eps = eps;
    parameters.found = found;
    parameters.wants_input = into_x.needed();
    parameters.weighs = weighs;
    if (weighs) parameters.weight = weight_values();
    [[maybe_unused]] bool* const wanted[] = {&parameters.wants_weight, &parameters.wants_bias};
    int k = 0;
    ((*wanted[k++] = into.needed()), ...);
    int64_t const count = reduced_count(rows.whole, rows.axes);
    bool const over_g = last && count >= 16 && State<T, D>::is_own(g);  // nobody else will see g, and packs are at most 16
    Tensor<T, D> const dx = row_gradient<Centred ? cpu::RowGradient::layer_norm : cpu::RowGradient::rms_norm>(in_order(g), in_order(x.tensor()), count, parameters, "layer_norm", over_g);
    if (into_x.needed()) into_x.add(last ? dx : dx.permute(inverse_permutation(order)));
    Tensor<C, D> const* const sums[] = {&parameters.weight_gradients, &parameters.bias_gradients};
    k = 0;
    [[maybe_unused]] auto const add = [&](auto const& to) {
      using P = value_of<decltype(to)>;
      Tensor<C, D> const& blocks = *sums[k++];
      if (!to.needed()) return;
      Tensor<C, D> const total = blocks.rank() > 0 && blocks.shape()[0] == 1 ? blocks.reshape(along) : Tensor<C, D>(reduce<reducers::sum<C>>(blocks, 1u, false)).reshape(along);
      if constexpr (std::is_same_v<P, C>) to.add(total);
      else to.add(Tensor<P, D>(cast<P>(total)));
    };
    (add(into), ...);
  }

  /// One pass over contiguous rows, and one more for the gradients of the parameters.
  template <class IntoX, class... Parameters>
  void in_rows_of_a_device(Tensor<T, D> const& g, IntoX const& into_x, Parameters const&... into) const {
    bool even = false;
    auto const slopes = row_slopes(g, even);
    auto const base = x.tensor().contiguous();
    int64_t const count = reduced_count(rows.whole, rows.axes), lines = base.size() / count;
    bool needed[] = {into.needed()..., false};
    bool const wants_weight = sizeof...(into) > 0 && needed[0];
    Tensor<T, D> dx;
    Tensor<C, D> made_with, w;
    if (into_x.needed()) dx = Tensor<T, D>::uninitialized(rows.whole, "layer_norm");
    if (wants_weight) made_with = Tensor<C, D>::uninitialized({3, lines}, "layer_norm");
    if (weighs) w = weight_values();
    if (into_x.needed() || wants_weight) {
      launch_row_gradient<D, Centred ? cpu::RowGradient::layer_norm : cpu::RowGradient::rms_norm>(
          typename device_traits<D>::kernels{}, slopes.data(), even, base.data(), into_x.needed() ? dx.data() : nullptr, weighs ? w.data() : nullptr,
          wants_weight ? made_with.data() : nullptr, lines, count, eps, Centred ? "gradient of layer_norm" : "gradient of rms_norm");
    }
    if (into_x.needed()) into_x.add(dx);
    Shape each = rows.whole;
    for (int k = 0; k < each.rank(); ++k) {
      if (rows.axes >> k & 1u) each[k] = 1;
    }
    unsigned const others = all_axes(rows.whole) & ~rows.axes;
    auto const slope = cast<C>(slopes);
    int k = 0;
    [[maybe_unused]] auto const add = [&](auto const& to) {
      using P = value_of<decltype(to)>;
      bool const is_weight = k++ == 0;
      if (!to.needed()) return;
      if (is_weight) {
        Tensor<C, D> const mean = made_with.select(0, 0).reshape(each), low = made_with.select(0, 1).reshape(each), scale = made_with.select(0, 2).reshape(each);
        to.add(Tensor<P, D>(cast<P>(reduce<reducers::sum<C>>(slope * ((cast<C>(base) - mean) * scale + low), others, false))));
      } else {
        to.add(Tensor<P, D>(cast<P>(reduce<reducers::sum<C>>(slope, others, false))));
      }
    };
    (add(into), ...);
  }

  /// The same as formulas, for few long rows and those that do not run along the last axes.
  template <class IntoX, class... Parameters>
  void in_formulas(Tensor<T, D> const& g, IntoX const& into_x, Parameters const&... into) const {
    auto const values = cast<C>(x.tensor());
    auto const slope = cast<C>(g);
    double const n = rows.count();
    Tensor<C, D> mean = zeros<C>({}, D{}), scale;
    if constexpr (Centred) {
      mean = reduce<reducers::mean<C>>(values, rows.axes, true);
      scale = Tensor<C, D>(rsqrt(reduce<reducers::variance<C>>(values, rows.axes, true, 0.0) + eps));
    } else {
      scale = Tensor<C, D>(rsqrt(reduce<reducers::mean<C>>(square(values), rows.axes, true) + eps));
    }
    auto const z = (values - mean) * scale;
    Tensor<C, D> const w = weighs ? weight_values().reshape(parameter_shape()) : ones<C>({}, D{});
    if (into_x.needed()) {
      auto const h = slope * w;
      Tensor<C, D> const products(reduce<reducers::sum<C>>(h * z, rows.axes, true) / n);
      Tensor<C, D> total = zeros<C>({}, D{});
      if constexpr (Centred) total = reduce<reducers::mean<C>>(h, rows.axes, true);
      into_x.add(Tensor<T, D>(cast<T>((h - total - z * products) * scale)));
    }
    unsigned const others = all_axes(rows.whole) & ~rows.axes;
    int k = 0;
    [[maybe_unused]] auto const add = [&](auto const& to) {
      if (!to.needed()) return void(++k);
      using P = value_of<decltype(to)>;
      if (k++ == 0) to.add(Tensor<P, D>(cast<P>(reduce<reducers::sum<C>>(slope * z, others, false))));
      else to.add(Tensor<P, D>(cast<P>(reduce<reducers::sum<C>>(slope, others, false))));
    };
    (add(into), ...);
  }

  /// With history.
  template <class G, class IntoX, class... Parameters>
  void recorded(G const& g, IntoX const& into_x, Parameters const&... into) const {
    using L = Lane<C, D>;
    L const values = lane_of<C>(x.variable()), slope = lane_of<C>(g), share(static_cast<C>(1.0 / rows.count()));
    L const d = Centred ? values - values.summed(rows.axes) * share : values;
    L const scale = ((d * d).summed(rows.axes) * share + L(static_cast<C>(eps))).template apply<functions::rsqrt>();
    L const z = d * scale;
    if (into_x.needed()) {
      L const h = weighs ? slope * lane_of<C>(weight.variable()).reshape(parameter_shape()) : slope;
      L const inner = Centred ? h - h.summed(rows.axes) * share : h;
      add_lane<G>((inner - z * ((h * z).summed(rows.axes) * share)) * scale, rows.whole, into_x);
    }
    int k = 0;
    [[maybe_unused]] auto const add = [&](auto const& to) {
      L const sum = (k++ == 0 ? slope * z : slope).summed(all_axes(rows.whole) & ~rows.axes);
      if (to.needed()) add_lane<G>(sum.reshape(to.shape()), to.shape(), to);
    };
    (add(into), ...);
  }
};

/// Whether the forward kernel tells what the rows of contiguous x are made with: it takes them in groups.
template <class T, class D>
bool keeps_row_statistics(Tensor<T, D> const& x, unsigned axes) {
  int64_t const count = reduced_count(x.shape(), axes);
  return x.is_contiguous() && are_last(axes, x.rank()) && count >= 32 && count <= cpu::group_elements && x.size() / count >= cpu::least_grouped_rows;
}

/// Notes that the gradient of a norm may be computed in the pass over its rows.
template <class T, class D>
Variable<T, D> taking_late(Variable<T, D> result, unsigned axes) {
  if constexpr (std::is_same_v<T, compute_t<T>> && is_immediate<D>) {
    Shape const& shape = result.shape();
    result.state()->takes_late = !result.is_leaf() && result.size() > 0 && are_last(axes, shape.rank()) && reduced_count(shape, axes) <= cpu::late_elements;
  }
  return result;
}

template <bool Centred, class E, class W, class B>
auto recorded_norm_of(E const& e, unsigned axes, W const& weight, B const& bias, double eps) {
  using T = value_of<E>;
  constexpr bool has_weight = !std::is_same_v<W, no_parameter>, has_bias = !std::is_same_v<B, no_parameter>;
  auto const x = input_beside_result<T>(e);
  using D = result_device_t<device_of<E>>;
  ReducedAxes const rows{x.shape(), axes};
  Tensor<compute_t<T>, D> found;
  if constexpr (std::is_same_v<T, compute_t<T>> && std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    auto const values = x.value();
    if (records_gradients && keeps_row_statistics(values, axes)) found = Tensor<T, D>::uninitialized({3, values.size() / reduced_count(values.shape(), axes)}, "layer_norm");
  }
  auto const value_of_norm = [&](auto const& w, auto const& b) {
    compute_t<T>* const kept = found.body() ? found.data() : nullptr;
    if constexpr (Centred) return normalize<detail::rows::layer_norm>(x.value(), axes, w, b, eps, kept);
    else return normalize<detail::rows::rms_norm>(x.value(), axes, w, b, eps, kept);
  };
  char const* const name = Centred ? "LayerNorm" : "RmsNorm";
  if constexpr (!has_weight) {
    auto const value = value_of_norm(no_parameter{}, no_parameter{});
    return taking_late(record(name, value, NormRule<Centred, T, D, T>{saved_input(x), {}, rows, false, eps, found}, x), axes);
  } else {
    auto const w = input_beside_result<value_of<W>>(weight);
    using Rule = NormRule<Centred, T, D, value_of<W>>;
    if constexpr (!has_bias) {
      auto const value = value_of_norm(w.value(), no_parameter{});
      return taking_late(record(name, value, Rule{saved_input(x), saved_input(w), rows, true, eps, found}, x, w), axes);
    } else {
      auto const b = input_beside_result<value_of<B>>(bias);
      auto const value = value_of_norm(w.value(), b.value());
      return taking_late(record(name, value, Rule{saved_input(x), saved_input(w), rows, true, eps, found}, x, w, b), axes);
    }
  }
}

template <bool Logarithmic, class E>
auto recorded_softmax(E const& x, unsigned axes) {
  using T = value_of<E>;
  using D = result_device_t<device_of<E>>;
  Tensor<T, D> const y = [&] {
    if constexpr (Logarithmic) return operate_on_rows<detail::rows::log_softmax>(x, axes);
    else return operate_on_rows<detail::rows::softmax>(x, axes);
  }();
  return record_on<false>(Logarithmic ? "LogSoftmax" : "Softmax", y, x, softmax_gradient<Logarithmic, T, D>{{x.shape(), axes}, Saved<T, D>(y)});
}

}  // namespace detail

/// Exponentials that sum to 1 along an axis. Gradient: y (g − Σ g y).
template <class E>
  requires differentiable<E>
auto softmax(E const& x, int64_t axis) {
  return detail::recorded_softmax<false>(x, detail::axis_bit(axis, x.shape(), "softmax"));
}
/// log(softmax(x)). Gradient: g − exp(y) Σ g.
template <class E>
  requires differentiable<E>
auto log_softmax(E const& x, int64_t axis) {
  return detail::recorded_softmax<true>(x, detail::axis_bit(axis, x.shape(), "log_softmax"));
}

/// Rows made to have mean 0 and variance 1, weighed and shifted; x, weight and bias may record, or not.
/// Gradient: with z = (x − mean) r, r = 1 / sqrt(var + eps), h = g weight: r (h − mean(h) − z mean(h z)); weight: Σ g z; bias: Σ g.
template <class E, detail::axes_to_normalize A = Shape>
  requires differentiable<E>
auto layer_norm(E const& x, A const& normalized, double eps = 1e-5) {
  return detail::recorded_norm_of<true>(x, detail::norm_axes(normalized, x.shape(), "layer_norm"), detail::no_parameter{}, detail::no_parameter{}, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W>
  requires detail::recorded_operands<E, W>
auto layer_norm(E const& x, A const& normalized, W const& weight, double eps = 1e-5) {
  return detail::recorded_norm_of<true>(x, detail::norm_axes(normalized, x.shape(), "layer_norm"), weight, detail::no_parameter{}, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W, class B>
  requires detail::recorded_operands<E, W, B>
auto layer_norm(E const& x, A const& normalized, W const& weight, B const& bias, double eps = 1e-5) {
  return detail::recorded_norm_of<true>(x, detail::norm_axes(normalized, x.shape(), "layer_norm"), weight, bias, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W, class Error = detail::different_devices_of<E, W>>
  requires detail::strange_recorded_operands<E, W>
void layer_norm(E const&, A const&, W const&, double = 1e-5) = delete;
template <class E, detail::axes_to_normalize A = Shape, class W, class B, class Error = detail::different_devices_of<E, W, B>>
  requires detail::strange_recorded_operands<E, W, B>
void layer_norm(E const&, A const&, W const&, B const&, double = 1e-5) = delete;

/// Rows divided by their root mean square, weighed. Gradient: as layer_norm, about 0: r (h − z mean(h z)).
template <class E, detail::axes_to_normalize A = Shape>
  requires differentiable<E>
auto rms_norm(E const& x, A const& normalized, double eps = 1e-5) {
  return detail::recorded_norm_of<false>(x, detail::norm_axes(normalized, x.shape(), "rms_norm"), detail::no_parameter{}, detail::no_parameter{}, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W>
  requires detail::recorded_operands<E, W>
auto rms_norm(E const& x, A const& normalized, W const& weight, double eps = 1e-5) {
  return detail::recorded_norm_of<false>(x, detail::norm_axes(normalized, x.shape(), "rms_norm"), weight, detail::no_parameter{}, eps);
}
template <class E, detail::axes_to_normalize A = Shape, class W, class Error = detail::different_devices_of<E, W>>
  requires detail::strange_recorded_operands<E, W>
void rms_norm(E const&, A const&, W const&, double = 1e-5) = delete;

}  // namespace situ::inline SITU_ABI
