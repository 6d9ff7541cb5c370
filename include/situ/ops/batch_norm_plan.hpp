/// Batch normalisation bound to memory, for every device's kernels: images [N, C, S] without gaps, whose channels are normalised one by one.
#pragma once

#include <situ/core/shape.hpp>
#include <situ/expr/math.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// A number for each channel, in a tensor of any floating type; null for none.
struct ChannelValues {
  void* data = nullptr;
  int64_t stride = 0;
  dtype type = dtype::float32;

  SITU_HOST_DEVICE double get(int64_t c, double otherwise) const {
    if (!data) return otherwise;
    if (type == dtype::float32) return static_cast<double>(static_cast<float const*>(data)[c * stride]);
    switch (type) {
      case dtype::float64: return static_cast<double const*>(data)[c * stride];
      case dtype::float16: return convert_scalar<double>(static_cast<float16 const*>(data)[c * stride]);
      default: return convert_scalar<double>(static_cast<bfloat16 const*>(data)[c * stride]);
    }
  }
  SITU_HOST_DEVICE void set(int64_t c, double value) const {
    if (!data) return;
    switch (type) {
      case dtype::float64: static_cast<double*>(data)[c * stride] = value; break;
      case dtype::float16: static_cast<float16*>(data)[c * stride] = convert_scalar<float16>(value); break;
      case dtype::bfloat16: static_cast<bfloat16*>(data)[c * stride] = convert_scalar<bfloat16>(value); break;
      default: static_cast<float*>(data)[c * stride] = static_cast<float>(value); break;
    }
  }
};

/// What an element of the output is made with: (x - shift) scale + low + g slope. The sum `low` holds what rounding the mean has lost, too.
template <class C>
struct alignas(4 * sizeof(C)) ChannelCoefficients {
  C shift, scale, low, slope;
};

/// The mean of some elements, and the sum of squares about it.
struct ChannelMoments {
  double mean = 0, squares = 0;
};

/// How the moments of `n` elements are added to those of `before`; the same for all channels.
/// Source: Chan, Golub & LeVeque 1983, doi:10.1080/00031305.1983.10483115.
struct MergedMoments {
  double share, part, apart;
  SITU_HOST_DEVICE MergedMoments(int64_t before, int64_t n) {
    double const old = static_cast<double>(before), more = static_cast<double>(n);
    share = 1 / more, part = more / (old + more), apart = old * part;
  }
  /// Those of elements whose differences from `shift`, and the squares of these, have sums.
  SITU_HOST_DEVICE void add(ChannelMoments& to, double shift, double sum, double sum_of_squares) const {
    add(to, {shift + sum * share, sum_of_squares - sum * sum * share});
  }
  SITU_HOST_DEVICE void add(ChannelMoments& to, ChannelMoments const& more) const {
    double const off = more.mean - to.mean;
    to.squares += more.squares + off * off * apart;
    to.mean += off * part;
  }
};

struct BatchNormPlan {
  int64_t images = 0, channels = 0, inner = 0;
  ChannelValues weight, bias, running_mean, running_var;
  bool training = false;
  double momentum = 0, eps = 0;
  double* statistics = nullptr;  ///< [2, C]: the mean and 1 / sqrt(var + eps), kept for backward; or null

  SITU_HOST_DEVICE int64_t count() const { return images * inner; }

  /// A channel's coefficients, from its moments in training. Its running statistics move towards them.
  template <class C>
  SITU_HOST_DEVICE ChannelCoefficients<C> normalizing(int64_t c, ChannelMoments const& batch) const {
    double const n = static_cast<double>(count());
    double mean, variance;
    if (training) {
      mean = batch.mean;
      variance = batch.squares / n;
      if (running_mean.data) running_mean.set(c, (1 - momentum) * running_mean.get(c, 0) + momentum * mean);
      if (running_var.data) running_var.set(c, (1 - momentum) * running_var.get(c, 0) + momentum * (batch.squares / (n - 1)));
    } else {
      mean = running_mean.get(c, 0);
      variance = running_var.get(c, 1);
    }
    double const rate = 1.0 / math::sqrt(variance + eps);
    if (statistics) statistics[c] = mean, statistics[channels + c] = rate;
    double const scale = weight.get(c, 1) * rate;
    C const shift = static_cast<C>(mean);
    return {shift, static_cast<C>(scale), static_cast<C>(bias.get(c, 0) - (mean - static_cast<double>(shift)) * scale), C(0)};
  }

  /// About what differences are summed for the gradient.
  template <class C>
  SITU_HOST_DEVICE C centre(int64_t c) const {
    return static_cast<C>(statistics[c]);
  }
  /// The coefficients of the gradient by x, from the sums of g and of g (x - centre) over a channel, which give those of bias and weight:
  /// w r (g - mean(g) - (x - mean) r² mean(g (x - mean))), and w r g where the statistics did not come from x.
  template <class C>
  SITU_HOST_DEVICE ChannelCoefficients<C> differentiating(int64_t c, double sum, double products, ChannelValues const& weight_gradient, ChannelValues const& bias_gradient) const {
    double const mean = statistics[c], rate = statistics[channels + c], low = mean - static_cast<double>(centre<C>(c));
    double const slope = weight.get(c, 1) * rate;
    products -= low * sum;
    bias_gradient.set(c, sum);
    weight_gradient.set(c, products * rate);
    if (!training) return {C(0), static_cast<C>(slope), C(0), C(0)};
    double const n = static_cast<double>(count()), scale = -slope * rate * rate * (products / n);
    return {centre<C>(c), static_cast<C>(scale), static_cast<C>(-slope * (sum / n) - low * scale), static_cast<C>(slope)};
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
