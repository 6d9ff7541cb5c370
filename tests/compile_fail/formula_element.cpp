// error: a_formula_has_no_elements__use_item_or_eval<float>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)(x + 1)(0);
#else
  (void)(x + 1).item(0), (void)situ::eval(x + 1)(0), (void)(x + 1)(situ::all());
#endif
}
