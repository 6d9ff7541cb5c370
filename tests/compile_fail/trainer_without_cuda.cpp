// error: this_build_has_no_device_of_the_Trainer__add_Cpu_or_set_SITU_WITH_CUDA
// host-only
#include <situ/nn/linear.hpp>
#include <situ/nn/losses.hpp>
#include <situ/optim/sgd.hpp>
#include <situ/train/trainer.hpp>

void misuse(situ::nn::Linear<float>& net, situ::data::TensorDataset<situ::Tensor<float>, situ::Tensor<float>> const& samples) {
  auto const loss = [](auto const& y, auto const& target) { return situ::mse_loss(y, target); };
  auto const sgd = [](auto& model) { return situ::optim::SGD{model}; };
#ifdef SITU_EXPECT_ERROR
  situ::learning::Trainer<situ::Cuda<0>>{}.fit(net, samples, situ::learning::none, loss, sgd);
#else
  situ::learning::Trainer<situ::Cpu>{}.fit(net, samples, situ::learning::none, loss, sgd);
#endif
}
