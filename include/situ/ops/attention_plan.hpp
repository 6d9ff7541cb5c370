/// The geometry of attention, and its options: for every device's kernels.
#pragma once

#include <optional>

#include <situ/ops/random.hpp>
#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {

/// Elements of a mask of scores of T.
template <class M, class T>
concept mask_elements = std::is_same_v<M, bool> || (floating<M> && implicitly_converts_to<M, T>);

/// What is added to the scores before the softmax, or which of them count. Made of a tensor or a formula, which broadcasts to [..., rows, keys]:
///
///     bool        true where a query may see a key (as in PyTorch's scaled_dot_product_attention)
///     floating    added to the scaled score; -inf hides a key
template <element T, device D>
class AttentionMask {
 public:
  AttentionMask() = default;
  template <class E>
    requires(expression<E> && mixes_with<device_of<E>, D>)
  AttentionMask(E const& e) {
    // Zeros and ones of integers would be added. Said here, since overloads that are deleted are not heard of through braces.
    static_assert(mask_elements<value_of<E>, T>, "situ: attention_masks_are_bool_or_floating_numbers_of_the_scores_type: write mask > 0, or cast<float>(mask)");
    if constexpr (std::is_same_v<value_of<E>, bool>) keep_ = Tensor<bool, D>(e), kind_ = 1;
    else if constexpr (mask_elements<value_of<E>, T>) added_ = Tensor<T, D>(e), kind_ = 2;
  }
  /// 0 there is none, 1 bool, 2 numbers.
  int kind() const { return kind_; }
  Layout const& layout() const { return kind_ == 1 ? keep_.layout() : added_.layout(); }
  void const* data() const { return kind_ == 1 ? static_cast<void const*>(keep_.data()) : static_cast<void const*>(added_.data()); }
  detail::StorageHead const* storage_head() const { return kind_ == 1 ? keep_.storage_head() : added_.storage_head(); }
  Tensor<bool, D> const& keep() const { return keep_; }
  Tensor<T, D> const& added() const { return added_; }

 private:
  int kind_ = 0;
  Tensor<bool, D> keep_;
  Tensor<T, D> added_;
};

/// The options of scaled_dot_product_attention(q, k, v, {.causal = true}).
template <element T, device D>
struct attention_options {
  bool causal = false;               ///< query i sees the keys 0, ..., i
  std::optional<double> scale = {};  ///< of q kᵀ; 1 / sqrt(depth) unless given
  double dropout = 0;                ///< probability with which a weight becomes 0; the others are divided by 1 - dropout
  AttentionMask<T, D> mask = {};
};

namespace detail {

/// The shapes of an attention, checked.
struct AttentionPlan {
  Shape batch;  ///< the axes before the last two, of all operands
  int64_t batches, rows, keys, depth, width;

  Shape with(int64_t m, int64_t n) const {
    Shape result = batch;
    result.push_back(m), result.push_back(n);
    return result;
  }
};

/// Adds the batch axes of one more operand. False where they do not broadcast.
inline bool join_batches(Shape& batch, Shape const& shape) {
  int const rank = shape.rank() - 2, most = batch.rank() > rank ? batch.rank() : rank;
  Shape result;
  for (int k = 0; k < most; ++k) {
    int const a = k - (most - batch.rank()), b = k - (most - rank);
    int64_t const x = a < 0 ? 1 : batch[a], y = b < 0 ? 1 : shape[b];
    if (x != y && x != 1 && y != 1) return false;
    result.push_back(x == 1 ? y : x);
  }
  batch = result;
  return true;
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail_attention(Shape const& q, Shape const& k, Shape const& v, char const* why) {
  fail<ShapeError>("scaled_dot_product_attention: queries ", q, ", keys ", k, " and values ", v, " were given: ", why);
}

inline AttentionPlan plan_attention(Shape const& q, Shape const& k, Shape const& v, Shape const* mask, double dropout) {
  if (q.rank() < 2 || k.rank() < 2 || v.rank() < 2) fail_attention(q, k, v, "each is [..., tokens, features]");
  AttentionPlan plan{{}, 1, q[q.rank() - 2], k[k.rank() - 2], q.back(), v.back()};
  if (k.back() != plan.depth) fail_attention(q, k, v, "queries and keys have as many features");
  if (v[v.rank() - 2] != plan.keys) fail_attention(q, k, v, "there is a value for each key");
  if (!join_batches(plan.batch, q) || !join_batches(plan.batch, k) || !join_batches(plan.batch, v)) fail_attention(q, k, v, "the axes before the last two do not broadcast");
  plan.batches = product(plan.batch);
  if (mask) {
    Shape batch = plan.batch;
    bool fits = mask->rank() <= plan.batch.rank() + 2;
    for (int axis = 1; fits && axis <= 2 && axis <= mask->rank(); ++axis) {
      int64_t const extent = (*mask)[mask->rank() - axis];
      fits = extent == 1 || extent == (axis == 1 ? plan.keys : plan.rows);
    }
    if (fits && mask->rank() > 2) fits = join_batches(batch, *mask) && batch == plan.batch;
    if (!fits) fail<ShapeError>("scaled_dot_product_attention: a mask of shape ", *mask, " does not broadcast to the scores' shape ", plan.with(plan.rows, plan.keys));
  }
  if (!(dropout >= 0 && dropout <= 1)) fail<ShapeError>("scaled_dot_product_attention: the probability of dropout is ", dropout, "; it must be in [0, 1]");
  return plan;
}

/// Which weights are dropped: that of query i and key j of batch b is told by word (b rows + i) row_words + j of the stream.
template <class C>
struct AttentionDropout {
  dropped<C> op{};
  int64_t row_words = 0;  ///< a multiple of 64; 0 without dropout
};

/// What the kernels need beside the operands.
template <class T>
struct AttentionSettings {
  using C = compute_t<T>;
  C scale;
  bool causal;
  AttentionDropout<C> dropout;
};

/// All but the stream of the dropout, which attention() draws.
template <class T, class D>
AttentionSettings<T> attention_settings(AttentionPlan const& plan, attention_options<T, D> const& options) {
  using C = compute_t<T>;
  double const scale = options.scale ? *options.scale : 1 / SITU_LIBM(sqrt)(static_cast<double>(plan.depth > 0 ? plan.depth : 1));
  AttentionSettings<T> settings{static_cast<C>(scale), options.causal, {}};
  if (options.dropout > 0) {
    double const kept = 1 - options.dropout;
    settings.dropout = {{{}, Chance::of(kept), static_cast<C>(kept > 0 ? 1 / kept : 0)}, (plan.keys + 63) / 64 * 64};
  }
  return settings;
}

/// A fresh tensor whose axes lie in memory in the order of `like`, the last one without gaps: heads that are slices of tokens stay such.
template <class T, class D>
Tensor<T, D> uninitialized_in_order_of(Layout const& like, Shape const& shape, char const* who) {
  int const rank = shape.rank();
  if (rank != like.rank() || rank < 3) return Tensor<T, D>::uninitialized(shape, who);
  Shape order, memory;  // outermost first
  for (int k = 0; k < rank; ++k) order.push_back(k);
  for (int k = 1; k < rank - 1; ++k) {
    for (int j = k; j > 0 && like.strides[static_cast<int>(order[j])] > like.strides[static_cast<int>(order[j - 1])]; --j) {
      int64_t const axis = order[j];
      order[j] = order[j - 1], order[j - 1] = axis;
    }
  }
  Shape back = order;
  for (int k = 0; k < rank; ++k) memory.push_back(shape[static_cast<int>(order[k])]), back[static_cast<int>(order[k])] = k;
  return Tensor<T, D>::uninitialized(memory, who).permute(back);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
