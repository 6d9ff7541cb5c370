/// Attention with several heads.
///
///     nn::MultiheadAttention<float, Cuda<0>> attention{128, 4, {.causal = true}};
///     attention(x);   attention(x, mask);   attention(query, key, value);   attention(query, key, value, mask);
///
/// Shape     batch first: x [batch, tokens, embed_dim] → the same; query [batch, rows, embed_dim], key and value [batch, keys, embed_dim] → that of
///           query. Without a batch: [tokens, embed_dim]. A mask broadcasts to [batch, heads, rows, keys]: bool, true where a query may see a key, or
///           floating numbers that are added; [rows, keys] for all, [batch, 1, 1, keys] for padding.
/// State     in_proj_weight [3 embed_dim, embed_dim], in_proj_bias, out_proj.weight, out_proj.bias, as PyTorch's with batch_first.
/// Throws    ShapeError for other shapes, and where the heads do not divide embed_dim.
/// Cost      of self-attention: one product for queries, keys and values together, attention on them as they lie (ops/attention.hpp), one product for the
///           output; in backward their gradient is written as one tensor. For one tensor as key and value: two products, of query and of both.
/// Special   in training, dropout drops attention weights; a query that sees no key gives the output projection of 0.
#pragma once

#include <situ/autograd/attention.hpp>
#include <situ/nn/linear.hpp>

namespace situ::inline SITU_ABI {
namespace nn {

/// The options of MultiheadAttention.
struct multihead_attention_options {
  double dropout = 0;   ///< of attention weights
  bool bias = true;
  bool causal = false;  ///< token i sees tokens 0, ..., i
};

/// Attention with several heads; see the top of this file. The input projection begins by Xavier's uniform distribution and biases as 0, as in PyTorch.
template <class T = float, class Device = Cpu>
struct MultiheadAttention {
  Variable<T, Device> in_proj_weight;               ///< [3 embed_dim, embed_dim]
  std::optional<Variable<T, Device>> in_proj_bias;  ///< [3 embed_dim]
  Linear<T, Device> out_proj;

 private:
  int64_t num_heads_;
  double dropout_;
  bool causal_;

 public:
  bool training = true;

  MultiheadAttention(int64_t embed_dim, int64_t num_heads, multihead_attention_options const& options = {})
      : in_proj_weight(detail::uniform_weights<T, Device>({3 * embed_dim, embed_dim}, embed_dim > 0 ? detail::root(1.5 / static_cast<double>(embed_dim)) : 0, "MultiheadAttention")),
        out_proj(embed_dim, embed_dim, {.bias = options.bias}), num_heads_(num_heads), dropout_(detail::checked_dropout(options.dropout, "MultiheadAttention")), causal_(options.causal) {
    if (num_heads < 1 || embed_dim % num_heads != 0) {
      detail::fail<ShapeError>("MultiheadAttention: ", num_heads, " heads were asked for of ", embed_dim, " features: the heads must divide them");
    }
    if (!options.bias) return;
    in_proj_bias.emplace(detail::drawn_constant<T>(0, {3 * embed_dim}, "MultiheadAttention").to(Device{}));
    out_proj.bias.emplace(detail::drawn_constant<T>(0, {embed_dim}, "MultiheadAttention").to(Device{}));
  }
  MultiheadAttention(from_members_t, Variable<T, Device> weight, std::optional<Variable<T, Device>> bias, Linear<T, Device> output, int64_t heads, double dropout,
                     bool causal, bool train)
      : in_proj_weight(std::move(weight)), in_proj_bias(std::move(bias)), out_proj(std::move(output)), num_heads_(heads), dropout_(dropout), causal_(causal),
        training(train) {}

  int64_t embed_dim() const { return in_proj_weight.shape()[1]; }
  int64_t num_heads() const { return num_heads_; }

  /// Self-attention.
  auto forward(auto const& x) const { return attend_self(x, AttentionMask<T, detail::result_device_t<Device>>()); }
  template <class M>
    requires expression<M>
  auto forward(auto const& x, M const& mask) const {
    return attend_self(x, AttentionMask<T, detail::result_device_t<Device>>(mask));
  }
  /// Attention of queries to keys and values.
  auto forward(auto const& query, auto const& key, auto const& value) const {
    return attend(query, key, value, AttentionMask<T, detail::result_device_t<Device>>());
  }
  template <class M>
    requires expression<M>
  auto forward(auto const& query, auto const& key, auto const& value, M const& mask) const {
    return attend(query, key, value, AttentionMask<T, detail::result_device_t<Device>>(mask));
  }

  SITU_MODULE(in_proj_weight, in_proj_bias, out_proj, num_heads_, dropout_, causal_, training)

 private:
  using D = detail::result_device_t<Device>;
  using V = Variable<T, D>;

  void check(Shape const& x, char const* what) const {
    if ((x.rank() != 2 && x.rank() != 3) || x.back() != embed_dim()) {
      detail::fail<ShapeError>("MultiheadAttention: ", what, " of shape ", x, " was given; it takes [batch, tokens, ", embed_dim(), "] or [tokens, ", embed_dim(), "]");
    }
  }
  attention_options<T, D> options(AttentionMask<T, D> const& mask) const {
    return {.causal = causal_, .scale = {}, .dropout = training ? dropout_ : 0, .mask = mask};
  }
  auto attend_self(auto const& x, AttentionMask<T, D> const& mask) const {
    check(x.shape(), "an input");
    V const packed(in_proj_bias ? linear(x, in_proj_weight, *in_proj_bias) : linear(x, in_proj_weight));
    if (x.shape().rank() == 3) return out_proj(detail::packed_attention<T, D>(packed, num_heads_, options(mask)));
    return out_proj(detail::packed_attention<T, D>(packed.unsqueeze(0), num_heads_, options(mask)).squeeze(0));
  }
  /// Rows [first, first + count) of the input projection, in units of embed_dim.
  V project(auto const& x, int64_t first, int64_t count) const {
    int64_t const e = embed_dim();
    Variable<T, Device> const weight = in_proj_weight.slice(0, first * e, (first + count) * e);
    return V(in_proj_bias ? linear(x, weight, in_proj_bias->slice(0, first * e, (first + count) * e)) : linear(x, weight));
  }
  /// Part k of features as heads.
  V heads(V const& x, int64_t k) const {
    int64_t const e = embed_dim(), batch = x.rank() == 3 ? x.shape()[0] : 1;
    return x.slice(-1, k * e, (k + 1) * e).view({batch, x.shape()[x.rank() - 2], num_heads_, e / num_heads_}).transpose(1, 2);
  }
  template <class Q, class K, class W>
  auto attend(Q const& query, K const& key, W const& value, AttentionMask<T, D> const& mask) const {
    check(query.shape(), "a query");
    check(key.shape(), "a key");
    check(value.shape(), "a value");
    if (query.shape().rank() != key.shape().rank() || query.shape().rank() != value.shape().rank()) {
      detail::fail<ShapeError>("MultiheadAttention: a query of shape ", query.shape(), ", a key of shape ", key.shape(), " and a value of shape ", value.shape(),
                               " were given; all have a batch, or none has one");
    }
    if (key.shape() != value.shape() || (key.shape().rank() == 3 && key.shape()[0] != query.shape()[0])) {
      detail::fail<ShapeError>("MultiheadAttention: a query of shape ", query.shape(), ", a key of shape ", key.shape(), " and a value of shape ", value.shape(),
                               " were given; key and value have one shape, and the batch of the query");
    }
    if constexpr (std::is_same_v<K, W>) {
      if (static_cast<void const*>(&key) == static_cast<void const*>(&value)) {
        if constexpr (std::is_same_v<Q, K>) {
          if (static_cast<void const*>(&query) == static_cast<void const*>(&key)) return attend_self(query, mask);
        }
        V const both = project(key, 1, 2);
        return finish(heads(project(query, 0, 1), 0), heads(both, 0), heads(both, 1), query.shape(), mask);
      }
    }
    return finish(heads(project(query, 0, 1), 0), heads(project(key, 1, 1), 0), heads(project(value, 2, 1), 0), query.shape(), mask);
  }
  auto finish(V const& q, V const& k, V const& v, Shape const& shape, AttentionMask<T, D> const& mask) const {
    return out_proj(V(scaled_dot_product_attention(q, k, v, options(mask))).transpose(1, 2).reshape(shape));
  }
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
