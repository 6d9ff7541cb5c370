/// Attention, MultiheadAttention and LSTM on Cuda<0>, against Cpu.
#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/nn/attention.hpp>
#include <situ/nn/lstm.hpp>

using namespace situ;
using situ_test::differs;

namespace {

template <class T>
void check_attention(int64_t rows, int64_t keys, bool causal, int mask, double dropout, double most) {
  CAPTURE(rows);
  CAPTURE(keys);
  CAPTURE(mask);
  Cuda<0> const device;
  auto const run = [&]<class D>(D d) {
    manual_seed(3);
    // Heads that are slices of tokens.
    Variable<T, D> const q{Tensor<T, D>(randn<T>({2, rows, 3, 16}).to(d)).transpose(1, 2)}, k{Tensor<T, D>(randn<T>({2, keys, 3, 16}).to(d)).transpose(1, 2)};
    Variable<T, D> const v{randn<T>({2, 3, keys, 8}).to(d)};
    Tensor<bool> const seen = bernoulli<bool>(0.7, {2, 1, rows, keys});
    Tensor<T> const added = randn<T>({rows, keys});
    attention_options<T, D> options{.causal = causal, .dropout = dropout};
    if (mask == 1) options.mask = seen.to(d);
    if (mask == 2) options.mask = added.to(d);
    manual_seed(4);
    auto const y = scaled_dot_product_attention(q, k, v, options);
    y.backward(randn<T>(y.shape()).to(d));
    return std::vector<Tensor<T, D>>{y.value(), q.grad(), k.grad(), v.grad()};
  };
  auto const host = run(Cpu());
  auto const there = run(device);
  for (std::size_t k = 0; k < host.size(); ++k) CHECK(differs(there[k], host[k], most) == "");
}

}  // namespace

TEST_CASE("attention on a GPU is that on the host, with its gradients") {
  for (int mask : {0, 1, 2}) {
    check_attention<float>(5, 7, false, mask, 0, 1e-5);
    check_attention<float>(70, 300, true, mask, 0, 1e-4);
  }
  check_attention<float>(33, 2500, false, 0, 0.3, 1e-4);
}

TEST_CASE("scores of float16 may be out of range before they are scaled on a GPU") {
  Cuda<0> const device;
  auto const q = full<float16>({1, 1, 2, 64}, 40, device), v = cast<float16>(arange<float>(8, device)).view({1, 1, 2, 4});
  CHECK((scaled_dot_product_attention(q, q, v).to_vector()) == std::vector<float16>{float16(2.f), float16(3.f), float16(4.f), float16(5.f), float16(2.f), float16(3.f), float16(4.f), float16(5.f)});
}

TEST_CASE("a query that sees no key gives 0 on a GPU") {
  Cuda<0> const device;
  auto const x = randn({2, 3, 4}, device);
  auto const y = scaled_dot_product_attention(x, x, x, {.mask = full<bool>({3, 3}, false, device)});
  CHECK(y.to_vector() == std::vector<float>(24, 0.f));
}

TEST_CASE("MultiheadAttention and LSTM on a GPU are those on the host") {
  Cuda<0> const device;
  nn::MultiheadAttention<float> const attention(32, 4, {.causal = true});
  nn::LSTM<float> const lstm(32, 24, {.num_layers = 2});
  auto const x = randn({3, 9, 32}), g = randn({3, 9, 32});
  auto const there = to(attention, device);
  Variable const a{x};
  Variable const b{x.to(device)};
  auto const y = attention(a);
  auto const z = there(b);
  y.backward(g), z.backward(g.to(device));
  CHECK(differs(z.value(), y.value(), 1e-4) == "");
  CHECK(differs(b.grad(), a.grad(), 1e-4) == "");
  CHECK(differs(there.in_proj_weight.grad(), attention.in_proj_weight.grad(), 1e-3) == "");

  auto const lstm_there = to(lstm, device);
  auto const [output, state] = lstm(x);
  auto const [output_there, state_there] = lstm_there(x.to(device));
  CHECK(differs(output_there.value(), output.value(), 1e-4) == "");
  CHECK(differs(state_there.c.value(), state.c.value(), 1e-4) == "");
  output.backward(g.slice(2, 0, 24)), output_there.backward(g.slice(2, 0, 24).to(device));
  for (std::size_t k = 0; k < lstm.parameters.size(); ++k) CHECK(differs(lstm_there.parameters[k].grad(), lstm.parameters[k].grad(), 1e-3) == "");
}
