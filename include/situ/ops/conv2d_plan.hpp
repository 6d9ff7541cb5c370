/// The geometry of a convolution, for every device's kernels.
#pragma once

#include <situ/ops/window2d.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The shapes of a convolution, checked.
struct ConvolutionPlan {
  Shape shape;  ///< of the result
  Windows windows;
  int64_t images, channels, outputs;  ///< channels and outputs of one group
};

inline ConvolutionPlan plan_convolution(Shape const& x, Shape const& w, Shape const& bias, bool has_bias, extent2d stride, extent2d padding,
                                        extent2d dilation, int64_t groups) {
  if ((x.rank() != 4 && x.rank() != 3) || w.rank() != 4) {
    fail<ShapeError>("conv2d: shapes ", x, " and ", w, " were given: images are [N, C, H, W] or [C, H, W], weights [O, C / groups, kh, kw]");
  }
  int const at = x.rank() - 3;
  int64_t const channels = x[at];
  if (groups < 1 || channels % groups != 0 || w[0] % groups != 0) {
    fail<ShapeError>("conv2d: ", groups, " groups do not divide ", channels, " input and ", w[0], " output channels of shapes ", x, " and ", w);
  }
  if (w[1] != channels / groups) {
    fail<ShapeError>("conv2d: weights of shape ", w, " do not fit images of shape ", x, " in ", groups, groups == 1 ? " group: " : " groups: ", w[1],
                     " != ", channels / groups, channels / groups == 1 ? " channel" : " channels");
  }
  if (has_bias && (bias.rank() != 1 || bias[0] != w[0])) {
    fail<ShapeError>("conv2d: a bias of shape ", bias, " does not fit weights of shape ", w, ": it has one element for each of the ", w[0], w[0] == 1 ? " output" : " outputs");
  }
  ConvolutionPlan plan;
  plan.windows = slide({x[at + 1], x[at + 2]}, {w[2], w[3]}, stride, padding, dilation, false, "conv2d");
  plan.images = at == 1 ? x[0] : 1;
  plan.channels = channels / groups, plan.outputs = w[0] / groups;
  if (at == 1) plan.shape.push_back(x[0]);
  for (int64_t extent : {w[0], plan.windows.y.windows, plan.windows.x.windows}) plan.shape.push_back(extent);
  return plan;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
