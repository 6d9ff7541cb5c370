// error: a_number_is_not_a_tensor__use_assign_to_write_it_or_full_to_make_one<int>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& a) {
#ifdef SITU_EXPECT_ERROR
  a = 5;
#else
  a.assign(5), a[0] = 5, a = {5};
#endif
}
