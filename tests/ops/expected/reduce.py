"""Writes reduce.hpp: what PyTorch and NumPy make of small arrays, for tests/ops/reduce_more.cpp and tests/ops/scan.cpp.

Run with a Python that has torch and numpy: python3 reduce.py > reduce.hpp. PyTorch gives the values where it has the operation,
NumPy the others (count_nonzero) and the special cases.
"""
import numpy as np
import torch

torch.set_default_dtype(torch.float64)


def value_at(i):
    """Numbers in no order, some of them 0, from -2 to 2 in steps of 1/4; the tests make them in the same way."""
    return ((i * 37 + 11) % 17 - 8) / 4


SHAPE = (3, 4, 5)
X = np.array([value_at(i) for i in range(60)]).reshape(SHAPE)
T = torch.tensor(X)


def number(v):
    v = float(v)
    if np.isnan(v):
        return "NAN"
    if np.isinf(v):
        return "INFINITY" if v > 0 else "-INFINITY"
    return repr(v)


def row(a):
    return "{" + ", ".join(number(v) for v in np.asarray(a, dtype=np.float64).ravel()) + "}"


def torch_all(f, t, axes):
    """f over several axes at once, by moving them to the end."""
    kept = [k for k in range(t.ndim) if k not in axes]
    return f(t.permute(kept + list(axes)).reshape([t.shape[k] for k in kept] + [-1]))


OPERATIONS = {
    "prod": lambda t, axes: torch_all(lambda u: torch.prod(u, -1), t, axes),
    "any": lambda t, axes: torch_all(lambda u: torch.any(u != 0, -1), t, axes),
    "all": lambda t, axes: torch_all(lambda u: torch.all(u != 0, -1), t, axes),
    "count_nonzero": lambda t, axes: np.count_nonzero(t.numpy(), axis=axes),
    "var": lambda t, axes: torch.var(t, axes, unbiased=True),
    "var_0": lambda t, axes: torch.var(t, axes, unbiased=False),
    "stddev": lambda t, axes: torch.std(t, axes, unbiased=True),
    "logsumexp": lambda t, axes: torch.logsumexp(t, axes),
    "norm_1": lambda t, axes: torch.linalg.vector_norm(t, 1, axes),
    "norm_3": lambda t, axes: torch.linalg.vector_norm(t, 3, axes),
    "norm_half": lambda t, axes: torch.linalg.vector_norm(t, 0.5, axes),
    "norm_0": lambda t, axes: torch.linalg.vector_norm(t, 0, axes),
    "norm_inf": lambda t, axes: torch.linalg.vector_norm(t, float("inf"), axes),
    "norm_minus_inf": lambda t, axes: torch.linalg.vector_norm(t, float("-inf"), axes),
}
AXES = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]

SPECIAL = [
    [np.nan, 1, 2],
    [np.inf, 1, 2],
    [-np.inf, 1, 2],
    [np.inf, -np.inf, 0],
    [-np.inf, -np.inf, -np.inf],
    [np.inf, np.nan, 0],
    [1000, 1000, -1000],
    [0, 0, 0],
    [5],
    [],
]
SPECIAL_OPERATIONS = ["prod", "any", "all", "count_nonzero", "var", "var_0", "stddev", "logsumexp", "norm_1", "norm_3", "norm_0"]

print("/// What PyTorch and NumPy make of small arrays: written by reduce.py.")
print("#pragma once\n\n#include <cmath>\n#include <vector>\n")
print("namespace expected {\n")
print("struct Reduction {\n  char const* name;\n  std::vector<int> axes;\n  std::vector<double> values;\n};")
print("inline std::vector<Reduction> const reductions = {")
for name, f in OPERATIONS.items():
    for axes in AXES:
        print(f'    {{"{name}", {{{", ".join(map(str, axes))}}}, {row(f(T, axes))}}},')
print("};\n")
print("struct Special {\n  std::vector<double> input;\n  std::vector<double> values;  ///< in the order of special_names\n};")
print("inline std::vector<char const*> const special_names = {" + ", ".join(f'"{n}"' for n in SPECIAL_OPERATIONS) + "};")
print("inline std::vector<Special> const specials = {")
for s in SPECIAL:
    t = torch.tensor(s, dtype=torch.float64)
    values = []
    for n in SPECIAL_OPERATIONS:
        values.append(float(OPERATIONS[n](t, (0,))))
    print(f"    {{{row(s)}, {row(values)}}},")
print("};\n")
print("struct Scan {\n  char const* name;\n  int axis;\n  std::vector<double> values;\n};")
print("inline std::vector<Scan> const scans = {")
for axis in range(3):
    print(f'    {{"cumsum", {axis}, {row(torch.cumsum(T, axis))}}},')
    print(f'    {{"cumprod", {axis}, {row(torch.cumprod(T, axis))}}},')
print("};\n")
print("}  // namespace expected")
