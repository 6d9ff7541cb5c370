/// gradcheck: gradients against finite differences.
///
///     gradcheck([](auto const& x) { return sum(tanh(x)); }, x);
///     gradcheck([](auto const& x, auto const& w) { return matmul(x, w); }, {x, w});
///     gradcheck(f, std::tuple{x, labels, w}, {.eps = 1e-5});
#pragma once

#include <tuple>

#include <situ/autograd/backward.hpp>
#include <situ/autograd/reduce.hpp>

namespace situ::inline SITU_ABI {

/// How close is close: |analytic - numeric| <= atol + rtol |numeric|, with numeric = (f(x + eps) - f(x - eps)) / (2 eps).
struct GradcheckOptions {
  double eps = 1e-6, atol = 1e-5, rtol = 1e-3;
};

namespace detail {

/// A tensor with these elements, laid out in memory as `like` is; axes that it repeats get elements of their own.
template <class T, class D>
Tensor<T, D> laid_out_as(Tensor<T, D> const& like, std::vector<T> const& values) {
  Tensor<T, D> const packed(values, like.shape());
  if (like.is_contiguous() || like.layout().is_broadcast() || like.size() == 0) return packed;
  int64_t low = 0, high = 0;
  for (int k = 0; k < like.rank(); ++k) {
    int64_t const reach = (like.shape()[k] - 1) * like.strides()[k];
    (reach < 0 ? low : high) += reach;
  }
  auto memory = Tensor<T, D>::uninitialized({high - low + 1}, "gradcheck");
  auto result = Tensor<T, D>::from_handle(make_view(memory.storage(), memory.data() - low, like.layout()));
  result.assign(packed);
  return result;
}

/// The results of a function, one after the other, as f(result): of a Variable, a formula, a tensor, a tuple or a row of them.
template <class Y, class F>
void for_each_result(Y const& y, F const& f) {
  if constexpr (any_formula<Y>) f(y);
  else if constexpr (requires { std::tuple_size<Y>::value; }) std::apply([&](auto const&... ys) { (for_each_result(ys, f), ...); }, y);
  else for (auto const& element : y) for_each_result(element, f);
}

/// The elements of all results of a function, in a row.
template <class Y>
std::vector<double> elements_of(Y const& y) {
  std::vector<double> result;
  for_each_result(y, [&](auto const& one) {
    auto const values = evaluated(cast<double>(values_of(one))).to_vector();
    result.insert(result.end(), values.begin(), values.end());
  });
  return result;
}

/// An index as text.
inline Shape index_of(int64_t position, Shape const& shape) {
  Shape index = shape;
  for (int k = shape.rank() - 1; k >= 0; --k) {
    index[k] = position % shape[k];
    position /= shape[k];
  }
  return index;
}

/// Calls f(k, input) for each input that is differentiated, with its number among all inputs.
template <class F, class... Vs>
void for_each_checked(std::tuple<Vs...> const& inputs, F const& f) {
  [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
    ([&] {
      auto const& input = std::get<Ks>(inputs);
      if constexpr (differentiable<decltype(input)>) {
        static_assert(std::is_same_v<value_of<decltype(input)>, double>,
                      "situ::gradcheck: finite_differences_need_double: give Variables of double (v.value().to<double>()), and what is not differentiated as a Tensor");
        if (input.requires_grad()) f(Ks, input);
      }
    }(), ...);
  }(std::index_sequence_for<Vs...>{});
}

/// The inputs with one of them changed, all as leaves of their own.
template <std::size_t K, class V, class Changed, class... Vs>
auto replaced(V const& input, std::size_t k, Changed const& changed, std::tuple<Vs...> const&) {
  if constexpr (!differentiable<V>) return input;
  else if constexpr (std::is_same_v<V, Variable<value_of<Changed>, device_of<Changed>>>) {
    return k == K ? V(changed, true) : V(input.value(), input.requires_grad());
  } else {
    return V(input.value(), input.requires_grad());
  }
}

/// ∂(all results)/∂(element) for each element of each differentiated input, by central differences.
template <class F, class... Vs>
std::vector<std::vector<double>> numeric_columns(F const& f, std::tuple<Vs...> const& inputs, double eps) {
  std::vector<std::vector<double>> columns;
  for_each_checked(inputs, [&](std::size_t k, auto const& input) {
    auto const shape_and_strides = input.value();
    auto values = shape_and_strides.to_vector();
    for (double& x : values) {
      double const before = x;
      auto const at = [&](double moved) {
        x = moved;
        auto const changed = laid_out_as(shape_and_strides, values);
        auto const y = [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
          return elements_of(f(replaced<Ks>(std::get<Ks>(inputs), k, changed, inputs)...));
        }(std::index_sequence_for<Vs...>{});
        x = before;
        return y;
      };
      std::vector<double> above = at(before + eps);
      std::vector<double> const below = at(before - eps);
      for (std::size_t i = 0; i < above.size(); ++i) above[i] = (above[i] - below[i]) / (2 * eps);
      columns.push_back(std::move(above));
    }
  });
  return columns;
}

/// The gradients of the differentiated inputs for one element of one result, in a row.
template <class Y, class... Vs>
std::vector<double> analytic_row(Y const& y, int64_t element, std::tuple<Vs...> const& inputs) {
  std::vector<Node*> nodes;
  for_each_checked(inputs, [&](std::size_t, auto const& input) { nodes.push_back(input.state()); });
  Targets const targets(std::move(nodes), false);
  if (y.requires_grad()) {
    std::vector<value_of<Y>> seed(static_cast<std::size_t>(y.size()));
    seed[static_cast<std::size_t>(element)] = convert_scalar<value_of<Y>>(1);
    run_grad(y, Tensor<value_of<Y>, device_of<Y>>(seed, y.shape()), targets, true);
  }
  std::vector<double> row;
  for_each_checked(inputs, [&](std::size_t, auto const& input) {
    auto const& gradient = input.state()->captured;
    auto const values = gradient.body() ? gradient.to_vector() : std::vector<double>(static_cast<std::size_t>(input.size()));
    row.insert(row.end(), values.begin(), values.end());
  });
  return row;
}

/// Compares the gradients of one result.
template <class Y, class... Vs>
void check_result(Y const& y, int64_t number, int64_t first, std::tuple<Vs...> const& inputs, std::vector<std::vector<double>> const& numeric,
                  GradcheckOptions const& options) {
  for (int64_t i = 0; i < y.size(); ++i) {
    std::vector<double> const row = analytic_row(y, i, inputs), again = analytic_row(y, i, inputs);
    std::size_t at = 0;
    for_each_checked(inputs, [&](std::size_t k, auto const& input) {
      for (int64_t j = 0; j < input.size(); ++j, ++at) {
        double const analytic = row[at], expected = numeric[at][static_cast<std::size_t>(first + i)];
        double const apart = analytic < expected ? expected - analytic : analytic - expected;
        double const most = options.atol + options.rtol * (expected < 0 ? -expected : expected);
        auto const where = [&] {
          return text("gradcheck: the gradient of output ", number, " at ", index_of(i, y.shape()), " by input ", k, " at ", index_of(j, input.shape()));
        };
        if (!(apart <= most)) {  // NaN too
          fail<GradientError>(where(), " is ", analytic, ", but finite differences give ", expected, ": they are ", apart, " apart, and ", most, " is allowed");
        }
        if (!(analytic == again[at])) fail<GradientError>(where(), " is ", analytic, ", and ", again[at], " when computed again: it must be the same");
      }
    });
  }
}

/// Throws when a backward pass has touched what users see as grad().
template <class... Vs>
auto gradients_of(std::tuple<Vs...> const& inputs) {
  std::vector<std::pair<void const*, uint32_t>> seen;
  for_each_checked(inputs, [&](std::size_t, auto const& input) {
    auto const& gradient = input.state()->grad;
    seen.emplace_back(gradient.body(), gradient.storage_head() ? gradient.storage_head()->version : 0);
  });
  return seen;
}

template <class F, class... Vs>
bool check_gradients(F const& f, std::tuple<Vs...> const& inputs, GradcheckOptions const& options) {
  int64_t differentiated = 0;
  for_each_checked(inputs, [&](std::size_t, auto const&) { ++differentiated; });
  if (differentiated == 0) fail<GradientError>("gradcheck: no input requires a gradient; make one a Variable of double, or call requires_grad(true)");
  auto const before = gradients_of(inputs);
  enable_grad const guard;
  auto const numeric = numeric_columns(f, inputs, options.eps);
  auto const results = std::apply(f, inputs);
  int64_t number = 0, first = 0;
  for_each_result(results, [&](auto const& result) {
    if constexpr (differentiable<decltype(result)>) {
      check_result(recorded(result), number, first, inputs, numeric, options);
    } else {
      check_result(Variable(evaluated(cast<double>(result)), false), number, first, inputs, numeric, options);
    }
    ++number;
    first += result.size();
  });
  if (before != gradients_of(inputs)) fail<GradientError>("gradcheck: the function wrote to the grad() of an input: it must not call backward() on what is made of them");
  return true;
}

template <class V, std::size_t N>
auto tuple_of(V const (&inputs)[N]) {
  return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) { return std::make_tuple(inputs[Ks]...); }(std::make_index_sequence<N>{});
}

}  // namespace detail

/// Compares the gradients of f(inputs...) with central differences, element by element.
///
/// f takes Variables and gives a Variable, a formula, or several of them as std::tuple or std::vector. Inputs are one Variable, several in braces or in
/// a std::array (spread over f's parameters), or a std::tuple, in which tensors and other things are passed on as they are. Their layouts stay
/// as they are: a transposed input is transposed under finite differences too. Nobody's grad() changes, and no input is written.
///
/// Dtype     double: finite differences of narrower types say little.
/// Throws    GradientError that names the output, the input, their elements and both gradients, when they differ; when no input requires a
///           gradient; when a second backward pass gives other numbers than the first.
/// Cost      two calls of f for each element of the inputs, two backward passes for each element of the outputs.
/// Source    PyTorch's torch.autograd.gradcheck, with its defaults.
template <class F, class... Vs>
bool gradcheck(F const& f, std::tuple<Vs...> const& inputs, GradcheckOptions const& options = {}) {
  return detail::check_gradients(f, inputs, options);
}
template <class F, class T, class D>
bool gradcheck(F const& f, Variable<T, D> const& input, GradcheckOptions const& options = {}) {
  return detail::check_gradients(f, std::make_tuple(input), options);
}
template <class F, class T, class D, std::size_t N>
bool gradcheck(F const& f, Variable<T, D> const (&inputs)[N], GradcheckOptions const& options = {}) {
  return detail::check_gradients(f, detail::tuple_of(inputs), options);
}
template <class F, class T, class D, std::size_t N>
bool gradcheck(F const& f, std::array<Variable<T, D>, N> const& inputs, GradcheckOptions const& options = {}) {
  return detail::check_gradients(f, std::tuple_cat(inputs), options);
}

namespace detail {

/// A leaf of numbers in [-1, 1), the same each time: weights of a function's results.
template <class Y>
auto gradgrad_weights(Y const& y, uint64_t& state) {
  std::vector<double> values(static_cast<std::size_t>(y.size()));
  for (double& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<double>(static_cast<int64_t>(state)) * 0x1p-63;
  }
  return Variable<double, device_of<Y>>(Tensor<double, device_of<Y>>(values, y.shape()));
}

template <class F, class... Vs>
bool check_second_gradients(F const& f, std::tuple<Vs...> const& inputs, GradcheckOptions const& options) {
  using D = device_of<std::tuple_element_t<0, std::tuple<Vs...>>>;
  uint64_t state = 1;
  std::vector<Variable<double, D>> weights;
  {
    enable_grad const guard;
    for_each_result(std::apply(f, inputs), [&](auto const& y) { weights.push_back(gradgrad_weights(y, state)); });
  }
  // The gradients of Σ w·y by the inputs, as a function of the inputs.
  auto const first_gradients = [&](auto const&... xs) {
    enable_grad const guard;
    Variable<double, D> total(Tensor<double, D>(zeros<double>({}, D{})), false);
    std::size_t k = 0;
    for_each_result(f(xs...), [&](auto const& y) {
      if constexpr (differentiable<decltype(y)>) total = Variable<double, D>(total + sum(y * weights[k]));
      ++k;
    });
    std::tuple<std::remove_cvref_t<decltype(xs)>...> const args(xs...);
    std::vector<Variable<double, D>> gradients;
    std::vector<Node*> nodes;
    for_each_checked(args, [&](std::size_t, auto const& input) { nodes.push_back(input.state()); });
    Targets const targets(std::move(nodes), false);
    run_grad<true>(total, one_gradient<double, D>({}), targets, true);
    for_each_checked(args, [&](std::size_t, auto const& input) {
      auto const* const recorded_gradient = input.state()->captured_recorded;
      if (recorded_gradient) gradients.push_back(*recorded_gradient);
      else gradients.emplace_back(zeros<double>(input.shape(), D{}), false);
    });
    return gradients;
  };
  return check_gradients(first_gradients, inputs, options);
}

}  // namespace detail

/// The same for second derivatives: gradcheck of the gradients that grad(…, create_graph) gives, for fixed weights of the outputs.
/// Throws    GradientError as gradcheck does, and where an operation has no second derivative. The inputs live on one device.
template <class F, class... Vs>
bool gradgradcheck(F const& f, std::tuple<Vs...> const& inputs, GradcheckOptions const& options = {}) {
  return detail::check_second_gradients(f, inputs, options);
}
template <class F, class T, class D>
bool gradgradcheck(F const& f, Variable<T, D> const& input, GradcheckOptions const& options = {}) {
  return detail::check_second_gradients(f, std::make_tuple(input), options);
}
template <class F, class T, class D, std::size_t N>
bool gradgradcheck(F const& f, Variable<T, D> const (&inputs)[N], GradcheckOptions const& options = {}) {
  return detail::check_second_gradients(f, detail::tuple_of(inputs), options);
}
template <class F, class T, class D, std::size_t N>
bool gradgradcheck(F const& f, std::array<Variable<T, D>, N> const& inputs, GradcheckOptions const& options = {}) {
  return detail::check_second_gradients(f, std::tuple_cat(inputs), options);
}

}  // namespace situ::inline SITU_ABI
