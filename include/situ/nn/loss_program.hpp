/// Losses bound to memory, for every device's kernels.
#pragma once

#include <situ/device/fault.hpp>
#include <situ/expr/math.hpp>

namespace situ::inline SITU_ABI {

/// What becomes of the losses of single elements or rows. `mean` divides by their number, or by the sum of the weights of the labels that
/// count; `batchmean` by the extent of the first axis.
enum class reduction { none, mean, sum, batchmean };

namespace detail {

/// What a part of the work comes to: the sum of its losses, and of the weights of labels.
struct LossPart {
  double loss, weight;
};

/// From this loss on a label's score is so far below the others that it is no good place to take exponentials about: gradients would lose digits.
inline constexpr double far_label = 16;

/// What a sum of losses is divided by.
SITU_HOST_DEVICE inline double loss_divisor(reduction how, double weights, double batch) {
  return how == reduction::mean ? weights : how == reduction::batchmean ? batch : 1.0;
}

/// Rows of scores with a label each. Labels are read as Ix; those equal to `ignored` have no part in anything.
template <class T, class Ix>
struct LabelProgram {
  using C = compute_t<T>;
  T const* x;        ///< [rows, classes]
  Ix const* labels;   ///< [rows]
  T const* weight;   ///< [classes], or null
  int64_t rows, classes;
  int64_t ignored;
  double smoothing;
  reduction how;
  IndexBounds bounds;
  double batch;      ///< what batchmean divides by
  double softmax_part, label_part;  ///< 1, or 0 for a gradient without that part
  T* losses;         ///< [rows] for reduction::none; else the result
  C* sums;           ///< [rows + 1]: log of a row's sum of exponentials less its label's score; then what the sum was divided by. Or null
  C* gradient;       ///< [rows, classes]: takes, and has, the gradient of the scores where the result's over the divisor is the usual one; or null

  static constexpr int64_t no_part = -1, no_class = -2;
  /// The label of a row, or one of these.
  SITU_HOST_DEVICE int64_t label(int64_t row) const {
    int64_t const given = static_cast<int64_t>(labels[row]);
    if (given == ignored) return no_part;
    return static_cast<uint64_t>(given) < static_cast<uint64_t>(classes) ? given : no_class;
  }
  SITU_HOST_DEVICE C weight_of(int64_t label) const { return weight ? static_cast<C>(weight[label]) : C(1); }
  SITU_HOST_DEVICE void finish(LossPart const& all) const {
    if (how == reduction::none) return;
    double const divisor = loss_divisor(how, all.weight, batch);
    *losses = convert_scalar<T>(static_cast<C>(all.loss / divisor));
    if (sums) sums[rows] = static_cast<C>(divisor);
  }
  /// What smoothing gives to each class.
  SITU_HOST_DEVICE double share() const { return smoothing / static_cast<double>(classes); }
  /// Of a row's loss, where the result's gradient is 1 and every row counts.
  SITU_HOST_DEVICE double usual_slope() const { return 1 / static_cast<double>(static_cast<C>(loss_divisor(how, static_cast<double>(rows), batch))); }
};

/// The loss of a row is  scale (log Σ exp x - x_y) - shares,  its gradient  g (scale softmax(x) - share w - hit [c = y]).
struct LabelFactors {
  double scale, hit;
};
template <class T, class Ix>
SITU_HOST_DEVICE LabelFactors label_factors(LabelProgram<T, Ix> const& p, int64_t label, double all_weights) {
  double const hit = (1 - p.smoothing) * static_cast<double>(p.weight_of(label));
  return {p.softmax_part * (hit + p.share() * all_weights), p.label_part * hit};
}

/// Rows of scores with a probability for each class.
template <class T>
struct ProbabilityProgram {
  using C = compute_t<T>;
  T const* x;        ///< [rows, classes]
  T const* targets;  ///< [rows, classes]
  T const* weight;   ///< [classes], or null
  int64_t rows, classes;
  double smoothing;
  reduction how;
  double divisor;    ///< of the sum of the losses
  T* losses;         ///< [rows] for reduction::none; else the result
  C* sums;           ///< [rows, 2]: a row's largest score m, and the log of its sum of exp(x - m); or null

  SITU_HOST_DEVICE void finish(LossPart const& all) const {
    if (how != reduction::none) *losses = convert_scalar<T>(static_cast<C>(all.loss / divisor));
  }
};

/// Elements in pairs: x and what it should be. All contiguous.
template <class T>
struct PairProgram {
  T const *x, *y;
  T const *a, *b;    ///< factors of single elements, for losses that take them; null for 1
  int64_t count;
  double parameter;
  reduction how;
  double divisor;    ///< of the sum of the losses
  T* losses;         ///< [count] for reduction::none; else the result

  SITU_HOST_DEVICE void finish(LossPart const& all) const {
    if (how != reduction::none) *losses = convert_scalar<T>(static_cast<compute_t<T>>(all.loss / divisor));
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
