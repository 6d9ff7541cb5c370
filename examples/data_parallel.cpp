// One network, two devices: each computes a half of every batch, forward and backward.
//
//   ./examples/run data_parallel
//
// On cuda:0 and cuda:1 where this build and this machine have them, else on two emulated devices, which are asynchronous and have memory of their own as GPUs
// do. The same network is trained on the first device alone, on the same batches: the two end at the same loss, and the program fails if they do not.

#include <situ/situ.hpp>

#include <cmath>
#include <cstdio>
#include <iostream>

using namespace situ;

template <class Device>
struct Net {
  nn::Linear<float, Device> fc1{64, 128}, fc2{128, 10};
  auto forward(auto const& x) const { return fc2(relu(fc1(x))); }
  SITU_MODULE(fc1, fc2)
};

template <class First, class Second>
int train() {
  std::printf("trained on %s and %s\n", to_string(AnyDevice(First{})).c_str(), to_string(AnyDevice(Second{})).c_str());
  Tensor<float> const images = io::load_npy<uint8_t>("examples/data/digits_images.npy").reshape({-1, 64}) / 16;
  data::TensorDataset const digits{images, io::load_npy<uint8_t>("examples/data/digits_labels.npy").to<int64_t>()};

  manual_seed(0);
  Net<First> net = to(Net<Cpu>(), First{}), alone = clone(net);
  DataParallel<Net, First, Second> parallel{net};  // shares net's parameters, which stay on the first device
  optim::SGD both{parallel, {.lr = 0.1, .momentum = 0.9}}, one{alone, {.lr = 0.1, .momentum = 0.9}};

  data::DataLoader batches{digits, {.batch_size = 256, .shuffle = true, .seed = 1}, First{}};
  float loss_of_both = 0, loss_of_one = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    double sum_of_both = 0, sum_of_one = 0;
    for (auto const& [x, labels] : batches) {
      both.zero_grad();
      Variable loss = cross_entropy(parallel(x), labels);  // the only line that differs
      loss.backward();
      both.step();

      one.zero_grad();
      Variable same = cross_entropy(alone(x), labels);
      same.backward();
      one.step();
      sum_of_both += loss.item(), sum_of_one += same.item();
    }
    loss_of_both = static_cast<float>(sum_of_both / static_cast<double>(batches.size()));
    loss_of_one = static_cast<float>(sum_of_one / static_cast<double>(batches.size()));
    if (epoch % 5 == 4) std::printf("epoch %2d: loss %.5f, on one device %.5f\n", epoch + 1, static_cast<double>(loss_of_both), static_cast<double>(loss_of_one));
  }

  Variable<float, First> x(images.slice(0, 0, 256).to(First{}));
  TransferLog copies;
  sum(parallel(x)).backward();
  copies.stop();
  std::cout << "what crosses in a step:\n" << copies;
  return std::abs(loss_of_both - loss_of_one) <= 1e-3f * loss_of_one ? 0 : 1;
}

int main() {
#if defined(SITU_WITH_CUDA)
  if (gpu::device_count() >= 2) return train<Cuda<0>, Cuda<1>>();
#endif
  return train<Emulated<0>, Emulated<1>>();
}
