// error: options_are_named__as_in_SGD_of_net_and_lr_in_braces<double>
#include <situ/nn.hpp>
#include <situ/optim.hpp>

void misuse(situ::nn::Linear<float>& net) {
#ifdef SITU_EXPECT_ERROR
  situ::optim::SGD optimizer{net, 0.1};
#else
  situ::optim::SGD optimizer{net, {.lr = 0.1}};
#endif
  (void)optimizer;
}
