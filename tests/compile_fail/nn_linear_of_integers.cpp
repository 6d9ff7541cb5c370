// error: only float, double, float16 and bfloat16 have gradients; keep other elements in a Tensor
// in-header
#include <situ/nn/linear.hpp>

#ifdef SITU_EXPECT_ERROR
situ::nn::Linear<int> layer{2, 3};
#else
situ::nn::Linear<double> layer{2, 3};
#endif
