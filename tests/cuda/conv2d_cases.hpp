/// Convolutions on a GPU and on the host, for files that are compiled with cuDNN and without it.
#pragma once

#include <cuda/compare.hpp>
#include <situ/ops/conv2d.hpp>
#include <situ/tensor.hpp>

#include <string>
#include <vector>

namespace {

/// What differs, one line for each case; empty where all is well.
template <class T>
std::string convolution_differences() {
  using namespace situ;
  using situ_test::differs;
  using situ_test::numbers;
  using Gpu = Cuda<0>;
  double const tolerance = std::is_same_v<T, bfloat16> ? 2e-2 : sizeof(T) == 2 ? 4e-3 : sizeof(T) == 8 ? 1e-12 : 2e-4;
  Tensor<T> const a = numbers<T>({3, 6, 17, 21}), w = numbers<T>({9, 2, 3, 5}), b = numbers<T>({9}), whole = numbers<T>({4, 6, 3, 3});
  Tensor<T, Gpu> const x{a}, v{w}, c{b}, all_channels{whole};
  std::string report;
  auto const check = [&](char const* what, auto const& got, auto const& expected) {
    std::string const difference = differs(got, expected, tolerance);
    if (!difference.empty()) report += std::string(what) + ": " + difference + "\n";
  };
  check("plain", conv2d(x, all_channels), conv2d(a, whole));
  check("same padding", conv2d(x, all_channels, {.padding = 1}), conv2d(a, whole, {.padding = 1}));
  check("stride, padding, bias, groups", conv2d(x, v, {.bias = c, .stride = {1, 2}, .padding = {2, 1}, .groups = 3}),
        conv2d(a, w, {.bias = b, .stride = {1, 2}, .padding = {2, 1}, .groups = 3}));
  check("dilation", conv2d(x, v, {.dilation = {2, 3}, .groups = 3}), conv2d(a, w, {.dilation = {2, 3}, .groups = 3}));
  check("one for each channel", conv2d(x, v.slice(0, 0, 6).slice(1, 0, 1), {.groups = 6}), conv2d(a, w.slice(0, 0, 6).slice(1, 0, 1), {.groups = 6}));
  check("flipped", conv2d(x.flip(3), v, {.bias = c, .groups = 3}), conv2d(a.flip(3), w, {.bias = b, .groups = 3}));
  check("channels last", conv2d(x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}), all_channels), conv2d(a, whole));
  check("an odd address", conv2d(x.slice(0, 1, 3), all_channels.flatten()(range(54, 216)).reshape({3, 6, 3, 3})), conv2d(a.slice(0, 1, 3), whole.slice(0, 1, 4)));
  check("one image, of a formula", conv2d(x[1] * T(2), v, {.groups = 3}), conv2d(a[1] * T(2), w, {.groups = 3}));
  check("no images", conv2d(x.slice(0, 0, 0), all_channels), conv2d(a.slice(0, 0, 0), whole));
  check("no channels", conv2d(x.slice(1, 0, 0), all_channels.slice(1, 0, 0), {.bias = c.slice(0, 0, 4)}),
        conv2d(a.slice(1, 0, 0), whole.slice(1, 0, 0), {.bias = b.slice(0, 0, 4)}));
  if (!(conv2d(x, v, {.bias = c, .groups = 3}).to_vector() == conv2d(x, v, {.bias = c, .groups = 3}).to_vector())) report += "two runs differ\n";
  return report;
}

}  // namespace
