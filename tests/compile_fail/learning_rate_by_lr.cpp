// error: a_learning_rate_is_set_by_set_lr<double>
#include <situ/optim.hpp>

void misuse(situ::optim::SGD<float>& optimizer) {
#ifdef SITU_EXPECT_ERROR
  optimizer.lr(0.01);
#else
  optimizer.set_lr(optimizer.lr() / 2);
#endif
}
