// Principal components of handwritten digits, by an eigendecomposition of their covariance.
//
//   ./examples/run pca_digits [COMPONENTS [IMAGE]]       20 components and image 3 unless told; run from the repository's root
//
// Prints how much of the variance the components explain, and one digit beside what the first components make of it, on the
// GPU where this build and this machine have one, else on the CPU.

#include <situ/situ.hpp>

#include <situ/ops/linalg.hpp>
#include <situ/ops/matmul.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

using namespace situ;

// The file with the scans, as seen from the usual places.
std::string images_file(char const* program) {
  for (std::filesystem::path const& place : {std::filesystem::path("examples/data"), std::filesystem::path("data"),
                                             std::filesystem::path(program).parent_path() / "data"}) {
    if (std::filesystem::exists(place / "digits_images.npy")) return (place / "digits_images.npy").string();
  }
  throw IoError("pca_digits: examples/data/digits_images.npy is not here; run from the repository's root");
}

// A mean and directions: components [k, pixels] are orthonormal rows, the directions of the greatest variance first.
template <class Device>
struct Pca {
  Tensor<double, Device> mean, components, variances;
};

// Of the samples in the rows of x.
template <class Device>
Pca<Device> principal_components(Tensor<double, Device> const& x) {
  auto const mean_of_pixels = mean(x, 0);
  auto const centred = eval(x - mean_of_pixels);
  auto const covariance = matmul(centred.t(), centred) / static_cast<double>(x.size(0) - 1);
  auto const [eigenvalues, eigenvectors] = eigh(covariance);  // rising, one eigenvector in each column
  return {mean_of_pixels, eigenvectors.t().flip(0), eigenvalues.flip(0)};
}

// Dark where the pen was: pixels are 0 to 16.
std::string shades(Tensor<double> const& image, int64_t row) {
  constexpr char const* ramp = " .:-=+*#%@";
  std::string line;
  for (int64_t j = 0; j < image.size(1); ++j) {
    double const level = image(row, j) / 16 * 9 + 0.5;
    char const shade = ramp[level < 0 ? 0 : level > 9 ? 9 : static_cast<int>(level)];
    line += shade, line += shade;
  }
  return line;
}

template <class Device>
void run(Tensor<uint8_t> const& images, int64_t count, int64_t chosen, Device device) {
  int64_t const n = images.size(0);
  Tensor<double, Device> const x = images.reshape({n, -1}).to(device);  // bytes cross; they become numbers there
  Pca<Device> const pca = principal_components(x);

  Tensor<double> const explained = Tensor<double, Device>(pca.variances / sum(pca.variances)).cpu();
  std::printf("component   variance   explained   together\n");
  double together = 0;
  for (int64_t k = 0; k < count; ++k) {
    together += explained(k);
    std::printf("%9lld %10.4f %10.4f%% %9.4f%%\n", static_cast<long long>(k + 1), pca.variances.item(k), 100 * explained(k), 100 * together);
  }

  // Every image as `count` numbers, and back.
  auto const components = pca.components.slice(0, 0, count);
  auto const scores = matmul(x - pca.mean, components.t());
  Tensor<double, Device> const restored = matmul(scores, components) + pca.mean;

  Tensor<double> const original = x.select(0, chosen).cpu().reshape({8, 8}), picture = restored.select(0, chosen).cpu().reshape({8, 8});
  std::printf("\nimage %lld: 64 pixels, and what %lld numbers keep of them\n\n", static_cast<long long>(chosen), static_cast<long long>(count));
  for (int64_t row = 0; row < 8; ++row) std::printf("    |%s|      |%s|\n", shades(original, row).c_str(), shades(picture, row).c_str());

  double const of_this = norm(picture - original).item() / norm(original).item();
  double const of_all = mean(square(restored - x)).item();
  std::printf("\nits relative error: %.4f\nmean squared error of all images: %.4f (of pixels from 0 to 16)\n", of_this, of_all);
  // What is not explained is what is lost: both are sums over the components that were left out.
  double const lost = sum(pca.variances.slice(0, count, end())).item() * static_cast<double>(n - 1) / static_cast<double>(n) / 64;
  std::printf("as the variances foretell:        %.4f\n", lost);
}

int main(int argc, char** argv) try {
  auto const images = io::load_npy<uint8_t>(images_file(argv[0]));
  int64_t const count = argc > 1 ? std::atoll(argv[1]) : 20, chosen = argc > 2 ? std::atoll(argv[2]) : 3;
  if (count < 1 || count > 64 || chosen < 0 || chosen >= images.size(0)) {
    std::fprintf(stderr, "usage: pca_digits [COMPONENTS, 1 to 64 [IMAGE, 0 to %lld]]\n", static_cast<long long>(images.size(0) - 1));
    return 2;
  }
  AnyDevice const device = try_gpu(0);
  std::cout << "digits " << images.shape() << " on " << device << "\n\n" << std::flush;
  visit(device, [&](auto d) { run(images, count, chosen, d); });
} catch (std::exception const& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
