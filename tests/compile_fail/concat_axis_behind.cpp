// error: the_axis_stands_first__as_in_concat_of_1_and_a_and_b__or_behind_parts_in_braces<int>
#include <situ/ops/concat.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::concat(x, x, 1);
#else
  (void)situ::concat({x, x}, 1), (void)situ::concat(1, x, x), (void)situ::stack(x, x, x);
#endif
}
