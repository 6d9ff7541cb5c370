// error: the_parts_of_a_list_have_one_type__give_the_axis_first_and_then_the_parts<.*Tensor<.*
#include <situ/ops.hpp>

void misuse(situ::Tensor<float> const& a) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::stack({a, a * 2});
#else
  (void)situ::stack(0, a, a * 2), (void)situ::stack({a, a});
#endif
}
