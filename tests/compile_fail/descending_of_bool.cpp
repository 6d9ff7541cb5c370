// error: descending_is_a_tag__as_in_sort_of_x_and_0_and_descending<bool>
#include <situ/ops/sort.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::sort(x, true);
#else
  (void)situ::sort(x, situ::descending), (void)situ::argsort(x, 0, situ::descending);
#endif
}
