#!/usr/bin/env python3
"""Writes layers.hpp: what PyTorch's layers make of given weights, and their gradients. python3 layers.py > layers.hpp"""
import torch
from torch import nn

torch.set_default_dtype(torch.float64)


def numbers(shape, seed):
    """The same numbers as situ_test::numbers in layers.cpp: in [-1, 1], in steps of 0.001."""
    count = 1
    for extent in shape:
        count *= extent
    values = [((seed * 7919 + (i + 1) * 2654435761) % 2**32 // 256) % 2001 / 1000 - 1 for i in range(count)]
    return torch.tensor(values).reshape(shape)


def run(name, layer, shape=None, index=None):
    for k, p in enumerate(layer.parameters()):
        p.data = numbers(p.shape, 100 + k)
    if index is not None:
        inputs, x = [], torch.tensor(index)
    else:
        x = numbers(shape, 1).requires_grad_()
        inputs = [x]
    y = layer(x)
    gradients = torch.autograd.grad(y, inputs + list(layer.parameters()), numbers(y.shape, 2))
    rows = [y] + list(gradients)
    print(f'      {{"{name}", {{' + ", ".join(map(str, y.shape)) + "},")
    print("       {" + ",\n        ".join("{" + ", ".join(format(float(v), ".15g") for v in t.flatten()) + "}" for t in rows) + "}},")


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return x + self.fn(x)


print(f"""/// Written by layers.py: what the layers of PyTorch {torch.__version__.split('+')[0]} make of given weights. Do not edit.
#pragma once

#include <vector>

#include <situ/core/shape.hpp>

namespace situ_test {{

/// The output, and the gradients of the input, where it has one, and of the parameters, in their order.
struct LayerCase {{
  char const* name;
  situ::Shape shape;
  std::vector<std::vector<double>> values;
}};

inline std::vector<LayerCase> const& layer_cases() {{
  static std::vector<LayerCase> const cases = {{""")
run("Linear", nn.Linear(3, 4), (2, 3))
run("Linear of three axes", nn.Linear(3, 2, bias=False), (2, 2, 3))
run("Conv2d", nn.Conv2d(2, 3, 3, padding=1), (2, 2, 4, 3))
run("Conv2d with options", nn.Conv2d(4, 2, (2, 3), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False), (4, 4, 6))
run("MaxPool2d", nn.MaxPool2d(2), (1, 2, 4, 5))
run("MaxPool2d with options", nn.MaxPool2d(3, stride=2, padding=1), (2, 5, 4))
run("AvgPool2d", nn.AvgPool2d((2, 3)), (1, 2, 4, 6))
run("AvgPool2d with options", nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), (1, 1, 5, 4))
run("AdaptiveAvgPool2d", nn.AdaptiveAvgPool2d((2, 3)), (1, 2, 5, 4))
run("Embedding", nn.Embedding(5, 3), index=[[1, 4, 1], [0, 2, 1]])
run("Embedding with padding", nn.Embedding(4, 2, padding_idx=1), index=[3, 1, 0, 1, 3])
run("ReLU", nn.ReLU(), (2, 3))
run("LeakyReLU", nn.LeakyReLU(), (2, 3))
run("LeakyReLU of 0.25", nn.LeakyReLU(0.25), (2, 3))
run("GELU", nn.GELU(), (2, 3))
run("GELU by tanh", nn.GELU(approximate="tanh"), (2, 3))
run("SiLU", nn.SiLU(), (2, 3))
run("Tanh", nn.Tanh(), (2, 3))
run("Sigmoid", nn.Sigmoid(), (2, 3))
run("Softmax", nn.Softmax(-1), (2, 3))
run("Softmax of the first axis", nn.Softmax(0), (2, 3))
run("Flatten", nn.Flatten(), (2, 2, 3))
run("Flatten of two axes", nn.Flatten(0, 1), (2, 2, 3))
run("Sequential", nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)), (2, 1, 5, 5))
run("Residual", Residual(nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 3))), (2, 3))
print("""  };
  return cases;
}
""")


def row(values):
    return ", ".join(format(float(v), ".17g") for v in values)


gains = [("linear", None), ("sigmoid", None), ("tanh", None), ("relu", None), ("leaky_relu", None), ("leaky_relu", 0.2), ("selu", None)]
print("/// calculate_gain: linear, sigmoid, tanh, relu, leaky_relu, leaky_relu of 0.2, selu.")
print("inline constexpr double init_gains[] = {" + row(nn.init.calculate_gain(*gain) for gain in gains) + "};\n")
print("""/// The fans of a weight.
struct FanCase {
  situ::Shape shape;
  double in, out;
};
inline FanCase const fan_cases[] = {""")
for shape in [(3, 5), (16, 4, 3, 3), (2, 6, 5), (7, 1, 2, 3, 4)]:
    print(f"    {{{{{row(shape)}}}, {row(nn.init._calculate_fan_in_and_fan_out(torch.empty(shape)))}}},")
print("};\n")
chances = [0.5, 0.3, 0.9, 0.02425, 0.02, 0.975, 1e-3, 1e-10, 1e-100, 1e-300]
print("/// A probability, and the number that a normal one is below with it.")
print("inline constexpr double quantiles[][2] = {" + ", ".join(f"{{{row((p, torch.special.ndtri(torch.tensor(p))))}}}" for p in chances) + "};\n")
matrix = numbers((6, 4), 3)
q, r = torch.linalg.qr(matrix)
print("/// Q of a matrix [6, 4] = Q R with a positive diagonal of R.")
print("inline constexpr double matrix_to_factor[] = {" + row(matrix.flatten()) + "};")
print("inline constexpr double its_q[] = {" + row((q * torch.sign(torch.diag(r))).flatten()) + "};\n")
print("}  // namespace situ_test")
