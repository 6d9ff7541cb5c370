// error: this_function_has_no_derivative
// in-header
#include <situ/autograd/backward.hpp>

struct Cube {
  SITU_HOST_DEVICE static float value(float x) { return x * x * x; }
#ifndef SITU_EXPECT_ERROR
  SITU_HOST_DEVICE static float derivative(float x, float) { return 3 * x * x; }
#endif
};

void misuse(situ::Variable<float>& v) {
  situ::Variable y = map(Cube{}, v);
  (void)y;
}
