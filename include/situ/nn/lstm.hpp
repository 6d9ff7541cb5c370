/// Long short-term memory: a network that reads sequences step by step.
///
///     nn::LSTM<float, Cuda<0>> lstm{64, 128, {.num_layers = 2}};
///     auto [output, state] = lstm(x);          // state.h, state.c
///     auto [next, after] = lstm(x, state);     // goes on where the first call ended
///     auto [other, end] = lstm(x, {h, c});     // from two Variables, or two tensors
///
/// Shape     x [batch, steps, input_size] → output [batch, steps, hidden_size], state.h and state.c [num_layers, batch, hidden_size]; without a batch,
///           [steps, input_size] → [steps, hidden_size], [num_layers, hidden_size].
/// State     weight_ih_l0 [4 hidden, in], weight_hh_l0 [4 hidden, hidden], bias_ih_l0, bias_hh_l0, weight_ih_l1, …, as PyTorch's with batch_first; gates
///           stand in the order input, forget, cell, output.
/// Throws    ShapeError for other shapes.
/// Cost      per layer one product for the inputs of all steps, and for each step one product and one kernel; the same in backward. output is a view of
///           memory that is ordered by steps.
/// Special   without a state h and c begin as 0. In training, dropout is applied to the output of each layer but the last.
/// Source    Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735, with the forget gate of Gers et al. 2000.
#pragma once

#include <situ/autograd/concat.hpp>
#include <situ/autograd/lstm.hpp>
#include <situ/autograd/random.hpp>
#include <situ/nn/linear.hpp>

namespace situ::inline SITU_ABI {
namespace nn {

/// The options of LSTM.
struct lstm_options {
  int64_t num_layers = 1;
  bool bias = true;
  double dropout = 0;  ///< between layers
};

/// What an LSTM knows after a step: [num_layers, batch, hidden_size] each.
template <class T = float, class Device = Cpu>
struct LSTMState {
  Variable<T, Device> h, c;
};
template <class T = float, class Device = Cpu>
struct LSTMOutput {
  Variable<T, Device> output;
  LSTMState<T, Device> state;
};

/// Long short-term memory; see the top of this file. Weights and biases begin uniform in ±1 / √hidden_size.
template <class T = float, class Device = Cpu>
struct LSTM {
  std::vector<Variable<T, Device>> parameters;  ///< of each layer: weight_ih, weight_hh, bias_ih, bias_hh

 private:
  int64_t input_size_, hidden_size_;
  bool bias_;
  double dropout_;

 public:
  bool training = true;

  LSTM(int64_t input_size, int64_t hidden_size, lstm_options const& options = {})
      : input_size_(input_size), hidden_size_(hidden_size), bias_(options.bias), dropout_(detail::checked_dropout(options.dropout, "LSTM")) {
    if (options.num_layers < 1 || hidden_size < 1) {
      detail::fail<ShapeError>("LSTM: ", options.num_layers, " layers of ", hidden_size, " cells were asked for; there is one or more of each");
    }
    double const bound = 1 / detail::root(static_cast<double>(hidden_size));
    auto const add = [&](Shape const& shape) { parameters.emplace_back(detail::uniform_weights<T, Device>(shape, bound, "LSTM")); };
    for (int64_t layer = 0; layer < options.num_layers; ++layer) {
      add({4 * hidden_size, layer == 0 ? input_size : hidden_size});
      add({4 * hidden_size, hidden_size});
      if (bias_) add({4 * hidden_size}), add({4 * hidden_size});
    }
  }
  LSTM(from_members_t, std::vector<Variable<T, Device>> weights, int64_t input_size, int64_t hidden_size, bool bias, double dropout, bool train)
      : parameters(std::move(weights)), input_size_(input_size), hidden_size_(hidden_size), bias_(bias), dropout_(dropout), training(train) {}

  int64_t input_size() const { return input_size_; }
  int64_t hidden_size() const { return hidden_size_; }
  int64_t num_layers() const { return static_cast<int64_t>(parameters.size()) / per_layer(); }
  /// The name of a parameter in a state file.
  std::string situ_element_name(int64_t k) const {
    static constexpr char const* names[] = {"weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l"};
    return names[k % per_layer()] + std::to_string(k / per_layer());
  }

  auto forward(auto const& x) const { return run(x, nullptr); }
  auto forward(auto const& x, LSTMState<T, detail::result_device_t<Device>> const& state) const { return run(x, &state); }

  SITU_MODULE(parameters, input_size_, hidden_size_, bias_, dropout_, training)

 private:
  using D = detail::result_device_t<Device>;
  using V = Variable<T, D>;
  struct Given {
    V value;
    template <any_formula E>
      requires detail::input_fits<situ_member_types, E>
    Given(E const& e) : value(as_variable(e)) {}
    template <any_formula E, class SituError = typename detail::wrong_input<situ_member_types, E>::type>
    Given(E const&) = delete;
  };
  struct GivenState {
    Given h, c;
  };

 public:
  // The state in braces, which have no type that a template could take.
  template <class X>
    requires detail::input_fits<situ_member_types, X>
  auto operator()(X const& x, GivenState const& state) const {
    return detail::forwarded(*this, x, LSTMState<T, D>{state.h.value, state.c.value});
  }

 private:
  int64_t per_layer() const { return bias_ ? 4 : 2; }

  template <class X>
  LSTMOutput<T, D> run(X const& x, LSTMState<T, D> const* state) const {
    Shape const shape = x.shape();
    bool const batched = shape.rank() == 3;
    if ((shape.rank() != 2 && !batched) || shape.back() != input_size_) {
      detail::fail<ShapeError>("LSTM: an input of shape ", shape, " was given; it takes [batch, steps, ", input_size_, "] or [steps, ", input_size_, "]");
    }
    int64_t const batch = batched ? shape[0] : 1, steps = shape[batched ? 1 : 0], layers = num_layers();
    if (state) {
      Shape const wanted = batched ? Shape{layers, batch, hidden_size_} : Shape{layers, hidden_size_};
      if (!(state->h.shape() == wanted) || !(state->c.shape() == wanted)) {
        detail::fail<ShapeError>("LSTM: a state of shapes ", state->h.shape(), " and ", state->c.shape(), " does not fit an input of shape ", shape, ": both are ", wanted);
      }
    }
    V const none(Tensor<T, D>(), false);
    V sequence = by_steps(x, batched);
    std::vector<V> h, c;
    for (int64_t layer = 0; layer < layers; ++layer) {
      auto const parameter = [&](int64_t k) -> V { return V(parameters[static_cast<std::size_t>(layer * per_layer() + k)]); };
      auto const first = [&](V const& all) { return all.select(0, layer).reshape({batch, hidden_size_}); };
      V const results = detail::recorded_lstm<T, D>(sequence, state ? first(state->h) : none, state ? first(state->c) : none, parameter(0), parameter(1),
                                                    bias_ ? parameter(2) : none, bias_ ? parameter(3) : none);
      sequence = results.slice(0, 0, steps);
      if (steps > 0) h.push_back(results.select(0, steps - 1));
      else h.push_back(state ? first(state->h) : V(zeros<T>({batch, hidden_size_}, D{}), false));
      c.push_back(results.select(0, steps));
      if (layer + 1 < layers && training && dropout_ > 0) sequence = V(dropout(sequence, dropout_));
    }
    V const output = batched ? sequence.transpose(0, 1) : sequence.squeeze(1);
    return {output, {joined(h, batched), joined(c, batched)}};
  }
  /// x as [steps, batch, in], contiguous.
  template <class X>
  static V by_steps(X const& x, bool batched) {
    auto const turned = [&](auto const& all) {
      auto const view = batched ? all.transpose(0, 1) : all.unsqueeze(1);
      if constexpr (differentiable<X>) return V(view).contiguous();
      else return V(Tensor<T, D>(view).contiguous(), false);
    };
    if constexpr (differentiable<X>) return turned(V(x));
    else return turned(Tensor<T, D>(x));
  }
  template <class E>
  static V as_variable(E const& e) {
    if constexpr (differentiable<E>) return V(e);
    else return V(Tensor<T, D>(e), false);
  }
  static V joined(std::vector<V> const& layers, bool batched) {
    if (layers.size() == 1) return batched ? layers[0].unsqueeze(0) : layers[0];
    return batched ? V(stack(layers)) : V(stack(layers)).squeeze(1);
  }
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
