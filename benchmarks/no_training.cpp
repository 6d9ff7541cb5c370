/// For the libraries without training.
#include "training.hpp"

namespace workloads {
void training_small(State& state) { lacking(state); }
void training_wide(State& state) { lacking(state); }
void training_images(State& state) { lacking(state); }
void training_transformer(State& state) { lacking(state); }
void training_digits(State& state) { lacking(state); }
void loading(State& state) { lacking(state); }
}  // namespace workloads
