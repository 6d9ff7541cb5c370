/// Pooling layers: MaxPool2d, AvgPool2d, AdaptiveAvgPool2d.
///
///     nn::MaxPool2d{2}   nn::MaxPool2d{3, {.stride = 2, .padding = 1}}   nn::AvgPool2d{{2, 3}}   nn::AdaptiveAvgPool2d{1}
///
/// Options, shapes, what is thrown and gradients are those of the functions (ops/pool2d.hpp): without a stride windows lie side by side.
#pragma once

#include <situ/autograd/pool2d.hpp>
#include <situ/nn/module.hpp>

namespace situ::inline SITU_ABI {
namespace nn {

/// The largest element of every window.
struct MaxPool2d {
  extent2d kernel;
  pool2d_options options = {};
  auto forward(auto const& x) const { return max_pool2d(x, kernel, options); }
  SITU_MODULE(kernel, options)
};

/// The mean of every window.
struct AvgPool2d {
  extent2d kernel;
  pool2d_options options = {};
  auto forward(auto const& x) const { return avg_pool2d(x, kernel, options); }
  SITU_MODULE(kernel, options)
};

/// The means of windows that cut the image into `size` parts.
struct AdaptiveAvgPool2d {
  extent2d size;
  auto forward(auto const& x) const { return adaptive_avg_pool2d(x, size); }
  SITU_MODULE(size)
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
