// error: a_tensor_is_no_truth__use_item_of_one_element_or_any_or_all_or_equal<
#include <situ/autograd.hpp>

int misuse(situ::Variable<float>& x) {
#ifdef SITU_EXPECT_ERROR
  if (x) return 1;
#else
  if (x.item() > 0) return 1;
#endif
  return 0;
}
