// error: an_index_is_an_integer<float>
#include <situ/ops/index.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::gather(x, 0, x);
#else
  (void)situ::gather(x, 0, situ::cast<int64_t>(x)), (void)situ::one_hot(situ::cast<int64_t>(x), 3);
#endif
}
