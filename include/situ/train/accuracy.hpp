/// The metric of classifiers: how often the largest score stands at the label.
#pragma once

#include <situ/nn/cross_entropy.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/ops/select.hpp>

namespace situ::inline SITU_ABI {
namespace detail {
namespace cpu {

/// Counts the rows whose first largest score stands at their label; NaN is larger than numbers, as for argmax. Items are blocks of rows.
template <class T, class Ix>
struct LabelHitsKernel {
  T const* scores;
  Ix const* labels;
  int64_t rows, classes, rows_per_block;
  int64_t* counts;  ///< of blocks; null where there is one
  float* share;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t block = first; block < last; ++block) {
      int64_t const end = (block + 1) * rows_per_block < rows ? (block + 1) * rows_per_block : rows;
      int64_t hits = 0;
      for (int64_t row = block * rows_per_block; row < end; ++row) hits += is_hit(scores + row * classes, static_cast<int64_t>(labels[row]));
      if (counts) counts[block] = hits;
      else *share = static_cast<float>(static_cast<double>(hits) / static_cast<double>(rows));
    }
  }

 private:
  static bool is_nan(T const& given) {
    auto const x = static_cast<compute_t<T>>(given);
    return x != x;
  }
  bool is_hit(T const* x, int64_t label) const {
    if (label < 0 || label >= classes) return false;
    auto const value = static_cast<compute_t<T>>(x[label]);
    int64_t c = 0;
    if (SITU_UNLIKELY(is_nan(x[label]))) {
      while (c < label && !is_nan(x[c])) ++c;
      return c == label;
    }
    while (c < label && static_cast<compute_t<T>>(x[c]) < value) ++c;
    if (c < label) return false;
    while (c < classes && static_cast<compute_t<T>>(x[c]) <= value) ++c;
    return c == classes;
  }
};
struct JoinHitsKernel {
  int64_t const* counts;
  int64_t blocks, rows;
  float* share;
  void operator()(int64_t, int64_t) const {
    int64_t hits = 0;
    for (int64_t k = 0; k < blocks; ++k) hits += counts[k];
    *share = static_cast<float>(static_cast<double>(hits) / static_cast<double>(rows));
  }
};

}  // namespace cpu

/// The share of hits, in one launch, or two where rows are cut into blocks.
template <class D, class T, class DX, class Ix, class DI>
Tensor<float, D> label_hits(ScoreSpace const& space, Tensor<T, DX> const& scores, Tensor<Ix, DI> const& labels) {
  auto result = Tensor<float, D>::uninitialized(Shape{}, "accuracy");
  Tensor<T, DX> const x = class_rows(scores);
  int64_t const block_rows = cpu::loss_rows_per_block(space.rows, space.classes), blocks = space.rows > block_rows ? (space.rows + block_rows - 1) / block_rows : 1;
  Temporary<D> const memory(blocks > 1 ? static_cast<std::size_t>(blocks) * sizeof(int64_t) : 0);
  auto* const counts = static_cast<int64_t*>(memory.get());
  device_traits<D>::launch(cpu::LabelHitsKernel<T, Ix>{x.data(), labels.data(), space.rows, space.classes, block_rows, counts, result.data()}, blocks, 2);
  if (counts) device_traits<D>::launch(cpu::JoinHitsKernel{counts, blocks, space.rows, result.data()}, 1, 1);
  return result;
}

}  // namespace detail

namespace learning {

/// The share of rows whose largest score stands at the label, a number on the scores' device. Scores are [N, C] or [N, C, ...] with labels
/// [N] or [N, ...]. Throws ShapeError when they do not fit.
struct Accuracy {
  static constexpr char const* name = "accuracy";
  template <class Scores, class Labels>
  auto operator()(Scores const& scores, Labels const& labels) const {
    using D = detail::result_device_t<device_of<Scores>>;
    detail::ScoreSpace const space = detail::score_space(scores.shape(), "accuracy");
    detail::check_loss_shapes(scores.shape(), space.kept, labels.shape(), "labels", "accuracy");
    if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
      return detail::label_hits<D>(space, detail::evaluated(detail::values_of(scores)), detail::evaluated(labels).contiguous());
    } else {
      return mean(cast<float>(argmax(scores, 1) == labels));
    }
  }
};
inline constexpr Accuracy accuracy{};

}  // namespace learning
}  // namespace situ::inline SITU_ABI
