// error: a_formula_keeps_its_type__name_a_Tensor_or_Variable_to_write_results_to<float>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  auto h = exp(x);
#else
  situ::Tensor<float> h = exp(x);
#endif
  for (int k = 0; k < 3; ++k) h = h + exp(h);
}
