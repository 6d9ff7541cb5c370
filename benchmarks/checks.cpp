/// What the operations that are not elementwise must give, by plain loops in double.
#include "workloads.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>

namespace workloads {
namespace {

double at(Input which, std::size_t i) { return static_cast<double>(value(which, i)); }

/// The convolution with biases: image, output channel, row and column.
double convolved(std::size_t image, std::size_t output, std::size_t row, std::size_t column) {
  constexpr std::size_t side = Images::side, channels = Images::channels;
  double total = at(Input::c, output);
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t u = 0; u < 3; ++u) {
      for (std::size_t v = 0; v < 3; ++v) {
        if (row + u < 1 || row + u > side || column + v < 1 || column + v > side) continue;
        total += at(Input::a, ((image * channels + c) * side + row + u - 1) * side + column + v - 1) * at(Input::b, ((output * channels + c) * 3 + u) * 3 + v);
      }
    }
  }
  return total;
}

/// x rounded to a bfloat16, as the inputs are.
double rounded(double x) {
  int exponent = 0;
  double const fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

/// The product of two n x n matrices.
std::vector<double> product_of(std::vector<double> const& a, std::vector<double> const& b, std::size_t n) {
  std::vector<double> result(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) {
      for (std::size_t j = 0; j < n; ++j) result[i * n + j] += a[i * n + k] * b[k * n + j];
    }
  }
  return result;
}

/// The expected result, or an element of it in a hundred where `step` says so.
std::vector<double> expected(Row row, std::size_t n, std::size_t& step) {
  std::vector<double> result, sums;
  step = 1;
  switch (row) {
    case Row::cumsum:
      for (std::size_t i = 0; i < n; ++i) result.push_back((i > 0 ? result.back() : 0) + at(Input::a, i));
      return result;
    case Row::cumsum_rows:
      for (std::size_t i = 0; i < n * n; ++i) result.push_back((i % n > 0 ? result.back() : 0) + at(Input::a, i));
      return result;
    case Row::cumsum_columns:
      for (std::size_t i = 0; i < n * n; ++i) result.push_back((i >= n ? result[i - n] : 0) + at(Input::a, i));
      return result;
    case Row::softmax_columns:
      sums.assign(n, 0);
      for (std::size_t i = 0; i < n * n; ++i) sums[i % n] += std::exp(at(Input::a, i));
      for (std::size_t i = 0; i < n * n; ++i) result.push_back(static_cast<double>(n) * std::exp(at(Input::a, i)) / sums[i % n]);
      return result;
    case Row::layer_norm_cached:
      for (std::size_t r = 0; r < n; ++r) {
        double mean = 0, square = 0;
        for (std::size_t j = 0; j < 1024; ++j) mean += at(Input::a, r * 1024 + j) / 1024;
        for (std::size_t j = 0; j < 1024; ++j) square += std::pow(at(Input::a, r * 1024 + j) - mean, 2) / 1024;
        for (std::size_t j = 0; j < 1024; ++j) result.push_back((at(Input::a, r * 1024 + j) - mean) / std::sqrt(square + 1e-5));
      }
      return result;
    case Row::small_product:
    case Row::batched_product: {
      std::size_t batches = row == Row::small_product ? 1 : (std::size_t{1} << 18) / (n * n);
      for (std::size_t b = 0; b < batches; ++b) {
        for (std::size_t i = 0; i < n * n; ++i) {
          double total = 0;
          for (std::size_t j = 0; j < n; ++j) total += at(Input::a, b * n * n + i / n * n + j) * at(Input::b, b * n * n + j * n + i % n);
          result.push_back(total);
        }
      }
      return result;
    }
    case Row::convolution:
    case Row::convolution_block: {
      std::size_t side = row == Row::convolution ? Images::side : Images::pooled;
      for (std::size_t i = 0; i < n * Images::outputs * side * side; i += 97) {
        std::size_t x = i % side, y = i / side % side, output = i / side / side % Images::outputs, image = i / side / side / Images::outputs;
        double largest = 0;
        for (std::size_t k = 0; k < 4; ++k) largest = std::max(largest, convolved(image, output, (2 * y + k / 2) % Images::side, (2 * x + k % 2) % Images::side));
        result.push_back(row == Row::convolution ? convolved(image, output, y, x) : largest);
      }
      step = 97;
      return result;
    }
    case Row::masked_select:
      for (std::size_t i = 0; i < n; ++i) {
        if (value(Input::a, i) > 0) result.push_back(at(Input::a, i));
      }
      return result;
    case Row::gather:
      for (std::size_t i = 0; i < n; ++i) result.push_back(at(Input::a, static_cast<std::size_t>(index(i, n))));
      return result;
    case Row::index_select:
      for (std::size_t i = 0; i < n * Selections::width; ++i) {
        result.push_back(at(Input::a, static_cast<std::size_t>(index(i / Selections::width, Selections::rows)) * Selections::width + i % Selections::width));
      }
      return result;
    case Row::scatter_add:
      result.assign(Selections::bins, 0);
      for (std::size_t i = 0; i < n; ++i) result[static_cast<std::size_t>(index(i, Selections::bins))] += at(Input::a, i);
      return result;
    case Row::unique:
      for (std::size_t i = 0; i < n; ++i) result.push_back(static_cast<double>(index(i, n / 2)));
      std::sort(result.begin(), result.end());
      result.erase(std::unique(result.begin(), result.end()), result.end());
      return result;
    case Row::product_power: {  // the norm of the power 1001, which is 1111101001 in binary
      std::vector<float> x(n * n);
      fill_for_powers(x.data(), n);
      std::vector<double> power(x.begin(), x.end()), one = power;
      for (int bit = 8; bit >= 0; --bit) {
        power = product_of(power, power, n);
        if (1001 >> bit & 1) power = product_of(power, one, n);
      }
      double squares = 0;
      for (double each : power) squares += each * each;
      return {std::sqrt(squares)};
    }
    case Row::bfloat16_product: {
      std::vector<double> a, b;
      for (std::size_t i = 0; i < n * n; ++i) a.push_back(rounded(at(Input::a, i))), b.push_back(rounded(at(Input::b, i)));
      return product_of(a, b, n);
    }
    case Row::variance: {
      double mean = 0, squares = 0;
      for (std::size_t i = 0; i < n; ++i) mean += at(Input::a, i) / static_cast<double>(n);
      for (std::size_t i = 0; i < n; ++i) squares += std::pow(at(Input::a, i) - mean, 2);
      return {squares / static_cast<double>(n - 1)};
    }
    case Row::pad:
      result.assign((n + 2) * (n + 2), 0);
      for (std::size_t i = 0; i < n * n; ++i) result[(i / n + 1) * (n + 2) + i % n + 1] = at(Input::a, i);
      return result;
    case Row::roll:
      for (std::size_t i = 0; i < n; ++i) result.push_back(at(Input::a, (i + n - rolled_by) % n));
      return result;
    case Row::stack:
    case Row::stack_last:
      for (std::size_t i = 0; i < 3 * n; ++i) {
        std::size_t const part = row == Row::stack ? i / n : i % 3, place = row == Row::stack ? i % n : i / 3;
        result.push_back(at(part == 0 ? Input::a : part == 1 ? Input::b : Input::c, place));
      }
      return result;
    case Row::nonzero:
      for (std::size_t i = 0; i < n; ++i) {
        if (value(Input::a, i) > 0) result.push_back(static_cast<double>(i));
      }
      return result;
    default:  // argmax, argsort, topk: the values in order
      for (std::size_t i = 0; i < n; ++i) result.push_back(at(Input::a, i));
      if (row == Row::argsort) std::sort(result.begin(), result.end());
      else std::sort(result.begin(), result.end(), std::greater<>());
      if (row == Row::topk) result.resize(Selections::best);
      if (row == Row::argmax) result.resize(1);
      return result;
  }
}

}  // namespace

void verify(State& state, Row row, const float* result, std::size_t count) {
  std::size_t n = size(state), step = 1;
  std::vector<double> wanted = expected(row, n, step);
  char text[160] = "";
  if ((count + step - 1) / step != wanted.size()) {
    std::snprintf(text, sizeof text, "wrong result: %zu elements instead of %zu", count, wanted.size());
    return state.SkipWithError(text);
  }
  // Running float sums, as peers have them, are off by more than ours.
  double allowed = row == Row::cumsum ? 0.3 : row == Row::cumsum_rows || row == Row::cumsum_columns ? 1e-2 : row == Row::scatter_add ? 2e-2 : row == Row::variance ? 2e-3 : 2e-4;
  if (row == Row::bfloat16_product) allowed = std::strcmp(library, "libtorch") == 0 ? 12 : 0.1;  // which sums in bfloat16; the elements are of the size of 50
  double scale = row == Row::softmax_columns ? static_cast<double>(n) : 1;
  for (std::size_t i = 0; i < count; i += step) {
    double found = static_cast<double>(result[i]) * scale;
    double const rounding = row == Row::bfloat16_product ? 4e-3 * std::abs(wanted[i / step]) : 0;
    if (std::abs(found - wanted[i / step]) <= allowed + rounding) continue;
    std::snprintf(text, sizeof text, "wrong result: element %zu is %.9g instead of %.9g", i, found, wanted[i / step]);
    return state.SkipWithError(text);
  }
}

}  // namespace workloads
