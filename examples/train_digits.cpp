// Handwritten digits, told apart by a perceptron with one hidden layer, 64-128-10, that Adam trains.
//
//   ./examples/run train_digits [FOLDER]         the folder that holds digits_images.npy and digits_labels.npy
//
// Trains on the images with i % 5 != 4, five times from other starting values, and is tested on the other 359; the median of the five is
// the last line. On the GPU where this build and this machine have one, else on the CPU. Leaves train_digits.safetensors, everything that
// the last run needs to go on, and its learning curve, train_digits.svg, in the present folder.

#include <situ/situ.hpp>

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

using namespace situ;

template <class Device>
struct Net {
  nn::Linear<float, Device> fc1{64, 128}, fc2{128, 10};
  auto forward(auto const& x) const { return fc2(relu(fc1(x))); }
  SITU_MODULE(fc1, fc2)
};

/// The folder of the digits: the one that is named; else data here, in examples, or beside this program.
std::string data_folder(int argc, char** argv) {
  if (argc > 1) return std::string(argv[1]) + "/";
  if (::access("data/digits_images.npy", R_OK) == 0) return "data/";
  if (::access("examples/data/digits_images.npy", R_OK) == 0) return "examples/data/";
  std::string const program = argv[0];
  return program.substr(0, program.rfind('/') + 1) + "data/";
}

int main(int argc, char** argv) try {
  std::string const folder = data_folder(argc, argv);
  Tensor<float> const images = io::load_npy<uint8_t>(folder + "digits_images.npy").reshape({-1, 64}) / 16;
  auto const labels = io::load_npy<uint8_t>(folder + "digits_labels.npy").to<int64_t>();
  auto const is_test = eval(arange<int64_t>(images.size(0)) % 5 == 4);
  auto const part = [&](Tensor<bool> const& mask) {
    auto const rows = nonzero(mask).flatten();
    return data::TensorDataset{index_select(images, 0, rows), index_select(labels, 0, rows)};
  };
  auto const training = part(!is_test), test = part(is_test);

  double reached[5] = {};  // in their order: the median is in the middle
  for (uint64_t seed = 0; seed < 5; ++seed) {
    manual_seed(seed);
    Net<Cpu> net;
    learning::Trainer<Cuda<0>, Cpu> const trainer{{.epochs = 60,
                                                .batch_size = 64,
                                                .seed = seed,
                                                .checkpoint = "train_digits.safetensors",
                                                .svg = "train_digits.svg",
                                                .progress = seed == 0 ? stdout : nullptr}};
    if (seed == 0) std::printf("%s\ntrained on %s\n", summary(net).c_str(), to_string(trainer.device()).c_str());
    auto const history = trainer.fit(
        net, training, test, [](auto const& scores, auto const& digits) { return cross_entropy(scores, digits); },
        [](auto& model) { return optim::Adam{model, {.lr = 1e-3}}; }, learning::accuracy);
    auto const& last = history.epochs.back();
    std::printf("seed %d: loss %.4f, held-out accuracy %.4f\n", static_cast<int>(seed), last.loss, last.metric);
    reached[seed] = last.metric;
    for (uint64_t k = seed; k > 0 && reached[k] < reached[k - 1]; --k) std::swap(reached[k], reached[k - 1]);
  }
  std::printf("held-out accuracy: %.4f\n", reached[2]);
  return reached[2] >= 0.96 ? 0 : 1;
} catch (Error const& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
