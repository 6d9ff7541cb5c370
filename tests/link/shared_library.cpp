#include <situ/situ.hpp>

__attribute__((visibility("default"))) std::vector<float> drawn_by_library() { return situ::rand({4}).to_vector(); }

__attribute__((visibility("default"))) void allocate_in_library() {
  std::vector<situ::Tensor<float>> held;
  for (int k = 0; k < 40; ++k) held.push_back(situ::empty({15000}));
}
