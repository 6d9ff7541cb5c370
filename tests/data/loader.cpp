#include <situ/data/loader.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <ranges>
#include <stdexcept>
#include <utility>
#include <vector>

#include <unistd.h>

#include <situ/data/subset.hpp>
#include <situ/device/query.hpp>
#include <situ/tensor.hpp>
#include <data/expected/order.hpp>
#include <support/compare.hpp>

using namespace situ;
using data::DataLoader;
using data::LoaderOptions;
using data::TensorDataset;

namespace {

using Device = Emulated<0>;
using Indices = std::vector<int64_t>;

/// Rows that tell which they are: row i of x is {i, i + 0.5}, y is 10 i.
TensorDataset<Tensor<float>, Tensor<int64_t>> numbered(int64_t n) {
  Tensor<float> x = arange<float>(n).reshape({n, 1}) + Tensor<float>{{0, 0.5f}};
  return {x, Tensor<int64_t>(arange<int64_t>(n) * 10)};
}

/// Samples made one by one, of what fields can be. Slow where told, and failing.
struct Mixed {
  int64_t count = 10, failing = -1;
  int kind = 0;
  bool slow = false;

  int64_t size() const { return count; }
  auto get(int64_t i) const {
    if (slow && i % 3 == 0) ::usleep(500);
    if (i == failing && kind == 0) throw std::logic_error("no such picture");
    if (i == failing && kind == 1) throw IoError("picture.png: cannot be opened");
    if (i == failing && kind == 2) throw 7;
    Tensor<double> const x = full<double>({i == failing ? 4 : 3}, i);
    return std::tuple(x, x.expand({2, x.size()}) + 1, i, static_cast<float>(i) / 2, i % 2 == 0, std::vector<int16_t>{1, static_cast<int16_t>(i)});
  }
};

/// What a random sample draws.
struct Drawn {
  int64_t size() const { return 20; }
  auto get(int64_t i, Generator& generator) const { return std::pair(i, rand({}, generator).item()); }
};

/// Pads rows of i % 4 elements.
struct Padded {
  int64_t size() const { return 8; }
  Tensor<float> get(int64_t i) const { return full({i % 4}, i); }
  void get_batch(std::span<int64_t const> indices, data::BatchField<float>& x) const {
    int64_t longest = 0;
    for (int64_t i : indices) longest = i % 4 > longest ? i % 4 : longest;
    float* to = x.room({longest});
    for (int64_t i : indices) {
      for (int64_t k = 0; k < longest; ++k) *to++ = k < i % 4 ? static_cast<float>(i) : -1.f;
    }
  }
};

/// Sample i is of so many elements as sizes[i] says.
struct Sized {
  std::vector<int64_t> sizes;
  int64_t size() const { return static_cast<int64_t>(sizes.size()); }
  std::vector<float> get(int64_t i) const { return std::vector<float>(static_cast<std::size_t>(sizes[static_cast<std::size_t>(i)]), static_cast<float>(i)); }
};

/// What the kernels of a sample may use.
struct Threads {
  int64_t size() const { return 8; }
  int64_t get(int64_t) const {
    ::usleep(2000);  // so that workers make some
    return num_threads();
  }
};

template <class L>
Indices labels_of(L const& loader) {
  Indices all;
  for (auto [x, y] : loader) {
    auto const rows = x.to_vector();
    auto const batch = y.to_vector();
    CHECK(x.shape() == Shape{y.size(), 2});
    for (std::size_t k = 0; k < batch.size(); ++k) {
      CHECK(rows[2 * k] * 10 == batch[k]);
      CHECK(rows[2 * k + 1] == rows[2 * k] + 0.5f);
      all.push_back(batch[k] / 10);
    }
  }
  return all;
}
Indices sorted(Indices values) {
  std::sort(values.begin(), values.end());
  return values;
}
Indices up_to(int64_t n) { return arange<int64_t>(n).to_vector(); }

}  // namespace

TEST_CASE("every sample comes once in an epoch, in a new order each, which depends on nothing but seed and epoch") {
  Indices first, second;
  for (int workers : {0, 1, 3}) {
    DataLoader loader{numbered(103), {.batch_size = 8, .shuffle = true, .seed = 5, .workers = workers}};
    CHECK(loader.size() == 13);
    CHECK(loader.epoch() == 0);
    Indices const a = labels_of(loader);
    CHECK(loader.epoch() == 1);
    Indices const b = labels_of(loader);
    if (workers == 0) first = a, second = b;
    CHECK(a == first);
    CHECK(b == second);
    loader.set_epoch(0);
    CHECK(labels_of(loader) == first);
  }
  CHECK(sorted(first) == up_to(103));
  CHECK(sorted(second) == up_to(103));
  CHECK(first != up_to(103));
  CHECK(first != second);
  CHECK(labels_of(DataLoader{numbered(103), {.batch_size = 8, .shuffle = true, .seed = 6}}) != first);
  CHECK(labels_of(DataLoader{numbered(103), {.batch_size = 20, .shuffle = true, .seed = 5}}) == first);
  CHECK(labels_of(DataLoader{numbered(103), {.batch_size = 8}}) == up_to(103));
}

TEST_CASE("the orders are those of the exchanges that the documentation tells, computed in another way") {
  CHECK(detail::random_order({7, 3}, 10) == order_of_10);
  CHECK(detail::random_order({7, 3}, 9) == order_of_9);
  DataLoader loader{numbered(20), {.batch_size = 6, .shuffle = true, .seed = 5}};
  loader.set_epoch(1);
  CHECK(labels_of(loader) == order_of_epoch);
  CHECK(detail::random_order({7, 3}, 1) == Indices{0});
  CHECK(detail::random_order({7, 3}, 0).empty());
  // Of 10000 orders of four, each of the 24 comes about as often: chi squared of 23 degrees is below 49.7 with a chance of 0.999.
  std::vector<int> counts(256);
  for (uint64_t k = 0; k < 10000; ++k) {
    Indices const order = detail::random_order({1, k}, 4);
    ++counts[static_cast<std::size_t>(order[0] + 4 * order[1] + 16 * order[2] + 64 * order[3])];
  }
  double chi = 0;
  int kinds = 0;
  for (int count : counts) {
    if (count == 0) continue;
    ++kinds;
    chi += (count - 10000 / 24.0) * (count - 10000 / 24.0) / (10000 / 24.0);
  }
  CHECK(kinds == 24);
  CHECK(chi < 49.7);
  int64_t const many = (int64_t{1} << 20) + 3;  // beyond which each place has a draw of its own
  Indices const large = detail::random_order({1, 2}, many);
  CHECK(sorted(large) == up_to(many));
  CHECK(large != up_to(many));
}

TEST_CASE("the last batch is smaller, or left out") {
  auto const sizes = [](LoaderOptions const& options, int64_t n) {
    Indices result;
    DataLoader loader{numbered(n), options};
    for (auto [x, y] : loader) result.push_back(y.size());
    CHECK(loader.size() == static_cast<int64_t>(result.size()));
    return result;
  };
  for (int workers : {0, 2}) {
    CHECK(sizes({.batch_size = 4, .workers = workers}, 10) == Indices{4, 4, 2});
    CHECK(sizes({.batch_size = 4, .drop_last = true, .workers = workers}, 10) == Indices{4, 4});
    CHECK(sizes({.batch_size = 5, .workers = workers}, 10) == Indices{5, 5});
    CHECK(sizes({.batch_size = 64, .workers = workers}, 10) == Indices{10});
    CHECK(sizes({.batch_size = 64, .drop_last = true, .workers = workers}, 10).empty());
    CHECK(sizes({.batch_size = 4, .workers = workers}, 0).empty());
  }
}

TEST_CASE("fields of all kinds become tensors, with one more axis, whatever makes them") {
  for (int workers : {0, 2}) {
    DataLoader loader{Mixed{}, {.batch_size = 4, .workers = workers}};
    using Batch = decltype(loader)::value_type;
    static_assert(std::is_same_v<Batch, std::tuple<Tensor<double>, Tensor<double>, Tensor<int64_t>, Tensor<float>, Tensor<bool>, Tensor<int16_t>>>);
    int64_t at = 0;
    for (auto [x, formula, label, half, even, range] : loader) {
      int64_t const n = at == 8 ? 2 : 4;
      CHECK(x.shape() == Shape{n, 3});
      CHECK(formula.shape() == Shape{n, 2, 3});
      CHECK(range.shape() == Shape{n, 2});
      for (int64_t k = 0; k < n; ++k, ++at) {
        CHECK(x(k, 2) == static_cast<double>(at));
        CHECK(formula(k, 1, 2) == static_cast<double>(at + 1));
        CHECK(label(k) == at);
        CHECK(half(k) == static_cast<float>(at) / 2);
        CHECK(even(k) == (at % 2 == 0));
        CHECK(range(k, 1) == at);
      }
    }
    CHECK(at == 10);
  }
  DataLoader single{TensorDataset{arange<float>(6).reshape({3, 2}).t()}, {.batch_size = 2}};  // rows with gaps
  static_assert(std::is_same_v<decltype(single)::value_type, Tensor<float>>);
  for (auto x : single) CHECK(x.to_vector() == std::vector<float>{0, 2, 4, 1, 3, 5});
  std::vector<Shape> shapes;
  DataLoader padded{Padded{}, {.batch_size = 3}};
  for (auto x : padded) {
    shapes.push_back(x.shape());
    if (shapes.size() == 2) CHECK(x.to_vector() == std::vector<float>{3, 3, 3, -1, -1, -1, 5, -1, -1});
  }
  CHECK(shapes == std::vector<Shape>{{3, 2}, {3, 3}, {2, 3}});
}

TEST_CASE("samples without elements make batches without elements, and have one shape like all others") {
  Sized const empty{{0, 0, 0}}, first{{0, 3}}, last{{3, 0}};
  for (int loop = 0; loop < 2; ++loop) {
    DataLoader loader{empty, {.batch_size = 3}};
    int batches = 0;
    for (auto const& batch : loader) {
      CHECK(batch.shape() == Shape{3, 0});
      ++batches;
    }
    CHECK(batches == 1);
  }
  std::string const beginning = "samples of one batch have one shape: pad them, or give the dataset a get_batch that does";
  CHECK(situ_test::thrown<ShapeError>([&] { DataLoader{first, {.batch_size = 2}}.begin(); }, "sample 1: field 0 has shape [3], and [0] in sample 0 of the same batch; " + beginning) == "");
  CHECK(situ_test::thrown<ShapeError>([&] { DataLoader{last, {.batch_size = 2}}.begin(); }, "sample 1: field 0 has shape [0], and [3] in sample 0 of the same batch; " + beginning) == "");
}

TEST_CASE("kernels of a sample that a worker makes run on its thread alone") {
  int const before = num_threads();
  set_num_threads(3);
  int alone = 0;
  for (auto const& batch : DataLoader{Threads{}, {.batch_size = 1, .workers = 2}}) alone += batch(0) == 1;
  CHECK(alone >= 4);  // the first ones may be made where they are asked for
  set_num_threads(before);
}

TEST_CASE("random samples depend on the seed, the epoch and the index, and on no number of threads") {
  auto const drawn = [](int workers, uint64_t seed, int64_t epoch) {
    DataLoader loader{Drawn{}, {.batch_size = 3, .shuffle = true, .seed = seed, .workers = workers}};
    loader.set_epoch(epoch);
    std::vector<float> result(20);
    for (auto [i, u] : loader) {
      for (int64_t k = 0; k < i.size(); ++k) result[static_cast<std::size_t>(i(k))] = u(k);
    }
    return result;
  };
  auto const a = drawn(0, 1, 0);
  CHECK(drawn(3, 1, 0) == a);
  CHECK(drawn(0, 1, 1) != a);
  CHECK(drawn(0, 2, 0) != a);
  CHECK(a[0] != a[1]);
}

TEST_CASE("a batch is no larger than the dataset, whatever its size is to be") {
  emulated::configure({.memory = 4096});
  for (int64_t size : {int64_t{100}, std::numeric_limits<int64_t>::max()}) {
    int64_t const before = gpu::memory_reserved(Pinned{});
    DataLoader loader{numbered(7), {.batch_size = size}, Device{}};
    int batches = 0;
    for (auto [x, y] : loader) {
      CHECK(x.shape() == Shape{7, 2});
      CHECK(y.to(Cpu{}).to_vector() == Indices{0, 10, 20, 30, 40, 50, 60});
      ++batches;
    }
    CHECK(batches == 1);
    CHECK(gpu::memory_reserved(Pinned{}) - before <= 4 * 4096);
  }
  emulated::configure();
}

TEST_CASE("a batch that somebody keeps stays as it is, and the memory of others is used again") {
  for (int workers : {0, 2}) {
    DataLoader loader{numbered(64), {.batch_size = 8, .workers = workers}};
    std::vector<Tensor<float>> kept;
    for (auto [x, y] : loader) kept.push_back(x);
    for (std::size_t k = 0; k < kept.size(); ++k) CHECK(kept[k](7, 0) == static_cast<float>(8 * k + 7));
  }
  DataLoader loader{numbered(640), {.batch_size = 8}};
  float const* storage = nullptr;
  for (auto [x, y] : loader) {
    if (!storage) storage = x.data();
    CHECK(x.data() == storage);
  }
}

TEST_CASE("what a dataset throws comes in the place of its batch, with the index of the sample and its type") {
  for (int workers : {0, 1, 3}) {
    auto const batches_before = [&](Mixed dataset, auto const& check) {
      DataLoader loader{dataset, {.batch_size = 2, .workers = workers}};
      int64_t batches = 0;
      try {
        for (auto const& batch : loader) static_cast<void>(batch), ++batches;
      } catch (...) {
        check();
      }
      CHECK(loader.epoch() == 1);  // and the next loop works
      loader.set_epoch(0, 4);
      CHECK(std::get<2>(*loader.begin()).to_vector() == Indices{8, 9});
      return batches;
    };
    CHECK(batches_before({10, 5, 1}, [] {
            CHECK(situ_test::thrown<IoError>([] { throw; }, "sample 5: picture.png: cannot be opened") == "");
          }) == 2);
    CHECK(batches_before({10, 5, 0}, [] {
            try {
              throw;
            } catch (Error const& e) {
              CHECK(std::string(e.what()) == "sample 5: no such picture");
              CHECK_THROWS_AS(std::rethrow_if_nested(e), std::logic_error);
            }
          }) == 2);
    CHECK(batches_before({10, 0, 2}, [] { CHECK(situ_test::thrown<Error>([] { throw; }, "sample 0: something was thrown that is no std::exception") == ""); }) == 0);
    CHECK(batches_before({10, 5, 3}, [] {
            CHECK(situ_test::thrown<ShapeError>([] { throw; }, "sample 5: field 0 has shape [4], and [3] in sample 4 of the same batch; samples of one batch have one "
                                                               "shape: pad them, or give the dataset a get_batch that does") == "");
          }) == 2);
  }
}

TEST_CASE("a loop may be left, begun again, cut short by a view, and go on after an exception of its body") {
  for (int workers : {0, 1, 3}) {
    DataLoader loader{Mixed{40, -1, 0, true}, {.batch_size = 3, .workers = workers}};
    for (int64_t stop = 0; stop < 5; ++stop) {
      int64_t at = 0;
      for (auto const& batch : loader) {
        CHECK(std::get<2>(batch)(0) == 3 * at);
        CHECK(loader.position() == at + 1);
        if (at++ == stop) break;
      }
      CHECK(loader.position() == 0);
      CHECK(loader.epoch() == stop + 1);
    }
    CHECK_THROWS_AS(([&] {
                      for (auto const& batch : loader) static_cast<void>(batch), throw 3;
                    }()),
                    int);
#if !defined(__clang__) || __clang_major__ >= 16  // the views of libstdc++ do not compile in older ones
    int64_t taken = 0;
    for (auto const& batch : loader | std::views::take(2)) taken += std::get<2>(batch).size();
    CHECK(taken == 6);
#else
    for (auto const& batch : loader) {
      static_cast<void>(batch);
      break;
    }
#endif
    auto const it = loader.begin();
    CHECK(situ_test::thrown<Error>([&] { loader.begin(); }, "DataLoader: a loop over this loader is running; let it end first, or use a second loader") == "");
    CHECK(loader.epoch() == 7);
  }
  DataLoader again{numbered(9), {.batch_size = 3, .shuffle = true, .seed = 1}};
  Indices const first = labels_of(again);
  for (auto const& batch : again) static_cast<void>(batch), again.set_epoch(0, 1);
  CHECK(again.position() == 1);
  CHECK(labels_of(again) == Indices(first.begin() + 3, first.end()));
  { DataLoader const unused{numbered(3), {.workers = 2}}; }
  DataLoader moved{numbered(5), {.batch_size = 2, .workers = 1}};
  for (auto const& batch : moved) static_cast<void>(batch);
  DataLoader other = std::move(moved);
  CHECK(other.epoch() == 1);
  CHECK(labels_of(other) == up_to(5));
}

/// Its samples take a while; sample 2 fails at first.
struct Counted {
  int* inside;
  int* failures;
  bool fails = false;
  int64_t size() const { return 12; }
  int64_t get(int64_t i) const {
    __atomic_add_fetch(inside, 1, __ATOMIC_SEQ_CST);
    ::usleep(3000);
    __atomic_sub_fetch(inside, 1, __ATOMIC_SEQ_CST);
    if (fails && i == 2 && __atomic_fetch_add(failures, 1, __ATOMIC_SEQ_CST) == 0) throw Error("not yet");
    return i;
  }
};

TEST_CASE("no thread is at work behind a loop, and what failed there is forgotten") {
  int inside = 0, failures = 0;
  DataLoader loader{Counted{&inside, &failures}, {.batch_size = 1, .workers = 2}};
  for (auto const& batch : loader) {
    CHECK(batch.item() == 0);
    break;
  }
  CHECK(__atomic_load_n(&inside, __ATOMIC_SEQ_CST) == 0);

  DataLoader failing{Counted{&inside, &failures, true}, {.batch_size = 1, .workers = 2}};
  for (auto const& batch : failing) {
    while (__atomic_load_n(&failures, __ATOMIC_SEQ_CST) == 0) ::usleep(100);  // of a batch that nobody takes
    CHECK(batch.item() == 0);
    break;
  }
  int64_t sum = 0;
  for (auto const& batch : failing) sum += batch.item();
  CHECK(sum == 66);

  // Who goes on behind an exception gets the batches that follow.
  DataLoader gaps{Mixed{10, 5, 1}, {.batch_size = 2, .workers = 1}};
  auto it = gaps.begin();
  Indices found;
  while (it != gaps.end()) {
    found.push_back(std::get<2>(*it)(0));
    try {
      ++it;
    } catch (IoError const&) {
      ++it;
    }
  }
  CHECK(found == Indices{0, 2, 6, 8});
}

TEST_CASE("a loop goes on where a saved state was") {
  for (int workers : {0, 2}) {
    DataLoader whole{numbered(50), {.batch_size = 6, .shuffle = true, .seed = 9, .workers = workers}};
    for (auto const& batch : whole) static_cast<void>(batch);
    std::vector<std::pair<std::string, int64_t>> state;
    Indices rest;
    int64_t at = 0;
    for (auto [x, y] : whole) {
      if (at > 3) {
        for (int64_t label : y.to_vector()) rest.push_back(label / 10);
      }
      if (at++ == 3) for_each_state(std::as_const(whole), [&](std::string const& name, Tensor<int64_t> const& value) { state.emplace_back(name, value.item()); });
    }
    CHECK(state == std::vector<std::pair<std::string, int64_t>>{{"epoch", 1}, {"position", 4}, {"seed", 9}});
    DataLoader resumed{numbered(50), {.batch_size = 6, .shuffle = true, .seed = 1, .workers = workers}};
    for_each_state(resumed, [&](std::string const& name, Tensor<int64_t>& value) {
      for (auto const& [other, number] : state) {
        if (other == name) value.assign(number);
      }
    });
    CHECK(labels_of(resumed) == rest);
    CHECK(labels_of(resumed) == labels_of(whole));
    CHECK(resumed.seed() == 9);
    // Another seed is another order, of the same epoch too.
    resumed.set_epoch(1);
    Indices const other = labels_of(resumed);
    resumed.set_epoch(1);
    for_each_state(resumed, [](std::string const& name, Tensor<int64_t>& value) {
      if (name == "seed") value.assign(4);
    });
    Indices const seeded = labels_of(resumed);
    CHECK(seeded != other);
    DataLoader fresh{numbered(50), {.batch_size = 6, .shuffle = true, .seed = 4}};
    fresh.set_epoch(1);
    CHECK(labels_of(fresh) == seeded);
  }
}

TEST_CASE("batches are right on a device while the next ones are copied, on whatever stream they are used") {
  Indices host;
  {
    DataLoader loader{numbered(211), {.batch_size = 16, .shuffle = true, .seed = 3}};
    host = labels_of(loader);
  }
  for (uint64_t delays : {uint64_t{0}, uint64_t{7}}) {
    emulated::configure({.delays = delays});
    for (int workers : {0, 1, 3}) {
      for (bool pin : {true, false}) {
        DataLoader loader{numbered(211), {.batch_size = 16, .shuffle = true, .seed = 3, .workers = workers, .prefetch = workers == 3 ? 4 : 0, .pin = pin}, Device{}};
        static_assert(std::is_same_v<decltype(loader)::value_type, std::tuple<Tensor<float, Device>, Tensor<int64_t, Device>>>);
        CHECK(labels_of(loader) == host);
        // Nothing waits for the host here: each batch is used after its handles are gone.
        loader.set_epoch(0);
        Stream<Device> const compute;
        Tensor<float, Device> sum = full({2}, 0.f, Device{});
        Tensor<int64_t, Device> labels = full<int64_t>({1}, 0, Device{});
        {
          StreamGuard const guard(compute);
          for (auto [x, y] : loader) {
            if (x.size(0) < 16) continue;
            for (int64_t k = 0; k < 16; ++k) sum += x[k], labels += y[k];
          }
        }
        float expected = 0;
        for (std::size_t k = 0; k < 208; ++k) expected += static_cast<float>(host[k]);
        CHECK(sum.to_vector() == std::vector<float>{expected, expected + 104});
        CHECK(labels.item() == 10 * static_cast<int64_t>(expected));
        for (auto [x, y] : loader) break;
      }
    }
    emulated::configure();
  }
  DataLoader pinned{numbered(20), {.batch_size = 16, .workers = 1}, Pinned{}};
  CHECK(labels_of(pinned) == up_to(20));
}

TEST_CASE("one batch ahead is copied without workers, and what fails on a device comes in its place") {
  emulated::configure();
  {
    DataLoader loader{numbered(64), {.batch_size = 16}, Device{}};
    auto const it = loader.begin();
    CHECK(emulated::statistics(0).copies_from_host == 4);
  }
  emulated::configure({.memory = 4096});
  {
    DataLoader loader{TensorDataset{zeros({64, 100})}, {.batch_size = 16}, Device{}};
    CHECK_THROWS_AS(loader.begin(), OutOfMemory);
  }
  emulated::configure();
}

TEST_CASE("options that make no sense are refused") {
  auto const dataset = numbered(4);
  CHECK(situ_test::thrown<ShapeError>([&] { DataLoader(dataset, {.batch_size = 0}); }, "DataLoader: batch_size is 0; 1 or more is needed") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { DataLoader(dataset, {.workers = -1}); }, "DataLoader: workers is -1; 0 or more is needed") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { DataLoader(dataset, {.prefetch = -2}); }, "DataLoader: prefetch is -2; 0 or more is needed") == "");
  struct TooShort {
    int64_t size() const { return -24; }
    Tensor<float> get(int64_t) const { return zeros({1}); }
  };
  CHECK(situ_test::thrown<ShapeError>([&] { DataLoader(TooShort{}); }, "DataLoader: the dataset's size() is -24; 0 or more is needed") == "");
  int batches = 0;
  for ([[maybe_unused]] auto const& batch : DataLoader(dataset, {.batch_size = 2, .workers = 1, .prefetch = std::numeric_limits<int>::max()})) ++batches;
  CHECK(batches == 2);
  DataLoader loader(dataset);
  CHECK(situ_test::thrown<IndexError>([&] { loader.set_epoch(-1); }, "DataLoader: epoch -1, position 0 was asked for; both count from 0") == "");
}
