/// The workloads of training: whole steps, forward, backward and Adam. `training.cpp` registers and checks them; situ, libtorch and the
/// hand-written limit implement them, each in a file of its own.
#pragma once

#include <cstdint>
#include <string>

#include "gradients.hpp"

namespace workloads {

/// A perceptron with one hidden layer of relu, and the cross entropy of its outputs; labels i % outputs. Weights are [out, in], w1 from Input::b and w2 from
/// Input::c, times `scale`; biases begin at 0; inputs from Input::a.
struct Step {
  std::size_t batch, inputs, hidden, outputs;
  float scale;
};
inline constexpr Step small_step{64, 100, 50, 10, 0.05f}, wide_step{128, 784, 512, 10, 0.01f};
/// Adam as PyTorch has it: betas 0.9 and 0.999, eps 1e-8.
inline constexpr double learning_rate = 1e-3;
/// How many steps are made before the loss is compared.
inline constexpr int compared_steps = 5;

/// conv2d of 16 x (3 x 3), padding 1, relu, max-pool of 2, a linear layer to 10, over 32 images of 3 x 32 x 32.
struct ImageStep {
  static constexpr std::size_t batch = 32, channels = 3, extent = 32, filters = 16, outputs = 10, features = filters * extent * extent / 4;
};
/// An encoder layer, norms behind the sums, without dropout: 64 sequences of 64 tokens of width 128, 4 heads, 512 hidden relu. Forward, and backward from
/// the gradient Input::b, by the inputs and all weights.
struct Encoder {
  static constexpr std::size_t sequences = 64, tokens = 64, width = 128, heads = 4, hidden = 512;
};

void training_small(State& state);        ///< small_step, n is the batch
void training_wide(State& state);         ///< wide_step
void training_images(State& state);       ///< ImageStep
void training_transformer(State& state);  ///< Encoder
/// Epochs of a perceptron 64-128-10 on the digits of examples/data, batches of 64, Adam; n threads make the batches. The counter `waiting` is the share of the
/// time, in percent, that steps wait for their batch.
void training_digits(State& state);
/// n tensors of a safetensors file, 100 of a megabyte or 500 of 16 KB, into tensors that exist. The limit is `read` of such a file into memory that exists.
void loading(State& state);
inline std::size_t loaded_bytes(std::int64_t tensors) { return static_cast<std::size_t>(tensors) * (tensors == 500 ? std::size_t{1} << 14 : std::size_t{1} << 20); }
/// A name in the temporary folder.
std::string loaded_path();

/// Compares the loss of step number compared_steps (from 0) with one computed in double precision.
void verify_training(State& state, Step const& step, double loss);
/// Compares the loss of the first step, and that it becomes less.
void verify_images(State& state, double first_loss, double last_loss);
/// Compares the outputs of the first sequence with ones computed in double precision.
void verify_transformer(State& state, const float* output);

void add_training();

}  // namespace workloads
