"""Writes places.hpp: for every arranging or selecting operation, which element of its input each element of its result is.

The operations are run by PyTorch and NumPy on tensors that hold their own places, so that one table serves every element type,
layout and device. Places below 0 are elements that are not from the input: -1 a padding of 1, -2 a zero. Places from 1000 on are
elements of a second tensor, the source that is scattered.

    python3 places.py > places.hpp
"""
import numpy as np
import torch
import torch.nn.functional as F

torch.manual_seed(0)
PAD, ZERO, SOURCE = -1, -2, 1000


def places(*shape, start=0):
    return torch.arange(start, start + int(np.prod(shape))).reshape(shape)


def padded(x, widths, mode):
    """Reflect, replicate and circular, one axis after the other, by NumPy."""
    names = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    pairs = [(0, 0)] * x.ndim
    for k in range(len(widths) // 2):
        pairs[x.ndim - 1 - k] = (widths[2 * k], widths[2 * k + 1])
    return torch.from_numpy(np.pad(x.numpy(), pairs, mode=names[mode]))


def masked(x, keep):
    return torch.where(keep, x, torch.tensor(ZERO))


rows = torch.tensor([2, 0, 2, 1, 1])
cases = {
    "concat 0": ((2, 3, 4), lambda x: torch.cat([x, x], 0)),
    "concat 1 of three": ((2, 3, 4), lambda x: torch.cat([x, x.flip(1), x[:, :1]], 1)),
    "concat -1": ((2, 3, 4), lambda x: torch.cat([x, x.flip(0)], -1)),
    "concat nothing": ((2, 3, 4), lambda x: torch.cat([x[:, :0], x], 1)),
    "stack 0": ((2, 3, 4), lambda x: torch.stack([x, x.flip(0)], 0)),
    "stack 2": ((2, 3, 4), lambda x: torch.stack([x, x.flip(2)], 2)),
    "stack -1": ((2, 3, 4), lambda x: torch.stack([x, x, x.flip(0)], -1)),
    "split 3 last": ((2, 3, 4), lambda x: torch.split(x, 3, 2)[1]),
    "split sizes": ((2, 3, 4), lambda x: torch.split(x, [1, 0, 2], 1)[2]),
    "chunk 3": ((2, 3, 4), lambda x: torch.chunk(x, 3, 2)[1]),
    "tile all": ((2, 3, 4), lambda x: torch.from_numpy(np.tile(x.numpy(), (2, 1, 3)))),
    "tile fewer": ((2, 3, 4), lambda x: torch.from_numpy(np.tile(x.numpy(), 2))),
    "tile more": ((2, 3, 4), lambda x: torch.from_numpy(np.tile(x.numpy(), (2, 1, 2, 1)))),
    "tile none": ((2, 3, 4), lambda x: torch.from_numpy(np.tile(x.numpy(), (0, 1, 1)))),
    "repeat 0": ((2, 3, 4), lambda x: torch.repeat_interleave(x, 3, 0)),
    "repeat 1": ((2, 3, 4), lambda x: torch.repeat_interleave(x, 2, 1)),
    "repeat 2": ((2, 3, 4), lambda x: torch.repeat_interleave(x, 2, 2)),
    "repeat flat": ((2, 3, 4), lambda x: torch.repeat_interleave(x, 2)),
    "repeat counts": ((2, 3, 4), lambda x: torch.repeat_interleave(x, torch.tensor([1, 0, 3]), 1)),
    "pad last": ((2, 3, 4), lambda x: F.pad(x, (1, 2), value=PAD)),
    "pad three": ((2, 3, 4), lambda x: F.pad(x, (1, 0, 2, 1, 0, 1), value=PAD)),
    "pad negative": ((2, 3, 4), lambda x: F.pad(x, (-1, 2, 1, -1), value=PAD)),
    "pad reflect": ((2, 3, 4), lambda x: padded(x, (3, 1, 1, 2), "reflect")),
    "pad replicate": ((2, 3, 4), lambda x: padded(x, (3, 1, 1, 5), "replicate")),
    "pad circular": ((2, 3, 4), lambda x: padded(x, (4, 1, 0, 3), "circular")),
    "roll 2": ((2, 3, 4), lambda x: torch.roll(x, 1, 2)),
    "roll two": ((2, 3, 4), lambda x: torch.roll(x, (1, -1), (0, 2))),
    "roll far": ((2, 3, 4), lambda x: torch.roll(x, -7, 1)),
    "roll twice": ((2, 3, 4), lambda x: torch.roll(x, (1, 2), (2, 2))),
    "roll flat": ((2, 3, 4), lambda x: torch.roll(x, 5)),
    "flip all": ((2, 3, 4), lambda x: torch.flip(x, (0, 1, 2))),
    "flip two": ((2, 3, 4), lambda x: torch.flip(x, (0, 2))),
    "triu": ((2, 3, 4), lambda x: masked(x, torch.ones(3, 4).triu() > 0)),
    "triu 2": ((2, 3, 4), lambda x: masked(x, torch.ones(3, 4).triu(2) > 0)),
    "tril 1": ((2, 3, 4), lambda x: masked(x, torch.ones(3, 4).tril(1) > 0)),
    "tril -9": ((2, 3, 4), lambda x: masked(x, torch.ones(3, 4).tril(-9) > 0)),
    "diag": ((3, 4), lambda x: torch.diag(x)),
    "diag 1": ((3, 4), lambda x: torch.diag(x, 1)),
    "diag -2": ((3, 4), lambda x: torch.diag(x, -2)),
    "diag 9": ((3, 4), lambda x: torch.from_numpy(np.diag(x.numpy(), 9).copy())),
    "diag of row": ((3,), lambda x: torch.where(torch.diag(torch.ones(3)) > 0, torch.diag(x), torch.tensor(ZERO))),
    "diag of row -2": ((3,), lambda x: torch.where(torch.diag(torch.ones(3), -2) > 0, torch.diag(x, -2), torch.tensor(ZERO))),
    "meshgrid ij": ((3,), lambda x: torch.meshgrid(x, x.flip(0)[:2], indexing="ij")[0]),
    "meshgrid xy": ((3,), lambda x: torch.meshgrid(x, x.flip(0)[:2], indexing="xy")[1]),
    "roll of one": ((1,), lambda x: torch.roll(x, 3, 0)),
    "tile of one": ((1,), lambda x: torch.from_numpy(np.tile(x.numpy(), 5))),
    "concat of none": ((0, 3), lambda x: torch.cat([x, x], 1)),
    "pad of none": ((0, 3), lambda x: F.pad(x, (0, 0, 1, 1), value=PAD)),
    "repeat of none": ((0, 3), lambda x: torch.repeat_interleave(x, 2, 1)),
    "gather 0": ((2, 3, 4), lambda x: torch.gather(x, 0, torch.tensor([[[1, 0, 0], [0, 1, 1]]]))),
    "gather 1": ((2, 3, 4), lambda x: torch.gather(x, 1, torch.tensor([[[1, 0, 2, 2], [0, 2, 1, 1]], [[2, 2, 0, 1], [1, 0, 0, 2]]]))),
    "gather 2": ((2, 3, 4), lambda x: torch.gather(x, 2, torch.tensor([[[3], [0], [2]], [[1], [1], [0]]]))),
    "index_select 0": ((3, 4), lambda x: torch.index_select(x, 0, rows)),
    "index_select 1": ((2, 3, 4), lambda x: torch.index_select(x, 1, rows)),
    "index_select 2": ((2, 4, 3), lambda x: torch.index_select(x, 2, rows)),
    "take": ((2, 3, 4), lambda x: torch.take(x, torch.tensor([[23, 0, 7], [-1, -24, 11]]))),
    "scatter 0": ((2, 3, 4), lambda x: torch.scatter(x, 0, torch.tensor([[[1, 0, 0], [0, 1, 1]]]), places(2, 3, 4, start=SOURCE))),
    "scatter 1": ((2, 3, 4), lambda x: torch.scatter(x, 1, torch.tensor([[[1, 0, 2, 2], [0, 2, 1, 1]]]), places(2, 3, 4, start=SOURCE))),
    "scatter 2": ((2, 3, 4), lambda x: torch.scatter(x, 2, torch.tensor([[[3, 0], [0, 1], [2, 3]]]), places(2, 3, 4, start=SOURCE))),
    "masked_select": ((2, 3, 4), lambda x: torch.masked_select(x, (x * 7) % 5 > 1)),
    "masked_select broadcast": ((2, 3, 4), lambda x: torch.masked_select(x, torch.tensor([True, False, False, True]))),
    "masked_select none": ((2, 3, 4), lambda x: torch.masked_select(x, x < 0)),
}


def numbers(values):
    return ", ".join(str(int(v)) for v in values)


print("/// Written by places.py, with PyTorch %s and NumPy %s.\n#pragma once\n" % (torch.__version__, np.__version__))
print("#include <cstdint>\n#include <vector>\n\nnamespace situ_test {\n")
print("struct Places {\n  char const* operation;\n  std::vector<std::int64_t> input, result;\n  std::vector<short> of;\n};\n")
print("inline std::vector<Places> const& all_places() {\n  static std::vector<Places> const places{")
for name, (shape, f) in cases.items():
    y = f(places(*shape))
    print('      {"%s", {%s}, {%s}, {%s}},' % (name, numbers(shape), numbers(y.shape), numbers(y.flatten().tolist())))
print("  };\n  return places;\n}\n\n}  // namespace situ_test")
