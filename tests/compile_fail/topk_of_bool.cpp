// error: topk_takes_the_largest__or_the_tag_smallest_for_the_others<bool>
#include <situ/ops/sort.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::topk(x, 3, 1, true);
#else
  (void)situ::topk(x, 3, 1), (void)situ::topk(x, 3, 1, situ::smallest);
#endif
}
