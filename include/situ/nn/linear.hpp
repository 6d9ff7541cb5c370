/// Linear layers.
///
///     nn::Linear<float, Cuda<0>> fc{784, 128};   nn::Linear<float, D> projection{64, 64, {.bias = false}};   nn::LazyLinear<float, D> head{10};
///
/// Shape     (…, in) → (…, out); weight [out, in], bias [out].
/// Dtype     input and weights promote; layers of 16-bit floats convert an input of float or double.
/// Device    that of the weights; an input on another one does not compile.
/// Throws    ShapeError for an input of another last extent.
/// Gradient  see autograd/matmul.hpp.
#pragma once

#include <situ/autograd/matmul.hpp>
#include <situ/nn/init.hpp>
#include <situ/nn/move.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What a layer of T computes with: layers of 16-bit floats convert inputs of float and double, so that a network in mixed precision stays in it.
template <class T, class X>
decltype(auto) layer_input(X const& x) {
  if constexpr (sizeof(T) == 2 && floating<value_of<X>> && sizeof(value_of<X>) > 2) return cast<T>(x);
  else return (x);
}

/// x wᵀ + b of the layer `who`.
template <class X, class T, class D>
auto apply_linear(X const& x, Variable<T, D> const& weight, std::optional<Variable<T, D>> const& bias, char const* who) {
  if (x.rank() < 1 || x.shape().back() != weight.shape()[1]) {
    fail<ShapeError>(who, ": an input of shape ", x.shape(), " does not fit weights of shape ", weight.shape(), ": its last extent must be ", weight.shape()[1]);
  }
  return bias ? linear(layer_input<T>(x), weight, *bias) : linear(layer_input<T>(x), weight);
}

/// The width of a layer's initial weights and biases, 1 / √(fan in), as PyTorch has it.
inline double initial_bound(int64_t fan_in) { return fan_in > 0 ? 1 / root(static_cast<double>(fan_in)) : 0; }

/// Numbers uniform in [-bound, bound), drawn on the host from the default generator, for the layer `who`.
template <class T, class D>
Tensor<T, D> uniform_weights(Shape const& shape, double bound, char const* who) {
  return drawn_uniform<T>(-bound, bound, shape, default_generator(), who).to(D{});
}

/// The probability of a layer's dropout.
inline double checked_dropout(double p, char const* who) {
  if (!(p >= 0 && p <= 1)) fail<ShapeError>(who, ": the probability of dropout is ", p, "; it must be in [0, 1]");
  return p;
}

}  // namespace detail

namespace nn {

/// The options of Linear and LazyLinear.
struct linear_options {
  bool bias = true;
};

/// y = x wᵀ + b. Weights and biases begin uniform in ±1 / √in.
template <class T = float, class Device = Cpu>
struct Linear {
  Variable<T, Device> weight;               ///< [out, in]
  std::optional<Variable<T, Device>> bias;  ///< [out]

  Linear(int64_t in_features, int64_t out_features, linear_options const& options = {})
      : weight(detail::uniform_weights<T, Device>({out_features, in_features}, detail::initial_bound(in_features), "Linear")) {
    if (options.bias) bias.emplace(detail::uniform_weights<T, Device>({out_features}, detail::initial_bound(in_features), "Linear"));
  }
  Linear(from_members_t, Variable<T, Device> w, std::optional<Variable<T, Device>> b) : weight(std::move(w)), bias(std::move(b)) {}

  int64_t in_features() const { return weight.shape()[1]; }
  int64_t out_features() const { return weight.shape()[0]; }

  auto forward(auto const& x) const { return detail::apply_linear(x, weight, bias, "Linear"); }

  SITU_MODULE(weight, bias)
};

/// A Linear whose input's width is told by the first input. Until then it has no weights, and whatever visits the parameters, such as an optimiser or a file,
/// throws TypeError; it may be moved, and its mode be set. The first input fills the weights of every copy.
template <class T = float, class Device = Cpu>
struct LazyLinear {
  Variable<T, Device> weight;               ///< [out, in]; of shape [0] before the first input
  std::optional<Variable<T, Device>> bias;  ///< [out]; the same

 private:
  int64_t out_features_;

 public:
  explicit LazyLinear(int64_t out_features, linear_options const& options = {}) : out_features_(out_features) {
    if (out_features < 0) detail::fail<ShapeError>("LazyLinear: ", out_features, " outputs were asked for; there are 0 or more");
    if (options.bias) bias.emplace();
  }
  LazyLinear(from_members_t, Variable<T, Device> w, std::optional<Variable<T, Device>> b, int64_t out_features)
      : weight(std::move(w)), bias(std::move(b)), out_features_(out_features) {}

  /// Whether an input has come by, or weights were given.
  bool has_weights() const { return weight.rank() == 2; }
  int64_t out_features() const { return out_features_; }

  auto forward(auto const& x) const {
    if (!has_weights()) {
      if (x.rank() < 1) detail::fail<ShapeError>("LazyLinear: an input of shape ", x.shape(), " was given; it needs an axis");
      int64_t const in = x.shape().back();
      double const bound = detail::initial_bound(in);
      Tensor<T, Device> w = detail::uniform_weights<T, Device>({out_features_, in}, bound, "LazyLinear");
      if (bias) fill(*bias, detail::uniform_weights<T, Device>({out_features_}, bound, "LazyLinear"));
      fill(weight, std::move(w));
    }
    return detail::apply_linear(x, weight, bias, "LazyLinear");
  }

  void situ_check_state(std::string const& path) const {
    if (!has_weights()) {
      detail::fail<TypeError>("LazyLinear: ", path.empty() ? "it" : path, " has no weights before its first input: call the module once, then use its parameters");
    }
  }
  SITU_MODULE(weight, bias, out_features_)

 private:
  /// Copies of a Variable share its state: all of them see the value.
  static void fill(Variable<T, Device> const& v, Tensor<T, Device> value) {
    v.state()->shape = value.shape();
    v.state()->value = std::move(value);
  }
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
