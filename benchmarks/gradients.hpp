/// The workloads with gradients: forward and backward, with the gradients' memory freed each time. `gradients.cpp` registers and checks
/// them; situ, libtorch and the hand-written limit implement them, each in a file of its own.
#pragma once

#include "workloads.hpp"

namespace workloads {

/// Shapes of the rows and of the perceptron.
inline constexpr std::size_t row_length = 100;
struct Perceptron {
  static constexpr std::size_t batch = 64, inputs = 100, hidden = 50, outputs = 10;
};

/// Times `step`, after the memory of its results has been touched.
template <class F>
void repeat(State& state, F step) {
  for (int k = 0; k < 3; ++k) step();
  for (auto _ : state) step();
}

void gradient_tanh(State& state);           ///< of sum(tanh(x*w + b) * y) by x, w, b and y, n elements each
void gradient_gelu(State& state);           ///< of sum(gelu(x)) by x
void gradient_layer_norm(State& state);     ///< of sum(layer_norm(x) * y) by x; n/100 rows of 100, y a constant
void gradient_cross_entropy(State& state);  ///< of the mean cross entropy of softmax(x) by x; n/100 rows of 100, labels i % 100
void gradient_perceptron(State& state);     ///< of the mean cross entropy of x -> 50 relu -> 50 relu -> 10 by all weights and biases

/// Compares gradients with formulas evaluated in double precision.
void verify_gradient_tanh(State& state, const float* by_x, const float* by_y);
void verify_gradient_gelu(State& state, const float* by_x);
void verify_gradient_layer_norm(State& state, const float* by_x);
void verify_gradient_cross_entropy(State& state, const float* by_x);
void verify_gradient_perceptron(State& state, const float* by_first_bias, const float* by_last_bias);

void add_gradients();

}  // namespace workloads
