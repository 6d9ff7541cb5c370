"""Writes sort.hpp: what NumPy says about sorting, unique elements and binary search. Usage: python3 sort.py > sort.hpp"""
import numpy as np

nan, inf = np.nan, np.inf
floats = np.array([3.5, nan, -1.25, 0.0, inf, -0.0, 2.0, -inf, nan, 3.5, 1e-40, -1e-40, 0.0, -1.25, 7.0], dtype=np.float32)
integers = np.array([5, -128, 3, 127, 5, 0, -1, 3, 3, -128, 12, 5, 0, 127], dtype=np.int8)
matrix = np.array([[3, 1, 2, 1], [0, 9, -4, 1], [3, 8, 2, 0]], dtype=np.int64)
edges = np.array([-2.0, 0.0, 0.0, 1.5, 4.0, 4.0, 10.0], dtype=np.float64)
probes = np.array([-3.0, -2.0, -0.0, 0.5, 4.0, 9.99, 10.0, 11.0, inf, -inf, nan], dtype=np.float64)


def number(x):
    if isinstance(x, (float, np.floating)):
        if np.isnan(x):
            return "nan"
        if np.isinf(x):
            return "inf" if x > 0 else "-inf"
        return repr(float(x))
    return str(int(x))


def show(name, kind, values):
    print(f"inline const std::vector<{kind}> {name}{{{', '.join(number(x) for x in np.asarray(values).ravel())}}};")


print("/// What NumPy says about sorting; written by sort.py, numpy " + np.__version__ + ".")
print("#pragma once\n\n#include <cstdint>\n#include <limits>\n#include <vector>\n")
print("namespace expected_sort {\n")
print("inline constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();\n")
for name, kind, x in (("floats", "float", floats), ("integers", "std::int8_t", integers)):
    order = np.argsort(x, kind="stable")
    show(name, kind, x)
    show(name + "_sorted", kind, x[order])
    show(name + "_order", "std::int64_t", order)
show("matrix", "std::int64_t", matrix)
for axis in (0, 1):
    show(f"matrix_sorted_{axis}", "std::int64_t", np.sort(matrix, axis=axis, kind="stable"))
    show(f"matrix_order_{axis}", "std::int64_t", np.argsort(matrix, axis=axis, kind="stable"))
values, first, inverse, counts = np.unique(floats, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
show("floats_unique", "float", values)
show("floats_unique_counts", "std::int64_t", counts)
values, first, inverse, counts = np.unique(matrix, return_index=True, return_inverse=True, return_counts=True)
show("matrix_unique", "std::int64_t", values)
show("matrix_unique_indices", "std::int64_t", first)
show("matrix_unique_inverse", "std::int64_t", inverse)
show("matrix_unique_counts", "std::int64_t", counts)
show("edges", "double", edges)
show("probes", "double", probes)
show("probes_left", "std::int64_t", np.searchsorted(edges, probes, side="left"))
show("probes_right", "std::int64_t", np.searchsorted(edges, probes, side="right"))
print("\n}  // namespace expected_sort")
