// error: (no (matching|viable)|conversion from|no suitable).*Pending|Pending.*(no (matching|viable)|conversion)
#include <situ/tensor.hpp>

float misuse(situ::Pending<situ::Tensor<float, situ::Pinned>>& h) {
#ifdef SITU_EXPECT_ERROR
  situ::Tensor<float, situ::Pinned> const x = h;
#else
  situ::Tensor<float, situ::Pinned> const x = h.get();
#endif
  return x(0);
}
