#!/usr/bin/env python3
"""The workloads of the GPU benchmarks in one other library: gpu_peers.py torch|compile|cupy|jax [--large 28] [--seconds 100] [FILTER]

Prints a line of JSON for each row: {"key": ..., "us": ...}. The keys are those of benchmarks/*.cu; a time is the median over
the rounds, each a batch of calls between two events (JAX: between two waits). "compile" is torch.compile. What does not fit
into the seconds is left out, and said so. Exits with 77 where the library or its GPU is missing.
"""
import argparse
import json
import re
import statistics
import sys
import time

ROUNDS = 9
# torch.compile takes seconds for each formula: these show what it is good at.
COMPILED = ["chain", "tanh", "gelu", "add_row", "add_transposed", "outer", "sum", "sum_product", "row_sums", "column_sums", "softmax", "layer_norm", "launch_fresh"]


def missing(why):
    print(json.dumps({"missing": str(why).splitlines()[0] if str(why) else "not installed"}))
    sys.exit(77)


class Torch:
    def __init__(self, compiled):
        try:
            import torch
        except ImportError as error:
            missing(error)
        if not torch.cuda.is_available():
            missing("torch finds no GPU")
        self.torch, self.compiled = torch, compiled
        self.version = torch.__version__
        self.types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
        torch.backends.cuda.matmul.allow_tf32 = False  # as situ, cuBLAS and the others here
        torch.set_grad_enabled(False)

    def input(self, shape, kind, scale=3.0):
        return ((self.torch.rand(shape, device="cuda") * 2 - 1) * scale).to(self.types[kind])

    def make(self, f):
        return self.torch.compile(f, dynamic=False) if self.compiled else f

    def wait(self):
        self.torch.cuda.synchronize()

    def timed(self, f, batch):
        start, stop = self.torch.cuda.Event(enable_timing=True), self.torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(batch):
            f()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e3 / batch

    def functions(self):
        t = self.torch
        F = t.nn.functional
        return {
            "exp": t.exp, "log": lambda a: t.log(t.abs(a) + 1), "tanh": lambda a, b, c: t.tanh(a * b + c), "gelu_tanh": lambda a: F.gelu(a, approximate="tanh"),
            "gelu": F.gelu, "narrow": lambda a: a.to(t.float16), "sum": t.sum, "max": t.max, "norm": t.linalg.vector_norm, "argmax": t.argmax,
            "sum_product": lambda a, b: t.sum(a * b), "row_sums": lambda A: t.sum(A, 1), "column_sums": lambda A: t.sum(A, 0), "var": lambda A: t.var(A, 1),
            "softmax": lambda x: t.softmax(x, 1), "layer_norm": lambda x, w, b: F.layer_norm(x, (x.shape[1],), w, b), "matmul": t.matmul,
            "norm_of": t.linalg.vector_norm, "item": lambda x: x.item(),
        }

    def leaf(self, x):
        return x.requires_grad_()

    def gradients(self):
        t = self.torch
        F = t.nn.functional

        def backward(f):
            def step(*leaves):
                for leaf in leaves:
                    leaf.grad = None
                with t.enable_grad():
                    f(*leaves).backward()
            return step

        return {
            "grad_tanh": backward(lambda x, w, b, y: t.sum(t.tanh(x * w + b) * y)), "grad_gelu": backward(lambda x: t.sum(F.gelu(x))),
            "grad_layer_norm": backward(lambda x, y: t.sum(F.layer_norm(x, (x.shape[1],)) * y)),
            "grad_cross_entropy": backward(lambda x, labels: F.cross_entropy(x, labels)),
        }

    def labels(self, lines, classes):
        return self.torch.arange(lines, device="cuda") % classes

    def transfers(self, n):
        t = self.torch
        host, pinned, device = t.empty(n), t.empty(n).pin_memory(), t.empty(n, device="cuda")
        host.fill_(1), pinned.fill_(1), device.fill_(1)

        def to_pinned():
            pinned.copy_(device, non_blocking=True)

        return {"pageable_to_gpu": lambda: host.cuda(), "pageable_from_gpu": lambda: device.cpu(), "pinned_to_gpu": lambda: pinned.cuda(non_blocking=True),
                "pinned_from_gpu": to_pinned}


class CuPy:
    def __init__(self):
        try:
            import cupy
            import cupyx
            if cupy.cuda.runtime.getDeviceCount() == 0:
                missing("CuPy finds no GPU")
        except Exception as error:
            missing(error)
        self.cupy, self.cupyx = cupy, cupyx
        self.version = cupy.__version__
        self.types = {"f32": cupy.float32, "f16": cupy.float16, "f64": cupy.float64}

    def input(self, shape, kind, scale=3.0):
        return ((self.cupy.random.random(shape, dtype=self.cupy.float32) * 2 - 1) * scale).astype(self.types[kind])

    def make(self, f):
        return f

    def wait(self):
        self.cupy.cuda.Device().synchronize()

    def timed(self, f, batch):
        start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record()
        for _ in range(batch):
            f()
        stop.record()
        stop.synchronize()
        return self.cupy.cuda.get_elapsed_time(start, stop) * 1e3 / batch

    def functions(self):
        c = self.cupy
        return {
            "exp": c.exp, "log": lambda a: c.log(c.abs(a) + 1), "tanh": lambda a, b, d: c.tanh(a * b + d), "narrow": lambda a: a.astype(c.float16), "sum": c.sum,
            "max": c.max, "norm": c.linalg.norm, "argmax": c.argmax, "sum_product": lambda a, b: c.sum(a * b), "row_sums": lambda A: c.sum(A, 1),
            "column_sums": lambda A: c.sum(A, 0), "var": lambda A: c.var(A, 1), "matmul": c.matmul, "norm_of": c.linalg.norm, "item": lambda x: x.item(),
        }

    def transfers(self, n):
        import numpy
        c = self.cupy
        host, device = numpy.ones(n, numpy.float32), c.ones(n, c.float32)
        pinned = self.cupyx.empty_pinned(n, numpy.float32)
        pinned[:] = 1
        target = c.empty(n, c.float32)
        return {"pageable_to_gpu": lambda: c.asarray(host), "pageable_from_gpu": lambda: device.get(), "pinned_to_gpu": lambda: target.set(pinned),
                "pinned_from_gpu": lambda: device.get(out=pinned, blocking=False)}


class Jax:
    def __init__(self):
        import os
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        try:
            import jax
            import jax.numpy
            jax.config.update("jax_enable_x64", True)
            jax.config.update("jax_default_matmul_precision", "highest")
            if jax.devices()[0].platform not in ("gpu", "cuda"):
                missing("JAX finds no GPU")
        except Exception as error:
            missing(error)
        self.jax, self.np = jax, jax.numpy
        self.version = jax.__version__
        self.types = {"f32": self.np.float32, "f16": self.np.float16, "bf16": self.np.bfloat16, "f64": self.np.float64}
        self.key = jax.random.PRNGKey(0)

    def input(self, shape, kind, scale=3.0):
        self.key, key = self.jax.random.split(self.key)
        return self.jax.random.uniform(key, shape if isinstance(shape, tuple) else (shape,), self.np.float32, -scale, scale).astype(self.types[kind])

    def make(self, f):
        return self.jax.jit(f)

    def wait(self):
        self.jax.block_until_ready(self.np.zeros(()))

    def timed(self, f, batch):
        start = time.perf_counter()
        for _ in range(batch):
            result = f()
        self.jax.block_until_ready(result)
        return (time.perf_counter() - start) * 1e6 / batch

    def functions(self):
        n, nn = self.np, self.jax.nn

        def layer_norm(x, w, b):
            wide = x.astype(n.float32)
            mean = wide.mean(1, keepdims=True)
            spread = ((wide - mean) ** 2).mean(1, keepdims=True)
            return ((wide - mean) * self.jax.lax.rsqrt(spread + 1e-5)).astype(x.dtype) * w + b

        return {
            "exp": n.exp, "log": lambda a: n.log(n.abs(a) + 1), "tanh": lambda a, b, c: n.tanh(a * b + c), "gelu_tanh": nn.gelu,
            "gelu": lambda a: nn.gelu(a, approximate=False), "narrow": lambda a: a.astype(n.float16), "sum": n.sum, "max": n.max, "norm": n.linalg.norm,
            "argmax": n.argmax, "sum_product": lambda a, b: n.sum(a * b), "row_sums": lambda A: n.sum(A, 1), "column_sums": lambda A: n.sum(A, 0),
            "var": lambda A: n.var(A, 1), "softmax": lambda x: nn.softmax(x, 1), "layer_norm": layer_norm, "matmul": n.matmul, "norm_of": n.linalg.norm,
            "item": lambda x: x.item(),
        }

    def leaf(self, x):
        return x

    def gradients(self):
        n, nn, grad = self.np, self.jax.nn, self.jax.value_and_grad  # alone, a gradient would leave the forward out

        def layer_norm(x):
            mean = x.mean(1, keepdims=True)
            return (x - mean) * self.jax.lax.rsqrt(((x - mean) ** 2).mean(1, keepdims=True) + 1e-5)

        return {
            "grad_tanh": grad(lambda x, w, b, y: n.sum(n.tanh(x * w + b) * y), argnums=(0, 1, 2, 3)), "grad_gelu": grad(lambda x: n.sum(nn.gelu(x, approximate=False))),
            "grad_layer_norm": grad(lambda x, y: n.sum(layer_norm(x) * y)),
            "grad_cross_entropy": grad(lambda x, labels: -n.mean(n.take_along_axis(nn.log_softmax(x, 1), labels[:, None], 1))),
        }

    def labels(self, lines, classes):
        return self.np.arange(lines) % classes

    def transfers(self, n):
        import numpy
        host, device = numpy.ones(n, numpy.float32), self.np.ones(n, self.np.float32)

        # A copy, because JAX keeps what it has brought to the host once.
        return {"pageable_to_gpu": lambda: self.jax.device_put(host), "pageable_from_gpu": lambda: numpy.asarray(self.np.copy(device))}


def rows(library, large, compiled):
    """Yields (key, timer kind, function to call); inputs are made when a row is asked for and dropped after it."""
    functions = library.functions()
    functions.update({
        "chain": lambda a, b, c: a * b + c - 0.5 * a, "fresh": lambda a, b, c: a * b + c, "add_row": lambda A, r: A + r, "add_column": lambda A, k: A + k[:, None],
        "outer": lambda k, r: k[:, None] * r[None, :], "add_transposed": lambda A, B: A + B.T, "transposed": lambda B: -B.T,
    })
    make_input = library.input

    def row(key, *arguments, kind="gpu"):
        name = key.split("/")[0]
        if name not in functions or (compiled and name not in COMPILED):
            return None
        f = library.make(functions[name])
        return key, kind, lambda: f(*arguments)

    def vectors(kind, count, n):
        return [make_input(n, kind) for _ in range(count)]

    for kind, bits, everything in (("f32", large, True), ("f16", large, True), ("f32", 26, False), ("f16", 26, False)):
        n, side = 1 << bits, 1 << bits // 2
        size, square = f"/{kind}/2^{bits}", f"/{kind}/{side}^2"
        a, b, c = vectors(kind, 3, n)
        yield row("chain" + size, a, b, c)
        yield row("exp" + size, a)
        if not everything:
            continue
        yield row("log" + size, a)
        yield row("tanh" + size, a, b, c)
        yield row("gelu_tanh" + size, a)
        yield row("gelu" + size, a)
        yield row("fresh" + size, a, b, c)
        if kind == "f32":
            yield row("narrow" + size, a)
        yield row("sum" + size, a)
        yield row("max" + size, a)
        yield row("norm" + size, a)
        yield row("argmax" + size, a)
        yield row("sum_product" + size, a, b)
        A, B = a.reshape(side, side), b.reshape(side, side)
        r, k = vectors(kind, 2, side)
        yield row("add_row" + square, A, r)
        yield row("add_column" + square, A, k)
        yield row("outer" + square, k, r)
        yield row("add_transposed" + square, A, B)
        yield row("transposed" + square, B)
        yield row("row_sums" + square, A)
        yield row("column_sums" + square, A)
        yield row("var" + square, A)
        del A, B
    a = b = c = None
    for kind, column_bits in (("f32", 10), ("f32", 12), ("f32", 15), ("f32", 17), ("f16", 12), ("f16", 17)):
        m, n = 1 << large - column_bits, 1 << column_bits
        x, w, b = make_input((m, n), kind), make_input(n, kind), make_input(n, kind)
        yield row(f"softmax/{kind}/{m}x{n}", x)
        yield row(f"layer_norm/{kind}/{m}x{n}", x, w, b)
    x = None
    if hasattr(library, "gradients") and not compiled:
        functions.update(library.gradients())
        n, lines, columns = 1 << 26, 1 << 16, 1 << 10
        yield row("grad_tanh/f32/2^26", *[library.leaf(v) for v in vectors("f32", 4, n)])
        yield row("grad_gelu/f32/2^26", library.leaf(make_input(n, "f32")))
        shape = f"/f32/{lines}x{columns}"
        yield row("grad_layer_norm" + shape, library.leaf(make_input((lines, columns), "f32")), make_input((lines, columns), "f32"))
        yield row("grad_cross_entropy" + shape, library.leaf(make_input((lines, columns), "f32")), library.labels(lines, columns))
    for kind, sizes in (("f32", (512, 1024, 4096, 8192, 10000)), ("f16", (1024, 4096, 8192, 10000)), ("bf16", (1024, 8192)), ("f64", (4096,))):
        for n in sizes:
            if kind in library.types:
                yield row(f"matmul/{kind}/{n}^2", make_input((n, n), kind), make_input((n, n), kind))
    for kind in ("f32", "f16"):
        yield row(f"matmul/{kind}/64x512^2", make_input((64, 512, 512), kind), make_input((64, 512, 512), kind))

    x = make_input((100, 100), "f32", 0.15)
    if not compiled:
        product, norm = library.make(functions["matmul"]), library.make(functions["norm_of"])

        def products():
            z = x
            for _ in range(1000):
                z = product(z, x)
            return norm(z).item()

        yield "products_1000/f32/100^2", "slow", products
        multiply = library.make(lambda z, y: z * y)

        def power():
            z = x
            for _ in range(1000):
                z = multiply(z, x)
            return norm(z).item()

        yield "power_1000/f32/100^2", "slow", power
    small = vectors("f32", 3, 1024)
    functions["launch_fresh"] = functions["fresh"]
    yield row("launch_fresh/f32/1024", *small, kind="host")
    if not compiled:
        for name, f in library.transfers(1 << 26).items():
            yield f"{name}/f32/2^26", "slow", f


def measure(library, kind, f):
    for _ in range(3):
        f()
    library.wait()
    if kind == "host":  # of the host alone, as long as the device keeps up
        times = []
        for _ in range(ROUNDS):
            library.wait()
            start = time.perf_counter()
            for _ in range(300):
                f()
            times.append((time.perf_counter() - start) * 1e6 / 300)
        library.wait()
        return statistics.median(times)
    if kind == "slow":
        times = []
        for _ in range(5):
            start = time.perf_counter()
            f()
            library.wait()
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times)
    one = library.timed(f, 1)
    batch = 1 if one > 2000 else 200 if one < 10 else int(2000 / one) + 1
    return statistics.median(library.timed(f, batch) for _ in range(ROUNDS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=["torch", "compile", "cupy", "jax"])
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--large", type=int, default=28)
    parser.add_argument("--seconds", type=float, default=100)
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    compiled = arguments.peer == "compile"
    library = {"torch": lambda: Torch(False), "compile": lambda: Torch(True), "cupy": CuPy, "jax": Jax}[arguments.peer]()
    print(json.dumps({"version": library.version}), flush=True)
    left_out = 0
    for found in rows(library, arguments.large, compiled):
        if found is None or not re.search(arguments.filter, found[0]):
            continue
        key, kind, f = found
        if time.monotonic() > deadline:
            left_out += 1
            continue
        try:
            print(json.dumps({"key": key, "us": measure(library, kind, f)}), flush=True)
        except Exception as error:  # a row that fails leaves the others as they are
            print(json.dumps({"key": key, "error": (str(error).splitlines() or [type(error).__name__])[0][:200]}), flush=True)
    if left_out:
        print(json.dumps({"left_out": left_out}))


if __name__ == "__main__":
    main()
