// One network, several processes: each computes its share of every batch, and all take the same steps.
//
//   ./examples/run distributed                       two processes
//   SITU_PROCESSES=4 ./examples/run distributed      four
//   mpirun -n 4 --bind-to none build/examples/examples/distributed
//
// On a GPU for each process where this build has SITU_WITH_NCCL and the machine has them, else on the CPU. The program fails if the processes do not end with the same weights, bit for bit,
// or have learned nothing.

#include <situ/situ.hpp>

#include <cstdio>

using namespace situ;

template <class Device>
struct Net {
  nn::Linear<float, Device> fc1{64, 128}, fc2{128, 10};
  auto forward(auto const& x) const { return fc2(relu(fc1(x))); }
  SITU_MODULE(fc1, fc2)
};

template <class Device>
int train() {
  bool const first = distributed::rank() == 0;
  if (first) std::printf("%d process%s, each on %s\n", distributed::world_size(), distributed::world_size() == 1 ? "" : "es", to_string(AnyDevice(Device{})).c_str());
  Tensor<float> const images = io::load_npy<uint8_t>("examples/data/digits_images.npy").reshape({-1, 64}) / 16;
  data::TensorDataset const digits{images, io::load_npy<uint8_t>("examples/data/digits_labels.npy").to<int64_t>()};

  Net<Device> net = to(Net<Cpu>(), Device{});   // random weights, other ones in every process
  DistributedDataParallel parallel{net};        // those of the first process, in all of them
  optim::SGD optimizer{parallel, {.lr = 0.1, .momentum = 0.9}};
  data::DataLoader batches{distributed::share(digits), {.batch_size = 256 / distributed::world_size(), .shuffle = true, .seed = 1}, Device{}};

  for (int epoch = 0; epoch < 20; ++epoch) {
    double sum = 0;
    for (auto const& [x, labels] : batches) {
      optimizer.zero_grad();
      Variable loss = cross_entropy(parallel(x), labels);
      loss.backward();                          // gradients: the averages over all processes
      optimizer.step();
      sum += loss.item();
    }
    Tensor<double> mean{sum / static_cast<double>(batches.size())};
    distributed::all_reduce(mean, distributed::reduce_op::avg);
    if (first && epoch % 5 == 4) std::printf("epoch %2d: loss %.4f\n", epoch + 1, mean.item(0));
  }

  double difference = 0;
  for (auto const& weight : parameters(net)) {
    Tensor<float, Device> other = weight.value().clone();
    distributed::broadcast(other);
    difference += max(abs(other - weight.value())).item();
  }
  no_grad const guard;
  double const accuracy = mean(cast<float>(argmax(net(images.to(Device{})), 1).cpu() == io::load_npy<uint8_t>("examples/data/digits_labels.npy").to<int64_t>())).item();
  if (first) std::printf("accuracy %.3f; the weights of the processes differ by %g\n", accuracy, difference);
  return difference == 0 && accuracy > 0.95 ? 0 : 1;
}

int main() {
#if defined(SITU_WITH_CUDA) && defined(SITU_WITH_NCCL)
  distributed::use_own_gpu();
  Tensor<int64_t> gpus{gpu::device_count() > 0 ? int64_t{1} : int64_t{0}};
  distributed::all_reduce(gpus, distributed::reduce_op::min);  // all, or none
  if (gpus.item(0) > 0) return train<Cuda<0>>();
#endif
  return train<Cpu>();
}
