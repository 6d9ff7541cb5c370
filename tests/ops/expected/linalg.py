#!/usr/bin/env python3
"""Writes linalg.hpp: what NumPy makes of a few matrices. python3 linalg.py > linalg.hpp"""
import numpy as np

SIGNED = np.array([[4, -2, 1, 3, 0], [1, 6, -3, 2, 2], [-2, 1, 5, -1, 4], [3, 0, -2, 7, 1], [0.5, 2, 1, -4, 6]])
POSITIVE = np.array([[6, 2, -1, 0.5], [2, 5, 1, -2], [-1, 1, 4, 0.25], [0.5, -2, 0.25, 3]])
cases = {
    "1x1": np.array([[-2.5]]),
    "2x2": np.array([[1, 2], [3, 4.0]]),
    "permuted": np.array([[0, 0, 2], [0, -3, 0], [4, 0, 0.0]]),
    "5x5": SIGNED,
    "positive": POSITIVE,
    "indefinite": np.array([[1, 2, 3], [2, -4, 0.5], [3, 0.5, 2.0]]),
    "singular": np.array([[1, 2, 4], [2, 4, 8], [1, 0, 1.0]]),
    "zero": np.zeros((2, 2)),
    "8x8": np.array([[((3 * i + 5 * j + i * j) % 11 - 5) / 2 + (6 if i == j else 0) for j in range(8)] for i in range(8)]),
    "4x2": SIGNED[:4, :2],
    "2x4": SIGNED[:2, :4],
    "5x3 of rank 2": SIGNED[:, :2] @ np.array([[1, 0, 2], [0, 1, -1.0]]),
    "3x5 of rank 2": np.array([[1, 0], [0, 1], [2, -1.0]]) @ SIGNED[:2, :],
    "1x3": np.array([[3, 0, -4.0]]),
    "3x1": np.array([[2], [-1], [2.0]]),
}


def numbers(x):
    return "{" + ", ".join(repr(float(v)) for v in np.asarray(x).ravel()) + "}"


print("""/// Written by linalg.py: what NumPy {} makes of a few matrices. Do not edit.
#pragma once

#include <vector>

namespace situ_test {{

/// Matrices by rows; what is not defined for a matrix is empty.
struct LinalgCase {{
  char const* name;
  int rows, columns;
  std::vector<double> a;
  double det, sign, logabsdet;          // of square ones
  std::vector<double> inverse;          // of regular ones
  std::vector<double> pinv, singular_values;
  int rank;
  std::vector<double> r;                // of qr, with a diagonal that is not negative; of full rank, and not wider than tall
  std::vector<double> eigenvalues;      // of symmetric ones
  std::vector<double> cholesky;         // of positive definite ones
  std::vector<double> b, solution;      // lstsq (solve of regular ones), two columns
  std::vector<double> residuals;        // of tall ones of full rank
}};

inline std::vector<LinalgCase> const& linalg_cases() {{
  static std::vector<LinalgCase> const cases = {{""".format(np.__version__))
for name, a in cases.items():
    m, n = a.shape
    square, rank = m == n, np.linalg.matrix_rank(a)
    det = np.linalg.det(a) if square else 0
    sign, logabsdet = np.linalg.slogdet(a) if square and rank == n else (0, 0)
    inverse = np.linalg.inv(a) if square and rank == n else []
    r = []
    if m >= n and rank == n:
        r = np.linalg.qr(a)[1]
        r = r * np.where(np.diag(r) < 0, -1, 1)[:, None]
    symmetric = square and (a == a.T).all()
    eigenvalues = np.linalg.eigvalsh(a) if symmetric else []
    cholesky = np.linalg.cholesky(a) if symmetric and eigenvalues[0] > 0 else []
    b = np.array([[1 + i - 0.5 * i * i, (-1) ** i * 2.0] for i in range(m)])
    solution, residuals, _, _ = np.linalg.lstsq(a, b, rcond=None)
    if square and rank == n:
        solution = np.linalg.solve(a, b)
    print(f'      {{"{name}", {m}, {n}, {numbers(a)},')
    print(f"       {float(det if rank == n else 0)!r}, {float(sign)!r}, {float(logabsdet)!r}, {numbers(inverse)},")
    print(f"       {numbers(np.linalg.pinv(a))}, {numbers(np.linalg.svd(a, compute_uv=False))}, {rank},")
    print(f"       {numbers(r)}, {numbers(eigenvalues)}, {numbers(cholesky)},")
    print(f"       {numbers(b)}, {numbers(solution)}, {numbers(residuals)}}},")
print("""  };
  return cases;
}

}  // namespace situ_test""")
