/// Eigen: expressions of row-major arrays, assigned to existing ones with `noalias` semantics (arrays never alias).
#include "workloads.hpp"

#include <Eigen/Dense>
#include <unsupported/Eigen/SpecialFunctions>

#include <omp.h>

#include <cmath>

namespace workloads {

const char* const library = "Eigen";

void set_threads(int threads) {
  omp_set_num_threads(threads);
  Eigen::setNbThreads(threads);
}

namespace {

using Vector = Eigen::ArrayXf;
using Matrix = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Index = Eigen::Index;

Vector vector(Input which, std::size_t n) {
  Vector x(static_cast<Index>(n));
  fill(which, x.data(), n);
  return x;
}

Matrix matrix(Input which, std::size_t n) {
  Matrix x(static_cast<Index>(n), static_cast<Index>(n));
  fill(which, x.data(), n * n);
  return x;
}

template <class F>
void run_elementwise(State& state, Row row, Input input, F f) {
  std::size_t n = size(state);
  Vector a = vector(input, n), b = vector(Input::b, n), c = vector(Input::c, n), y = Vector::Zero(a.size());
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
  run_elementwise(state, Row::chain, Input::a, [](Vector& y, V a, V b, V c) { y = a * b + c - 0.5f * a; });
}
void exp(State& state) {
  run_elementwise(state, Row::exp, Input::a, [](Vector& y, V a, V, V) { y = a.exp(); });
}
void log(State& state) {
  run_elementwise(state, Row::log, Input::positive, [](Vector& y, V a, V, V) { y = a.log(); });
}
void tanh(State& state) {
  run_elementwise(state, Row::tanh, Input::a, [](Vector& y, V a, V b, V c) { y = (a * b + c).tanh(); });
}
void sigmoid(State& state) {
  run_elementwise(state, Row::sigmoid, Input::a, [](Vector& y, V a, V, V) { y = a.logistic(); });
}
void gelu_tanh(State& state) {
  run_elementwise(state, Row::gelu_tanh, Input::a, [](Vector& y, V a, V, V) {
    y = 0.5f * a * (1.0f + (0.79788456f * a * (1.0f + 0.044715f * a.square())).tanh());
  });
}
void gelu_erf(State& state) {
  run_elementwise(state, Row::gelu_erf, Input::a,
                  [](Vector& y, V a, V, V) { y = 0.5f * a * (1.0f + (0.70710678f * a).erf()); });
}

void fresh(State& state) {
  std::size_t n = size(state);
  Vector a = vector(Input::a, n), b = vector(Input::b, n), c = vector(Input::c, n), last;
  for (auto _ : state) {
    Vector y = a * b + c;
    keep(*y.data());
  }
  last = a * b + c;
  verify(state, Row::fresh, last.data());
}

void power(State& state) {
  Vector x = vector(Input::near_one, size(state)), z;
  float result = 0;
  for (auto _ : state) {
    z = x;
    for (int k = 0; k < 1000; ++k) {
      z = z * x;
      keep(*z.data());
    }
    result = z.matrix().norm();
    keep(result);
  }
  verify(state, Row::power, result);
}

void add_row(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), y = a;
  Vector b = vector(Input::b, n);
  for (auto _ : state) {
    y = a.rowwise() + b.transpose();
    keep(*y.data());
  }
  verify(state, Row::add_row, y.data());
}

void add_column(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), y = a;
  Vector b = vector(Input::b, n);
  for (auto _ : state) {
    y = a.colwise() + b;
    keep(*y.data());
  }
  verify(state, Row::add_column, y.data());
}

void outer(State& state) {
  std::size_t n = size(state);
  Vector a = vector(Input::a, n), b = vector(Input::b, n);
  bool checked = false;
  for (auto _ : state) {
    Matrix y = a.matrix() * b.matrix().transpose();
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
    y = a + b.transpose();
    keep(*y.data());
  }
  verify(state, Row::add_transposed, y.data());
}

void sum(State& state) {
  run_scalar(state, Row::sum, [](V a) { return a.sum(); });
}
void max(State& state) {
  run_scalar(state, Row::max, [](V a) { return a.maxCoeff(); });
}
void norm(State& state) {
  run_scalar(state, Row::norm, [](V a) { return a.matrix().norm(); });
}

void row_sums(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n);
  Vector y(a.rows());
  for (auto _ : state) {
    y = a.rowwise().sum();
    keep(*y.data());
  }
  verify(state, Row::row_sums, y.data());
}

void column_sums(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n);
  Eigen::Array<float, 1, Eigen::Dynamic> y(a.cols());
  for (auto _ : state) {
    y = a.colwise().sum();
    keep(*y.data());
  }
  verify(state, Row::column_sums, y.data());
}

void softmax(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), y = a;
  for (auto _ : state) {
    for (Index row = 0; row < a.rows(); ++row) {
      y.row(row) = (a.row(row) - a.row(row).maxCoeff()).exp();
      y.row(row) *= 1.0f / y.row(row).sum();
    }
    keep(*y.data());
  }
  verify(state, Row::softmax, y.data());
}
void layer_norm(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), y = a;
  for (auto _ : state) {
    for (Index row = 0; row < a.rows(); ++row) {
      float mean = a.row(row).mean();
      float variance = (a.row(row) - mean).square().mean();
      y.row(row) = (a.row(row) - mean) * (1.0f / std::sqrt(variance + 1e-5f));
    }
    keep(*y.data());
  }
  verify(state, Row::layer_norm, y.data());
}
void product(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), b = matrix(Input::b, n), y = a;
  for (auto _ : state) {
    y.matrix().noalias() = a.matrix() * b.matrix();
    keep(*y.data());
  }
  verify(state, Row::product, y.data());
}
void sort(State& state) { lacking(state); }

void argmax(State& state) {
  Vector a = vector(Input::a, size(state));
  Index place = 0;
  for (auto _ : state) {
    keep(*a.data());
    a.maxCoeff(&place);
    keep(place);
  }
  verify(state, Row::argmax, a.data() + place, 1);
}
void softmax_columns(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), y = a;
  Eigen::Array<float, 1, Eigen::Dynamic> row(a.cols());
  for (auto _ : state) {
    row = a.colwise().maxCoeff();
    y = (a.rowwise() - row).exp();
    row = y.colwise().sum().inverse();
    y.rowwise() *= row;
    keep(*y.data());
  }
  verify(state, Row::softmax_columns, y.data(), n * n);
}
void layer_norm_cached(State& state) {
  auto n = static_cast<Index>(size(state));
  Matrix a(n, 1024), y(n, 1024);
  fill(Input::a, a.data(), size(state) * 1024);
  for (auto _ : state) {
    for (Index row = 0; row < n; ++row) {
      float mean = a.row(row).mean();
      float variance = (a.row(row) - mean).square().mean();
      y.row(row) = (a.row(row) - mean) * (1.0f / std::sqrt(variance + 1e-5f));
    }
    keep(*y.data());
  }
  verify(state, Row::layer_norm_cached, y.data(), size(state) * 1024);
}
void small_product(State& state) {
  std::size_t n = size(state);
  Matrix a = matrix(Input::a, n), b = matrix(Input::b, n), last;
  for (auto _ : state) {
    keep(*a.data());
    Matrix y = (a.matrix() * b.matrix()).array();
    keep(*y.data());
  }
  last = (a.matrix() * b.matrix()).array();
  verify(state, Row::small_product, last.data(), n * n);
}
void batched_product(State& state) {
  std::size_t n = size(state), count = std::size_t{1} << 18;
  Vector a = vector(Input::a, count), b = vector(Input::b, count), y = a;
  using Map = Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  auto side = static_cast<Index>(n);
  for (auto _ : state) {
#pragma omp parallel for
    for (std::size_t i = 0; i < count; i += n * n) Map(y.data() + i, side, side).noalias() = Map(a.data() + i, side, side) * Map(b.data() + i, side, side);
    keep(*y.data());
  }
  verify(state, Row::batched_product, y.data(), count);
}
void cumsum(State& state) { lacking(state); }
void cumsum_rows(State& state) { lacking(state); }
void cumsum_columns(State& state) { lacking(state); }
void convolution(State& state) { lacking(state); }
void convolution_block(State& state) { lacking(state); }
void masked_select(State& state) { lacking(state); }
void gather(State& state) {
  Vector a = vector(Input::a, size(state)), y = a;
  std::vector<std::int64_t> places = indices(size(state), size(state));
  for (auto _ : state) {
    y = a(places);
    keep(*y.data());
  }
  verify(state, Row::gather, y.data(), size(state));
}
void index_select(State& state) {
  Matrix a(static_cast<Index>(Selections::rows), static_cast<Index>(Selections::width)), y;
  fill(Input::a, a.data(), Selections::rows * Selections::width);
  std::vector<std::int64_t> rows = indices(size(state), Selections::rows);
  for (auto _ : state) {
    y = a(rows, Eigen::all);
    keep(*y.data());
  }
  verify(state, Row::index_select, y.data(), static_cast<std::size_t>(y.size()));
}
void scatter_add(State& state) { lacking(state); }
void argsort(State& state) { lacking(state); }
void topk(State& state) { lacking(state); }
void unique(State& state) { lacking(state); }
void product_power(State& state) {
  auto const n = static_cast<Index>(size(state));
  Matrix x(n, n), z, next(n, n);
  fill_for_powers(x.data(), size(state));
  float result = 0;
  for (auto _ : state) {
    z = x;
    for (int k = 0; k < 1000; ++k) {
      next.matrix().noalias() = z.matrix() * x.matrix();
      z.swap(next);
    }
    result = z.matrix().norm();
    keep(result);
  }
  verify(state, Row::product_power, &result, 1);
}
void bfloat16_product(State& state) { lacking(state); }
void variance(State& state) {
  Vector a = vector(Input::a, size(state));
  float result = 0;
  for (auto _ : state) {
    keep(*a.data());
    result = (a - a.mean()).square().sum() / static_cast<float>(size(state) - 1);
    keep(result);
  }
  verify(state, Row::variance, &result, 1);
}
void pad(State& state) {
  Matrix a = matrix(Input::a, size(state));
  auto const n = a.rows();
  Matrix y(n + 2, n + 2);
  for (auto _ : state) {
    y.row(0).setZero(), y.row(n + 1).setZero(), y.col(0).setZero(), y.col(n + 1).setZero();
    y.block(1, 1, n, n) = a;
    keep(*y.data());
  }
  verify(state, Row::pad, y.data(), static_cast<std::size_t>(y.size()));
}
void roll(State& state) {
  Vector a = vector(Input::a, size(state)), y = a;
  auto const shift = static_cast<Index>(rolled_by);
  for (auto _ : state) {
    y.head(shift) = a.tail(shift);
    y.tail(a.size() - shift) = a.head(a.size() - shift);
    keep(*y.data());
  }
  verify(state, Row::roll, y.data(), size(state));
}
namespace {
template <int Order>
void stack_rows(State& state, Row row) {
  std::size_t n = size(state);
  Vector a = vector(Input::a, n), b = vector(Input::b, n), c = vector(Input::c, n);
  Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Order> y(3, a.size());
  for (auto _ : state) {
    y.row(0) = a, y.row(1) = b, y.row(2) = c;
    keep(*y.data());
  }
  verify(state, row, y.data(), 3 * n);
}
}  // namespace
void stack(State& state) { stack_rows<Eigen::RowMajor>(state, Row::stack); }
void stack_last(State& state) { stack_rows<Eigen::ColMajor>(state, Row::stack_last); }
void nonzero(State& state) { lacking(state); }

}  // namespace workloads
