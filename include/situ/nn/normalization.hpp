/// Normalisations along the last axes, as layers.
///
///     nn::LayerNorm<float, D> norm{128};   nn::LayerNorm<float, D> images{{16, 32, 32}, {.eps = 1e-6}};   nn::RMSNorm<float, D> root{128};
///
/// Shape     (…, normalized shape), as the input; weight and bias have the normalized shape.
/// Dtype     that of the input, 16-bit floats computed in float; the layer may be of another type.
/// Device    that of the layer; an input on another one does not compile.
/// Throws    ShapeError for an input that does not end with the normalized shape.
/// Gradient  see autograd/rows.hpp.
#pragma once

#include <situ/autograd/rows.hpp>
#include <situ/nn/move.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

inline void check_normalized(Shape const& normalized, Shape const& shape, char const* who) {
  int const lead = shape.rank() - normalized.rank();
  bool same = lead >= 0;
  for (int k = 0; same && k < normalized.rank(); ++k) same = normalized[k] == shape[lead + k];
  if (!same) fail<ShapeError>(who, ": an input of shape ", shape, " does not end with ", normalized, ", the shape that this layer normalises");
}
inline Shape checked_normalized(Shape const& normalized, char const* who) {
  if (normalized.empty()) fail<ShapeError>(who, ": no extents were given; name those of the axes to normalise, as in {128}");
  for (int64_t extent : normalized) {
    if (extent < 0) fail<ShapeError>(who, ": ", normalized, " is no shape to normalise: extents are 0 or more");
  }
  return normalized;
}

}  // namespace detail

namespace nn {

struct layer_norm_options {
  double eps = 1e-5;
  bool elementwise_affine = true;  ///< has a weight, which begins as 1
  bool bias = true;                ///< and a bias, which begins as 0
};

/// y = (x - mean) / √(var + eps) weight + bias over the last axes.
template <class T = float, class Device = Cpu>
struct LayerNorm {
  std::optional<Variable<T, Device>> weight, bias;
  Shape normalized_shape;
  layer_norm_options options;

  explicit LayerNorm(Shape const& normalized, layer_norm_options const& given = {})
      : normalized_shape(detail::checked_normalized(normalized, "LayerNorm")), options(given) {
    if (given.elementwise_affine) weight.emplace(ones<T>(normalized).to(Device{}));
    if (given.elementwise_affine && given.bias) bias.emplace(zeros<T>(normalized).to(Device{}));
    fill_in();
  }
  /// LayerNorm norm({n}): of braces in parentheses alone it would not be clear whether they are a shape or a layer to be copied.
  template <std::integral Ix, std::size_t N>
  explicit LayerNorm(Ix const (&normalized)[N], layer_norm_options const& given = {}) : LayerNorm(Shape(normalized, static_cast<int64_t>(N)), given) {}
  LayerNorm(from_members_t, std::optional<Variable<T, Device>> w, std::optional<Variable<T, Device>> b, Shape const& normalized, layer_norm_options const& given)
      : weight(std::move(w)), bias(std::move(b)), normalized_shape(normalized), options(given) {
    fill_in();
  }

  auto forward(auto const& x) const {
    detail::check_normalized(normalized_shape, x.shape(), "LayerNorm");
    return layer_norm(x, normalized_shape, weight ? *weight : Variable<T, Device>(ones_, false), bias ? *bias : Variable<T, Device>(zeros_, false), options.eps);
  }

  SITU_MODULE(weight, bias, normalized_shape, options)

 private:
  /// What stands for parameters that are not there, so that one kernel serves all layers.
  void fill_in() {
    if (!weight) ones_ = ones<T>(normalized_shape).to(Device{});
    if (!bias) zeros_ = zeros<T>(normalized_shape).to(Device{});
  }
  Tensor<T, Device> ones_, zeros_;
};

struct rms_norm_options {
  std::optional<double> eps = std::nullopt;  ///< std::nullopt: the distance from 1 to the next number of the input's type
  bool elementwise_affine = true;            ///< has a weight, which begins as 1
};

/// y = x / √(mean(x²) + eps) weight over the last axes.
template <class T = float, class Device = Cpu>
struct RMSNorm {
  std::optional<Variable<T, Device>> weight;
  Shape normalized_shape;
  rms_norm_options options;

  explicit RMSNorm(Shape const& normalized, rms_norm_options const& given = {})
      : normalized_shape(detail::checked_normalized(normalized, "RMSNorm")), options(given) {
    if (given.elementwise_affine) weight.emplace(ones<T>(normalized).to(Device{}));
    fill_in();
  }
  /// RMSNorm norm({n}): of braces in parentheses alone it would not be clear whether they are a shape or a layer to be copied.
  template <std::integral Ix, std::size_t N>
  explicit RMSNorm(Ix const (&normalized)[N], rms_norm_options const& given = {}) : RMSNorm(Shape(normalized, static_cast<int64_t>(N)), given) {}
  RMSNorm(from_members_t, std::optional<Variable<T, Device>> w, Shape const& normalized, rms_norm_options const& given)
      : weight(std::move(w)), normalized_shape(normalized), options(given) {
    fill_in();
  }

  auto forward(auto const& x) const {
    detail::check_normalized(normalized_shape, x.shape(), "RMSNorm");
    using U = value_of<std::remove_cvref_t<decltype(x)>>;
    constexpr double step = std::is_same_v<U, double> ? 0x1p-52 : std::is_same_v<U, float16> ? 0x1p-10 : std::is_same_v<U, bfloat16> ? 0x1p-7 : 0x1p-23;
    return rms_norm(x, normalized_shape, weight ? *weight : Variable<T, Device>(ones_, false), options.eps.value_or(step));
  }

  SITU_MODULE(weight, normalized_shape, options)

 private:
  void fill_in() {
    if (!weight) ones_ = ones<T>(normalized_shape).to(Device{});
  }
  Tensor<T, Device> ones_;
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
