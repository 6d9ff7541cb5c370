/// libtorch without gradients: the `_out` and in-place forms, its own fused functions where it has one.
#include "workloads.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

namespace workloads {

const char* const library = "libtorch";

void set_threads(int threads) { at::set_num_threads(threads); }

namespace {

using at::Tensor;

Tensor tensor(Input which, at::IntArrayRef shape) {
  Tensor x = at::empty(shape, at::kFloat);
  fill(which, x.data_ptr<float>(), static_cast<std::size_t>(x.numel()));
  return x;
}

Tensor vector(Input which, std::size_t n) { return tensor(which, {static_cast<std::int64_t>(n)}); }

Tensor matrix(Input which, std::size_t n) {
  auto side = static_cast<std::int64_t>(n);
  return tensor(which, {side, side});
}

template <class F>
void run_elementwise(State& state, Row row, Input input, F f) {
  c10::InferenceMode no_gradients;
  std::size_t n = size(state);
  Tensor a = vector(input, n), b = vector(Input::b, n), c = vector(Input::c, n), y = at::zeros_like(a);
  for (auto _ : state) {
    f(y, a, b, c);
    keep(*y.data_ptr<float>());
  }
  verify(state, row, y.data_ptr<float>());
}

template <class F>
void run_matrix(State& state, Row row, F f) {
  c10::InferenceMode no_gradients;
  std::size_t n = size(state);
  Tensor a = matrix(Input::a, n), b = row == Row::add_transposed || row == Row::product ? matrix(Input::b, n) : vector(Input::b, n);
  Tensor y = row == Row::row_sums || row == Row::column_sums ? at::zeros_like(b) : at::zeros_like(a);
  for (auto _ : state) {
    f(y, a, b);
    keep(*y.data_ptr<float>());
  }
  verify(state, row, y.data_ptr<float>());
}

template <class F>
void run_scalar(State& state, Row row, F f) {
  c10::InferenceMode no_gradients;
  Tensor a = vector(Input::a, size(state));
  float result = 0;
  for (auto _ : state) {
    result = f(a).template item<float>();
    keep(result);
  }
  verify(state, row, result);
}

}  // namespace

using T = const Tensor&;

void chain(State& state) {
  run_elementwise(state, Row::chain, Input::a, [](Tensor& y, T a, T b, T c) {
    at::addcmul_out(y, c, a, b);
    y.sub_(a, 0.5);
  });
}
void exp(State& state) {
  run_elementwise(state, Row::exp, Input::a, [](Tensor& y, T a, T, T) { at::exp_out(y, a); });
}
void log(State& state) {
  run_elementwise(state, Row::log, Input::positive, [](Tensor& y, T a, T, T) { at::log_out(y, a); });
}
void tanh(State& state) {
  run_elementwise(state, Row::tanh, Input::a, [](Tensor& y, T a, T b, T c) {
    at::addcmul_out(y, c, a, b);
    y.tanh_();
  });
}
void sigmoid(State& state) {
  run_elementwise(state, Row::sigmoid, Input::a, [](Tensor& y, T a, T, T) { at::sigmoid_out(y, a); });
}
void gelu_tanh(State& state) {
  run_elementwise(state, Row::gelu_tanh, Input::a, [](Tensor& y, T a, T, T) { at::gelu_out(y, a, "tanh"); });
}
void gelu_erf(State& state) {
  run_elementwise(state, Row::gelu_erf, Input::a, [](Tensor& y, T a, T, T) { at::gelu_out(y, a, "none"); });
}

void fresh(State& state) {
  c10::InferenceMode no_gradients;
  std::size_t n = size(state);
  Tensor a = vector(Input::a, n), b = vector(Input::b, n), c = vector(Input::c, n);
  for (auto _ : state) {
    Tensor y = at::addcmul(c, a, b);
    keep(*y.data_ptr<float>());
  }
  verify(state, Row::fresh, at::addcmul(c, a, b).data_ptr<float>());
}

void power(State& state) {
  c10::InferenceMode no_gradients;
  Tensor x = vector(Input::near_one, size(state)), z;
  float result = 0;
  for (auto _ : state) {
    z = x.clone();
    for (int k = 0; k < 1000; ++k) z.mul_(x);
    result = z.norm().item<float>();
    keep(result);
  }
  verify(state, Row::power, result);
}

void add_row(State& state) {
  run_matrix(state, Row::add_row, [](Tensor& y, T a, T b) { at::add_out(y, a, b); });
}
void add_column(State& state) {
  run_matrix(state, Row::add_column, [](Tensor& y, T a, T b) { at::add_out(y, a, b.unsqueeze(1)); });
}

void outer(State& state) {
  c10::InferenceMode no_gradients;
  std::size_t n = size(state);
  Tensor a = vector(Input::a, n), b = vector(Input::b, n);
  bool checked = false;
  for (auto _ : state) {
    Tensor y = at::outer(a, b);
    keep(*y.data_ptr<float>());
    if (!checked) {
      checked = true;
      state.PauseTiming();
      verify(state, Row::outer, y.data_ptr<float>());
      state.ResumeTiming();
    }
  }
}

void add_transposed(State& state) {
  run_matrix(state, Row::add_transposed, [](Tensor& y, T a, T b) { at::add_out(y, a, b.t()); });
}

void sum(State& state) {
  run_scalar(state, Row::sum, [](T a) { return a.sum(); });
}
void max(State& state) {
  run_scalar(state, Row::max, [](T a) { return a.max(); });
}
void norm(State& state) {
  run_scalar(state, Row::norm, [](T a) { return a.norm(); });
}

void row_sums(State& state) {
  run_matrix(state, Row::row_sums, [](Tensor& y, T a, T) { at::sum_out(y, a, 1); });
}
void column_sums(State& state) {
  run_matrix(state, Row::column_sums, [](Tensor& y, T a, T) { at::sum_out(y, a, 0); });
}

void softmax(State& state) {
  run_matrix(state, Row::softmax, [](Tensor& y, T a, T) { at::_softmax_out(y, a, 1, false); });
}
void layer_norm(State& state) {
  auto n = static_cast<std::int64_t>(size(state));
  // A fresh result each time: its form for an existing one makes a fresh one too, and copies it.
  run_matrix(state, Row::layer_norm, [n](Tensor& y, T a, T) { y = at::layer_norm(a, {n}); });
}
void product(State& state) {
  run_matrix(state, Row::product, [](Tensor& y, T a, T b) { at::mm_out(y, a, b); });
}
void sort(State& state) {
  c10::InferenceMode no_gradients;
  Tensor a = vector(Input::a, size(state)), y;
  for (auto _ : state) {
    y = std::get<0>(a.sort());  // which makes the indices as well: there is no other
    keep(*y.data_ptr<float>());
  }
  verify(state, Row::sort, y.data_ptr<float>());
}

namespace {

std::int64_t extent(const State& state) { return static_cast<std::int64_t>(size(state)); }

Tensor index_tensor(const State& state, std::size_t n) {
  std::vector<std::int64_t> const from = indices(size(state), n);
  return at::tensor(from, at::kLong);
}

/// y = f(), or f(y) where there is a form for an existing result.
template <class F>
void run(State& state, Row row, F f) {
  c10::InferenceMode no_gradients;
  Tensor y = at::empty({0}, at::kFloat);
  for (int k = 0; k < 3; ++k) f(y);
  for (auto _ : state) {
    f(y);
    keep(*y.data_ptr<float>());
  }
  verify(state, row, y.contiguous().data_ptr<float>(), static_cast<std::size_t>(y.numel()));
}

}  // namespace

void argmax(State& state) {
  c10::InferenceMode no_gradients;
  Tensor a = vector(Input::a, size(state));
  std::int64_t place = 0;
  for (auto _ : state) {
    place = a.argmax().item<std::int64_t>();
    keep(place);
  }
  verify(state, Row::argmax, a.data_ptr<float>() + place, 1);
}
void cumsum(State& state) {
  Tensor a = vector(Input::a, size(state));
  run(state, Row::cumsum, [&](Tensor& y) { at::cumsum_out(y, a, 0); });
}
void cumsum_rows(State& state) {
  Tensor a = matrix(Input::a, size(state));
  run(state, Row::cumsum_rows, [&](Tensor& y) { at::cumsum_out(y, a, 1); });
}
void cumsum_columns(State& state) {
  Tensor a = matrix(Input::a, size(state));
  run(state, Row::cumsum_columns, [&](Tensor& y) { at::cumsum_out(y, a, 0); });
}
void softmax_columns(State& state) {
  Tensor a = matrix(Input::a, size(state));
  run(state, Row::softmax_columns, [&](Tensor& y) { at::_softmax_out(y, a, 0, false); });
}
void layer_norm_cached(State& state) {
  Tensor a = tensor(Input::a, {extent(state), 1024});
  run(state, Row::layer_norm_cached, [&](Tensor& y) { y = at::layer_norm(a, {1024}); });
}
void small_product(State& state) {
  Tensor a = matrix(Input::a, size(state)), b = matrix(Input::b, size(state));
  run(state, Row::small_product, [&](Tensor& y) { y = at::mm(a, b); });
}
void batched_product(State& state) {
  std::int64_t n = extent(state), batches = (1 << 18) / (n * n);
  Tensor a = tensor(Input::a, {batches, n, n}), b = tensor(Input::b, {batches, n, n});
  run(state, Row::batched_product, [&](Tensor& y) { at::bmm_out(y, a, b); });
}

namespace {
struct ConvolutionInputs {
  Tensor x, weights, biases;
  explicit ConvolutionInputs(std::int64_t n)
      : x(tensor(Input::a, {n, Images::channels, Images::side, Images::side})), weights(tensor(Input::b, {Images::outputs, Images::channels, 3, 3})),
        biases(tensor(Input::c, {Images::outputs})) {}
};
}  // namespace
void convolution(State& state) {
  ConvolutionInputs in(extent(state));
  run(state, Row::convolution, [&](Tensor& y) { y = at::conv2d(in.x, in.weights, in.biases, 1, 1); });
}
void convolution_block(State& state) {
  ConvolutionInputs in(extent(state));
  run(state, Row::convolution_block, [&](Tensor& y) { y = at::max_pool2d(at::conv2d(in.x, in.weights, in.biases, 1, 1).relu_(), 2); });
}

void masked_select(State& state) {
  Tensor a = vector(Input::a, size(state)), mask = a > 0;
  run(state, Row::masked_select, [&](Tensor& y) { y = a.masked_select(mask); });
}
void gather(State& state) {
  Tensor a = vector(Input::a, size(state)), places = index_tensor(state, size(state));
  run(state, Row::gather, [&](Tensor& y) { at::gather_out(y, a, 0, places); });
}
void index_select(State& state) {
  Tensor a = tensor(Input::a, {Selections::rows, Selections::width}), rows = index_tensor(state, Selections::rows);
  run(state, Row::index_select, [&](Tensor& y) { at::index_select_out(y, a, 0, rows); });
}
void scatter_add(State& state) {
  Tensor a = vector(Input::a, size(state)), zeros = at::zeros({Selections::bins}), bins = index_tensor(state, Selections::bins);
  run(state, Row::scatter_add, [&](Tensor& y) { y = zeros.scatter_add(0, bins, a); });
}
void argsort(State& state) {
  c10::InferenceMode no_gradients;
  Tensor a = vector(Input::a, size(state)), order;
  for (auto _ : state) {
    order = a.argsort();
    keep(*order.data_ptr<std::int64_t>());
  }
  Tensor sorted = a.gather(0, order);
  verify(state, Row::argsort, sorted.data_ptr<float>(), size(state));
}
void topk(State& state) {
  Tensor a = vector(Input::a, size(state));
  run(state, Row::topk, [&](Tensor& y) { y = std::get<0>(a.topk(Selections::best)); });
}
void product_power(State& state) {
  c10::InferenceMode no_gradients;
  Tensor x = at::empty({extent(state), extent(state)}, at::kFloat), z, next;
  fill_for_powers(x.data_ptr<float>(), size(state));
  Tensor buffers[] = {at::empty_like(x), at::empty_like(x)};
  float result = 0;
  for (auto _ : state) {
    z = x;
    for (int k = 0; k < 1000; ++k) {
      next = buffers[k % 2];
      at::mm_out(next, z, x);
      z = next;
    }
    result = z.norm().item<float>();
    keep(result);
  }
  verify(state, Row::product_power, &result, 1);
}
void bfloat16_product(State& state) {
  c10::InferenceMode no_gradients;
  Tensor a = matrix(Input::a, size(state)).to(at::kBFloat16), b = matrix(Input::b, size(state)).to(at::kBFloat16), y = at::empty_like(a);
  for (auto _ : state) {
    at::mm_out(y, a, b);
    keep(*y.data_ptr<at::BFloat16>());
  }
  Tensor wide = y.to(at::kFloat);
  verify(state, Row::bfloat16_product, wide.data_ptr<float>(), static_cast<std::size_t>(wide.numel()));
}
void variance(State& state) {
  c10::InferenceMode no_gradients;
  Tensor a = vector(Input::a, size(state));
  float result = 0;
  for (auto _ : state) {
    result = a.var().item<float>();
    keep(result);
  }
  verify(state, Row::variance, &result, 1);
}
void pad(State& state) {
  Tensor a = matrix(Input::a, size(state));
  run(state, Row::pad, [&](Tensor& y) { y = at::constant_pad_nd(a, {1, 1, 1, 1}); });
}
void roll(State& state) {
  Tensor a = vector(Input::a, size(state));
  run(state, Row::roll, [&](Tensor& y) { y = at::roll(a, static_cast<std::int64_t>(rolled_by)); });
}
namespace {
void stack_along(State& state, Row row, std::int64_t axis) {
  Tensor a = vector(Input::a, size(state)), b = vector(Input::b, size(state)), c = vector(Input::c, size(state));
  run(state, row, [&](Tensor& y) { at::stack_out(y, {a, b, c}, axis); });
}
}  // namespace
void stack(State& state) { stack_along(state, Row::stack, 0); }
void stack_last(State& state) { stack_along(state, Row::stack_last, 1); }
void nonzero(State& state) {
  c10::InferenceMode no_gradients;
  Tensor mask = vector(Input::a, size(state)) > 0, places;
  for (auto _ : state) {
    places = mask.nonzero();
    keep(*places.data_ptr<std::int64_t>());
  }
  Tensor found = places.to(at::kFloat).contiguous();
  verify(state, Row::nonzero, found.data_ptr<float>(), static_cast<std::size_t>(found.numel()));
}
void unique(State& state) {
  Tensor a = index_tensor(state, size(state) / 2).to(at::kFloat);
  run(state, Row::unique, [&](Tensor& y) { y = std::get<0>(at::_unique(a)); });
}

}  // namespace workloads
