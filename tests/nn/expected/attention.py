#!/usr/bin/env python3
"""Writes attention.hpp: what PyTorch makes of attention, encoder layers and LSTMs, with weights by a formula. python3 attention.py > attention.hpp"""
import math

import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def pattern(seed, *shape):
    """Number k is ((7 k + 13 seed) mod 23 - 11) / 16."""
    count = math.prod(shape)
    k = torch.arange(count)
    return (((7 * k + 13 * seed) % 23 - 11) / 16.0).reshape(shape)


def leaf(seed, *shape):
    return pattern(seed, *shape).requires_grad_()


results = {}


def keep(name, **tensors):
    for key, x in tensors.items():
        results[name + "." + key] = x.detach().flatten().tolist()


def sdpa(q, k, v, mask=None, causal=False, scale=None):
    s = q @ k.transpose(-2, -1) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else s + mask
    return torch.softmax(s, -1) @ v


def attention(name, rows, keys, mask=None, **options):
    q, k, v = leaf(1, 2, 2, rows, 3), leaf(2, 2, 2, keys, 3), leaf(3, 2, 2, keys, 2)
    y = sdpa(q, k, v, mask, **options)
    y.backward(pattern(4, *y.shape))
    keep(name, y=y, dq=q.grad, dk=k.grad, dv=v.grad)


attention("plain", 4, 5)
attention("causal", 4, 5, causal=True)
attention("scale", 3, 4, scale=-0.5)
attention("bool mask", 4, 5, mask=(torch.arange(20).reshape(4, 5) % 3 != 1))
attention("added mask", 4, 5, mask=pattern(5, 2, 1, 4, 5))
attention("padding", 4, 5, mask=(torch.arange(10).reshape(2, 1, 1, 5) % 7 != 3), causal=True)


def fill(module):
    for seed, p in enumerate(module.parameters()):
        p.data = pattern(seed + 10, *p.shape)


def gradients(module):
    return {"d_" + name.replace(".", "_"): p.grad for name, p in module.named_parameters()}


def multihead(name, cross):
    net = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    fill(net)
    q = leaf(1, 2, 3, 4)
    k = leaf(2, 2, 5, 4) if cross else q
    v = leaf(3, 2, 5, 4) if cross else q
    mask = None if cross else ~torch.ones(3, 3, dtype=torch.bool).tril()
    y = net(q, k, v, attn_mask=mask, need_weights=False)[0]
    y.backward(pattern(4, *y.shape))
    keep(name, y=y, dq=q.grad, **({"dk": k.grad, "dv": v.grad} if cross else {}), **gradients(net))


multihead("self", False)
multihead("cross", True)


def encoder(name, sees=None, **options):
    net = torch.nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, **options)
    fill(net)
    x = leaf(1, 2, 3, 4)
    y = net(x, src_mask=None if sees is None else ~torch.tensor(sees, dtype=torch.bool))
    y.backward(pattern(4, *y.shape))
    keep(name, y=y, dx=x.grad, **gradients(net))


encoder("encoder")
encoder("encoder norm_first gelu", norm_first=True, activation="gelu")
encoder("encoder causal", [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
encoder("encoder masked", [[1, 0, 1], [1, 1, 0], [0, 1, 1]], norm_first=True)


def lstm(name, layers, state, bias=True):
    net = torch.nn.LSTM(3, 4, layers, batch_first=True, bias=bias)
    fill(net)
    x = leaf(1, 2, 3, 3)
    h, c = leaf(2, layers, 2, 4), leaf(3, layers, 2, 4)
    y, (hn, cn) = net(x, (h, c)) if state else net(x)
    (y * pattern(4, *y.shape)).sum().backward(retain_graph=True)
    ((hn * pattern(5, *hn.shape)).sum() + (cn * pattern(6, *cn.shape)).sum()).backward()
    keep(name, y=y, h=hn, c=cn, dx=x.grad, **({"dh": h.grad, "dc": c.grad} if state else {}), **gradients(net))


lstm("lstm", 1, False)
lstm("lstm of two", 2, True)
lstm("lstm without bias", 1, True, False)

print(f"""/// Written by attention.py: what PyTorch {torch.__version__.split("+")[0]} makes of attention, encoder layers and LSTMs. Do not edit.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace situ_test {{

/// Results and gradients, in row-major order.
inline std::vector<double> const& expected(std::string const& name) {{
  static std::map<std::string, std::vector<double>> const all = {{""")
for name, values in results.items():
    print(f'      {{"{name}", {{' + ", ".join(f"{v:.10g}" for v in values) + "}},")
print("""  };
  return all.at(name);
}

}  // namespace situ_test""")
