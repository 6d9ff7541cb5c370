/// Variables print as PyTorch 1.13 prints them; its node names end in Backward0, situ's do not.
#include <doctest/doctest.h>

#include <sstream>

#include <situ/autograd/print.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/device/emulated/device.hpp>

using namespace situ;

TEST_CASE("a Variable prints whether it wants a gradient, or what made it") {
  Variable const x(arange<float>(3));
  CHECK(to_string(x) == "tensor([0., 1., 2.], requires_grad=True)");
  CHECK(to_string(x * 2) == "tensor([0., 2., 4.], grad_fn=<Mul>)");
  CHECK(to_string(mean(x * x + 1)) == "tensor(2.6667, grad_fn=<Mean>)");
  CHECK(to_string(-x) == "tensor([-0., -1., -2.], grad_fn=<Neg>)");
  CHECK(to_string(x - 1) == "tensor([-1.,  0.,  1.], grad_fn=<Sub>)");
  CHECK(to_string(sum(arange<float>(12) * Variable(ones({12})))) == "tensor(66., grad_fn=<Sum>)");
  CHECK(to_string(Variable(full({}, 1.5f))) == "tensor(1.5000, requires_grad=True)");
  CHECK(to_string(Variable(zeros({0, 3}))) == "tensor([], size=(0, 3), requires_grad=True)");
}

TEST_CASE("what has no history prints as a tensor") {
  Variable x(arange<float>(3));
  CHECK(to_string(x.detach()) == "tensor([0., 1., 2.])");
  {
    no_grad const guard;
    CHECK(to_string(x * 2) == "tensor([0., 2., 4.])");
  }
  x.requires_grad(false);
  CHECK(to_string(x) == "tensor([0., 1., 2.])");
  CHECK(to_string(x * 2) == "tensor([0., 2., 4.])");
}

TEST_CASE("suffixes follow the type, on a line of their own where they do not fit") {
  Variable const m(Tensor<double>{{1, 2}, {3, 4}});
  CHECK(to_string(m) == "tensor([[1., 2.],\n        [3., 4.]], dtype=float64, requires_grad=True)");
  CHECK(to_string(m / 3) == "tensor([[0.3333, 0.6667],\n        [1.0000, 1.3333]], dtype=float64, grad_fn=<Div>)");
  Variable const y(arange<float>(12));
  CHECK(to_string(y) == "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11.],\n       requires_grad=True)");
  CHECK(to_string(exp(y)) ==
        "tensor([1.0000e+00, 2.7183e+00, 7.3891e+00, 2.0086e+01, 5.4598e+01, 1.4841e+02,\n"
        "        4.0343e+02, 1.0966e+03, 2.9810e+03, 8.1031e+03, 2.2026e+04, 5.9874e+04],\n       grad_fn=<Exp>)");
  CHECK(to_string(y.view({3, 4}).t()) ==
        "tensor([[ 0.,  4.,  8.],\n        [ 1.,  5.,  9.],\n        [ 2.,  6., 10.],\n        [ 3.,  7., 11.]], grad_fn=<T>)");
  CHECK(to_string(y[3]) == "tensor(3., grad_fn=<Select>)");
  CHECK(to_string(tanh(Variable(linspace(0, 1, 9)))) ==
        "tensor([0.0000, 0.1244, 0.2449, 0.3584, 0.4621, 0.5546, 0.6351, 0.7039, 0.7616],\n       grad_fn=<Tanh>)");
  CHECK(to_string(Variable(linspace(0, 1, 10))) ==
        "tensor([0.0000, 0.1111, 0.2222, 0.3333, 0.4444, 0.5556, 0.6667, 0.7778, 0.8889,\n        1.0000], requires_grad=True)");
}

TEST_CASE("a stream gets the same text, with the device in it") {
  std::ostringstream stream;
  Variable const x(Tensor<float>{1.f, 2.f}.to(Emulated<1>{}));
  stream << x << "\n" << x * 3;
  CHECK(stream.str() == "tensor([1., 2.], device='emulated:1', requires_grad=True)\ntensor([3., 6.], device='emulated:1', grad_fn=<Mul>)");
}
