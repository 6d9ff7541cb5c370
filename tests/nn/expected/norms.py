"""Writes norms.hpp: what PyTorch's normalisation layers compute, in double, of the numbers ((k * 37 + 11 + 8 * step) % 97) / 16 - 3 + step / 2 in order,
for the gradient ((k * 29 + 5 + step) % 83) / 32 - 1, with weights 1 + k / 8 and biases 1 / 2 - k / 16. Batch norms make three training steps; the results of the
last one are written, the running statistics after it, and then those of a step of evaluation.

    python3 norms.py > norms.hpp        (PyTorch 1.13 was used; RMSNorm, which it lacks, is its formula)
"""
import torch
import torch.nn.functional as F


def count(shape):
    n = 1
    for extent in shape:
        n *= extent
    return n


def numbers(shape, step=0):
    values = [((k * 37 + 11 + 8 * step) % 97) / 16 - 3 + step / 2 for k in range(count(shape))]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def gradient(shape, step=0):
    return torch.tensor([((k * 29 + 5 + step) % 83) / 32 - 1 for k in range(count(shape))], dtype=torch.float64).reshape(shape)


def weights(shape):
    return torch.tensor([1 + k / 8 for k in range(count(shape))], dtype=torch.float64).reshape(shape)


def biases(shape):
    return torch.tensor([0.5 - k / 16 for k in range(count(shape))], dtype=torch.float64).reshape(shape)


def row(name, tensors):
    """One element: the name and lists of numbers, empty for what is not there."""
    lists = ", ".join("{" + ("" if t is None else ", ".join("%.17g" % v for v in t.flatten().tolist())) + "}" for t in tensors)
    print('    {"%s", {%s}},' % (name, lists))


def step(layer, shape, number, parameters):
    x = numbers(shape, number).requires_grad_(True)
    for p in parameters:
        p.grad = None
    y = layer(x)
    y.backward(gradient(shape, number))
    return [y.detach(), x.grad] + [p.grad for p in parameters]


print("/// What PyTorch's normalisation layers compute; written by norms.py beside this file, which tells of what.")
print("#pragma once")
print()
print("#include <string>")
print("#include <vector>")
print()
print("namespace expected {")
print("struct Norm {")
print("  std::string name;")
print("  std::vector<std::vector<double>> values;")
print("};")
print("/// Training: result, gradients by x, weight, bias; running mean, running variance; evaluation: the same four.")
print("inline const std::vector<Norm> batch_norms{")
for shape in [(6, 5), (3, 2, 7), (3, 2, 3, 3)]:
    for name, options in [("", {}), ("cumulative", {"momentum": None}), ("plain", {"affine": False, "eps": 1e-2}), ("untracked", {"track_running_stats": False})]:
        kind = torch.nn.BatchNorm2d if len(shape) == 4 else torch.nn.BatchNorm1d
        layer = kind(shape[1], dtype=torch.float64, **options)
        parameters = [layer.weight, layer.bias] if layer.affine else []
        if layer.affine:
            layer.weight.data, layer.bias.data = weights((shape[1],)), biases((shape[1],))
        for number in range(3):
            training = step(layer, shape, number, parameters)
        layer.eval()
        statistics = [layer.running_mean, layer.running_var]
        statistics = [None if s is None else s.clone() for s in statistics]
        none = [None] * (2 - len(parameters))
        evaluation = step(layer, shape, 3, parameters)
        row(name, training + none + statistics + evaluation + none)
print("};")
shape = (2, 3, 4)
print("/// Of numbers [2, 3, 4]: result, gradients by x, weight, bias.")
print("inline const std::vector<Norm> layer_norms{")
for name, extents, has_weight, has_bias in [("last", (4,), True, True), ("two", (3, 4), True, True), ("no bias", (4,), True, False), ("plain", (4,), False, False)]:
    w = weights(extents).requires_grad_(True) if has_weight else None
    b = biases(extents).requires_grad_(True) if has_bias else None
    parameters = [p for p in [w, b] if p is not None]
    row(name, step(lambda x: F.layer_norm(x, extents, w, b), shape, 0, parameters) + [None] * (2 - len(parameters)))
print("};")
print("/// The same without a bias.")
print("inline const std::vector<Norm> rms_norms{")
for name, extents, has_weight, eps in [("last", (4,), True, 2.0 ** -52), ("two", (3, 4), True, 1e-2), ("plain", (4,), False, 2.0 ** -52)]:
    w = weights(extents).requires_grad_(True) if has_weight else None
    axes = tuple(range(3 - len(extents), 3))
    rms = lambda x: x * torch.rsqrt((x * x).mean(axes, keepdim=True) + eps) * (1 if w is None else w)
    row(name, step(rms, shape, 0, [] if w is None else [w]) + ([None] if w is None else []))
print("};")
print("}  // namespace expected")
