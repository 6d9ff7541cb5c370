/// For the libraries without gradients.
#include "gradients.hpp"

namespace workloads {
void gradient_tanh(State& state) { lacking(state); }
void gradient_gelu(State& state) { lacking(state); }
void gradient_layer_norm(State& state) { lacking(state); }
void gradient_cross_entropy(State& state) { lacking(state); }
void gradient_perceptron(State& state) { lacking(state); }
}  // namespace workloads
