// Fitting a physical curve: the four numbers of a damped oscillation, from noisy measurements, by Gauss and Newton's method.
//
//   ./examples/run damped_oscillation
//
// The model is a exp(-k t) cos(w t + p). Its Jacobian, n x 4, comes from one backward pass: each parameter is given to every
// measurement as a Variable of its own, so that the gradient of the sum holds the derivative of each measurement.

#include <situ/situ.hpp>

#include <cmath>
#include <cstdio>
#include <iostream>

using namespace situ;

auto model(auto const& amplitude, auto const& damping, auto const& frequency, auto const& phase, Tensor<double> const& t) {
  return amplitude * exp(-damping * t) * cos(frequency * t + phase);
}

int main() {
  int64_t const n = 400;
  Tensor<double> const truth{2.0, 0.25, 3.0, 0.5};
  auto const t = linspace<double>(0, 10, n);
  Generator noise{7};
  Tensor<double> const measured = model(truth[0], truth[1], truth[2], truth[3], t) + 0.05 * randn<double>({n}, noise);

  Tensor<double> parameters{1.0, 0.1, 2.8, 0.0};  // a guess
  double before = 1e300;
  for (int step = 0; step < 20; ++step) {
    auto const spread = [&](int k) { return Variable{parameters[k].expand({n}).clone()}; };
    Variable a = spread(0), k = spread(1), w = spread(2), p = spread(3);
    Variable predicted = model(a, k, w, p, t);
    Tensor<double> const residual = measured - predicted.value();
    double const error = sum(square(residual)).item();
    std::printf("step %2d: sum of squares %10.5f, a %7.4f, k %7.4f, w %7.4f, p %7.4f\n", step, error, parameters.item(0), parameters.item(1),
                parameters.item(2), parameters.item(3));
    if (std::abs(before - error) < 1e-12 * error) break;
    before = error;

    auto const [da, dk, dw, dp] = grad(sum(predicted), {a, k, w, p});
    auto const jacobian = stack({da, dk, dw, dp}, 1);
    parameters = parameters + solve(matmul(jacobian.t(), jacobian), matmul(jacobian.t(), residual));
  }

  std::cout << "fitted " << parameters << "\ntruth  " << truth << "\n";
  return allclose(parameters, truth, {.rtol = 0, .atol = 0.03}) ? 0 : 1;
}
