/// A layer of a transformer's encoder: self-attention, then two linear layers, each led around and normalised.
///
///     nn::TransformerEncoderLayer<float, Cuda<0>> layer{128, 4, {.dim_feedforward = 512, .norm_first = true}};
///     nn::TransformerEncoderLayer<float, D, nn::GELU> block{128, 4, {.causal = true}};      // the activation is a module, nn::ReLU unless given
///
///     norm_first: x + attention(norm1(x)), then x + linear2(activation(linear1(norm2(x))));  else norm1(x + attention(x)), norm2(x + …)
///
/// Shape     [batch, tokens, d_model] → the same, or without a batch; a mask as nn::MultiheadAttention takes it.
/// State     self_attn.in_proj_weight, …, linear1.weight, linear1.bias, linear2.…, norm1.…, norm2.…, as PyTorch's with batch_first.
/// Throws    ShapeError where the heads do not divide d_model, and for inputs that do not fit.
/// Special   causal makes of it what is called a decoder-only layer: token i sees tokens 0 to i.
/// Source    Vaswani et al. 2017, arXiv:1706.03762; norm_first: Xiong et al. 2020, arXiv:2002.04745.
#pragma once

#include <situ/autograd/random.hpp>
#include <situ/nn/activations.hpp>
#include <situ/nn/attention.hpp>
#include <situ/nn/normalization.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// x + y of one shape: both get the gradient as it is.
template <class T, class D>
Variable<T, D> added(Variable<T, D> const& x, Variable<T, D> const& y) {
  return record("Add", Tensor<T, D>(x.value() + y.value()), [](Tensor<T, D> const& g, auto const& into_x, auto const& into_y) {
    into_x.add(g);
    into_y.add(g);
  }, x, y);
}

}  // namespace detail

namespace nn {

/// The options of TransformerEncoderLayer, with PyTorch's defaults.
struct transformer_encoder_layer_options {
  int64_t dim_feedforward = 2048;
  double dropout = 0.1;  ///< of attention weights, between the linear layers, and of what is led around
  double layer_norm_eps = 1e-5;
  bool norm_first = false;
  bool causal = false;
  bool bias = true;
};

/// A layer of a transformer's encoder; see the top of this file.
template <class T = float, class Device = Cpu, class Activation = ReLU>
struct TransformerEncoderLayer {
  MultiheadAttention<T, Device> self_attn;
  Linear<T, Device> linear1, linear2;
  LayerNorm<T, Device> norm1, norm2;
  Activation activation;

 private:
  double dropout_;
  bool norm_first_;

 public:
  bool training = true;

  TransformerEncoderLayer(int64_t d_model, int64_t nhead, transformer_encoder_layer_options const& options = {})
      : self_attn(d_model, nhead, {.dropout = options.dropout, .bias = options.bias, .causal = options.causal}),
        linear1(d_model, options.dim_feedforward, {.bias = options.bias}),
        linear2(options.dim_feedforward, d_model, {.bias = options.bias}),
        norm1({d_model}, {.eps = options.layer_norm_eps, .bias = options.bias}),
        norm2({d_model}, {.eps = options.layer_norm_eps, .bias = options.bias}),
        dropout_(options.dropout),
        norm_first_(options.norm_first) {}
  TransformerEncoderLayer(from_members_t, MultiheadAttention<T, Device> attention, Linear<T, Device> first, Linear<T, Device> second, LayerNorm<T, Device> n1,
                          LayerNorm<T, Device> n2, Activation f, double dropout, bool norm_first, bool train)
      : self_attn(std::move(attention)), linear1(std::move(first)), linear2(std::move(second)), norm1(std::move(n1)), norm2(std::move(n2)), activation(std::move(f)),
        dropout_(dropout), norm_first_(norm_first), training(train) {}

  auto forward(auto const& x) const {
    return run(x, [this](V const& y) { return V(self_attn(y)); });
  }
  template <class M>
    requires expression<M>
  auto forward(auto const& x, M const& mask) const {
    return run(x, [&](V const& y) { return V(self_attn(y, mask)); });
  }

  SITU_MODULE(self_attn, linear1, linear2, norm1, norm2, activation, dropout_, norm_first_, training)

 private:
  using V = Variable<T, detail::result_device_t<Device>>;
  V dropped(V const& x) const { return training && dropout_ > 0 ? V(dropout(x, dropout_)) : x; }
  V feed_forward(V const& x) const {
    if constexpr (std::is_same_v<Activation, ReLU>) {
      return linear2(dropped(V(linear1.bias ? linear_relu(x, linear1.weight, *linear1.bias) : linear_relu(x, linear1.weight))));
    } else {
      return linear2(dropped(V(activation(linear1(x)))));
    }
  }
  V run(auto const& input, auto const& attention) const {
    V const x = as_variable(input);
    if (norm_first_) {
      V const y = detail::added(x, dropped(attention(norm1(x))));
      return detail::added(y, dropped(feed_forward(norm2(y))));
    }
    V const y = norm1(detail::added(x, dropped(attention(x))));
    return norm2(detail::added(y, dropped(feed_forward(y))));
  }
  template <class X>
  static V as_variable(X const& x) {
    if constexpr (differentiable<X>) return V(x);
    else return V(Tensor<T, detail::result_device_t<Device>>(x), false);
  }
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
