"""Writes matmul.hpp: what PyTorch computes, on small whole numbers that are exact in every type. Run: python3 matmul.py > matmul.hpp"""
import torch
import torch.nn.functional as F


def numbers(shape, seed):
    """The element with index i in row-major order is (7 i + 3 seed) mod 11 - 5."""
    n = 1
    for extent in shape:
        n *= extent
    return ((torch.arange(n) * 7 + 3 * seed) % 11 - 5).reshape(shape).double()


def braces(values):
    return "{" + ", ".join(format(v, ".9g") for v in values) + "}"


def row(text, shapes, result):
    return f'    {{"{text}", {{' + ", ".join(braces(s) for s in shapes) + f"}}, {braces(result.shape)}, {braces(result.flatten().tolist())}}},"


products = [
    [(3,), (3,)], [(3,), (3, 4)], [(2, 3), (3,)], [(2, 3), (3, 4)], [(1, 1), (1, 1)], [(2, 2, 3), (3, 2)], [(2, 3), (2, 3, 2)],
    [(2, 1, 2, 3), (3, 3, 2)], [(2, 2, 3), (3,)], [(3,), (2, 3, 2)], [(1, 2, 3), (4, 3, 1)], [(2, 0), (0, 3)], [(0, 3), (3, 2)],
    [(2, 3), (3, 0)], [(0,), (0,)], [(0, 2, 3), (3, 4)],
]
sums = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("ij,kj->ki", (2, 3), (4, 3)), ("ba,cb", (2, 3), (4, 2)),
    ("ij->ji", (2, 3)), ("ij->", (2, 3)), ("ij->j", (2, 3)), ("ii", (3, 3)), ("ii->i", (3, 3)), ("iij->ij", (2, 2, 3)), ("iji->j", (2, 3, 2)),
    ("i,i", (3,), (3,)), ("i,j->ij", (2,), (3,)), ("i,j->ji", (2,), (3,)), ("ij,ij->ij", (2, 3), (2, 3)), ("ij,ij->i", (2, 3), (2, 3)),
    ("ij,ji->", (2, 3), (3, 2)), ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)), ("bij,bkj->bki", (2, 2, 3), (2, 4, 3)), ("bij,cjk->ibck", (2, 2, 3), (2, 3, 2)),
    ("ijk,kl->ijl", (2, 2, 3), (3, 2)), ("ijk,jkl->il", (2, 3, 2), (3, 2, 2)), ("abcd,cdef->abef", (2, 1, 2, 3), (2, 3, 1, 2)),
    ("ik,jkl,il->ij", (2, 3), (2, 3, 2), (2, 2)), ("ij,jk,kl->il", (2, 3), (3, 2), (2, 4)), ("i,j,k->kji", (2,), (3,), (2,)),
    ("...ij,...jk->...ik", (2, 2, 3), (3, 2)), ("...i,i->...", (2, 2, 3), (3,)), ("...ij->...ji", (2, 2, 3)), ("i...,i...->...", (3, 2), (3, 2)),
    ("...,...->...", (2, 1, 3), (2, 1)), ("b...i,b...j->b...ij", (2, 3, 2), (2, 3, 2)), ("ij...,jk...", (2, 3, 2), (3, 2, 2)),
    ("ii,ij->j", (3, 3), (3, 2)), ("aib,aib->", (2, 3, 2), (2, 3, 2)), ("ij,jk->i", (2, 3), (3, 4)), ("ij,k->ij", (2, 3), (4,)),
    (" i j , j k -> i k ", (2, 3), (3, 4)), ("ij,jk->ik", (2, 0), (0, 3)), ("zA,Ab", (2, 3), (3, 2)),
]

print("// Written by matmul.py from PyTorch. Do not edit.")
print("#pragma once\n\n#include <vector>\n\n#include <situ/core/shape.hpp>\n")
print("namespace situ_test::expected {\n")
print("/// Operands of these shapes, the k-th filled with (7 i + 3 k) mod 11 - 5, and what comes out.")
print("struct Product {\n  char const* equation;\n  std::vector<situ::Shape> shapes;\n  situ::Shape shape;\n  std::vector<double> values;\n};\n")
print("inline std::vector<Product> products() {\n  return {")
for shapes in products:
    result = torch.matmul(*[numbers(s, k) for k, s in enumerate(shapes)])
    print(row("", shapes, result))
print("  };\n}\n")
print("inline std::vector<Product> sums() {\n  return {")
for equation, *shapes in sums:
    result = torch.einsum(equation, *[numbers(s, k) for k, s in enumerate(shapes)])
    print(row(equation, shapes, result))
print("  };\n}\n")
print("/// linear(x [3, 4], w [2, 4] / 8, b [2]), alone and with an activation.")
x, w, b = numbers((3, 4), 0), numbers((2, 4), 1) / 8, numbers((2,), 2)
y = F.linear(x, w, b)
for name, values in [("linear", y), ("linear_relu", F.relu(y)), ("linear_gelu_tanh", F.gelu(y, approximate="tanh"))]:
    print(f"inline std::vector<double> {name}() {{\n  return " + "{" + ", ".join(repr(v) for v in values.flatten().tolist()) + "};\n}")
print("\n}  // namespace situ_test::expected")
