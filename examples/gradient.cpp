// The quadratic of the PyTorch introduction: what a gradient is, in ten lines.
//
//   ./examples/run gradient

#include <situ/situ.hpp>

#include <iostream>

using namespace situ;

template <class Device>
bool run(Device device) {
  Variable x{arange<float>(0, 3, 1, device)};

  // y = mean((x + 2)² + 3): one pass over x, and one node that remembers how it was made.
  Variable y = mean(square(x + 2) + 3);
  std::cout << "x = " << x << "\ny = " << y << "\n";

  // dy/dx = 2 (x + 2) / 3, in one kernel that writes nothing else.
  y.backward();
  std::cout << "dy/dx = " << x.grad() << "\n";

  // The same without touching x.grad(), and once more differentiated: d²y/dx² = 2/3.
  Variable slope = grad(mean(square(x + 2) + 3), x, create_graph);
  auto const curvature = grad(sum(slope), x);
  std::cout << "d²y/dx² = " << curvature << "\n";

  Tensor<float> const expected{4 / 3.f, 2.f, 8 / 3.f};
  return allclose(x.grad().cpu(), expected) && allclose(curvature.cpu(), full({3}, 2 / 3.f));
}

int main() {
  bool right = false;
  visit(try_gpu(0), [&](auto device) { right = run(device); });
  return right ? 0 : 1;
}
