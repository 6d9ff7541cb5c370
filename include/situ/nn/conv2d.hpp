/// Convolution layers.
///
///     nn::Conv2d<float, Cuda<0>> conv{1, 16, 3, {.padding = 1}};   nn::Conv2d<float, D> depthwise{64, 64, {3, 5}, {.stride = 2, .groups = 64, .bias = false}};
///
/// Shape     [N, in, H, W] or [in, H, W] → [N, out, H', W'] or [out, H', W'], as conv2d (ops/conv2d.hpp); weight [out, in / groups, kh, kw], bias [out].
/// Dtype     input and weights promote; layers of 16-bit floats convert an input of float or double.
/// Device    that of the weights; an input on another one does not compile.
/// Throws    ShapeError where groups do not divide the channels, for an input with other channels, and for a kernel larger than the padded image.
/// Gradient  see autograd/conv2d.hpp.
#pragma once

#include <situ/autograd/conv2d.hpp>
#include <situ/nn/linear.hpp>

namespace situ::inline SITU_ABI {
namespace nn {

/// The options of Conv2d; extents are one number, or {height, width}.
struct conv2d_options {
  extent2d stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

/// A convolution of images. Weights and biases begin uniform in ±1 / √(in / groups · kh · kw).
template <class T = float, class Device = Cpu>
struct Conv2d {
  Variable<T, Device> weight;               ///< [out, in / groups, kh, kw]
  std::optional<Variable<T, Device>> bias;  ///< [out]
  extent2d stride, padding, dilation;
  int64_t groups;

  Conv2d(int64_t in_channels, int64_t out_channels, extent2d kernel, conv2d_options const& options = {})
      : stride(options.stride), padding(options.padding), dilation(options.dilation), groups(options.groups) {
    if (in_channels < 0 || out_channels < 0 || groups < 1 || in_channels % groups != 0 || out_channels % groups != 0) {
      detail::fail<ShapeError>("Conv2d: ", in_channels, " input and ", out_channels, " output channels do not form ", groups, " groups: both must be multiples of them");
    }
    int64_t const channels = in_channels / groups;
    double const bound = detail::initial_bound(channels * kernel.height * kernel.width);
    weight = Variable<T, Device>(detail::uniform_weights<T, Device>({out_channels, channels, kernel.height, kernel.width}, bound, "Conv2d"));
    if (options.bias) bias.emplace(detail::uniform_weights<T, Device>({out_channels}, bound, "Conv2d"));
  }
  Conv2d(from_members_t, Variable<T, Device> w, std::optional<Variable<T, Device>> b, extent2d s, extent2d p, extent2d d, int64_t g)
      : weight(std::move(w)), bias(std::move(b)), stride(s), padding(p), dilation(d), groups(g) {}

  int64_t in_channels() const { return weight.shape()[1] * groups; }
  int64_t out_channels() const { return weight.shape()[0]; }

  auto forward(auto const& x) const {
    Shape const shape = x.shape();
    if ((shape.rank() != 4 && shape.rank() != 3) || shape[shape.rank() - 3] != in_channels()) {
      detail::fail<ShapeError>("Conv2d: an input of shape ", shape, " does not fit weights of shape ", weight.shape(), ": images are [N, ", in_channels(), ", H, W] or [",
                               in_channels(), ", H, W]");
    }
    auto const& images = detail::layer_input<T>(x);
    using Options = detail::recorded_convolution_options<std::remove_cvref_t<decltype(images)>, Variable<T, Device>>;
    Options options{.stride = stride, .padding = padding, .dilation = dilation, .groups = groups};
    if (bias) options.bias = *bias;
    return conv2d(images, weight, options);
  }

  SITU_MODULE(weight, bias, stride, padding, dilation, groups)
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
