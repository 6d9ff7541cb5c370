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

namespace {

/// A tensor of some inputs.
Tensor<float> tensor(Input which, situ::Shape const& shape) {
  Tensor<float> x = situ::empty<float>(shape);
  fill(which, x.data(), static_cast<std::size_t>(x.size()));
  return x;
}

std::int64_t extent(const State& state) { return static_cast<std::int64_t>(size(state)); }

/// y = f(), over and over.
template <class F>
void run(State& state, Row row, F f) {
  Tensor<float> y;
  for (int k = 0; k < 3; ++k) y = f();
  for (auto _ : state) {
    y = f();
    keep(*y.data());
  }
  verify(state, row, y.data(), static_cast<std::size_t>(y.size()));
}

}  // namespace

void argmax(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)});
  std::int64_t place = 0;
  for (auto _ : state) {
    place = situ::argmax(a).item();
    keep(place);
  }
  verify(state, Row::argmax, a.data() + place, 1);
}
void cumsum(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)});
  run(state, Row::cumsum, [&] { return situ::cumsum(a, 0); });
}
void cumsum_rows(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state), extent(state)});
  run(state, Row::cumsum_rows, [&] { return situ::cumsum(a, 1); });
}
void cumsum_columns(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state), extent(state)});
  run(state, Row::cumsum_columns, [&] { return situ::cumsum(a, 0); });
}
void softmax_columns(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state), extent(state)});
  run(state, Row::softmax_columns, [&] { return situ::softmax(a, 0); });
}
void layer_norm_cached(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state), 1024});
  run(state, Row::layer_norm_cached, [&] { return situ::layer_norm(a, {1024}); });
}
void small_product(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state), extent(state)}), b = tensor(Input::b, a.shape()), y = situ::matmul(a, b);
  for (auto _ : state) {
    Tensor<float> fresh = situ::matmul(a, b);
    keep(*fresh.data());
  }
  verify(state, Row::small_product, y.data(), static_cast<std::size_t>(y.size()));
}
void batched_product(State& state) {
  std::int64_t n = extent(state);
  Tensor<float> a = tensor(Input::a, {(1 << 18) / (n * n), n, n}), b = tensor(Input::b, a.shape());
  run(state, Row::batched_product, [&] { return situ::matmul(a, b); });
}

namespace {
struct ConvolutionInputs {
  Tensor<float> x, weights, biases;
  explicit ConvolutionInputs(std::int64_t n) : x(tensor(Input::a, {n, Images::channels, Images::side, Images::side})), weights(tensor(Input::b, {Images::outputs, Images::channels, 3, 3})),
                                               biases(tensor(Input::c, {Images::outputs})) {}
};
}  // namespace
void convolution(State& state) {
  ConvolutionInputs const in(extent(state));
  run(state, Row::convolution, [&] { return situ::conv2d(in.x, in.weights, {.bias = in.biases, .padding = 1}); });
}
void convolution_block(State& state) {
  ConvolutionInputs const in(extent(state));
  run(state, Row::convolution_block, [&] { return situ::max_pool2d(situ::relu(situ::conv2d(in.x, in.weights, {.bias = in.biases, .padding = 1})), 2); });
}

void masked_select(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)});
  Tensor<bool> mask = a > 0.0f;
  run(state, Row::masked_select, [&] { return situ::masked_select(a, mask); });
}
void gather(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)});
  Tensor<std::int64_t> places(indices(size(state), size(state)));
  run(state, Row::gather, [&] { return situ::gather(a, 0, places); });
}
void index_select(State& state) {
  Tensor<float> a = tensor(Input::a, {Selections::rows, Selections::width});
  Tensor<std::int64_t> rows(indices(size(state), Selections::rows));
  run(state, Row::index_select, [&] { return situ::index_select(a, 0, rows); });
}
void scatter_add(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)}), zeros = situ::zeros<float>({Selections::bins});
  Tensor<std::int64_t> bins(indices(size(state), Selections::bins));
  run(state, Row::scatter_add, [&] { return situ::scatter_add(zeros, 0, bins, a); });
}
void argsort(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)}), sorted;
  Tensor<std::int64_t> order;
  for (auto _ : state) {
    order = situ::argsort(a);
    keep(*order.data());
  }
  sorted = situ::take(a, order);
  verify(state, Row::argsort, sorted.data(), static_cast<std::size_t>(sorted.size()));
}
void topk(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)});
  run(state, Row::topk, [&] {
    auto [values, places] = situ::topk(a, Selections::best);
    keep(*places.data());
    return values;
  });
}
void product_power(State& state) {
  Tensor<float> x = situ::empty<float>({extent(state), extent(state)});
  fill_for_powers(x.data(), size(state));
  float result = 0;
  for (auto _ : state) {
    Tensor<float> z = x;
    for (int k = 0; k < 1000; ++k) z = situ::matmul(z, x);
    result = situ::norm(z).item();
    keep(result);
  }
  verify(state, Row::product_power, &result, 1);
}
void bfloat16_product(State& state) {
  auto const a = tensor(Input::a, {extent(state), extent(state)}).to<situ::bfloat16>(), b = tensor(Input::b, a.shape()).to<situ::bfloat16>();
  Tensor<situ::bfloat16> y;
  for (auto _ : state) {
    y = situ::matmul(a, b);
    keep(*y.data());
  }
  Tensor<float> const wide = y.to<float>();
  verify(state, Row::bfloat16_product, wide.data(), static_cast<std::size_t>(wide.size()));
}
void variance(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)});
  float result = 0;
  for (auto _ : state) {
    result = situ::var(a).item();
    keep(result);
  }
  verify(state, Row::variance, &result, 1);
}
void pad(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state), extent(state)});
  run(state, Row::pad, [&] { return situ::pad(a, {1, 1, 1, 1}); });
}
void roll(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)});
  run(state, Row::roll, [&] { return situ::roll(a, static_cast<std::int64_t>(rolled_by)); });
}
void stack(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)}), b = tensor(Input::b, a.shape()), c = tensor(Input::c, a.shape());
  run(state, Row::stack, [&] { return situ::stack({a, b, c}); });
}
void stack_last(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)}), b = tensor(Input::b, a.shape()), c = tensor(Input::c, a.shape());
  run(state, Row::stack_last, [&] { return situ::stack({a, b, c}, -1); });
}
void nonzero(State& state) {
  Tensor<float> a = tensor(Input::a, {extent(state)});
  Tensor<bool> mask = a > 0.0f;
  Tensor<std::int64_t> places;
  for (int k = 0; k < 3; ++k) places = situ::nonzero(mask);
  for (auto _ : state) {
    places = situ::nonzero(mask);
    keep(*places.data());
  }
  Tensor<float> const found = situ::cast<float>(places);
  verify(state, Row::nonzero, found.data(), static_cast<std::size_t>(found.size()));
}
void unique(State& state) {
  Tensor<float> a = situ::cast<float>(Tensor<std::int64_t>(indices(size(state), size(state) / 2)));
  run(state, Row::unique, [&] { return situ::unique(a); });
}

}  // namespace workloads
