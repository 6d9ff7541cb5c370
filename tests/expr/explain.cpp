#include <situ/expr/explain.hpp>

#include <doctest/doctest.h>

#include <support/devices.hpp>

using namespace situ;

TEST_CASE("explain tells a fused kernel's formula, inputs, bytes and operations") {
  Tensor<float> const a = zeros({1000}), b = ones({1000});
  CHECK(explain(a * b + 2) ==
        "one kernel for 1000 elements on cpu: out = (a * b) + 2\n"
        "  a: float32 [1000] on cpu, 4000 bytes\n"
        "  b: float32 [1000] on cpu, 4000 bytes\n"
        "  out: float32 [1000] on cpu, 4000 bytes\n"
        "  moves 12000 bytes, 2 operations per element\n");
}

TEST_CASE("explain names an input once, and says how it is read") {
  Tensor<float> const x = zeros({4, 3});
  Tensor<int64_t> const row{1, 2, 3};
  CHECK(explain(tanh(x) - x * row) ==
        "one kernel for 12 elements on cpu: out = tanh(a) - (a * b)\n"
        "  a: float32 [4, 3] on cpu, 48 bytes\n"
        "  b: int64 [3] on cpu, broadcast, 24 bytes\n"
        "  out: float32 [4, 3] on cpu, 48 bytes\n"
        "  moves 120 bytes, 3 operations per element\n");
  CHECK(explain(where(x.t() > 0.5, -x.t(), 1)) ==
        "one kernel for 12 elements on cpu: out = where(a > 0.5, -a, 1)\n"
        "  a: float32 [3, 4] on cpu, strided, 48 bytes\n"
        "  out: float32 [3, 4] on cpu, 48 bytes\n"
        "  moves 96 bytes, 3 operations per element\n");
}

TEST_CASE("explain shows conversions, user functions and tensors alone") {
  Tensor<double, Emulated<0>> const x = zeros<double>({2}, Emulated<0>{});
  CHECK(explain(cast<float16>(x)) ==
        "one kernel for 2 elements on emulated:0: out = cast<float16>(a)\n"
        "  a: float64 [2] on emulated:0, 16 bytes\n"
        "  out: float16 [2] on emulated:0, 4 bytes\n"
        "  moves 20 bytes, 1 operation per element\n");
  CHECK(explain(map([](float v) { return v; }, ones({1}))) ==
        "one kernel for 1 element on cpu: out = map(a)\n"
        "  a: float32 [1] on cpu, 4 bytes\n"
        "  out: float32 [1] on cpu, 4 bytes\n"
        "  moves 8 bytes, 1 operation per element\n");
}
