"""Writes rows.hpp: what PyTorch computes, in double, of the numbers ((k * 37 + 11) % 97) / 16 - 3 in order.

    python3 rows.py > rows.hpp        (PyTorch 1.13 was used)
"""
import torch
import torch.nn.functional as F


def numbers(*shape):
    n = 1
    for extent in shape:
        n *= extent
    return torch.tensor([((k * 37 + 11) % 97) / 16 - 3 for k in range(n)], dtype=torch.float64).reshape(shape)


def rms_norm(x, axes, weight=1.0, eps=1e-5):
    return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + eps) * weight


def emit(name, tensor):
    values = ", ".join("%.17g" % v for v in tensor.flatten().tolist())
    print("inline const std::vector<double> %s{%s};" % (name, values))


print("/// What PyTorch computes; written by rows.py beside this file, which tells of what.")
print("#pragma once")
print()
print("#include <vector>")
print()
print("namespace expected {")
x = numbers(3, 4, 5)
w, b = numbers(4, 5) + 1, numbers(4, 5) * 0.5
for axis in range(3):
    emit("softmax_%d" % axis, F.softmax(x, axis))
    emit("log_softmax_%d" % axis, F.log_softmax(x, axis))
emit("softmax_of_expression", F.softmax(x * 0.5 + x[0], 2))
emit("layer_norm_last", F.layer_norm(x, (5,)))
emit("layer_norm_weighed", F.layer_norm(x, (4, 5), w, b, 1e-3))
emit("layer_norm_axes_0_2", F.layer_norm(x.permute(1, 0, 2), (3, 5)).permute(1, 0, 2))
emit("layer_norm_axis_0", F.layer_norm(x.permute(1, 2, 0), (3,), w.flatten()[:3]).permute(2, 0, 1))
emit("rms_norm_last", rms_norm(x, (2,)))
emit("rms_norm_weighed", rms_norm(x, (1, 2), w, 1e-3))
print("}  // namespace expected")
