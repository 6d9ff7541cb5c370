/// What the losses share on the CPU: parts of sums, which blocks leave and one launch joins, and the last lanes of rows.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/nn/loss_program.hpp>
#include <situ/ops/cpu/rows_math.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Joins the parts of blocks in their order.
template <class Program>
struct JoinLosses {
  Program whole;
  LossPart const* parts;
  int64_t blocks;
  void operator()(int64_t, int64_t) const {
    LossPart all{};
    for (int64_t k = 0; k < blocks; ++k) all.loss += parts[k].loss, all.weight += parts[k].weight;
    whole.finish(all);
  }
};

/// The last `left` < N elements of T as lanes, others behind them. `readable` elements may be touched.
template <class T, int N, class Isa>
SITU_INLINE lanes_t<T, N, Isa> load_last(T const* from, int64_t left, int64_t readable) {
  if (readable >= N) return load_lanes<T, N, Isa>(from);
  T elements[N] = {};
  copy_short(elements, from, left * static_cast<int64_t>(sizeof(T)));
  return load_lanes<T, N, Isa>(elements);
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
