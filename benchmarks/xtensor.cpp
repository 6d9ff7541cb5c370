/// xtensor with xsimd: lazy expressions assigned with `noalias` to existing tensors.
#include "workloads.hpp"

#include <xtensor/xbuilder.hpp>
#include <xtensor/xindex_view.hpp>
#include <xtensor/xmanipulation.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xnorm.hpp>
#include <xtensor/xpad.hpp>
#include <xtensor/xsort.hpp>
#include <xtensor/xtensor.hpp>
#include <xtensor/xview.hpp>

#include <omp.h>

#include <algorithm>
#include <cmath>

namespace workloads {

const char* const library = "xtensor";

void set_threads(int threads) { omp_set_num_threads(threads); }

namespace {

using Vector = xt::xtensor<float, 1>;
using Matrix = xt::xtensor<float, 2>;

Vector vector(Input which, std::size_t n) {
  Vector x(std::array{n});
  fill(which, x.data(), n);
  return x;
}

Matrix matrix(Input which, std::size_t n) {
  Matrix x(std::array{n, n});
  fill(which, x.data(), n * n);
  return x;
}

template <class F>
void run_elementwise(State& state, Row row, Input input, F f) {
  std::size_t n = size(state);
  Vector a = vector(input, n), b = vector(Input::b, n), c = vector(Input::c, n), y = a;
  for (auto _ : state) {
    f(y, a, b, c);
    keep(*y.data());
  }
  verify(state, row, y.data());
}

template <class F>
void run_scalar(State& state, Row row, F f) {
  Vector a = vector(Input::a, size(state));
  float result = 0;
  for (auto _ : state) {
    keep(*a.data());
    result = f(a);
    keep(result);
  }
  verify(state, row, result);
}

}  // namespace

using V = const Vector&;

void chain(State& state) {
  run_elementwise(state, Row::chain, Input::a,
                  [](Vector& y, V a, V b, V c) { xt::noalias(y) = a * b + c - 0.5f * a; });
}
void exp(State& state) {
  run_elementwise(state, Row::exp, Input::a, [](Vector& y, V a, V, V) { xt::noalias(y) = xt::exp(a); });
}
void log(State& state) {
  run_elementwise(state, Row::log, Input::positive, [](Vector& y, V a, V, V) { xt::noalias(y) = xt::log(a); });
}
void tanh(State& state) {
  run_elementwise(state, Row::tanh, Input::a,
                  [](Vector& y, V a, V b, V c) { xt::noalias(y) = xt::tanh(a * b + c); });
}
void sigmoid(State& state) {
  run_elementwise(state, Row::sigmoid, Input::a,
                  [](Vector& y, V a, V, V) { xt::noalias(y) = 1.0f / (1.0f + xt::exp(-a)); });
}
void gelu_tanh(State& state) {
  run_elementwise(state, Row::gelu_tanh, Input::a, [](Vector& y, V a, V, V) {
    xt::noalias(y) = 0.5f * a * (1.0f + xt::tanh(0.79788456f * a * (1.0f + 0.044715f * a * a)));
  });
}
void gelu_erf(State& state) {
  run_elementwise(state, Row::gelu_erf, Input::a,
                  [](Vector& y, V a, V, V) { xt::noalias(y) = 0.5f * a * (1.0f + xt::erf(0.70710678f * a)); });
}

void fresh(State& state) {
  std::size_t n = size(state);
  Vector a = vector(Input::a, n), b = vector(Input::b, n), c = vector(Input::c, n);
  for (auto _ : state) {
    Vector y = a * b + c;
    keep(*y.data());
  }
  Vector last = a * b + c;
  verify(state, Row::fresh, last.data());
}

void power(State& state) {
  Vector x = vector(Input::near_one, size(state)), z;
  float result = 0;
  for (auto _ : state) {
    z = x;
    for (int k = 0; k < 1000; ++k) {
      xt::noalias(z) = z * x;
      keep(*z.data());
    }
    result = std::sqrt(xt::sum(z * z, xt::evaluation_strategy::immediate)());
    keep(result);
  }
  verify(state, Row::power, result);
}

void add_row(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), y = a;
  Vector b = vector(Input::b, n);
  for (auto _ : state) {
    xt::noalias(y) = a + b;
    keep(*y.data());
  }
  verify(state, Row::add_row, y.data());
}

void add_column(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), y = a;
  Vector values = vector(Input::b, n);
  Matrix b(std::array{n, std::size_t{1}});
  std::copy(values.begin(), values.end(), b.begin());
  for (auto _ : state) {
    xt::noalias(y) = a + b;
    keep(*y.data());
  }
  verify(state, Row::add_column, y.data());
}

void outer(State& state) {
  std::size_t n = size(state);
  Vector values = vector(Input::a, n), b = vector(Input::b, n);
  Matrix a(std::array{n, std::size_t{1}});
  std::copy(values.begin(), values.end(), a.begin());
  bool checked = false;
  for (auto _ : state) {
    Matrix y = a * b;
    keep(*y.data());
    if (!checked) {
      checked = true;
      state.PauseTiming();
      verify(state, Row::outer, y.data());
      state.ResumeTiming();
    }
  }
}

void add_transposed(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), b = matrix(Input::b, n), y = a;
  for (auto _ : state) {
    xt::noalias(y) = a + xt::transpose(b);
    keep(*y.data());
  }
  verify(state, Row::add_transposed, y.data());
}

void sum(State& state) {
  run_scalar(state, Row::sum, [](V a) { return xt::sum(a, xt::evaluation_strategy::immediate)(); });
}
void max(State& state) {
  run_scalar(state, Row::max, [](V a) { return xt::amax(a, xt::evaluation_strategy::immediate)(); });
}
void norm(State& state) {
  run_scalar(state, Row::norm, [](V a) { return std::sqrt(xt::sum(a * a, xt::evaluation_strategy::immediate)()); });
}

void row_sums(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n);
  Vector y(std::array{n});
  for (auto _ : state) {
    y = xt::sum(a, {1}, xt::evaluation_strategy::immediate);
    keep(*y.data());
  }
  verify(state, Row::row_sums, y.data());
}

void column_sums(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n);
  Vector y(std::array{n});
  for (auto _ : state) {
    y = xt::sum(a, {0}, xt::evaluation_strategy::immediate);
    keep(*y.data());
  }
  verify(state, Row::column_sums, y.data());
}

void softmax(State& state) { lacking(state); }
void layer_norm(State& state) { lacking(state); }
void product(State& state) { lacking(state); }  // in xtensor-blas, which calls a BLAS
void sort(State& state) {
  Vector a = vector(Input::a, size(state)), y = a;
  for (auto _ : state) {
    y = a;
    std::sort(y.begin(), y.end());
    keep(*y.data());
  }
  verify(state, Row::sort, y.data());
}

void argmax(State& state) {
  Vector a = vector(Input::a, size(state));
  std::size_t place = 0;
  for (auto _ : state) {
    keep(*a.data());
    place = xt::argmax(a)();
    keep(place);
  }
  verify(state, Row::argmax, a.data() + place, 1);
}
void cumsum(State& state) {
  Vector a = vector(Input::a, size(state)), y = a;
  for (auto _ : state) {
    y = xt::cumsum(a, 0);
    keep(*y.data());
  }
  verify(state, Row::cumsum, y.data(), size(state));
}
namespace {
void cumsum_along(State& state, Row row, int axis) {
  Matrix a = matrix(Input::a, size(state)), y = a;
  for (auto _ : state) {
    y = xt::cumsum(a, axis);
    keep(*y.data());
  }
  verify(state, row, y.data(), y.size());
}
}  // namespace
void cumsum_rows(State& state) { cumsum_along(state, Row::cumsum_rows, 1); }
void cumsum_columns(State& state) { cumsum_along(state, Row::cumsum_columns, 0); }
void softmax_columns(State& state) { lacking(state); }
void layer_norm_cached(State& state) { lacking(state); }
void small_product(State& state) { lacking(state); }
void batched_product(State& state) { lacking(state); }
void convolution(State& state) { lacking(state); }
void convolution_block(State& state) { lacking(state); }
void masked_select(State& state) {
  Vector a = vector(Input::a, size(state)), y;
  xt::xtensor<bool, 1> mask = a > 0.0f;
  for (auto _ : state) {
    y = xt::filter(a, mask);
    keep(*y.data());
  }
  verify(state, Row::masked_select, y.data(), y.size());
}
void gather(State& state) { lacking(state); }
void index_select(State& state) { lacking(state); }
void scatter_add(State& state) { lacking(state); }
void argsort(State& state) {
  Vector a = vector(Input::a, size(state)), sorted = a;
  xt::xtensor<std::size_t, 1> order;
  for (auto _ : state) {
    order = xt::argsort(a);
    keep(*order.data());
  }
  for (std::size_t i = 0; i < a.size(); ++i) sorted(i) = a(order(i));
  verify(state, Row::argsort, sorted.data(), sorted.size());
}
void topk(State& state) { lacking(state); }
void product_power(State& state) { lacking(state); }
void bfloat16_product(State& state) { lacking(state); }
void variance(State& state) {
  Vector a = vector(Input::a, size(state));
  float result = 0;
  for (auto _ : state) {
    keep(*a.data());
    auto const n = static_cast<float>(a.size());
    result = xt::variance(a, xt::evaluation_strategy::immediate)() * (n / (n - 1));
    keep(result);
  }
  verify(state, Row::variance, &result, 1);
}
void pad(State& state) {
  Matrix a = matrix(Input::a, size(state)), y;
  for (auto _ : state) {
    y = xt::pad(a, {{1, 1}, {1, 1}});
    keep(*y.data());
  }
  verify(state, Row::pad, y.data(), y.size());
}
void roll(State& state) {
  Vector a = vector(Input::a, size(state)), y = a;
  for (auto _ : state) {
    y = xt::roll(a, static_cast<std::ptrdiff_t>(rolled_by));
    keep(*y.data());
  }
  verify(state, Row::roll, y.data(), y.size());
}
namespace {
void stack_along(State& state, Row row, std::size_t axis) {
  std::size_t n = size(state);
  Vector a = vector(Input::a, n), b = vector(Input::b, n), c = vector(Input::c, n);
  Matrix y(axis == 0 ? std::array{std::size_t{3}, n} : std::array{n, std::size_t{3}});
  for (auto _ : state) {
    xt::noalias(y) = xt::stack(xt::xtuple(a, b, c), axis);
    keep(*y.data());
  }
  verify(state, row, y.data(), y.size());
}
}  // namespace
void stack(State& state) { stack_along(state, Row::stack, 0); }
void stack_last(State& state) { stack_along(state, Row::stack_last, 1); }
void nonzero(State& state) {
  Vector a = vector(Input::a, size(state));
  xt::xtensor<bool, 1> mask = a > 0.0f;
  std::vector<std::size_t> places;
  for (auto _ : state) {
    places = xt::flatnonzero<xt::layout_type::row_major>(mask);
    keep(*places.data());
  }
  std::vector<float> const found(places.begin(), places.end());
  verify(state, Row::nonzero, found.data(), found.size());
}
void unique(State& state) {
  Vector a = vector(Input::a, size(state)), y;
  for (std::size_t i = 0; i < a.size(); ++i) a(i) = static_cast<float>(index(i, size(state) / 2));
  for (auto _ : state) {
    y = xt::unique(a);
    keep(*y.data());
  }
  verify(state, Row::unique, y.data(), y.size());
}

}  // namespace workloads
