// error: SITU_MODULE[(]weight[)] does not list all data members of this struct
// in-header
#include <situ/nn/module.hpp>

struct Net {
  situ::Variable<float> weight, bias;
#ifdef SITU_EXPECT_ERROR
  SITU_MODULE(weight)
#else
  SITU_MODULE(weight, bias)
#endif
};

void misuse(Net& net) { situ::zero_grad(net); }
