/// Cross entropy and the negative log-likelihood of classes.
///
///     cross_entropy(scores, labels)   cross_entropy(scores, labels, {.reduction = reduction::sum, .label_smoothing = 0.1})   nll_loss(log_softmax(x, 1), labels)
#pragma once

#include <situ/autograd/operands.hpp>
#include <situ/nn/cpu/cross_entropy_probabilities.hpp>
#include <situ/tensor/factories.hpp>
#if defined(__CUDACC__)
#include <situ/nn/cuda/cross_entropy.hpp>
#endif

namespace situ::inline SITU_ABI {

/// The options of cross_entropy.
template <element T, device D>
struct cross_entropy_options {
  Tensor<T, D> weight = {};     ///< of each class, [classes]; empty for 1
  int64_t ignore_index = -100;  ///< rows with this label have no part; of labels only
  situ::reduction reduction = situ::reduction::mean;
  double label_smoothing = 0;  ///< of the target, this much is spread evenly over all classes
};
/// The options of nll_loss.
template <element T, device D>
struct nll_loss_options {
  Tensor<T, D> weight = {};
  int64_t ignore_index = -100;
  situ::reduction reduction = situ::reduction::mean;
};

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
#define SITU_NEEDS_NVCC(P) \
  static_assert(compiled_by_nvcc<P>, "situ: losses_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensors to the host")
template <class D, bool Logarithms, class P>
void launch_label_loss(cuda_kernels, P const&) {
  SITU_NEEDS_NVCC(P);
}
template <class D, bool Logarithms, class P, class T>
void launch_label_gradient(cuda_kernels, P const&, T const*, T*) {
  SITU_NEEDS_NVCC(P);
}
template <class D, class P>
void launch_probability_loss(cuda_kernels, P const&) {
  SITU_NEEDS_NVCC(P);
}
template <class D, class P, class T>
void launch_probability_gradient(cuda_kernels, P const&, T const*, T*, T*) {
  SITU_NEEDS_NVCC(P);
}
#undef SITU_NEEDS_NVCC
}  // namespace SITU_ABI_COMPILER
#endif

/// Scores of shape [classes], [rows, classes] or [rows, classes, …] as rows.
struct ScoreSpace {
  int64_t rows, classes;
  Shape kept;  ///< without the axis of classes
  double batch;
};
SITU_NOINLINE inline ScoreSpace score_space(Shape const& scores, char const* who) {
  if (scores.rank() == 0) fail<ShapeError>(who, ": the scores have no axis; their shape is [classes], [rows, classes] or [rows, classes, ...]");
  int const axis = scores.rank() == 1 ? 0 : 1;
  ScoreSpace result{1, scores[axis], {}, 1};
  for (int k = 0; k < scores.rank(); ++k) {
    if (k == axis) continue;
    result.kept.push_back(scores[k]);
    result.rows *= scores[k];
  }
  if (axis == 1) result.batch = static_cast<double>(scores[0]);
  return result;
}
SITU_NOINLINE inline void check_loss_shapes(Shape const& scores, Shape const& wanted, Shape const& targets, char const* what, char const* who) {
  if (targets == wanted) return;
  fail<ShapeError>(who, ": ", what, " of shape ", targets, " do not fit scores of shape ", scores, ": their shape must be ", wanted);
}
/// The shape of weights is null where there are none.
SITU_NOINLINE inline void check_class_weights(Shape const* weight, int64_t classes, double smoothing, char const* who) {
  if (weight && (weight->rank() != 1 || (*weight)[0] != classes)) {
    fail<ShapeError>(who, ": weights of shape ", *weight, " do not fit ", classes, classes == 1 ? " class" : " classes", ": their shape must be [", classes, "]");
  }
  if (!(smoothing >= 0 && smoothing <= 1)) fail<ShapeError>(who, ": label_smoothing is ", smoothing, "; it must be from 0 to 1");
}

/// [rows, classes] in memory, one row after the other.
template <class T, class D>
SITU_NOINLINE Tensor<T, D> class_rows(Tensor<T, D> const& x) {
  if (SITU_LIKELY(x.rank() <= 2)) return x.contiguous();
  Shape order{0};
  for (int k = 2; k < x.rank(); ++k) order.push_back(k);
  order.push_back(1);
  return x.permute(order).contiguous();
}
/// A gradient made for such rows, as the scores were.
template <class T, class D>
SITU_NOINLINE Tensor<T, D> rows_as_scores(Tensor<T, D> const& rows, int rank) {
  if (SITU_LIKELY(rank <= 2)) return rows;
  Shape order{0, rank - 1};
  for (int k = 1; k < rank - 1; ++k) order.push_back(k);
  return rows.permute(order);
}
/// The shape of class_rows.
SITU_NOINLINE inline Shape class_rows_shape(Shape const& scores) {
  Shape result = scores;
  if (scores.rank() <= 2) return result;
  for (int k = 1; k + 1 < scores.rank(); ++k) result[k] = scores[k + 1];
  result[scores.rank() - 1] = scores[1];
  return result;
}

/// Where kernels of D write down a label that is none, and what becomes of it.
template <class D>
struct LabelCheck {
  IndexFault here{};
  IndexBounds bounds;

  LabelCheck(char const* who, int64_t classes) : bounds{&here, who, classes, IndexFault::classes} {
    if constexpr (reports_faults_later<D>) bounds.fault = device_traits<D>::fault();
  }
  /// Throws IndexError for the first bad label, unless the device tells later.
  template <class Ix, class DI>
  void finish(Tensor<Ix, DI> const& labels, int64_t ignored) const {
    if constexpr (!reports_faults_later<D>) {
      if constexpr (!host_device<D>) device_traits<D>::synchronize();
      if (SITU_UNLIKELY(here.state != IndexFault::none)) tell(labels, ignored);
    }
  }

 private:
  template <class Ix, class DI>
  [[gnu::cold]] SITU_NOINLINE void tell(Tensor<Ix, DI> const& labels, int64_t ignored) const {
    int64_t position = here.position;
    if constexpr (host_device<DI>) {  // the first in their order, whichever thread was the first
      for (position = 0; position < here.position; ++position) {
        int64_t const label = static_cast<int64_t>(labels.data()[position]);
        if (label != ignored && static_cast<uint64_t>(label) >= static_cast<uint64_t>(bounds.extent)) return fail_at(label, position, labels.shape(), ignored);
      }
    }
    fail_at(here.index, position, labels.shape(), ignored);
  }
  [[noreturn, gnu::cold]] SITU_NOINLINE void fail_at(int64_t label, int64_t position, Shape const& shape, int64_t ignored) const {
    Shape place = shape;
    for (int k = shape.rank() - 1; k >= 0; --k) place[k] = position % shape[k], position /= shape[k];
    fail<IndexError>(bounds.operation, ": label ", label, " at ", place, " is out of range for ", bounds.extent, bounds.extent == 1 ? " class" : " classes",
                     ": labels are 0 to ", bounds.extent - 1, ", or ", ignored, " for rows to be left out");
  }
};

/// Whether the kernel of the loss writes the scores' gradient, too.
template <class D, class T>
inline constexpr bool loss_makes_gradient = std::is_same_v<T, compute_t<T>> && std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>;

/// A loss of labels: what its kernels need, and its gradient.
template <bool Logarithms, class T, class D, class Ix, class DX, class DI>
struct LabelLoss {
  using twice = on_lanes;
  using C = compute_t<T>;
  Tensor<Ix, DI> labels;  // contiguous
  uint32_t version;      // of the labels
  SavedConstant<T, D> weight;
  int64_t ignored;
  double smoothing;
  reduction how;
  Tensor<C, D> sums;                // saved for the gradient
  mutable Tensor<C, D> gradient;    // made with the loss; the first backward gives it away, another one computes it
  Saved<T, DX> x;

  LabelProgram<T, Ix> program(Tensor<T, DX> const& rows, ScoreSpace const& space) const {
    LabelProgram<T, Ix> p{};
    p.x = rows.data(), p.labels = labels.data();
    p.weight = weight.tensor().body() ? weight.tensor().data() : nullptr;
    p.rows = space.rows, p.classes = space.classes, p.ignored = ignored, p.smoothing = smoothing, p.how = how;
    p.batch = space.batch;
    p.softmax_part = p.label_part = 1;
    p.sums = const_cast<C*>(std::as_const(sums).data());
    p.gradient = gradient.body() ? const_cast<C*>(std::as_const(gradient).data()) : nullptr;
    p.bounds.extent = space.classes;
    return p;
  }
  Tensor<T, D> value(Tensor<T, DX> const& scores, bool records, char const* who) {
    ScoreSpace const space = score_space(scores.shape(), who);
    check_loss_shapes(scores.shape(), space.kept, labels.shape(), "labels", who);
    if (weight.tensor().body() || smoothing != 0) check_class_weights(weight.tensor().body() ? &weight.tensor().shape() : nullptr, space.classes, smoothing, who);
    auto result = Tensor<T, D>::uninitialized(how == reduction::none ? space.kept : Shape{}, who);
    if (records) {
      sums = Tensor<C, D>::uninitialized(Shape{space.rows + 1}, who);
      if (!Logarithms && loss_makes_gradient<D, T> && !(weight.tensor().body() && smoothing != 0)) gradient = Tensor<C, D>::uninitialized(class_rows_shape(scores.shape()), who);
    }
    if (space.rows == 0 && how == reduction::none) return result;
    Tensor<T, DX> const rows = class_rows(scores);
    LabelCheck<D> check(who, space.classes);
    LabelProgram<T, Ix> p = program(rows, space);
    p.bounds = check.bounds;
    p.losses = result.data();
    if (!records) p.sums = nullptr;
    launch_label_loss<D, Logarithms>(typename device_traits<D>::kernels{}, p);
    check.finish(labels, ignored);
    return result;
  }
  template <class Into>
  void operator()(Tensor<T, D> const& g, Into const& into) const {
    if (!into.needed()) return;
    check_unchanged(labels.storage_head(), version, labels.shape());
    Shape const shape = x.tensor().shape();
    ScoreSpace const space = score_space(shape, "cross_entropy");
    Tensor<T, D> result;
    if constexpr (loss_makes_gradient<D, T>) result = gradient;
    if (!result.body()) result = Tensor<T, D>::uninitialized(class_rows_shape(shape), "cross_entropy");
    if (result.size() > 0) {
      Tensor<T, DX> const rows = class_rows(x.tensor());
      Tensor<T, D> const slopes = g.contiguous();
      launch_label_gradient<D, Logarithms>(typename device_traits<D>::kernels{}, program(rows, space), slopes.data(), result.data());
    }
    gradient = {};
    into.add(rows_as_scores(result, shape.rank()));
  }
  /// With history: with t the constants that scores are multiplied by, (softmax(x) Σ t - t) g over the divisor, or -t g.
  template <class G, class Into>
    requires has_history<G>
  [[gnu::cold]] SITU_NOINLINE void operator()(G const& g, Into const& into) const {
    using L = Lane<C, D>;
    if (!into.needed()) return;
    check_unchanged(labels.storage_head(), version, labels.shape());
    L const scores = L::of(x.variable()), zero(C(0)), one(C(1));
    int const axis = scores.rank() == 1 ? 0 : 1;
    L slope = lane_of<C>(g), gradient_of_row = lane_of<C>(part(false)), of_all = gradient_of_row;
    if constexpr (!Logarithms) {
      L const p = of_all = lane_of<C>(part(true));  // 0 where scores are -inf, and in rows without a part
      L const e = p * exp(select(p == zero, zero, scores - L(scores.tensor()))), total = e.summed(1u << axis);
      gradient_of_row = gradient_of_row - e / select(total == zero, one, total) * gradient_of_row.summed(1u << axis);
    }
    if (how == reduction::none) slope = slope.unsqueeze(axis);
    else slope = slope / select(of_all.summed(all_axes(scores.shape())).reshape({}) == zero, one, L(Tensor<C, D>(sums).select(0, sums.size() - 1)));
    add_lane<G>(gradient_of_row * slope, scores.shape(), into);
  }

 private:
  /// Of the gradient of every row's loss: softmax(x), or -t.
  Tensor<T, D> part(bool softmax) const {
    Shape const shape = x.tensor().shape();
    ScoreSpace const space = score_space(shape, "cross_entropy");
    auto result = Tensor<T, D>::uninitialized(class_rows_shape(shape), "cross_entropy");
    if (result.size() > 0) {
      Tensor<T, DX> const rows = class_rows(x.tensor());
      Tensor<T, D> const slopes = full<T>({space.rows}, T(1.f), D{});
      LabelProgram<T, Ix> p = program(rows, space);
      p.how = reduction::none, p.gradient = nullptr;
      if (softmax) p.weight = nullptr, p.smoothing = 0, p.label_part = 0;
      else p.softmax_part = 0;
      launch_label_gradient<D, Logarithms>(typename device_traits<D>::kernels{}, p, slopes.data(), result.data());
    }
    return rows_as_scores(result, shape.rank());
  }
};

template <bool Logarithms, class S, class L, class T, class D>
auto label_loss(S const& scores, L const& given, reduction how, double smoothing, int64_t ignored, Tensor<T, D> const& weight, char const* who, char const* name) {
  auto const labels = [&] {
    if constexpr (differentiable<L>) return values_of(given).contiguous();
    else return evaluated(given).contiguous();
  }();
  using Ix = value_of<decltype(labels)>;
  using DI = device_of<decltype(labels)>;
  Tensor<T, D> const weights = weight.body() ? weight.contiguous() : weight;
  uint32_t const version = version_of(labels.storage_head());
  if constexpr (differentiable<S>) {
    auto const x = recorded(scores);
    using Loss = LabelLoss<Logarithms, T, D, Ix, device_of<decltype(x)>, DI>;
    Loss loss{labels, version, SavedConstant<T, D>(weights), ignored, smoothing, how, {}, {}, {}};
    bool const records = is_recording(x);
    Tensor<T, D> value = loss.value(x.value(), records, who);
    if (!records) return Variable<T, D>(std::move(value), false);
    loss.x = Saved<T, device_of<decltype(x)>>(x);
    return record(name, std::move(value), std::move(loss), x);
  } else {
    auto const x = evaluated(scores);
    LabelLoss<Logarithms, T, D, Ix, device_of<decltype(x)>, DI> loss{labels, version, SavedConstant<T, D>(weights), ignored, smoothing, how, {}, {}, {}};
    return loss.value(x, false, who);
  }
}

/// Scores with a label each, or with probabilities.
template <class S, class L>
concept scores_with_labels = any_formula<S> && floating<value_of<S>> && any_formula<L> && integer<value_of<L>> && on_same_device<S, L>;
template <class S, class P>
concept scores_with_probabilities = any_formula<S> && floating<value_of<S>> && any_formula<P> && floating<value_of<P>> && on_same_device<S, P>;
template <class S, class L>
concept scores_apart = any_formula<S> && any_formula<L> && !on_same_device<S, L>;

template <class S>
using cross_entropy_options_of = cross_entropy_options<value_of<S>, result_device_t<device_of<S>>>;
template <class S>
using nll_loss_options_of = nll_loss_options<value_of<S>, result_device_t<device_of<S>>>;

}  // namespace detail

/// How far scores are from classes that are known: with y a row's label,
///
///     loss = w_y (log Σ exp x - x_y),   with label smoothing e:   (1 - e) w_y (log Σ exp x - x_y) + e/C Σ_c w_c (log Σ exp x - x_c)
///
/// Shape     scores [C], [N, C] or [N, C, d…]; labels [], [N] or [N, d…]. The result: [] or, for reduction::none, the labels' shape.
/// Dtype     floating scores, labels of any integer type; 16-bit floats are computed in float. Sums are in double.
/// Device    runs where the scores live; enqueued, not waited for.
/// Throws    ShapeError where shapes do not fit; IndexError for a label that is no class and not ignore_index: at once on the host, from the
///           next synchronisation of an asynchronous device, which takes such a row as one to be ignored.
/// Special   the mean divides by the sum of w_y over rows that are not ignored: NaN where there are none. A score of -inf has probability 0.
/// Cost      reads the scores once, one launch (two for many rows). On the CPU a recorded loss of float or double writes its gradient in the same
///           pass, which backward only scales where it must (a second backward computes it again); elsewhere one number is kept for each row, and
///           the gradient reads the scores once and writes once. Scores with axes behind the classes are copied, rows together, first.
/// Gradient  g w_y (softmax(x) - [c = y]).
template <class S, class L>
  requires detail::scores_with_labels<S, L>
auto cross_entropy(S const& scores, L const& labels, detail::cross_entropy_options_of<S> const& options = {}) {
  return detail::label_loss<false>(scores, labels, options.reduction, options.label_smoothing, options.ignore_index, options.weight, "cross_entropy", "CrossEntropyLoss");
}
template <class S, class L, class Error = detail::different_devices_of<S, L>>
  requires detail::scores_apart<S, L>
void cross_entropy(S const&, L const&, detail::cross_entropy_options_of<S> const& = {}) = delete;

/// The same where scores are logarithms of probabilities already: loss = -w_y x_y. Gradient: -g w_y at the label's place.
template <class S, class L>
  requires detail::scores_with_labels<S, L>
auto nll_loss(S const& log_probabilities, L const& labels, detail::nll_loss_options_of<S> const& options = {}) {
  return detail::label_loss<true>(log_probabilities, labels, options.reduction, 0.0, options.ignore_index, options.weight, "nll_loss", "NllLoss");
}
template <class S, class L, class Error = detail::different_devices_of<S, L>>
  requires detail::scores_apart<S, L>
void nll_loss(S const&, L const&, detail::nll_loss_options_of<S> const& = {}) = delete;

namespace detail {

/// A loss of probabilities: what its kernels need, and its gradients.
template <class T, class D, class DX, class DP>
struct ProbabilityLoss {
  using twice = on_lanes;
  using C = compute_t<T>;
  SavedConstant<T, D> weight;
  double smoothing;
  reduction how;
  Tensor<C, D> sums;  // saved for the gradients: of each row the largest score, and log Σ exp about it
  Saved<T, DX> x;
  Saved<T, DP> targets;

  ProbabilityProgram<T> program(Tensor<T, DX> const& rows, Tensor<T, DP> const& target_rows, ScoreSpace const& space) const {
    ProbabilityProgram<T> p{};
    p.x = rows.data(), p.targets = target_rows.data();
    p.weight = weight.tensor().body() ? weight.tensor().data() : nullptr;
    p.rows = space.rows, p.classes = space.classes, p.smoothing = smoothing, p.how = how;
    p.divisor = loss_divisor(how, static_cast<double>(space.rows), space.batch);
    p.sums = const_cast<C*>(std::as_const(sums).data());
    return p;
  }
  Tensor<T, D> value(Tensor<T, DX> const& scores, Tensor<T, DP> const& probabilities, bool records) {
    char const* const who = "cross_entropy";
    ScoreSpace const space = score_space(scores.shape(), who);
    check_loss_shapes(scores.shape(), scores.shape(), probabilities.shape(), "probabilities", who);
    if (weight.tensor().body() || smoothing != 0) check_class_weights(weight.tensor().body() ? &weight.tensor().shape() : nullptr, space.classes, smoothing, who);
    auto result = Tensor<T, D>::uninitialized(how == reduction::none ? space.kept : Shape{}, who);
    if (records) sums = Tensor<C, D>::uninitialized(Shape{2 * space.rows}, who);
    if (space.rows == 0 && how == reduction::none) return result;
    Tensor<T, DX> const rows = class_rows(scores);
    Tensor<T, DP> const target_rows = class_rows(probabilities);
    ProbabilityProgram<T> p = program(rows, target_rows, space);
    p.losses = result.data();
    if (!records) p.sums = nullptr;
    launch_probability_loss<D>(typename device_traits<D>::kernels{}, p);
    return result;
  }
  template <class IntoX, class IntoTargets>
  void operator()(Tensor<T, D> const& g, IntoX const& into_x, IntoTargets const& into_targets) const {
    Shape const shape = x.tensor().shape();
    ScoreSpace const space = score_space(shape, "cross_entropy");
    Tensor<T, D> dx, dt;
    if (into_x.needed()) dx = Tensor<T, D>::uninitialized(class_rows_shape(shape), "cross_entropy");
    if (into_targets.needed()) dt = Tensor<T, D>::uninitialized(class_rows_shape(shape), "cross_entropy");
    if (detail::product(shape) > 0) {
      Tensor<T, DX> const rows = class_rows(x.tensor());
      Tensor<T, DP> const target_rows = class_rows(targets.tensor());
      Tensor<T, D> const slopes = g.contiguous();
      launch_probability_gradient<D>(typename device_traits<D>::kernels{}, program(rows, target_rows, space), slopes.data(), into_x.needed() ? dx.data() : nullptr,
                                     into_targets.needed() ? dt.data() : nullptr);
    }
    if (into_x.needed()) into_x.add(rows_as_scores(dx, shape.rank()));
    if (into_targets.needed()) into_targets.add(rows_as_scores(dt, shape.rank()));
  }
  /// With history.
  template <class G, class IntoX, class IntoTargets>
    requires has_history<G>
  [[gnu::cold]] SITU_NOINLINE void operator()(G const& g, IntoX const& into_x, IntoTargets const& into_targets) const {
    using L = Lane<C, D>;
    L const scores = L::of(x.variable()), probabilities = L::of(targets.variable());
    Shape const& shape = scores.shape();
    ScoreSpace const space = score_space(shape, "cross_entropy");
    int const axis = shape.rank() == 1 ? 0 : 1;
    Shape by_class;
    for (int k = 0; k < shape.rank(); ++k) by_class.push_back(k == axis ? shape[k] : 1);
    L const weights = weight.tensor().body() ? lane_of<C>(weight.tensor()).reshape(by_class) : L(C(1)), keep(static_cast<C>(1 - smoothing));
    L const rows = L(Tensor<C, D>(sums)).reshape({space.rows, 2});
    L const logarithm = rows.summed(2u).reshape(space.kept).unsqueeze(axis);  // of Σ exp x, a constant
    L const e = exp(scores - logarithm), total = e.summed(1u << axis);
    L slope = how == reduction::none ? lane_of<C>(g).unsqueeze(axis) : lane_of<C>(g);
    if (how != reduction::none) slope = slope * L(static_cast<C>(1 / loss_divisor(how, static_cast<double>(space.rows), space.batch)));
    if (into_x.needed()) {
      L const t = weights * (probabilities * keep + L(static_cast<C>(smoothing / static_cast<double>(space.classes))));
      add_lane<G>((e / total * t.summed(1u << axis) - t) * slope, shape, into_x);
    }
    if (into_targets.needed()) add_lane<G>(weights * keep * (math::log(total) + logarithm - scores) * slope, shape, into_targets);
  }
};

}  // namespace detail

/// The same with a probability for each class in the place of a label, which may record, too:
///
///     loss = Σ_c w_c t_c (log Σ exp x - x_c)
///
/// Shape     scores and probabilities alike; classes along axis 1, or 0 where it is the only one. There is no ignore_index.
/// Dtype     probabilities are taken in the type of the scores.
/// Special   the mean divides by the number of rows.
/// Cost      as above; rows are looked at twice, the second time in the cache.
/// Gradient  g (softmax(x) Σ w t - w_c t_c); of the probabilities, g w_c (log Σ exp x - x_c).
template <class S, class P>
  requires detail::scores_with_probabilities<S, P>
auto cross_entropy(S const& scores, P const& probabilities, detail::cross_entropy_options_of<S> const& options = {}) {
  using T = value_of<S>;
  using D = detail::result_device_t<device_of<S>>;
  auto const x = detail::operation_input<T>(scores);
  auto const t = detail::operation_input<T>(probabilities);
  using DX = device_of<decltype(x)>;
  using DP = device_of<decltype(t)>;
  Tensor<T, D> const weight = options.weight.body() ? options.weight.contiguous() : options.weight;
  detail::ProbabilityLoss<T, D, DX, DP> loss{detail::SavedConstant<T, D>(weight), options.label_smoothing, options.reduction, {}, {}, {}};
  if constexpr (differentiable<S> || differentiable<P>) {
    bool const records = detail::is_recording(x, t);
    Tensor<T, D> value = loss.value(x.value(), t.value(), records);
    if (!records) return Variable<T, D>(std::move(value), false);
    loss.x = detail::saved_input(x), loss.targets = detail::saved_input(t);
    return detail::record("CrossEntropyLoss", std::move(value), std::move(loss), x, t);
  } else {
    return loss.value(x.value(), t.value(), false);
  }
}

namespace nn {
using situ::cross_entropy;
using situ::nll_loss;
using situ::reduction;
}  // namespace nn
}  // namespace situ::inline SITU_ABI
