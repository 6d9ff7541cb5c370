// PyTorch: tensors without axes take the axes 0 and -1.
#include <doctest/doctest.h>

#include <situ/autograd.hpp>
#include <situ/ops.hpp>

#include "support/compare.hpp"
#include "support/devices.hpp"

using namespace situ;
using situ_test::thrown;

TEST_CASE_TEMPLATE("a tensor without axes is reduced, scanned and flipped along axis 0 and -1", D, SITU_TEST_DEVICES) {
  Tensor<float, D> const x = full({}, -3, D{});
  for (int axis : {0, -1}) {
    CHECK(max(x, axis).item() == -3);
    CHECK(min(x * 2, axis, keepdim).item() == -6);
    CHECK(sum(x, axis).item() == -3);
    CHECK(sum(x, {axis}, keepdim).shape() == Shape{});
    CHECK(prod(x, axis).item() == -3);
    CHECK(mean(x, axis).item() == -3);
    CHECK(argmax(x, axis).item() == 0);
    CHECK(argmin(x, axis).item() == 0);
    CHECK(any(x, axis).item());
    CHECK(all(x, axis).item());
    CHECK(count_nonzero(x, axis).item() == 1);
    CHECK(norm(x, axis).item() == 3);
    CHECK(logsumexp(x, axis).item() == -3);
    CHECK(var(x, axis, {.correction = 0}).item() == 0);
    CHECK(cumsum(x, axis).item() == -3);
    CHECK(cumprod(x * 2, axis).item() == -6);
    CHECK(cumsum(x, axis).shape() == Shape{});
    CHECK(softmax(x, axis).item() == 1);
    CHECK(sort(x, axis).values.item() == -3);
    CHECK(x.squeeze(axis).item() == -3);
    CHECK(x.flip(axis).item() == -3);
    CHECK(flip(x, axis).item() == -3);
  }
  CHECK(thrown<ShapeError>([&] { cumsum(x, 1); }, "cumsum: axis 1 is out of range for shape []: it has no axes") == "");
  CHECK(thrown<ShapeError>([&] { (void)x.squeeze(-2); }, "squeeze: axis -2 is out of range for shape []: it has no axes") == "");
}

TEST_CASE_TEMPLATE("a tensor without axes is transposed, gathered from, scattered to and selected from along axis 0 and -1", D, SITU_TEST_DEVICES) {
  using V = std::vector<float>;
  Tensor<float, D> const x = full({}, 3, D{}), v = arange(4, D{});
  auto const index = [](Shape const& shape, int64_t k = 0) { return full<int64_t>(shape, k, D{}); };
  for (int axis : {0, -1}) {
    CHECK(x.transpose(axis, 0).shape() == Shape{});
    CHECK((x * 2).transpose(-1, axis).item() == 6);
    for (Shape const& shape : {Shape{}, Shape{1}, Shape{2}, Shape{0}}) {  // shapes and values: libtorch 1.13
      CHECK(gather(x, axis, index(shape)).shape() == shape);
      CHECK(gather(x * 2, axis, index(shape)).to_vector() == V(static_cast<std::size_t>(index(shape).size()), 6.f));
      CHECK(scatter_add(x, axis, index(shape), v).shape() == Shape{});
    }
    CHECK(gather(v, axis, index({}, 2)).shape() == Shape{});
    CHECK(gather(v, axis, index({}, -1)).item() == 3);
    CHECK(scatter(x, axis, index({}), x * 2).item() == 6);
    CHECK(scatter(x, axis, index({1}, -1), v).item() == 0);
    CHECK(scatter(x, axis, index({2}), 7).item() == 7);
    CHECK(scatter_add(x, axis, index({}), x).item() == 6);
    CHECK(scatter_add(x, axis, index({2}), v).item() == 4);
    CHECK(scatter_add(v, axis, index({}, 1), x).to_vector() == V{0, 4, 2, 3});
    CHECK(index_select(x, axis, index({})).item() == 3);
    CHECK(index_select(x * 2, axis, index({1}, -1)).item() == 6);
    CHECK(index_select(x, axis, index({1})).shape() == Shape{});
    CHECK(index_select(v, axis, index({}, 2)).shape() == Shape{1});
  }
  CHECK(thrown<ShapeError>([&] { (void)x.transpose(1, 0); }, "transpose: axis 1 is out of range for shape []: it has no axes") == "");
  CHECK(thrown<ShapeError>([&] { gather(x, 1, index({})); }, "gather: axis 1 is out of range for shape []: it has no axes") == "");
  CHECK(thrown<ShapeError>([&] { gather(x, 0, index({1, 1})); }, "gather: the index of shape [1, 1] has 2 axes, x of shape [] has 0; they must be the same") == "");
  CHECK(thrown<ShapeError>([&] { index_select(x, 0, index({2})); }, "index_select: 2 indices were given for shape []: of a number one is selected") == "");
  // What PyTorch refuses: such axes have no places.
  CHECK(thrown<ShapeError>([&] { roll(x, 1, 0); }, "roll: axis 0 is out of range for shape []: it has no axes") == "");
  CHECK(thrown<ShapeError>([&] { repeat(x, 2, 0); }, "repeat: axis 0 is out of range for shape []: it has no axes") == "");
  CHECK(thrown<ShapeError>([&] { (void)x.select(0, 0); }, "select: axis 0 is out of range for shape []: it has no axes") == "");
  if constexpr (host_device<D>) {
    CHECK(thrown<IndexError>([&] { gather(x, 0, index({}, 1)); }, "gather: index 1 at [] is out of range for axis 0 of shape []: indices are -1 to 0") == "");
    CHECK(thrown<IndexError>([&] { index_select(x, 0, index({1}, 1)); }, "index_select: index 1 at [0] is out of range for axis 0 of shape [1]: indices are -1 to 0") == "");
  }
}

TEST_CASE_TEMPLATE("gradients of numbers that are gathered, scattered, selected and transposed", D, SITU_TEST_DEVICES) {
  Variable x{full({}, 3, D{})}, v{arange(4, D{})};
  auto const index = [](Shape const& shape, int64_t k = 0) { return full<int64_t>(shape, k, D{}); };
  sum(gather(x, 0, index({2})) + 5 * index_select(x * x, -1, index({1})) + 7 * x.transpose(0, -1)).backward();
  CHECK(x.grad().shape() == Shape{});
  CHECK(x.grad().item() == 2 + 2 * 5 * 6 + 2 * 7);
  sum(gather(v, 0, index({}, 2)) * 9).backward();
  CHECK(v.grad().to_vector() == std::vector<float>{0, 0, 9, 0});
  x.zero_grad(), v.zero_grad();
  scatter_add(x, 0, index({2}), v).backward();  // 3 + 0 + 1
  CHECK(x.grad().item() == 1);
  CHECK(v.grad().to_vector() == std::vector<float>{1, 1, 0, 0});
  x.zero_grad(), v.zero_grad();
  sum(square(scatter(v, 0, index({}, 3), x))).backward();  // 0, 1, 2, 3
  CHECK(x.grad().item() == 6);
  CHECK(v.grad().to_vector() == std::vector<float>{0, 2, 4, 0});
  x.zero_grad();
  square(scatter(x, 0, index({1}), Variable{full({}, 5, D{})})).backward();
  CHECK(x.grad().item() == 0);
  Variable<float, D> const source{full({}, 5, D{})};
  square(scatter(x, 0, index({1}), source)).backward();
  CHECK(source.grad().shape() == Shape{});
  CHECK(source.grad().item() == 10);
}

TEST_CASE_TEMPLATE("an empty list of axes reduces nothing, as in NumPy", D, SITU_TEST_DEVICES) {
  using V = std::vector<float>;
  using W = std::vector<int64_t>;
  Tensor<float, D> const x = Tensor<float>{{1, -2, 0}, {3, 4, 0.5f}}.to(D{});
  V const values = x.to_vector();
  auto const same = [&](auto const& y, V const& expected) {
    CHECK(y.shape() == Shape{2, 3});
    CHECK(y.to_vector() == expected);
  };
  same(sum(x, {}), values);
  same(sum(x * 2, {}, keepdim), V{2, -4, 0, 6, 8, 1});
  same(mean(x, {}), values);
  same(prod(x, Shape{}), values);
  same(min(x, {}), values);
  same(max(x.t(), {}, keepdim).t(), values);
  same(norm(x, {}), V{1, 2, 0, 3, 4, 0.5f});
  same(norm(x, {}, {.p = 1}), V{1, 2, 0, 3, 4, 0.5f});
  same(var(x, {}, {.correction = 0}), V(6, 0.f));
  CHECK(all(isnan(stddev(x, {}))).item());  // np.std(x, axis=(), ddof=1)
  CHECK(allclose(logsumexp(x, {}), x, {.rtol = 1e-6}));
  CHECK(any(x, {}).to_vector() == std::vector<bool>{true, true, false, true, true, true});
  CHECK(all(x, {}).to_vector() == std::vector<bool>{true, true, false, true, true, true});
  CHECK(count_nonzero(x, {}).to_vector() == W{1, 1, 0, 1, 1, 1});
  CHECK(argmax(x, {}).to_vector() == W(6, 0));
  CHECK(sum(cast<int8_t>(x), {}).to_vector() == W{1, -2, 0, 3, 4, 0});
  CHECK(sum(x).item() == 6.5f);

  Variable v{x.clone()};
  Variable const y = sum(square(v), {}) + mean(v, {}, keepdim) + max(v * 3, {});
  same(y.value(), V{5, -4, 0, 21, 32, 2.25f});
  sum(y).backward();
  same(v.grad(), V{6, 0, 4, 10, 12, 5});
}

TEST_CASE("gradients pass the axis of a tensor without axes") {
  Variable x{full({}, 2)};
  (max(x, 0) + 3 * cumsum(x, -1) + 5 * cumprod(x, 0) + sum(x, 0, keepdim)).backward();
  CHECK(x.grad().shape() == Shape{});
  CHECK(x.grad().item() == 10);
}
