#include <situ/tensor/print.hpp>

#include <iomanip>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

#include <support/devices.hpp>

namespace {

using namespace situ;

/// The device suffix that PyTorch prints, for a device that is not the CPU.
template <class D>
std::string suffix() {
  std::string const name = device_traits<D>::name();
  return name == "cpu" ? "" : ", device='" + name + "'";
}

}  // namespace

TEST_CASE_TEMPLATE("tensors print as in PyTorch, with their device", D, SITU_TEST_DEVICES) {
  std::ostringstream out;
  out << Tensor<float, D>{{1, 2.5}, {-3, 4}};
  CHECK(out.str() == "tensor([[ 1.0000,  2.5000],\n        [-3.0000,  4.0000]]" + suffix<D>() + ")");
  CHECK(to_string(Tensor<int64_t, D>{1, -20}) == "tensor([  1, -20]" + suffix<D>() + ")");
  CHECK(to_string(Tensor<bool, D>{true, false}) == "tensor([ True, False]" + suffix<D>() + ")");
  CHECK(to_string(Tensor<double, D>{1, 2}) == "tensor([1., 2.]" + suffix<D>() + ", dtype=float64)");
  CHECK(to_string(full({}, 3, D{})) == "tensor(3." + suffix<D>() + ")");
  CHECK(to_string(Tensor<float, D>{{1, 2}, {3, 4}}.t()) == "tensor([[1., 3.],\n        [2., 4.]]" + suffix<D>() + ")");
}

TEST_CASE("a line ends where PyTorch's ends, which counts the dtype's `torch.`") {
  CHECK(to_string(arange<int32_t>(1000, 1009, 1)) == "tensor([1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008],\n       dtype=int32)");
  CHECK(to_string(arange<int32_t>(10000, 10008, 1)) == "tensor([10000, 10001, 10002, 10003, 10004, 10005, 10006, 10007],\n       dtype=int32)");
  CHECK(to_string(arange<int32_t>(1000, 1007, 1)) == "tensor([1000, 1001, 1002, 1003, 1004, 1005, 1006], dtype=int32)");
}

TEST_CASE("expressions print their value") {
  Tensor<float> const x{1, 2};
  std::ostringstream out;
  out << x * 2 + 1 << "\n" << (x > 1);
  CHECK(out.str() == "tensor([3., 5.])\ntensor([False,  True])");
  CHECK(to_string(x[0]) == "tensor(1.)");
}

TEST_CASE("devices have names") {
  CHECK(device_traits<Cpu>::name() == "cpu");
  CHECK(device_traits<Emulated<1>>::name() == "emulated:1");
}

TEST_CASE("what is printed is filled up to the width of the stream, as a string is, which then is 0") {
  auto const printed = [](auto const& x, auto... manipulators) {
    std::ostringstream own, of_string;
    (own << ... << manipulators) << x << '|' << 5;
    std::ostringstream text;
    text << x;
    (of_string << ... << manipulators) << text.str() << '|' << 5;
    CHECK(own.str() == of_string.str());
    CHECK(own.width() == 0);
    return own.str();
  };
  Tensor<float> const a{{1, 2}, {3, 4}};
  CHECK(printed(a.shape(), std::setw(8)) == "  [2, 2]|5");
  CHECK(printed(a.shape(), std::setw(8), std::left) == "[2, 2]  |5");
  CHECK(printed(a.shape(), std::setw(8), std::setfill('.')) == "..[2, 2]|5");
  CHECK(printed(a.shape(), std::setw(6)) == "[2, 2]|5");
  CHECK(printed(a.dtype(), std::setw(9), std::internal) == "  float32|5");
  CHECK(printed(a, std::setw(10)) == "tensor([[1., 2.],\n        [3., 4.]])|5");
  CHECK(printed(full({}, 10.0f), std::setw(12)) == " tensor(10.)|5");
}

TEST_CASE_TEMPLATE("a view that is larger than memory prints its ends, and copies no more than there is", D, SITU_TEST_DEVICES) {
  auto const x = full({1}, 2, D{}).expand({int64_t{1} << 61});
  CHECK(to_string(x) == "tensor([2., 2., 2.,  ..., 2., 2., 2.]" + suffix<D>() + ")");
  auto const rows = arange<int64_t>(2, D{}).view({2, 1}).expand({2, int64_t{1} << 59}).flip(0);
  CHECK(to_string(rows) == "tensor([[1, 1, 1,  ..., 1, 1, 1],\n        [0, 0, 0,  ..., 0, 0, 0]]" + suffix<D>() + ")");
}

TEST_CASE("what has no elements prints, however long its other axes are") {
  constexpr int64_t n = int64_t{1} << 62;
  CHECK(to_string(empty({n, n, 0})) == "tensor([], size=(4611686018427387904, 4611686018427387904, 0))");
}
