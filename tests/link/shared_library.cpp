#include <situ/situ.hpp>

__attribute__((visibility("default"))) std::vector<float> drawn_by_library() { return situ::rand({4}).to_vector(); }
