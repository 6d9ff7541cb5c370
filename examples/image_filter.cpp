// Blur and edges of a picture, twice: as convolutions, and as fused sums of shifted slices.
//
//   ./examples/run image_filter [PICTURE [RESULT]]      binary PGM or PPM in, binary PGM out
//
// Without a picture, a sheet of the handwritten digits in examples/data is made into one first. Both ways give the same picture, up to
// the rounding of their sums; the program says by how much they differ and how long each takes.

#include <situ/situ.hpp>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace situ;

// ---- binary PGM and PPM -----------------------------------------------------------------------------------------------------------

// The next number of a header; comments reach from # to the end of their line.
int64_t header_number(std::istream& in, std::string const& path) {
  int c = in.get();
  while (c == '#' || std::isspace(c)) {
    if (c == '#') while (c != '\n' && c != EOF) c = in.get();
    c = in.get();
  }
  int64_t value = 0;
  int digits = 0;
  for (; std::isdigit(c) && digits < 10; ++digits, c = in.get()) value = 10 * value + (c - '0');
  if (digits == 0 || digits == 10 || !std::isspace(c)) throw IoError("image_filter: " + path + " has no number where one belongs in its header");
  return value;
}

// A picture as [channels, height, width] in [0, 1]: one channel for PGM, three for PPM.
Tensor<float> load_picture(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  char magic[2] = {};
  if (!in.read(magic, 2)) throw IoError("image_filter: " + path + " cannot be read");
  if (magic[0] != 'P' || (magic[1] != '5' && magic[1] != '6')) throw IoError("image_filter: " + path + " is neither a binary PGM (P5) nor a binary PPM (P6)");
  int64_t const channels = magic[1] == '5' ? 1 : 3;
  int64_t const width = header_number(in, path), height = header_number(in, path), most = header_number(in, path);
  if (width < 1 || height < 1 || width > 65536 || height > 65536) throw IoError("image_filter: " + path + " claims to be of " + std::to_string(width) + " x " + std::to_string(height) + " pixels");
  if (most < 1 || most > 255) throw IoError("image_filter: " + path + " has a largest value of " + std::to_string(most) + "; 1 to 255 are read");
  std::vector<uint8_t> bytes(static_cast<std::size_t>(channels * width * height));
  if (!in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()))) throw IoError("image_filter: " + path + " ends before its last pixel");
  Tensor<uint8_t> const pixels(bytes, {height, width, channels});
  return pixels.permute({2, 0, 1}) / static_cast<float>(most);
}

// [height, width] in [0, 1], as a binary PGM. Values beyond are clamped.
void save_picture(std::string const& path, Tensor<float> const& picture) {
  std::vector<uint8_t> const bytes = Tensor<uint8_t>(cast<uint8_t>(round(clamp(picture, 0, 1) * 255))).to_vector();
  std::ofstream out(path, std::ios::binary);
  out << "P5\n" << picture.size(1) << ' ' << picture.size(0) << "\n255\n";
  out.write(reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw IoError("image_filter: " + path + " cannot be written");
}

// ---- the same filter, twice -------------------------------------------------------------------------------------------------------

// [1, 1, 1, 5]: the binomial coefficients of order 4, which are a Gaussian curve closely enough.
Tensor<float> const bell = Tensor<float>{{{{1, 4, 6, 4, 1}}}} / 16;

// Grey, blurred, and how steep the grey is (Sobel): [h, w] gives [h - 6, w - 6].
Tensor<float> edges_by_convolution(Tensor<float> const& grey) {
  auto const blurred = conv2d(conv2d(grey.unsqueeze(0), bell), bell.transpose(2, 3));
  Tensor<float> const sobel{{{{-1, 0, 1}, {-2, 0, 2}, {-1, 0, 1}}}, {{{-1, -2, -1}, {0, 0, 0}, {1, 2, 1}}}};
  auto const slope = conv2d(blurred, sobel);  // [2, h - 6, w - 6]: along x, along y
  return hypot(slope[0], slope[1]) / 4;
}

// The part of a picture that a window's pixel (i, j) sees while the window slides over it.
auto shifted(Tensor<float> const& x, int64_t i, int64_t j, int64_t height, int64_t width) {
  return x(range(i, x.size(0) - height + 1 + i), range(j, x.size(1) - width + 1 + j));
}

// Three kernels: every formula below is one, whatever its length.
Tensor<float> edges_by_slices(Tensor<float> const& grey) {
  auto const across = [&](int64_t j) { return shifted(grey, 0, j, 1, 5); };
  Tensor<float> const smooth = (across(0) + 4 * across(1) + 6 * across(2) + 4 * across(3) + across(4)) / 16;
  auto const down = [&](int64_t i) { return shifted(smooth, i, 0, 5, 1); };
  Tensor<float> const blurred = (down(0) + 4 * down(1) + 6 * down(2) + 4 * down(3) + down(4)) / 16;
  auto const b = [&](int64_t i, int64_t j) { return shifted(blurred, i, j, 3, 3); };
  auto const along_x = (b(0, 2) - b(0, 0)) + 2 * (b(1, 2) - b(1, 0)) + (b(2, 2) - b(2, 0));
  auto const along_y = (b(2, 0) - b(0, 0)) + 2 * (b(2, 1) - b(0, 1)) + (b(2, 2) - b(0, 2));
  return hypot(along_x, along_y) / 4;
}

// ---- the program ------------------------------------------------------------------------------------------------------------------

// Thirty by twenty digits of 8 x 8 pixels, each pixel four by four: a picture of 640 x 960.
Tensor<float> sheet_of_digits(std::string const& folder) {
  auto const scans = io::load_npy<uint8_t>(folder + "digits_images.npy");
  auto const rows = scans.slice(0, 0, 600).view({20, 30, 8, 8}).permute({0, 2, 1, 3});  // [20, 8, 30, 8]
  return rows.reshape({20, 8, 1, 240, 1}).expand({20, 8, 4, 240, 4}).reshape({640, 960}) / 16.f;
}

template <class F>
double milliseconds(F f) {
  std::vector<double> times;
  for (int run = 0; run < 12; ++run) {
    auto const start = std::chrono::steady_clock::now();
    f();
    std::chrono::duration<double, std::milli> const elapsed = std::chrono::steady_clock::now() - start;
    if (run > 0) times.push_back(elapsed.count());
  }
  std::nth_element(times.begin(), times.begin() + 5, times.end());
  return times[5];
}

int main(int argc, char** argv) try {
  namespace fs = std::filesystem;
  std::string const folder = (fs::temp_directory_path() / "situ_image_filter_").string();
  std::string path = argc > 1 ? argv[1] : "";
  std::string const result = argc > 2 ? argv[2] : folder + "edges.pgm";
  if (path.empty()) {
    std::string data = "examples/data/";
#if defined(SITU_EXAMPLES_DATA)
    if (!fs::exists(data + "digits_images.npy")) data = SITU_EXAMPLES_DATA "/";
#endif
    path = folder + "digits.pgm";
    save_picture(path, sheet_of_digits(data));
  }

  Tensor<float> const picture = load_picture(path);
  std::printf("%s: %lld channel(s) of %lld x %lld pixels\n", path.c_str(), static_cast<long long>(picture.size(0)), static_cast<long long>(picture.size(2)),
              static_cast<long long>(picture.size(1)));
  if (picture.size(1) < 7 || picture.size(2) < 7) throw ShapeError("image_filter: the picture is smaller than the filter of 7 x 7 pixels");
  Tensor<float> const grey = mean(picture, 0);

  Tensor<float> const convolved = edges_by_convolution(grey), sliced = edges_by_slices(grey);
  float const difference = max(abs(convolved - sliced)).item(), largest = max(convolved).item();
  std::printf("edges up to %.4f; convolutions and slices differ by %.1e at most\n", static_cast<double>(largest), static_cast<double>(difference));
  if (!(difference <= 1e-5f)) throw Error("image_filter: the two ways differ");
  std::printf("convolutions %.2f ms, fused slices %.2f ms\n", milliseconds([&] { edges_by_convolution(grey); }), milliseconds([&] { edges_by_slices(grey); }));

  save_picture(result, convolved / std::max(largest, 1e-6f));
  if (!allclose(load_picture(result)[0], convolved / std::max(largest, 1e-6f), {.rtol = 0, .atol = 0.5 / 255 + 1e-6})) throw Error("image_filter: " + result + " is not what was written");
  std::printf("written: %s\n", result.c_str());
} catch (std::exception const& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
