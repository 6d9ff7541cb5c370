"""Parameters after 1, 10 and 100 steps of torch.optim, and learning rates of torch.optim.lr_scheduler.

    python3 trajectories.py > trajectories.hpp        (PyTorch 1.13 was used)

37 parameters, p[i] = 0.1 i - 1; the gradient of step t is 0.5 cos(0.7 t + i) + 0.2 p[i], in double, rounded to the type.
"""
import math

import torch

N = 37
SHOWN = (0, 17, 36)
torch.set_num_threads(1)

ROWS = [
    ("SGD", dict(lr=0.05)),
    ("SGD", dict(lr=0.05, momentum=0.9)),
    ("SGD", dict(lr=0.05, momentum=0.9, dampening=0.3)),
    ("SGD", dict(lr=0.05, momentum=0.9, nesterov=True)),
    ("SGD", dict(lr=0.05, weight_decay=0.1)),
    ("SGD", dict(lr=0.01, momentum=0.8, weight_decay=0.1, maximize=True)),
    ("Adam", dict(lr=0.01)),
    ("Adam", dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6)),
    ("Adam", dict(lr=0.01, weight_decay=0.1)),
    ("Adam", dict(lr=0.01, amsgrad=True, betas=(0.9, 0.9))),
    ("Adam", dict(lr=0.01, amsgrad=True, weight_decay=0.1, maximize=True)),
    ("AdamW", dict(lr=0.01)),
    ("AdamW", dict(lr=0.01, weight_decay=0.3, amsgrad=True, betas=(0.9, 0.9))),
    ("AdamW", dict(lr=0.01, maximize=True)),
    ("RMSprop", dict(lr=0.01)),
    ("RMSprop", dict(lr=0.01, alpha=0.9, momentum=0.5)),
    ("RMSprop", dict(lr=0.01, alpha=0.9, centered=True, eps=1e-3)),
    ("RMSprop", dict(lr=0.01, alpha=0.95, centered=True, momentum=0.5, weight_decay=0.1, maximize=True, eps=1e-3)),
    ("Adagrad", dict(lr=0.1)),
    ("Adagrad", dict(lr=0.1, lr_decay=0.05)),
    ("Adagrad", dict(lr=0.1, initial_accumulator_value=0.5, weight_decay=0.1, maximize=True)),
]


def trajectory(name, options, dtype):
    p = torch.tensor([0.1 * i - 1 for i in range(N)], dtype=dtype, requires_grad=True)
    optimizer = getattr(torch.optim, name)([p], foreach=False, **options)
    shown = []
    for t in range(1, 101):
        values = p.detach().double().tolist()
        p.grad = torch.tensor([0.5 * math.cos(0.7 * t + i) + 0.2 * values[i] for i in range(N)], dtype=torch.float64).to(dtype)
        optimizer.step()
        if t in (1, 10, 100):
            shown += [p[i].item() for i in SHOWN]
    return shown


def option(key, value):
    if isinstance(value, bool):
        return f".{key} = {str(value).lower()}"
    if isinstance(value, tuple):
        return f".{key} = {{{value[0]}, {value[1]}}}"
    return f".{key} = {value}"


ORDER = {
    "SGD": ["lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"],
    "Adam": ["lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"],
    "AdamW": ["lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"],
    "RMSprop": ["lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"],
    "Adagrad": ["lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"],
}

L = torch.optim.lr_scheduler
SCHEDULES = [
    ("StepLR", lambda o: L.StepLR(o, 3, 0.5)),
    ("MultiStepLR", lambda o: L.MultiStepLR(o, [2, 5, 5, 11], 0.5)),
    ("ExponentialLR", lambda o: L.ExponentialLR(o, 0.9)),
    ("CosineAnnealingLR", lambda o: L.CosineAnnealingLR(o, 8, 0.01)),
    ("OneCycleLR", lambda o: L.OneCycleLR(o, max_lr=0.5, total_steps=16)),
    ("OneCycleLR_linear_three_phase", lambda o: L.OneCycleLR(o, max_lr=0.5, total_steps=16, anneal_strategy="linear", three_phase=True, div_factor=10, final_div_factor=100)),
    ("LinearWarmup", lambda o: L.LinearLR(o, 0.25, 1.0, 4)),
    ("LambdaLR", lambda o: L.LambdaLR(o, lambda t: 1 / (1 + t))),
    ("LinearWarmup_then_CosineAnnealingLR", lambda o: L.SequentialLR(o, [L.LinearLR(o, 0.25, 1.0, 4), L.CosineAnnealingLR(o, 8)], [4])),
]


def schedule(make):
    p = torch.zeros(1, requires_grad=True)
    p.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([p], lr=0.2, momentum=0.9)
    s = make(optimizer)
    rates, momenta = [], []
    for _ in range(16):
        rates.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
        optimizer.step()
        s.step()
    return rates, momenta


def numbers(values, digits=9):
    return ", ".join(f"{v:.{digits}g}" for v in values)


print("/// What PyTorch computes; written by trajectories.py beside this file, which tells of what.")
print("#pragma once")
print()
print("/// ROW(optimizer, (options), (float32 after 1, 10 and 100 steps), (float64)), three elements each.")
print("#define SITU_TRAJECTORIES(ROW) \\")
for name, options in ROWS:
    text = ", ".join(option(k, options[k]) for k in ORDER[name] if k in options)
    print(f"  ROW({name}, ({text}), ({numbers(trajectory(name, options, torch.float32))}), \\")
    print(f"      ({numbers(trajectory(name, options, torch.float64), 15)})) \\")
print()
print("struct ExpectedRates {\n  char const* name;\n  double lr[16];\n  double momentum[16];\n};")
print("inline constexpr ExpectedRates expected_rates[] = {")
for name, make in SCHEDULES:
    rates, momenta = schedule(make)
    print(f'    {{"{name}", {{{numbers(rates, 15)}}},\n     {{{numbers(momenta, 15)}}}}},')
print("};")
