// Handwritten digits, told apart by the nearest class mean.
//
//   ./examples/run digits_centroids [FOLDER]      the folder that holds digits_images.npy and digits_labels.npy
//
// Learns ten means on the images with i % 5 != 4 and classifies the other 359 in two launches, on the GPU where this
// build and this machine have one, else on the CPU. No loop over images, classes or pixels is written here.

#include <situ/situ.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

using namespace situ;

// The folder with the scans: the one that was named, or examples/data as seen from the usual places.
std::string data_folder(int argc, char** argv) {
  std::vector<std::filesystem::path> places;
  if (argc > 1) {
    places = {argv[1]};
  } else {
    places = {std::filesystem::path(argv[0]).parent_path() / "data", "examples/data", "data"};
#if defined(SITU_EXAMPLES_DATA)
    places.emplace_back(SITU_EXAMPLES_DATA);
#endif
  }
  for (auto const& place : places) {
    if (std::filesystem::exists(place / "digits_images.npy")) return place.string() + "/";
  }
  throw IoError("digits_centroids: digits_images.npy is not in " + places.front().string() +
                "; name the folder that holds it: digits_centroids FOLDER");
}

// The nearest class mean of every image: [n, 64] and [10, 64] give [n].
//
// The formula has n x 10 x 64 elements and none of them is stored: the sum reads it where it is computed.
template <class Device>
Tensor<int64_t, Device> classify(Tensor<float, Device> const& x, Tensor<float, Device> const& means) {
  return argmin(sum(square(x.unsqueeze(1) - means.unsqueeze(0)), 2), 1);
}

// The same with every step stored, as a library without fusion does it.
template <class Device>
Tensor<int64_t, Device> classify_unfused(Tensor<float, Device> const& x, Tensor<float, Device> const& means) {
  auto const difference = eval(x.unsqueeze(1) - means.unsqueeze(0));
  auto const squared = eval(square(difference));
  return argmin(sum(squared, 2), 1);
}

// Milliseconds that f takes, with the device's work: the median of 31 runs after a first one.
template <class Device, class F>
double milliseconds(Device device, F f) {
  std::vector<double> times;
  for (int run = 0; run < 32; ++run) {
    auto const start = std::chrono::steady_clock::now();
    f();
    synchronize(device);  // launches are only enqueued on a GPU
    std::chrono::duration<double, std::milli> const elapsed = std::chrono::steady_clock::now() - start;
    if (run > 0) times.push_back(elapsed.count());
  }
  std::nth_element(times.begin(), times.begin() + 15, times.end());
  return times[15];
}

template <class Device>
void run(Tensor<uint8_t> const& images, Tensor<uint8_t> const& labels, Device device) {
  auto const n = images.size(0);

  // What crosses to the device is bytes; they become floats there. Where the device is Cpu, nothing is copied.
  auto const y = labels.to(device);
  Tensor<float, Device> const x = images.reshape({n, -1}).to(device) / 16;

  // belongs[i, k]: image i shows digit k and may be learned from.
  auto const train = eval(arange<int64_t>(n, device) % 5 != 4);
  auto const belongs = eval(y.unsqueeze(1) == arange<uint8_t>(10, device) && train.unsqueeze(1));

  // The mean of each digit's images, in one pass over n x 10 x 64 that are never stored.
  Tensor<float, Device> const means =
      sum(where(belongs.unsqueeze(2), x.unsqueeze(1), 0), 0) / sum(belongs, 0).unsqueeze(1);

  // Views: every fifth image, from the fourth on.
  auto const held_out = x.slice(0, 4, end(), 5);
  auto const truth = y.slice(0, 4, end(), 5);

  int64_t const right = sum(classify(held_out, means) == truth).item();
  int64_t const right_in_training = sum(classify(x, means) == y && train).item();
  bool const same = equal(classify(held_out, means), classify_unfused(held_out, means));

  std::cout << "What sum() reads, were it a kernel of its own:\n"
            << explain(square(held_out.unsqueeze(1) - means.unsqueeze(0)))
            << "Fused into sum(), it writes " << held_out.size(0) * 10 * static_cast<int64_t>(sizeof(float))
            << " bytes instead of out's.\n\n";

  double const fused = milliseconds(device, [&] { return classify(held_out, means); });
  double const unfused = milliseconds(device, [&] { return classify_unfused(held_out, means); });
  std::printf("fused:   %.3f ms, 2 launches\n", fused);
  std::printf("unfused: %.3f ms, 4 launches and two temporaries of 359 x 10 x 64%s\n\n", unfused,
              same ? "; the same answers" : "; OTHER ANSWERS");

  int64_t const in_training = sum(train).item(), tested = truth.size();
  std::printf("training accuracy: %.4f (%lld of %lld)\n",
              static_cast<double>(right_in_training) / static_cast<double>(in_training),
              static_cast<long long>(right_in_training), static_cast<long long>(in_training));
  std::printf("held-out accuracy: %.4f (%lld of %lld)\n", static_cast<double>(right) / static_cast<double>(tested),
              static_cast<long long>(right), static_cast<long long>(tested));
}

int main(int argc, char** argv) try {
  std::string const folder = data_folder(argc, argv);
  auto const images = io::load_npy<uint8_t>(folder + "digits_images.npy");
  auto const labels = io::load_npy<uint8_t>(folder + "digits_labels.npy");

  // Which device there is turns out when the program runs; its type is fixed again inside of visit.
  AnyDevice const device = try_gpu(0);
  std::cout << "digits " << images.shape() << " on " << device << "\n\n" << std::flush;
  visit(device, [&](auto d) { run(images, labels, d); });
} catch (std::exception const& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
