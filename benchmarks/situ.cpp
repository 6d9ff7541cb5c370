/// situ, as its users write it: expressions that are evaluated when they become a tensor. Compiled with a plain -O2.
#include <situ/situ.hpp>

#include "workloads.hpp"

namespace workloads {

const char* const library = "situ";

void set_threads(int threads) { situ::set_num_threads(threads); }

namespace {

using situ::Tensor;

Tensor<float> vector(Input which, std::size_t n) {
  Tensor<float> x = situ::empty<float>({n});
  fill(which, x.data(), n);
  return x;
}

Tensor<float> matrix(Input which, std::size_t n) {
  Tensor<float> x = situ::empty<float>({n, n});
  fill(which, x.data(), n * n);
  return x;
}

using T = const Tensor<float>&;

template <class F>
void run_elementwise(State& state, Row row, Input input, F f) {
  std::size_t n = size(state);
  Tensor<float> a = vector(input, n), b = vector(Input::b, n), c = vector(Input::c, n), y = situ::zeros<float>({n});
  for (auto _ : state) {
    f(y, a, b, c);
    keep(*y.data());
  }
  verify(state, row, y.data());
}

template <class F>
void run_matrix(State& state, Row row, F f) {
  std::size_t n = size(state);
  Tensor<float> a = matrix(Input::a, n);
  Tensor<float> b = row == Row::add_transposed || row == Row::product ? matrix(Input::b, n) : vector(Input::b, n), y;
  for (int k = 0; k < 3; ++k) f(y, a, b);  // as for the others, the memory of results is there
  for (auto _ : state) {
    f(y, a, b);
    keep(*y.data());
  }
  verify(state, row, y.data());
}

template <class F>
void run_scalar(State& state, Row row, F f) {
  Tensor<float> a = vector(Input::a, size(state));
  float result = 0;
  for (auto _ : state) {
    result = f(a).item();
    keep(result);
  }
  verify(state, row, result);
}

}  // namespace

void chain(State& state) {
  run_elementwise(state, Row::chain, Input::a, [](Tensor<float>& y, T a, T b, T c) { y = a * b + c - 0.5f * a; });
}
void exp(State& state) {
  run_elementwise(state, Row::exp, Input::a, [](Tensor<float>& y, T a, T, T) { y = situ::exp(a); });
}
void log(State& state) {
  run_elementwise(state, Row::log, Input::positive, [](Tensor<float>& y, T a, T, T) { y = situ::log(a); });
}
void tanh(State& state) {
  run_elementwise(state, Row::tanh, Input::a, [](Tensor<float>& y, T a, T b, T c) { y = situ::tanh(a * b + c); });
}
void sigmoid(State& state) {
  run_elementwise(state, Row::sigmoid, Input::a, [](Tensor<float>& y, T a, T, T) { y = situ::sigmoid(a); });
}
void gelu_tanh(State& state) {
  run_elementwise(state, Row::gelu_tanh, Input::a,
                  [](Tensor<float>& y, T a, T, T) { y = situ::gelu(a, situ::approximate_tanh); });
}
void gelu_erf(State& state) {
  run_elementwise(state, Row::gelu_erf, Input::a, [](Tensor<float>& y, T a, T, T) { y = situ::gelu(a); });
}

void fresh(State& state) {
  std::size_t n = size(state);
  Tensor<float> a = vector(Input::a, n), b = vector(Input::b, n), c = vector(Input::c, n);
  for (auto _ : state) {
    Tensor<float> y = a * b + c;
    keep(*y.data());
  }
  Tensor<float> last = a * b + c;
  verify(state, Row::fresh, last.data());
}

void power(State& state) {
  Tensor<float> x = vector(Input::near_one, size(state));
  float result = 0;
  for (auto _ : state) {
    Tensor<float> z = x;
    for (int k = 0; k < 1000; ++k) z = z * x;
    result = situ::norm(z).item();
    keep(result);
  }
  verify(state, Row::power, result);
}

void add_row(State& state) {
  run_matrix(state, Row::add_row, [](Tensor<float>& y, T a, T b) { y = a + b; });
}
void add_column(State& state) {
  run_matrix(state, Row::add_column, [](Tensor<float>& y, T a, T b) { y = a + b.unsqueeze(1); });
}

void outer(State& state) {
  std::size_t n = size(state);
  Tensor<float> a = vector(Input::a, n), b = vector(Input::b, n);
  for (auto _ : state) {
    Tensor<float> y = a.unsqueeze(1) * b.unsqueeze(0);
    keep(*y.data());
  }
  Tensor<float> last = a.unsqueeze(1) * b.unsqueeze(0);
  verify(state, Row::outer, last.data());
}

void add_transposed(State& state) {
  run_matrix(state, Row::add_transposed, [](Tensor<float>& y, T a, T b) { y = a + b.t(); });
}

void sum(State& state) {
  run_scalar(state, Row::sum, [](T a) { return situ::sum(a); });
}
void max(State& state) {
  run_scalar(state, Row::max, [](T a) { return situ::max(a); });
}
void norm(State& state) {
  run_scalar(state, Row::norm, [](T a) { return situ::norm(a); });
}

void row_sums(State& state) {
  run_matrix(state, Row::row_sums, [](Tensor<float>& y, T a, T) { y = situ::sum(a, 1); });
}
void column_sums(State& state) {
  run_matrix(state, Row::column_sums, [](Tensor<float>& y, T a, T) { y = situ::sum(a, 0); });
}

void softmax(State& state) {
  run_matrix(state, Row::softmax, [](Tensor<float>& y, T a, T) { y = situ::softmax(a, 1); });
}
void layer_norm(State& state) {
  auto n = static_cast<std::int64_t>(size(state));
  run_matrix(state, Row::layer_norm, [n](Tensor<float>& y, T a, T) { y = situ::layer_norm(a, {n}); });
}
void product(State& state) {
  run_matrix(state, Row::product, [](Tensor<float>& y, T a, T b) { y = situ::matmul(a, b); });
}
void sort(State& state) {
  Tensor<float> a = vector(Input::a, size(state)), y;
  for (auto _ : state) {
    y = situ::sort_values(a);
    keep(*y.data());
  }
  verify(state, Row::sort, y.data());
}

}  // namespace workloads
