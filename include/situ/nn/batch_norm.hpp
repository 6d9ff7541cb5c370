/// Batch normalisation as layers.
///
///     nn::BatchNorm2d<float, Cuda<0>> norm{16};   nn::BatchNorm1d<float, D> plain{128, {.affine = false}};
///
/// Shape     BatchNorm1d: [N, C] or [N, C, L], BatchNorm2d: [N, C, H, W], as the input; weight, bias, running_mean, running_var [C].
/// Dtype     that of the input. Running statistics are float in layers of 16-bit floats too.
/// Device    that of the layer; an input on another one does not compile.
/// Throws    ShapeError for an input of another rank or number of channels, or in training with less than two values for each channel;
///           the running statistics are unchanged.
/// Gradient  see ops/batch_norm.hpp.
#pragma once

#include <situ/autograd/batch_norm.hpp>
#include <situ/nn/move.hpp>

namespace situ::inline SITU_ABI {
namespace nn {

/// The options of BatchNorm1d and BatchNorm2d.
struct batch_norm_options {
  double eps = 1e-5;                     ///< is added to the variance
  std::optional<double> momentum = 0.1;  ///< how far the running statistics move towards a batch's; std::nullopt: they are the mean of all batches'
  bool affine = true;                    ///< has weight and bias, which begin as 1 and 0
  bool track_running_stats = true;       ///< else the batch's own statistics are used in evaluation too
};

}  // namespace nn

namespace detail {

/// What the layers have in common.
template <class T, class D>
struct BatchNormState {
  std::optional<Variable<T, D>> weight, bias;
  std::optional<Tensor<compute_t<T>, D>> running_mean, running_var;
  std::optional<nn::Counter> num_batches_tracked;
  bool training = true;
  int64_t num_features;
  nn::batch_norm_options options;

  BatchNormState(int64_t features, nn::batch_norm_options const& given) : num_features(features), options(given) {
    if (features < 0) fail<ShapeError>("BatchNorm: ", features, " channels were asked for; there are 0 or more");
    if (given.affine) weight.emplace(ones<T>({features}).to(D{})), bias.emplace(zeros<T>({features}).to(D{}));
    if (given.track_running_stats) {
      running_mean = zeros<compute_t<T>>({features}).to(D{}), running_var = ones<compute_t<T>>({features}).to(D{});
      num_batches_tracked.emplace();
    }
  }
  BatchNormState(nn::from_members_t, std::optional<Variable<T, D>> w, std::optional<Variable<T, D>> b, std::optional<Tensor<compute_t<T>, D>> mean,
                 std::optional<Tensor<compute_t<T>, D>> var, std::optional<nn::Counter> batches, bool is_training, int64_t features, nn::batch_norm_options const& given)
      : weight(std::move(w)), bias(std::move(b)), running_mean(std::move(mean)), running_var(std::move(var)), num_batches_tracked(std::move(batches)),
        training(is_training), num_features(features), options(given) {}

  template <class X>
  auto normalized(X const& x, char const* who) const {
    situ::batch_norm_options how{training || !running_mean, options.momentum.value_or(0), options.eps};
    if (x.shape()[1] != num_features) {
      fail<ShapeError>(who, ": an input of shape ", x.shape(), " has ", x.shape()[1], x.shape()[1] == 1 ? " channel" : " channels", ", but this layer is for ", num_features);
    }
    plan_batch_norm(x.shape(), how, who);
    bool const counts = training && num_batches_tracked;
    int64_t const batches = counts ? num_batches_tracked->value() + 1 : 0;
    if (counts && !options.momentum) how.momentum = 1 / static_cast<double>(batches);
    Tensor<compute_t<T>, D> const none;
    auto result = batch_norm(x, running_mean ? *running_mean : none, running_var ? *running_var : none, parameter(weight), parameter(bias), how);
    if (counts) num_batches_tracked->set(batches);
    return result;
  }

 private:
  static Variable<T, D> parameter(std::optional<Variable<T, D>> const& given) { return given ? *given : Variable<T, D>(Tensor<T, D>(), false); }
};

}  // namespace detail

namespace nn {

/// Normalises each channel of [N, C] or [N, C, L] over the batch.
template <class T = float, class Device = Cpu>
struct BatchNorm1d : detail::BatchNormState<T, Device> {
  using State = detail::BatchNormState<T, Device>;
  using State::State;
  using State::weight, State::bias, State::running_mean, State::running_var, State::num_batches_tracked, State::training, State::num_features, State::options;

  explicit BatchNorm1d(int64_t features, batch_norm_options const& given = {}) : State(features, given) {}

  auto forward(auto const& x) const {
    if (x.rank() != 2 && x.rank() != 3) detail::fail<ShapeError>("BatchNorm1d: an input of shape ", x.shape(), " was given; it takes [N, C] or [N, C, L]");
    return this->normalized(x, "BatchNorm1d");
  }

  SITU_MODULE(weight, bias, running_mean, running_var, num_batches_tracked, training, num_features, options)
};

/// Normalises each channel of images [N, C, H, W] over the batch.
template <class T = float, class Device = Cpu>
struct BatchNorm2d : detail::BatchNormState<T, Device> {
  using State = detail::BatchNormState<T, Device>;
  using State::State;
  using State::weight, State::bias, State::running_mean, State::running_var, State::num_batches_tracked, State::training, State::num_features, State::options;

  explicit BatchNorm2d(int64_t features, batch_norm_options const& given = {}) : State(features, given) {}

  auto forward(auto const& x) const {
    if (x.rank() != 4) detail::fail<ShapeError>("BatchNorm2d: an input of shape ", x.shape(), " was given; it takes [N, C, H, W]");
    return this->normalized(x, "BatchNorm2d");
  }

  SITU_MODULE(weight, bias, running_mean, running_var, num_batches_tracked, training, num_features, options)
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
