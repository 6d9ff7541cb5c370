// error: to_mdspan_is_given_the_type_of_an_mdspan__as_in_to_mdspan_of_std_mdspan<float>
#include <situ/interop/mdspan.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::interop::to_mdspan<float>(x);
#else
  (void)x.data();
#endif
}
