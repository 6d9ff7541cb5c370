#!/usr/bin/env python3
"""Writes losses.hpp: values and gradients of PyTorch's losses, in double.

    python3 losses.py > losses.hpp
"""
import itertools
import torch
import torch.nn.functional as F

torch.manual_seed(1)
print("/// What PyTorch %s gives; made by losses.py.\n#pragma once\n\n#include <cstdint>\n#include <vector>\n" % torch.__version__.split("+")[0])
print("namespace situ_test::expected {\n")


def numbers(t):
    return "{" + ", ".join("%.17g" % v for v in t.detach().flatten().tolist()) + "}"


def grid(*shape):
    return (torch.randn(*shape, dtype=torch.double) * 100).round() / 32


x = grid(5, 7)
images = grid(2, 7, 2, 2)
labels = torch.tensor([3, 0, 6, 2, 3])
image_labels = torch.tensor([[[0, 1], [2, 3]], [[4, 5], [6, 2]]])
weight = torch.tensor([0.5, 1, 2, 0.25, 1.5, 3, 0.75], dtype=torch.double)
probabilities = torch.softmax(grid(5, 7), 1)
image_probabilities = torch.softmax(grid(2, 7, 2, 2), 1)
slopes = torch.tensor([1, -0.5, 2, 0.25, 1.5, -1, 0.5, 3], dtype=torch.double)
for name, t in [("scores", x), ("images", images), ("weight", weight), ("probabilities", probabilities), ("image_probabilities", image_probabilities), ("slopes", slopes)]:
    print("inline const std::vector<double> %s%s;" % (name, numbers(t)))
print("inline const std::vector<std::int64_t> labels%s;" % numbers(labels))
print("inline const std::vector<std::int64_t> image_labels%s;\n" % numbers(image_labels))


def run(loss, how, *inputs):
    inputs = [t.clone().requires_grad_(True) for t in inputs]
    value = loss(*inputs)
    value.backward(slopes[: value.numel()].reshape(value.shape) if how == "none" else None)
    return value, [t.grad if t.grad is not None else torch.zeros(0) for t in inputs]


print("""/// Cross entropy of labels, or of logarithms of probabilities: nll.
struct LabelCase {
  char const* reduction;
  bool nll, of_images;
  double smoothing;
  std::int64_t ignored;
  bool weighs;
  std::vector<double> value, gradient;
};
inline const LabelCase label_cases[] = {""")
for how, (smoothing, ignored, weighs), of_images, nll in itertools.product(["mean", "sum", "none"], [(0, -100, False), (0.1, 2, False), (0, 3, True), (0.3, 2, True)], [False, True], [False, True]):
    if nll and (smoothing or of_images and how == "sum"):
        continue
    w = weight if weighs else None
    data, y = (images, image_labels) if of_images else (x, labels)
    if nll:
        f = lambda s: F.nll_loss(s, y, w, ignore_index=ignored, reduction=how)
    else:
        f = lambda s: F.cross_entropy(s, y, w, ignore_index=ignored, reduction=how, label_smoothing=smoothing)
    value, (gradient,) = run(f, how, data)
    print('    {"%s", %s, %s, %g, %d, %s, %s, %s},' % (how, str(nll).lower(), str(of_images).lower(), smoothing, ignored, str(weighs).lower(), numbers(value), numbers(gradient)))
print("""};

/// Cross entropy of probabilities.
struct ProbabilityCase {
  char const* reduction;
  bool of_images;
  double smoothing;
  bool weighs;
  std::vector<double> value, gradient, target_gradient;
};
inline const ProbabilityCase probability_cases[] = {""")
for how, (smoothing, weighs), of_images in [("mean", (0, False), False), ("sum", (0.2, True), False), ("none", (0, True), False), ("none", (0.1, False), True), ("mean", (0.2, True), True)]:
    data, t = (images, image_probabilities) if of_images else (x, probabilities)
    value, (dx, dt) = run(lambda s, p: F.cross_entropy(s, p, weight if weighs else None, reduction=how, label_smoothing=smoothing), how, data, t)
    print('    {"%s", %s, %g, %s, %s, %s, %s},' % (how, str(of_images).lower(), smoothing, str(weighs).lower(), numbers(value), numbers(dx), numbers(dt)))
print("""};

/// Losses of pairs. `parameter` is beta.
struct PairCase {
  char const *loss, *reduction;
  double parameter;
  std::vector<double> value, gradient, target_gradient;
};""")
a = torch.tensor([[0.5, -1.25, 3, 0], [2, -0.75, 30, -40]], dtype=torch.double)
b = torch.tensor([[0.25, 0.75, 1, 0.5], [0.125, 1, 0.5, 0.625]], dtype=torch.double)
element_weight = torch.tensor([0.5, 2, 1, 3], dtype=torch.double)
pos_weight = torch.tensor([2, 1, 0.5, 4], dtype=torch.double)
for name, t in [("pair_x", a), ("pair_y", b), ("element_weight", element_weight), ("pos_weight", pos_weight)]:
    print("inline const std::vector<double> %s%s;" % (name, numbers(t)))
print("inline const PairCase pair_cases[] = {")
for how in ["mean", "sum", "none"]:
    for name, parameter, f in [
        ("mse", 0, lambda p, q: F.mse_loss(p, q, reduction=how)),
        ("l1", 0, lambda p, q: F.l1_loss(p, q, reduction=how)),
        ("smooth_l1", 1, lambda p, q: F.smooth_l1_loss(p, q, reduction=how)),
        ("smooth_l1", 2.5, lambda p, q: F.smooth_l1_loss(p, q, reduction=how, beta=2.5)),
        ("smooth_l1", 0, lambda p, q: F.smooth_l1_loss(p, q, reduction=how, beta=0)),
        ("bce", 0, lambda p, q: F.binary_cross_entropy_with_logits(p, q, reduction=how)),
        ("bce_weights", 0, lambda p, q: F.binary_cross_entropy_with_logits(p, q, element_weight, reduction=how, pos_weight=pos_weight)),
        ("kl_div", 0, lambda p, q: F.kl_div(p, q, reduction=how)),
        ("kl_div_log", 0, lambda p, q: F.kl_div(p, q, reduction=how, log_target=True)),
    ]:
        value, (dx, dy) = run(f, how, a, b)
        print('    {"%s", "%s", %g, %s, %s, %s},' % (name, how, parameter, numbers(value), numbers(dx), numbers(dy)))
value, (dx, dy) = run(lambda p, q: F.kl_div(p, q, reduction="batchmean"), "batchmean", a, b)
print('    {"kl_div", "batchmean", 0, %s, %s, %s},' % (numbers(value), numbers(dx), numbers(dy)))
print("};\n\n}  // namespace situ_test::expected")
