#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {

using namespace situ;

/// Views of one shape that show storage in every kind of order.
template <class T>
std::vector<Tensor<T>> views_of_shape(Shape const& shape) {
  int const rank = shape.rank();
  int64_t const n = detail::product(shape);
  auto const fresh = [](Shape const& s) { return Tensor<T>(cast<T>(arange<int64_t>(detail::product(s)).view(s) % 29 + 1)); };
  std::vector<Tensor<T>> result{fresh(shape)};
  if (rank == 0) return result;
  for (int k = 0; k < rank; ++k) result.push_back(fresh(shape).flip(k));
  for (int k = 1; k < rank; ++k) {
    Shape swapped = shape;
    std::swap(swapped[0], swapped[k]);
    result.push_back(fresh(swapped).transpose(0, k));
    result.push_back(fresh(swapped).transpose(0, k).flip(0));
  }
  Shape reversed = shape, axes = shape, larger = shape;
  for (int k = 0; k < rank; ++k) {
    reversed[k] = shape[rank - 1 - k];
    axes[k] = rank - 1 - k;
    larger[k] = 2 * shape[k] + 1;
  }
  result.push_back(fresh(reversed).permute(axes));
  Tensor<T> every_second = fresh(larger);
  Tensor<T> inner = fresh(larger);
  for (int k = 0; k < rank; ++k) {
    every_second = every_second.slice(k, 1, end(), 2);
    inner = inner.slice(k, 1, 1 + shape[k]);
  }
  result.push_back(every_second);
  result.push_back(inner);
  for (int k = 0; k < rank; ++k) {  // broadcast along one axis, and along all but one
    Shape one = shape, line = Shape::filled(rank, 1);
    one[k] = 1;
    line[k] = shape[k];
    result.push_back(fresh(one).expand(shape));
    result.push_back(fresh(line).expand(shape));
  }
  result.push_back(Tensor<T>{3}.view(Shape::filled(rank, 1)).expand(shape));
  if (n == 0) return {result[0]};
  return result;
}

/// The elements one by one, by the definition of strides.
template <class T>
std::vector<double> by_definition(Tensor<T> const& x) {
  std::vector<double> result;
  int64_t index[max_rank] = {};
  for (int64_t n = x.size(); n > 0; --n) {
    int64_t offset = 0;
    for (int k = 0; k < x.rank(); ++k) offset += index[k] * x.strides()[k];
    result.push_back(static_cast<double>(static_cast<compute_t<T>>(x.data()[offset])));
    for (int k = x.rank() - 1; k >= 0; --k) {
      if (++index[k] < x.shape()[k]) break;
      index[k] = 0;
    }
  }
  return result;
}

std::vector<Shape> const shapes{{}, {1}, {7}, {130}, {0}, {3, 0, 2}, {1, 5}, {5, 1}, {3, 5}, {4, 4}, {17, 33}, {2, 600}, {600, 2}, {40, 150}, {3, 4, 5},
                                {2, 1, 7}, {5, 16, 17}, {2, 3, 4, 5}, {2, 2, 2, 2, 2, 2, 2, 2}};

template <class A, class B>
void check_all_layouts() {
  int wrong = 0, checked = 0;
  for (Shape const& shape : shapes) {
    auto const as = views_of_shape<A>(shape);
    auto const bs = views_of_shape<B>(shape);
    for (std::size_t i = 0; i < as.size(); ++i) {
      std::vector<double> const x = by_definition(as[i]);
      for (std::size_t j = 0; j < bs.size(); ++j) {
        std::vector<double> const y = by_definition(bs[j]);
        std::vector<double> expected(x.size());
        for (std::size_t k = 0; k < x.size(); ++k) expected[k] = x[k] * 2 - y[k];
        auto const result = eval(as[i] * 2 - bs[j]);
        ++checked;
        if (!result.is_contiguous() || situ_test::difference(by_definition(result), expected) != "") {
          if (wrong++ == 0) MESSAGE("shape ", to_string(shape), " strides ", to_string(as[i].strides()), " and ", to_string(bs[j].strides()));
        }
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(checked > 1000);
}

}  // namespace

TEST_CASE("every pair of layouts gives what a plain loop gives") {
  situ_test::with_every_instruction_set<Cpu>([] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    check_all_layouts<float, float>();
  });
}

TEST_CASE("operands of every element size are read in every layout") {
  check_all_layouts<double, float16>();
  check_all_layouts<float, int8_t>();
}

TEST_CASE("results are written into every layout") {
  int wrong = 0;
  for (Shape const& shape : shapes) {
    Tensor<float> const a = arange<float>(detail::product(shape)).view(shape);
    for (Tensor<float> target : views_of_shape<float>(shape)) {
      if (target.layout().is_broadcast()) continue;
      target.assign(a * 2 + 1);
      wrong += situ_test::difference(by_definition(target), by_definition(eval(a * 2 + 1))) != "";
    }
    for (Tensor<bool> target : views_of_shape<bool>(shape)) {
      if (target.layout().is_broadcast()) continue;
      target.assign(a > 5);
      wrong += by_definition(target) != by_definition(eval(a > 5));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("writing a slice leaves what lies between its elements") {
  Tensor<float> x = full({40, 50}, -1);
  x(range(1, end(), 3), range(0, end(), 2)) = 7;
  int wrong = 0;
  for (int64_t i = 0; i < 40; ++i) {
    for (int64_t j = 0; j < 50; ++j) wrong += x(i, j) != (i % 3 == 1 && j % 2 == 0 ? 7.f : -1.f);
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("copies of 16-bit floats keep every bit, also those of signalling NaN", T, float16, bfloat16) {
  int64_t const rows = 331, columns = 198;  // 65538: all patterns
  Tensor<T> x = empty<T>({rows, columns});
  for (int64_t k = 0; k < x.size(); ++k) x.data()[k].bits = static_cast<uint16_t>(k);
  auto const wrong = [&](Tensor<T> const& copy, auto from) {
    int result = 0;
    for (int64_t k = 0; k < copy.size(); ++k) result += copy.data()[k].bits != static_cast<uint16_t>(from(k / copy.size(1), k % copy.size(1)));
    return result;
  };
  situ_test::with_every_instruction_set<Cpu>([&] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    CHECK(wrong(x.clone(), [&](int64_t i, int64_t j) { return i * columns + j; }) == 0);
    CHECK(wrong(x.t().clone(), [&](int64_t i, int64_t j) { return j * columns + i; }) == 0);
    CHECK(wrong(x.slice(1, 5, 160).clone(), [&](int64_t i, int64_t j) { return i * columns + j + 5; }) == 0);
    CHECK(wrong(x.slice(1, 0, columns, 3).clone(), [&](int64_t i, int64_t j) { return i * columns + 3 * j; }) == 0);
    CHECK(wrong(x.flip(1).contiguous(), [&](int64_t i, int64_t j) { return (i + 1) * columns - 1 - j; }) == 0);
    CHECK(wrong(x.slice(1, 7, 8).expand({rows, columns}).clone(), [&](int64_t i, int64_t) { return i * columns + 7; }) == 0);
    CHECK(wrong(x.slice(0, 169, 170).expand({rows, columns}).clone(), [&](int64_t, int64_t j) { return 169 * columns + j; }) == 0);
    Tensor<T> wide = zeros<T>({rows, 2 * columns}), moved = x.clone();
    wide.slice(1, 1, 2 * columns, 2) = x;
    CHECK(wrong(wide.slice(1, 1, 2 * columns, 2).clone(), [&](int64_t i, int64_t j) { return i * columns + j; }) == 0);
    moved.slice(0, 1, rows) = moved.slice(0, 0, rows - 1);
    CHECK(wrong(moved, [&](int64_t i, int64_t j) { return (i > 0 ? i - 1 : 0) * columns + j; }) == 0);
  });
}

TEST_CASE_TEMPLATE("copies and sums of rows and columns that repeat are what a plain loop gives, and write nothing else", T, int8_t, float16, float, double) {
  int64_t const rows = 5;
  situ_test::with_every_instruction_set<Cpu>([&] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    for (int64_t const width : {1, 3, 8, 15, 16, 17, 31, 64, 65, 100, 200, 250, 600, 3000}) {
      CAPTURE(width);
      std::vector<T> values;
      for (int64_t k = 0; k < rows * width; ++k) values.push_back(static_cast<T>(static_cast<float>(k % 53)));
      Tensor<T> const dense(values, {rows, width}), row = dense[1], column = dense.slice(1, 0, 1);
      auto const wrong = [&](auto write, auto expected) {
        Tensor<T> frame = full<T>({rows + 2, width + 3}, 77);
        Tensor<T> inner = frame.slice(0, 1, rows + 1).slice(1, 1, width + 1);
        write(inner);
        int result = 0;
        std::vector<T> const all = frame.to_vector();
        for (int64_t i = 0; i < rows + 2; ++i) {
          for (int64_t j = 0; j < width + 3; ++j) {
            bool const inside = i >= 1 && i <= rows && j >= 1 && j <= width;
            result += static_cast<float>(all[static_cast<std::size_t>(i * (width + 3) + j)]) != (inside ? expected(i - 1, j - 1) : 77.f);
          }
        }
        Tensor<T> const copy = inner.clone();  // of a slice
        std::vector<T> const copied = copy.to_vector();
        for (int64_t k = 0; k < rows * width; ++k) result += static_cast<float>(copied[static_cast<std::size_t>(k)]) != expected(k / width, k % width);
        return result;
      };
      auto const at = [&](int64_t i, int64_t j) { return static_cast<float>(values[static_cast<std::size_t>(i * width + j)]); };
      CHECK(wrong([&](Tensor<T>& to) { to.assign(row); }, [&](int64_t, int64_t j) { return at(1, j); }) == 0);
      CHECK(wrong([&](Tensor<T>& to) { to.assign(column); }, [&](int64_t i, int64_t) { return at(i, 0); }) == 0);
      CHECK(wrong([&](Tensor<T>& to) { to.assign(dense + column); }, [&](int64_t i, int64_t j) { return at(i, j) + at(i, 0); }) == 0);
      CHECK(wrong([&](Tensor<T>& to) { to.assign(column.expand({rows, width}).clone() + row); }, [&](int64_t i, int64_t j) { return at(i, 0) + at(1, j); }) == 0);
    }
  });
}

TEST_CASE_TEMPLATE("rows that are not dense, or whose operands repeat, are computed where they lie, and nothing else is written", T, int8_t, int32_t, bfloat16, float, double) {
  situ_test::with_every_instruction_set<Cpu>([&] {
    CAPTURE(static_cast<int>(get_instruction_set()));
    for (int64_t const rows : {1, 3, 64, 65, 131}) {
      for (int64_t const width : {15, 16, 17, 23, 31, 32, 33, 40, 63, 100, 127, 300}) {
        CAPTURE(rows);
        CAPTURE(width);
        int64_t const around = width + 3;
        auto const number = [](int64_t i, int64_t j) { return static_cast<float>((i * 7 + j * 3) % 13); };
        std::vector<T> all, of_rows, of_columns;
        for (int64_t i = 0; i < rows + 2; ++i) {
          for (int64_t j = 0; j < around; ++j) all.push_back(static_cast<T>(number(i, j)));
        }
        for (int64_t i = 0; i < rows; ++i) of_rows.push_back(static_cast<T>(static_cast<float>(i % 5 + 1)));
        for (int64_t j = 0; j < width; ++j) of_columns.push_back(static_cast<T>(static_cast<float>(j % 6)));
        Tensor<T> const column(of_rows, {rows, 1}), row(of_columns, {width});
        auto const wrong = [&](auto write, auto expected) {
          Tensor<T> frame(all, {rows + 2, around});
          Tensor<T> inner = frame.slice(0, 1, rows + 1).slice(1, 2, width + 2);
          write(inner);
          std::vector<T> const now = frame.to_vector();
          int result = 0;
          for (int64_t i = 0; i < rows + 2; ++i) {
            for (int64_t j = 0; j < around; ++j) {
              bool const inside = i >= 1 && i <= rows && j >= 2 && j < width + 2;
              float const x = number(i, j), wanted = inside ? expected(x, static_cast<float>((i - 1) % 5 + 1), static_cast<float>((j - 2) % 6)) : x;
              result += static_cast<float>(now[static_cast<std::size_t>(i * around + j)]) != wanted;
            }
          }
          return result;
        };
        CHECK(wrong([&](Tensor<T>& x) { x += column; }, [](float x, float c, float) { return x + c; }) == 0);
        CHECK(wrong([&](Tensor<T>& x) { x.assign(x * row); }, [](float x, float, float r) { return x * r; }) == 0);
        CHECK(wrong([&](Tensor<T>& x) { x.assign(column * row); }, [](float, float c, float r) { return c * r; }) == 0);
        CHECK(wrong([&](Tensor<T>& x) { x.assign((x - column) * column + row); }, [](float x, float c, float r) { return (x - c) * c + r; }) == 0);
        CHECK(wrong([&](Tensor<T>& x) { x.assign(cast<T>(x > column)); }, [](float x, float c, float) { return x > c ? 1.f : 0.f; }) == 0);
        CHECK(wrong([&](Tensor<T>& x) { x.assign(where(row > column, x, column)); }, [](float x, float c, float r) { return r > c ? x : c; }) == 0);
        CHECK(wrong([&](Tensor<T>& x) { x.assign(-x); }, [](float x, float, float) { return -x; }) == 0);
        Tensor<bool> const larger = row > column;
        std::vector<bool> by_hand;
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < width; ++j) by_hand.push_back(j % 6 > i % 5 + 1);
        }
        CHECK(larger.to_vector() == by_hand);
      }
    }
  });
}

TEST_CASE("another set of instructions may be chosen between a launch and its run") {
  using E = Emulated<0>;
  Tensor<float, E> const a = ones<float>({300, 400}, E{}), b = ones<float>({300, 1}, E{});
  instruction_set const before = get_instruction_set();
  int wrong = 0;
  for (int k = 0; k < 50; ++k) {
    set_instruction_set(before);
    Tensor<float, E> const c = a * 3.f - b;
    set_instruction_set(instruction_set::baseline);
    wrong += c.cpu().to_vector() != std::vector<float>(300 * 400, 2.f);
  }
  set_instruction_set(before);
  CHECK(wrong == 0);
}

TEST_CASE("rows that are cut, whose last part is less than a register") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t const columns : {16384 + 1, 16384 + 5, 32768 + 15, 32768 + 16}) {
      CAPTURE(columns);
      Tensor<float> x = arange<float>(3 * columns).view({3, columns});
      Tensor<float> const column = Tensor<float>{10, 20, 30}.view({3, 1});
      x += column;
      int wrong = 0;
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t j = 0; j < columns; ++j) wrong += x.data()[i * columns + j] != static_cast<float>(i * columns + j + 10 * (i + 1));
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("results do not depend on the number of threads, to the bit") {
  Tensor<float> const a = linspace(-3, 3, 1500 * 1031).view({1500, 1031}), b = linspace(7, -2, 1031 * 1500).view({1031, 1500});
  Tensor<float> const row = a[0], column = b.select(0, 0).unsqueeze(1);
  auto const all_results = [&] {
    std::vector<Tensor<float>> result;
    result.push_back(tanh(a * 1.25f) + exp(a));  // contiguous
    result.push_back(a * 2 + b.t());            // transposed
    result.push_back(a.flip(1).flip(0) / 3 + row - column);
    Tensor<float> target = zeros({1500, 2062});
    target.slice(1, 0, 2062, 2) = sin(a) * row;
    result.push_back(target);
    return result;
  };
  int const before = num_threads();
  set_num_threads(1);
  CHECK(num_threads() == 1);
  auto const one = all_results();
  for (int threads : {2, 3, 7}) {
    set_num_threads(threads);
    auto const several = all_results();
    for (std::size_t k = 0; k < one.size(); ++k) {
      CAPTURE(k);
      CAPTURE(threads);
      CHECK(std::memcmp(one[k].data(), several[k].data(), static_cast<std::size_t>(one[k].size()) * sizeof(float)) == 0);
    }
  }
  set_num_threads(before);
  CHECK(situ_test::thrown<ShapeError>([] { set_num_threads(0); }, "set_num_threads: 0 threads were asked for; at least 1 is needed") == "");
}

/// Notes who did each item, and how often it was done.
struct NotingKernel {
  static constexpr char const* operation = "notes";
  void const** who;
  int* times;
  void operator()(int64_t first, int64_t last) const {
    static thread_local char me;
    for (int64_t i = first; i < last; ++i) who[i] = &me, ++times[i];
  }
};
TEST_CASE("threads have as much to do as each other, also where few grains are to be shared") {
  int const before = num_threads();
  for (int const threads : {1, 2, 3}) {
    set_num_threads(threads);
    bool const several = num_threads() > 1;  // else this file is compiled without OpenMP
    int64_t const cases[][2] = {{2048, 163}, {102, 7}, {700, 200}, {1000000, 204800}, {640000, 204800}, {10, 1}, {3, 1}, {100, 50}, {100, 51}};
    for (auto const& one : cases) {
      int64_t const items = one[0], grain = one[1];
      std::vector<void const*> who(static_cast<std::size_t>(items));
      std::vector<int> times(static_cast<std::size_t>(items));
      device_traits<Cpu>::launch(NotingKernel{who.data(), times.data()}, items, grain);
      int64_t missed = 0, parts = 1, shortest = items, length = 0;
      for (std::size_t i = 0; i < who.size(); ++i, ++length) {
        missed += times[i] != 1;
        if (i > 0 && who[i] != who[i - 1]) ++parts, shortest = std::min(shortest, length), length = 0;
      }
      shortest = std::min(shortest, length);
      INFO(items, " items of a grain of ", grain, ", ", threads, " threads");
      CHECK(missed == 0);
      CHECK(parts == (several && items > 2 * grain ? threads : 1));
      CHECK(shortest >= items / parts - items / 40 - 1);
    }
  }
  set_num_threads(before);
}

/// Its items are elements. Notes how many were done and who did the first and the last one: a launch is over in a moment in any build.
struct SizedKernel {
  static constexpr char const* operation = "notes";
  int64_t items;
  std::atomic<int64_t>* done;
  int64_t* first_share;
  void const** ends;
  int64_t elements(int64_t count) const { return count; }
  void operator()(int64_t first, int64_t last) const {
    static thread_local char me;
    *done += last - first;
    if (first == 0) ends[0] = &me, *first_share = last;
    if (last == items) ends[1] = &me;
  }
};
TEST_CASE("launches that follow each other closely are shared out sooner, those of few elements are not") {
  int const before = num_threads();
  set_num_threads(2);
  bool const several = num_threads() > 1 && std::thread::hardware_concurrency() > 1;
  constexpr int64_t grain = 100000;
  // How many launches it takes until one of `items` is shared out; -1 where none is.
  auto const launches_until_shared = [](int64_t items, int most) {
    for (int k = 1; k <= most; ++k) {
      std::atomic<int64_t> done{0};
      int64_t first_share = 0;
      void const* ends[2] = {};
      device_traits<Cpu>::launch(SizedKernel{items, &done, &first_share, ends}, items, grain);
      REQUIRE(done == items);
      if (ends[0] == ends[1]) continue;
      CHECK(std::abs(first_share - items / 2) <= items / 40 + 1);
      return k;
    }
    return -1;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // what was launched before is not close
  if (several) CHECK(launches_until_shared(70000, 100000) >= 5);
  CHECK(launches_until_shared(60000, 50) == -1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(launches_until_shared(70000, 4) == -1);
  set_num_threads(1);
  CHECK(launches_until_shared(70000, 50) == -1);
  set_num_threads(before);
}

/// The number of the thread that maps an element.
std::atomic<int> threads_seen{0};
struct ThreadOf {
  float operator()(float) const {
    static thread_local int const me = ++threads_seen;
    return static_cast<float>(me);
  }
};
// gelu costs 60, a function that is mapped 20, and 8 bytes are moved: in 40 microseconds AVX-512 does 4*10^6 / 88 elements, and with registers half as wide
// 4*10^6 / 168 are done. Twice as many are worth two threads.
TEST_CASE("fewer elements are worth a thread of their own where registers are narrower") {
  int const before = num_threads();
  set_num_threads(2);
  bool const several = num_threads() > 1;
  Tensor<float> const x = linspace(-3.0f, 3.0f, 60000), few = linspace(-3.0f, 3.0f, 40000);
  situ_test::with_every_instruction_set<Cpu>([&] {
    auto const threads_for = [](Tensor<float> const& input) {
      Tensor<float> const who = map(ThreadOf{}, gelu(input));
      return who(0) == who(who.size() - 1) ? 1 : 2;
    };
    instruction_set const set = get_instruction_set();
    CAPTURE(static_cast<int>(set));
    CHECK(threads_for(x) == (several && set != instruction_set::avx512 ? 2 : 1));
    CHECK(threads_for(few) == (several && set == instruction_set::baseline ? 2 : 1));
  });
  set_num_threads(before);
}

TEST_CASE("large results agree with a plain loop") {
  int64_t const n = (int64_t{1} << 22) + 5;
  Tensor<float> const a = arange(n), b = ones({n});
  Tensor<float> const y = a * 3 + b;
  Tensor<bool> const odd = a % 2 == 1;
  int64_t wrong = 0;
  for (int64_t k = 0; k < n; ++k) wrong += y.data()[k] != static_cast<float>(k) * 3 + 1 || odd.data()[k] != (k % 2 == 1);
  CHECK(wrong == 0);
}

TEST_CASE("what fits the last cache with what it is made from is not written past it") {
  constexpr int64_t MiB = int64_t{1} << 20;
  situ_test::UnknownCaches const caches;
  int const threads = num_threads();
  situ_test::with_every_instruction_set<Cpu>([&] {
    int64_t const room = get_instruction_set() == instruction_set::avx512 ? 60 * MiB : 40 * MiB;
    for (int n : {1, 2}) {
      set_num_threads(n);
      int64_t const kept = num_threads() == 1 ? room / 2 : room;
      detail::cpu::last_cache_bytes() = 60 * MiB;
      CHECK_FALSE(detail::cpu::goes_past_caches(8 * MiB - 1, 100 * MiB));
      CHECK_FALSE(detail::cpu::goes_past_caches(8 * MiB, kept - 8 * MiB));
      CHECK(detail::cpu::goes_past_caches(8 * MiB, kept - 8 * MiB + 1));
      CHECK(detail::cpu::goes_past_caches(kept + 1, 0));
      detail::cpu::last_cache_bytes() = 0;
      CHECK(detail::cpu::goes_past_caches(8 * MiB, 0));
    }
    set_num_threads(threads);
  });
}

TEST_CASE("results beyond the caches agree with a plain loop, whatever their type and their inputs'") {
  situ_test::UnknownCaches const caches;
  int64_t const n = (int64_t{1} << 23) + 37;
  Tensor<int32_t> const x = arange<int32_t>(n);
  Tensor<bool> const odd = x % 2 == 1;
  Tensor<float16> const half = cast<float16>(x % 1024);
  Tensor<int64_t> const wide = cast<int64_t>(cast<int8_t>(x)) + x;
  int64_t wrong = 0;
  for (int64_t k = 0; k < n; ++k) {
    wrong += odd.data()[k] != (k % 2 == 1) || static_cast<float>(half.data()[k]) != static_cast<float>(k % 1024) || wide.data()[k] != static_cast<int8_t>(k) + k;
  }
  CHECK(wrong == 0);
  Tensor<int32_t> const matrix = x(range(0, 4097 * 2043)).view({4097, 2043}), row = x(range(0, 2043)), column = x(range(0, 4097)).unsqueeze(1);
  Tensor<int32_t> const sums = matrix + row - column;
  for (int64_t i = 0; i < 4097; ++i) {
    for (int64_t j = 0; j < 2043; ++j) wrong += sums.data()[i * 2043 + j] != i * 2043 + j + j - i;
  }
  CHECK(wrong == 0);
}

TEST_CASE("transposed operands whose columns are whole pages apart agree with a plain loop") {
  situ_test::UnknownCaches const caches;
  auto const check = [&]<class T>(T, int64_t rows, int64_t columns, int64_t pitch, int64_t first) {
    CAPTURE(sizeof(T));
    CAPTURE(rows);
    CAPTURE(pitch);
    Tensor<T> storage = zeros<T>({columns * pitch}), plain = empty<T>({rows, columns});
    for (int64_t k = 0; k < storage.size(); ++k) storage.data()[k] = static_cast<T>(k % 97 - 40);
    for (int64_t k = 0; k < plain.size(); ++k) plain.data()[k] = static_cast<T>(k % 13);
    Tensor<T> const across = storage.view({columns, pitch}).slice(1, first, first + rows).t();
    Tensor<T> const sums = plain + across, turned = across.flip(0).contiguous(), negative = -across.flip(1);
    Tensor<T> place = full<T>({rows, columns + 2}, static_cast<T>(7));
    place.slice(1, 1, columns + 1) = across - plain;
    int64_t wrong = 0;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        auto const value = [&](int64_t r, int64_t c) { return (c * pitch + first + r) % 97 - 40; };
        auto const at = [](Tensor<T> const& x, int64_t k) { return static_cast<int64_t>(static_cast<double>(x.data()[k])); };
        int64_t const k = i * columns + j;
        wrong += at(sums, k) != k % 13 + value(i, j) || at(turned, k) != value(rows - 1 - i, j) || at(negative, k) != -value(i, columns - 1 - j);
        wrong += at(place, i * (columns + 2) + 1 + j) != value(i, j) - k % 13;
      }
      wrong += static_cast<double>(place.data()[i * (columns + 2)]) != 7 || static_cast<double>(place.data()[(i + 1) * (columns + 2) - 1]) != 7;
    }
    CHECK(wrong == 0);
  };
  check(float{}, 1000, 1000, 1024, 3);
  check(float{}, 77, 1100, 1024, 0);
  check(float{}, 20, 4200, 1024, 1000);
  check(float{}, 2048, 1031, 2048, 0);  // past the caches
  check(double{}, 505, 300, 512, 5);
  check(float16{}, 2000, 200, 2048, 1);
  check(int8_t{}, 4000, 150, 4096, 2);
}

TEST_CASE("results beyond the caches have the bits of small ones, wherever they lie") {
  situ_test::UnknownCaches const caches;
  int64_t const n = (int64_t{1} << 22) + 77, part = 50001;
  auto const compare = [&]<class T>(T, auto const& formula) {
    Tensor<T> const x = linspace<T>(-3, 3, n), y = linspace<T>(2, -1, n);
    for (int64_t before : {0, 1, 7}) {
      CAPTURE(before);
      Tensor<T> storage = full<T>({n + 32}, T(9));
      storage.slice(0, before, before + n) = formula(x, y);
      int64_t wrong = 0;
      for (int64_t k = 0; k < before; ++k) wrong += storage.data()[k] != T(9);
      for (int64_t k = before + n; k < n + 32; ++k) wrong += storage.data()[k] != T(9);
      for (int64_t at = 0; at < n; at += part) {
        int64_t const end = at + part < n ? at + part : n;
        Tensor<T> const small = formula(x(range(at, end)), y(range(at, end)));
        wrong += std::memcmp(small.data(), storage.data() + before + at, static_cast<std::size_t>(end - at) * sizeof(T)) != 0;
      }
      CHECK(wrong == 0);
    }
  };
  compare(float{}, [](auto const& x, auto const& y) { return tanh(x * y + 1) - 0.5f * x; });
  compare(float{}, [](auto const& x, auto const& y) { return x * y + y - 0.5f * x; });
  compare(float{}, [](auto const& x, auto const& y) { return 1 / x + floor(y); });
  compare(double{}, [](auto const& x, auto const& y) { return exp(x) * y; });
  compare(float16{}, [](auto const& x, auto const& y) { return x * y - x; });
}

TEST_CASE("formulas of up to 63 inputs, half of them repeated along rows") {
  constexpr int64_t rows = 3, columns = 1000;
  auto const check = []<std::size_t... Ks>(std::index_sequence<Ks...>) {
    Tensor<double> inputs[sizeof...(Ks)];
    for (std::size_t k = 0; k < sizeof...(Ks); ++k) {
      double const number = static_cast<double>(k);
      inputs[k] = k % 2 == 1 ? full<double>({1}, number).expand({columns}) : arange<double>(number, number + static_cast<double>(columns));
    }
    Tensor<double> const x = full<double>({rows, 1}, 0.5), y = (x + ... + inputs[Ks]);
    std::vector<double> expected;
    for (int64_t i = 0; i < rows * columns; ++i) {
      double total = 0.5;
      for (std::size_t k = 0; k < sizeof...(Ks); ++k) total += static_cast<double>(k) + (k % 2 == 1 ? 0 : static_cast<double>(i % columns));
      expected.push_back(total);
    }
    CHECK(y.reshape({rows * columns}).to_vector() == expected);
  };
  check(std::make_index_sequence<31>{});
  check(std::make_index_sequence<32>{});
  check(std::make_index_sequence<62>{});
}
