// error: a_tensor_is_no_truth__use_item_of_one_element_or_any_or_all_or_equal<
#include <situ/ops/compare.hpp>
#include <situ/ops/reduce.hpp>

int misuse(situ::Tensor<float>& x, situ::Tensor<float>& y) {
#ifdef SITU_EXPECT_ERROR
  if (sum(x) > 5.f) return 1;
#else
  if ((sum(x) > 5.f).item() || any(x > y).item() || equal(x, y)) return 1;
#endif
  return 0;
}
