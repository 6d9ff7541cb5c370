#include <situ/data/subset.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <situ/data/loader.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>

using namespace situ;
using data::DataLoader;
using data::random_split;
using data::Subset;
using data::TensorDataset;
using data::transformed;
using situ_test::thrown;

namespace {

using Indices = std::vector<int64_t>;

Indices up_to(int64_t n) { return arange<int64_t>(n).to_vector(); }

struct NoSize {
  int get(int64_t) const { return 0; }
};
struct NoGet {
  int64_t size() const { return 0; }
};
struct OnDevice {
  int64_t size() const { return 1; }
  auto get(int64_t) const { return std::pair(ones({2}, Emulated<0>{}), 1); }
};
struct Words {
  int64_t size() const { return 1; }
  std::string get(int64_t) const { return "one"; }
};

}  // namespace

TEST_CASE("a dataset is what has a size and gives samples of tensors and numbers on the host") {
  static_assert(data::dataset<TensorDataset<Tensor<float>>>);
  static_assert(data::dataset<TensorDataset<Tensor<float>, Tensor<int64_t, Pinned>>>);
  static_assert(!data::dataset<NoSize>);
  static_assert(!data::dataset<NoGet>);
  static_assert(!data::dataset<OnDevice>);
  static_assert(!data::dataset<Words>);
  static_assert(!data::dataset<std::vector<int>>);
}

TEST_CASE("a TensorDataset gives rows of its tensors as views, and says when they do not fit each other") {
  Tensor<float> x = arange<float>(12).reshape({4, 3});
  TensorDataset both{x, arange<int64_t>(4) * 2};  // a formula is evaluated once
  static_assert(std::is_same_v<decltype(both), TensorDataset<Tensor<float>, Tensor<int64_t>>>);
  CHECK(both.size() == 4);
  auto const [row, label] = both.get(2);
  CHECK(row.to_vector() == std::vector<float>{6, 7, 8});
  CHECK(row.data() == std::as_const(x).data() + 6);
  CHECK(label.shape() == Shape{});
  CHECK(label.item() == 4);
  TensorDataset one{x};
  CHECK(one.get(3).to_vector() == std::vector<float>{9, 10, 11});
  TensorDataset copy{one};
  static_assert(std::is_same_v<decltype(copy), TensorDataset<Tensor<float>>>);
  CHECK(thrown<IndexError>([&] { one.get(4); }, "TensorDataset: index 4 is out of range for 4 samples: indices are 0 to 3") == "");
  CHECK(thrown<ShapeError>([&] { TensorDataset{x, arange<int64_t>(5)}; }, "TensorDataset: tensors of shapes [4, 3] and [5] have different numbers of rows: 4 != 5") == "");
  CHECK(thrown<ShapeError>([&] { TensorDataset{full({}, 1.f)}; }, "TensorDataset: a tensor of shape [] has no rows; every tensor needs at least one axis") == "");
}

TEST_CASE("batches are gathered whatever the layout of the rows and their size") {
  auto const check = []<class T>(Tensor<T> const& x) {
    for (Indices const& order : {Indices{3, 0, 2, 2, 4}, Indices{1, 0, 3}, Indices{1, 2, 3}}) {  // the last two begin and end alike
      auto const n = static_cast<int64_t>(order.size());
      DataLoader loader{Subset{TensorDataset{x}, order}, {.batch_size = 5}};
      auto const it = loader.begin();
      REQUIRE((*it).size() == n * x.size() / 5);
      for (int64_t k = 0; k < n; ++k) CHECK((*it)[k].to_vector() == x[order[static_cast<std::size_t>(k)]].to_vector());
    }
  };
  for (int64_t width : {1, 2, 3, 16, 40, 0}) {
    Tensor<float> const x = arange<float>(5 * width).reshape({5, width});
    check(x);
    check(Tensor<float>(arange<float>(5 * width).reshape({width, 5}).t()));
    check(Tensor<float>(arange<float>(10 * width).reshape({10, width}).slice(0, 0, 10, 2)));
    check(Tensor<float>(x.flip(0)));
    check(Tensor<float>(arange<float>(10 * width).reshape({5, 2 * width}).slice(1, 0, 2 * width, 2)));
    check(Tensor<uint8_t>(cast<uint8_t>(x)));
  }
  check(arange<int64_t>(5));
  check(Tensor<int16_t>(arange<int16_t>(30).reshape({5, 3, 2})));
  check(Tensor<float>(arange<float>(3).expand({5, 3})));
}

TEST_CASE("a subset has the samples that its indices name") {
  Subset const subset{TensorDataset{arange<float>(10)}, {7, 1, 7}};
  CHECK(subset.size() == 3);
  CHECK(subset.get(0).item() == 7);
  CHECK(subset.indices().to_vector() == Indices{7, 1, 7});
  Subset const inner{subset, {1, 2}};
  CHECK(inner.get(1).item() == 7);
  CHECK(thrown<IndexError>([&] { subset.get(3); }, "Subset: index 3 is out of range for 3 samples: indices are 0 to 2") == "");
  CHECK(thrown<IndexError>([&] { Subset(subset, {3}); }, "Subset: index 3 is out of range for 3 samples: indices are 0 to 2") == "");
}

TEST_CASE("random_split gives each sample to one part, by fractions or by sizes, as the generator's seed tells") {
  TensorDataset const dataset{arange<float>(103)};
  Generator generator(4);
  auto const [train, test, rest] = random_split(dataset, {0.8, 0.1, 0.1}, generator);
  CHECK(train.size() == 83);  // 82.4, 10.3 and 10.3: one is left over
  CHECK(test.size() == 10);
  CHECK(rest.size() == 10);
  Indices all = train.indices().to_vector();
  for (auto const* part : {&test, &rest}) {
    for (int64_t i : part->indices().to_vector()) all.push_back(i);
  }
  CHECK(all != up_to(103));
  std::sort(all.begin(), all.end());
  CHECK(all == up_to(103));
  auto const sizes_of = [](auto const& parts) {
    Indices result;
    for (auto const& part : parts) result.push_back(part.size());
    return result;
  };
  Generator same(4), other(5);
  auto const again = random_split(dataset, {83, 20, 0}, same);
  CHECK(again[0].indices().to_vector() == train.indices().to_vector());
  CHECK(sizes_of(again) == Indices{83, 20, 0});
  CHECK(random_split(dataset, {83, 20}, other)[0].indices().to_vector() != train.indices().to_vector());
  manual_seed(4);
  CHECK(random_split(dataset, {0.5, 0.5})[0].size() == 52);
  TensorDataset const ten{arange<float>(10)};
  CHECK(sizes_of(random_split(ten, {0.7, 0.3})) == Indices{7, 3});
  CHECK(sizes_of(random_split(ten, {0.1f, 0.2f, 0.7f})) == Indices{1, 2, 7});
  CHECK(sizes_of(random_split(ten, {1.0, 0.0})) == Indices{10, 0});
  struct Many {
    int64_t size() const { return 4000000; }
    int64_t get(int64_t i) const { return i; }
  };
  CHECK(sizes_of(random_split(Many{}, {0.5000005, 0.5000004})) == Indices{2000001, 1999999});  // from 2000002 and 2000001, three too many
  CHECK(thrown<ShapeError>([&] { random_split(ten, {0.5, 0.4}); }, "random_split: the fractions sum up to 0.9; 1 is needed") == "");
  CHECK(thrown<ShapeError>([&] { random_split(ten, {1.5, -0.5}); }, "random_split: fraction 0 is 1.5; fractions are from 0 to 1, and sizes are integers") == "");
  CHECK(thrown<ShapeError>([&] { random_split(ten, {4, 5}); }, "random_split: the sizes sum up to 9, and the dataset has 10 samples; both must be the same") == "");
  CHECK(thrown<ShapeError>([&] { random_split(ten, {11, -1}); }, "random_split: size 1 is -1; sizes are 0 or more") == "");
}

TEST_CASE("a transformed dataset has changed samples, whose formulas are evaluated into the batch") {
  TensorDataset const dataset{arange<float>(8).reshape({4, 2}), arange<int64_t>(4)};
  auto const scaled = transformed(dataset, [](auto const& x, auto const& y) { return std::tuple(x / 2, y.item() + 1, 0.5); });
  CHECK(scaled.size() == 4);
  CHECK(Tensor<float>(std::get<0>(scaled.get(3))).to_vector() == std::vector<float>{3, 3.5f});
  for (int workers : {0, 2}) {
    DataLoader loader{scaled, {.batch_size = 4, .workers = workers}};
    for (auto [x, y, z] : loader) {
      CHECK(x.to_vector() == std::vector<float>{0, 0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f});
      CHECK(y.to_vector() == Indices{1, 2, 3, 4});
      CHECK(z.to_vector() == std::vector<double>(4, 0.5));
    }
  }
  auto const labels = transformed(dataset, [](auto const&, auto const& y) { return static_cast<int>(y.item()); });
  static_assert(std::is_same_v<decltype(DataLoader{labels})::value_type, Tensor<int64_t>>);
  auto const twice = transformed(labels, [](int y) { return 2 * y; });
  for (auto y : DataLoader{twice, {.batch_size = 8}}) CHECK(y.to_vector() == Indices{0, 2, 4, 6});

  auto const noisy = transformed(dataset, [](auto const& x, auto const& y, Generator& generator) { return std::pair(x + rand({2}, generator), y); });
  auto const further = transformed(noisy, [](auto const& x, auto const&) { return x * 2; });
  auto const drawn = [&](int workers, int64_t epoch) {
    DataLoader loader{further, {.batch_size = 3, .seed = 1, .workers = workers}};
    loader.set_epoch(epoch);
    std::vector<float> result;
    for (auto x : loader) {
      for (float value : x.to_vector()) result.push_back(value);
    }
    return result;
  };
  auto const first = drawn(0, 0);
  CHECK(drawn(2, 0) == first);
  CHECK(drawn(0, 1) != first);
  CHECK(first[7] >= 14);
  CHECK(first[7] < 16);
}
