// A user's program, outside of situ's own build.
#include <situ/situ.hpp>

int main() {
  const situ::Tensor<float> a{{1, 2}, {3, 4}};
  const situ::Tensor<float> b = a * 2 + 1;
  const bool right = b.to_vector() == std::vector<float>{3, 5, 7, 9};
  return right ? 0 : 1;
}
