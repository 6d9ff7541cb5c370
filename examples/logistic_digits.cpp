// Handwritten digits, told apart by logistic regression with plain gradient descent.
//
//   ./examples/run logistic_digits [FOLDER]      the folder that holds digits_images.npy and digits_labels.npy
//
// Learns 64 x 10 weights and 10 biases on the images with i % 5 != 4, and is tested on the other 359. On the GPU where this build
// and this machine have one, else on the CPU.

#include <situ/situ.hpp>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>

using namespace situ;

std::string data_folder(int argc, char** argv) {
  if (argc > 1) return std::string(argv[1]) + "/";
  for (char const* place : {"examples/data/", "data/"}) {
    if (std::filesystem::exists(std::string(place) + "digits_images.npy")) return place;
  }
  return (std::filesystem::path(argv[0]).parent_path() / "data/").string();
}

template <class Device>
double accuracy(Tensor<float, Device> const& scores, Tensor<uint8_t, Device> const& labels) {
  return mean(cast<float>(argmax(scores, 1) == labels)).item();
}

template <class Device>
double run(Tensor<uint8_t> const& images, Tensor<uint8_t> const& labels, Device device) {
  auto const n = images.size(0);
  Tensor<float, Device> const x = images.reshape({n, -1}).to(device) / 16;
  auto const y = labels.to(device);

  // Every fifth image is held out; a Tensor in a formula is a constant.
  auto const test = nonzero(arange<int64_t>(n, device) % 5 == 4).flatten();
  auto const train = nonzero(arange<int64_t>(n, device) % 5 != 4).flatten();
  auto const x_train = index_select(x, 0, train), x_test = index_select(x, 0, test);
  auto const y_train = index_select(y, 0, train), y_test = index_select(y, 0, test);
  auto const truth = eval(y_train.unsqueeze(1) == arange<uint8_t>(10, device));

  Variable weight{zeros({64, 10}, device)};
  Variable bias{zeros({10}, device)};
  float const rate = 1.f;
  for (int step = 0; step <= 400; ++step) {
    // The cross entropy of softmax(scores): log Σ exp(scores) minus the score of the right digit.
    Variable scores = matmul(x_train, weight) + bias;
    Variable loss = mean(logsumexp(scores, 1) - sum(where(truth, scores, 0), 1));
    loss.backward();
    {
      no_grad guard;  // a step is not part of the formula
      weight -= rate * weight.grad();
      bias -= rate * bias.grad();
    }
    weight.zero_grad();
    bias.zero_grad();
    if (step % 100 == 0) {
      std::printf("step %3d: loss %.4f, %.4f of the training images are right\n", step, static_cast<double>(loss.item()),
                  accuracy(scores.value(), y_train));
    }
  }
  double const held_out = accuracy(eval(matmul(x_test, weight.value()) + bias.value()), y_test);
  std::printf("held-out accuracy: %.4f (%lld images)\n", held_out, static_cast<long long>(y_test.size()));
  return held_out;
}

int main(int argc, char** argv) try {
  std::string const folder = data_folder(argc, argv);
  auto const images = io::load_npy<uint8_t>(folder + "digits_images.npy");
  auto const labels = io::load_npy<uint8_t>(folder + "digits_labels.npy");
  AnyDevice const device = try_gpu(0);
  std::cout << "digits " << images.shape() << " on " << device << "\n" << std::flush;
  double held_out = 0;
  visit(device, [&](auto d) { held_out = run(images, labels, d); });
  return held_out > 0.9 ? 0 : 1;
} catch (Error const& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
