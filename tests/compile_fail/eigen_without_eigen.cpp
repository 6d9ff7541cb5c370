// error: to_eigen_needs_Eigen__include_Eigen_Core<
#include <situ/interop/eigen.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::interop::to_eigen(x);
#else
  (void)x.data();
#endif
}
