// Handwritten digits, told apart by a small convolutional network that Adam trains, with a learning rate that falls along a cosine.
//
//   ./examples/run train_digits_cnn [FOLDER]         the folder that holds digits_images.npy and digits_labels.npy
//
// Trains on the images with i % 5 != 4, five times from other starting values, and is tested on the other 359; the median of the five is
// the last line. On the GPU where this build and this machine have one, else on the CPU. Leaves train_digits_cnn.safetensors, everything that
// the last run needs to go on, and its learning curve, train_digits_cnn.svg, in the present folder.

#include <situ/situ.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

using namespace situ;

template <class Device>
struct Net {
  nn::Conv2d<float, Device> conv1{1, 16, 3, {.padding = 1}}, conv2{16, 32, 3, {.padding = 1}};
  nn::MaxPool2d pool{2};
  nn::Linear<float, Device> fc1{512, 64}, fc2{64, 10};
  auto forward(auto const& x) const {
    Variable maps = pool(relu(conv2(relu(conv1(x)))));
    return fc2(relu(fc1(maps.reshape({maps.size(0), -1}))));
  }
  SITU_MODULE(conv1, conv2, pool, fc1, fc2)
};

std::string data_folder(int argc, char** argv) {
  if (argc > 1) return std::string(argv[1]) + "/";
  for (char const* place : {"data/", "examples/data/"}) {
    if (std::filesystem::exists(std::string(place) + "digits_images.npy")) return place;
  }
  return (std::filesystem::path(argv[0]).parent_path() / "data/").string();
}

int main(int argc, char** argv) try {
  std::string const folder = data_folder(argc, argv);
  Tensor<float> const images = io::load_npy<uint8_t>(folder + "digits_images.npy").unsqueeze(1) / 16;
  auto const labels = io::load_npy<uint8_t>(folder + "digits_labels.npy").to<int64_t>();
  auto const is_test = eval(arange<int64_t>(images.size(0)) % 5 == 4);
  auto const part = [&](auto const& mask) {
    auto const rows = nonzero(mask).flatten();
    return data::TensorDataset{index_select(images, 0, rows), index_select(labels, 0, rows)};
  };
  auto const training = part(!is_test), test = part(is_test);

  int64_t const epochs = 30;
  std::vector<double> reached;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    manual_seed(seed);
    Net<Cpu> net;
    learning::Trainer<Cuda<0>, Cpu> const trainer{{.epochs = epochs,
                                                .batch_size = 64,
                                                .seed = seed,
                                                .checkpoint = "train_digits_cnn.safetensors",
                                                .svg = "train_digits_cnn.svg",
                                                .progress = seed == 0 ? stdout : nullptr}};
    if (seed == 0) std::cout << net << "\ntrained on " << trainer.device() << "\n" << std::flush;
    auto const history = trainer.fit(
        net, training, test, [](auto const& scores, auto const& digits) { return cross_entropy(scores, digits); },
        [](auto& model) { return optim::Adam{model, {.lr = 2e-3}}; }, learning::accuracy,
        [](auto& optimizer, int64_t) { return optim::CosineAnnealingLR{optimizer, {.T_max = epochs}}; });
    reached.push_back(history.epochs.back().metric);
    std::printf("seed %d: loss %.4f, held-out accuracy %.4f\n", static_cast<int>(seed), history.epochs.back().loss, reached.back());
  }
  std::sort(reached.begin(), reached.end());
  double const median = reached[reached.size() / 2];
  std::printf("held-out accuracy: %.4f\n", median);
  return median >= 0.975 ? 0 : 1;
} catch (Error const& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
