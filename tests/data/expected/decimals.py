"""Writes decimals.hpp: decimal numbers as text, and the bits of the double and the float that are nearest.

    /usr/bin/python3 tests/data/expected/decimals.py > tests/data/expected/decimals.hpp
"""
import random
import struct
from fractions import Fraction

import numpy as np

texts = """0 -0 1 +1 -1 0.1 .5 5. 1e0 1E+2 1e-2 123456789 0.3 3.14159265358979 2.718281828459045 1e22 1e23 9007199254740993 16777217 33554433
1.00000005960464477539062 1.00000005960464477539063 1.000000059604644775390625 1.000000178813934326171875 8.5e-6 65504 1e38 3.4028235e38 3.4028236e38
3.4028235677973366e38 1e39 1e308 1.7976931348623157e308 1.7976931348623159e308 1e309 1e400 -1e400 1e-38 1.1754944e-38 1e-40 1.4e-45 7e-46 1e-46 1e-308
5e-324 2e-324 1e-400 0.000000000000000000000000000001 100000000000000000000000000000 12345678901234567890123 0.1234567890123456789012345 4.35e5
1.2345678901234567e+10 000000000000000000000000012.5 0e999 0.0e-999 6.10351562e-05 9.999999999999999e22""".split()
random.seed(1)
for _ in range(30):
    texts.append(repr(random.uniform(-1, 1) * 10 ** random.randint(-30, 30)))
    texts.append("%.6g" % (random.uniform(-1, 1) * 10 ** random.randint(-12, 12)))
    texts.append("%.18e" % random.gauss(0, 1))


def nearest_float(text):
    """The float nearest to the exact value, ties to even: not by way of a double."""
    with np.errstate(over="ignore"):
        guess = np.float32(float(text))
    if np.isinf(guess) and abs(Fraction(text)) < 2**128 - 2**103:
        guess = np.copysign(np.finfo(np.float32).max, guess)
    if np.isinf(guess) or guess == 0:
        return guess
    exact = Fraction(text)
    with np.errstate(over="ignore"):
        around = [guess, np.nextafter(guess, np.float32(-np.inf)), np.nextafter(guess, np.float32(np.inf))]
    around = [x for x in around if np.isfinite(x)]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), struct.unpack("<I", struct.pack("<f", x))[0] & 1))


print("// Written by decimals.py.")
print("#pragma once")
print()
print("#include <cstdint>")
print()
print("struct number_text {\n  char const* text;\n  uint64_t wide;\n  uint32_t narrow;\n};")
print("inline constexpr number_text number_texts[] = {")
for text in texts:
    wide = struct.unpack("<Q", struct.pack("<d", float(text)))[0]
    narrow = struct.unpack("<I", struct.pack("<f", nearest_float(text)))[0]
    print(f'    {{"{text}", 0x{wide:016x}u, 0x{narrow:08x}u}},')
print("};")
