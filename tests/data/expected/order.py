"""Writes order.hpp: permutations by Philox 4x32-10 and the exchanges of Fisher and Yates, two from each draw of 64 bits.

    /usr/bin/python3 tests/data/expected/order.py > tests/data/expected/order.hpp
"""


def philox(key, block, call):
    c = [block & 0xFFFFFFFF, block >> 32, call & 0xFFFFFFFF, call >> 32]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def draw(seed, call, i):
    w = philox(seed, i // 2, call)
    return (w[0] << 32 | w[1]) if i % 2 == 0 else (w[2] << 32 | w[3])


def order(seed, call, count):
    result = list(range(count))
    for pair in reversed(range((count + 1) // 2)):
        high, low = 2 * pair + 1, 2 * pair
        product = draw(seed, call, pair) * (high + 1)
        if high < count:
            j = product >> 64
            result[high], result[j] = result[j], result[high]
        j = (product % 2**64) * (low + 1) >> 64
        result[low], result[j] = result[j], result[low]
    return result


def listed(values):
    return "{" + ", ".join(str(v) for v in values) + "}"


print("// Written by order.py.")
print("#pragma once")
print()
print("#include <cstdint>")
print("#include <vector>")
print()
for count in (9, 10):
    print(f"inline std::vector<int64_t> const order_of_{count}{listed(order(7, 3, count))};")
print(f"inline std::vector<int64_t> const order_of_epoch{listed(order(5, 1 + 2**63, 20))};  // seed 5, epoch 1, 20 samples")
