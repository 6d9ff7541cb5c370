// error: a_formula_keeps_its_type__name_a_Tensor_or_Variable_to_write_results_to<float>
#include <situ/autograd.hpp>

void misuse(situ::Variable<float>& x) {
#ifdef SITU_EXPECT_ERROR
  auto h = -x;
#else
  situ::Variable<float> h = -x;
#endif
  h += 1;
}
