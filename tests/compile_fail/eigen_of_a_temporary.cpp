// error: a_view_is_made_of_a_Tensor_with_a_name__which_keeps_its_elements<
#include <situ/interop/eigen.hpp>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::interop::to_eigen(situ::eval(x + 1));
#else
  situ::Tensor<float> named = x + 1;
  (void)named;
#endif
}
