// error: map_takes_a_function_of_the_operands_elements_that_returns_an_element<int>
#include <situ/tensor.hpp>

namespace {
struct Twice {
  SITU_HOST_DEVICE float operator()(float x) const { return 2 * x; }
};
}  // namespace

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::map(3, x);
#else
  (void)situ::map(Twice{}, x);
#endif
}
