// Convolutions with windows that follow each other along a row, against plain loops in double.
#include <doctest/doctest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <situ/ops/conv2d.hpp>
#include <situ/ops/random.hpp>
#include <support/devices.hpp>

#include <cmath>
#include <support/compare.hpp>

namespace {

using namespace situ;

struct Case {
  Shape x, w;
  extent2d stride, padding, dilation;
  int64_t groups;
  bool flipped = false;  // the image's columns
};

template <class T, class D>
void check(Case const& c, double allowed) {
  CAPTURE(c.x);
  CAPTURE(c.w);
  Generator generator{7};
  Tensor<T> x = Tensor<T>(cast<T>(rand(c.x, generator) - 0.5f)), w = Tensor<T>(cast<T>(rand(c.w, generator) - 0.5f)), bias = Tensor<T>(cast<T>(rand({c.w[0]}, generator)));
  if (c.flipped) x = x.flip(3);
  auto const y = conv2d(x.to(D{}), w.to(D{}), {.bias = bias.to(D{}), .stride = c.stride, .padding = c.padding, .dilation = c.dilation, .groups = c.groups}).to(Cpu{});
  double worst = 0;
  Shape const& s = y.shape();
  int64_t const channels = c.w[1], outputs = c.w[0] / c.groups;
  for (int64_t n = 0; n < s[0]; ++n) {
    for (int64_t o = 0; o < s[1]; ++o) {
      for (int64_t i = 0; i < s[2]; ++i) {
        for (int64_t j = 0; j < s[3]; ++j) {
          double total = static_cast<double>(bias(o));
          for (int64_t k = 0; k < channels; ++k) {
            for (int64_t u = 0; u < c.w[2]; ++u) {
              for (int64_t v = 0; v < c.w[3]; ++v) {
                int64_t const a = i * c.stride.height - c.padding.height + u * c.dilation.height, b = j * c.stride.width - c.padding.width + v * c.dilation.width;
                if (a < 0 || b < 0 || a >= c.x[2] || b >= c.x[3]) continue;
                total += static_cast<double>(x(n, o / outputs * channels + k, a, b)) * static_cast<double>(w(o, k, u, v));
              }
            }
          }
          worst = situ_test::worse(worst, std::fabs(static_cast<double>(y(n, o, i, j)) - total));
        }
      }
    }
  }
  CHECK(worst <= allowed);
}

}  // namespace

TEST_CASE("padding that is wider than the image reads nothing beside it") {
  // The pixels lie at the beginning or at the end of a page, with pages before and behind it that may not be read.
  auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const pages = ::mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  char* const readable = static_cast<char*>(pages) + page;
  REQUIRE(::mprotect(pages, page, PROT_NONE) == 0);
  REQUIRE(::mprotect(readable + page, page, PROT_NONE) == 0);
  situ_test::with_every_instruction_set<Cpu>([&] {
    for (int64_t width : {1, 2, 3}) {
      for (int64_t padding : {1, 3, 6}) {
        for (bool const at_end : {false, true}) {
          std::size_t const bytes = static_cast<std::size_t>(16 * width) * sizeof(float);
          auto* const pixels = reinterpret_cast<float*>(at_end ? readable + page - bytes : readable);
          for (int64_t k = 0; k < 16 * width; ++k) pixels[k] = 1;
          Tensor<float> const x = from_blob(pixels, {1, 1, 16, width});
          Tensor<float> const y = conv2d(x, ones({4, 1, 1, 2 * padding + 1}), {.padding = {0, padding}});
          for (int64_t column = 0; column < width; ++column) {  // a window of ones counts the columns that it covers
            int64_t const first = column < padding ? 0 : column - padding, last = column + padding < width ? column + padding : width - 1;
            CHECK(sum(y.select(3, column)).item() == static_cast<float>(4 * 16 * (last - first + 1)));
          }
        }
      }
    }
  });
  ::munmap(pages, 3 * page);
  CHECK(conv2d(ones({1, 3, 3}), ones({1, 1, 2, 2}), {.stride = INT64_MAX, .padding = 1}).to_vector() == std::vector<float>{1});
  CHECK(sum(conv2d(ones({1, 3, 3}), ones({1, 1, 1, 1}), {.dilation = INT64_MAX})).item() == 9);
  for (int64_t outputs : {1, 4}) {
    int64_t const far = int64_t{1} << 60;
    CHECK(sum(conv2d(ones({1, 1, 8, 8}), ones({outputs, 1, 2, 2}), {.padding = 900'000'000, .dilation = 1'800'000'000})).item() == 0);
    CHECK(sum(conv2d(ones({1, 1, 8, 64}), ones({outputs, 1, 1, 1}), {.stride = {4 * far, 1}, .padding = {2 * far, 0}})).item() == 0);
    CHECK(sum(conv2d(ones({1, 1, 8, 8}), ones({outputs, 1, 2, 2}), {.padding = {1, far}, .dilation = {1, 2 * far}})).item() == 0);
    CHECK(sum(conv2d(ones({1, 3, 8, 40}), ones({outputs, 3, 1, 3}), {.stride = {2 * far, 2}, .padding = {2 * far, 0}})).item() == static_cast<float>(171 * outputs));
  }
}

TEST_CASE_TEMPLATE("sums of shifted rows", D, Cpu, Emulated<0>) {
  situ_test::with_every_instruction_set<D>([] {
    for (Case const& c : {Case{{2, 3, 20, 32}, {16, 3, 3, 3}, 1, 1, 1, 1}, Case{{1, 3, 9, 19}, {5, 3, 3, 3}, 1, 0, 1, 1}, Case{{2, 6, 11, 40}, {8, 3, 2, 5}, {2, 1}, {1, 2}, 1, 2},
                          Case{{1, 2, 30, 37}, {4, 2, 3, 3}, {3, 1}, {4, 5}, {2, 3}, 1}, Case{{1, 4, 300, 70}, {12, 4, 3, 3}, 1, 1, 1, 1}, Case{{3, 5, 1, 48}, {9, 5, 1, 1}, 1, 0, 1, 1},
                          Case{{1, 3, 12, 33}, {6, 3, 3, 3}, 1, 1, 1, 1, true}, Case{{1, 1, 5, 16}, {7, 1, 5, 1}, 1, {4, 9}, 1, 1},
                          Case{{1, 40, 9, 35}, {9, 40, 3, 3}, 1, 1, 1, 1}}) {
      check<float, D>(c, 2e-5);
      check<double, D>(c, 1e-13);
      check<float16, D>(c, 1e-2);
    }
  });
}

TEST_CASE_TEMPLATE("sums of shifted rows of windows with strides", D, Cpu, Emulated<0>) {
  situ_test::with_every_instruction_set<D>([] {
    for (Case const& c : {Case{{2, 3, 20, 33}, {16, 3, 3, 3}, 2, 1, 1, 1}, Case{{1, 3, 64, 64}, {5, 3, 7, 7}, 2, 3, 1, 1}, Case{{1, 6, 23, 40}, {8, 3, 3, 5}, {2, 3}, {1, 2}, 1, 2},
                         Case{{1, 2, 31, 37}, {4, 2, 3, 3}, {3, 2}, {4, 5}, {2, 3}, 1}, Case{{1, 4, 400, 140}, {12, 4, 3, 3}, 2, 1, 1, 1}, Case{{1, 3, 24, 33}, {6, 3, 3, 3}, {2, 1}, 1, 1, 1, true},
                         Case{{1, 3, 24, 33}, {6, 3, 3, 3}, {1, 2}, 1, 1, 1, true}, Case{{2, 3, 48, 48}, {9, 3, 4, 4}, 4, 0, 1, 1}, Case{{1, 2, 19, 9}, {4, 2, 3, 3}, {2, 1}, {0, 1}, 1, 1},
                         Case{{1, 1, 40, 3}, {4, 1, 2, 3}, {2, 3}, {0, 6}, {3, 1}, 1}}) {
      check<float, D>(c, 2e-5);
      check<double, D>(c, 1e-13);
      check<float16, D>(c, 1e-2);
    }
  });
}
