// error: operands_of_einsum_stand_one_by_one__without_braces<
#include <situ/ops/einsum.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::einsum("ij,jk->ik", {x, x});
#else
  (void)situ::einsum("ij,jk->ik", x, x);
#endif
}
