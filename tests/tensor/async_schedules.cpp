// Random schedules of several streams on two devices, against the same program run in order on the host. Streams pause at
// random, so that every edge which is missing shows; freed memory is full of NaN.
#include <situ/device/stream.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>

using namespace situ;

namespace {

using A = Emulated<0>;
using B = Emulated<1>;

constexpr int64_t rows = 6, columns = 35;

/// Values stay small integers, which float has exactly.
template <class E>
auto small(E const& e) {
  return e % 251.f;
}

/// The same program on a device and on the host: `Slots<D>` and `Slots<Cpu>` see the same calls.
template <class D>
struct Slots {
  std::vector<Tensor<float, D>> x;

  void combine(std::size_t to, std::size_t a, std::size_t b, float f) { x[to] = small(x[a] * f + x[b]); }
  void combine_itself(std::size_t to, std::size_t a, float f) { x[to] = small(x[to] * f + x[a]); }
  void add_in_place(std::size_t to, std::size_t a) {
    x[to].assign(small(x[to] + x[a]));
  }
  void write_row(std::size_t to, std::size_t a, int64_t row, float f) { x[to][row] = small(x[a][rows - 1 - row] + f); }
  void write_transposed(std::size_t to, std::size_t a) { x[to].view({columns, rows}).assign(x[a].t()); }
  void subtract_sums(std::size_t to, std::size_t a) { x[to] = small(x[a] + sum(x[a], 1, keepdim)); }
  void copy(std::size_t to, std::size_t a) { x[to] = std::as_const(x[a]).clone(); }
  void share(std::size_t to, std::size_t a) { x[to] = x[a]; }
  void clear(std::size_t to) { x[to] = zeros<float>({rows, columns}, D{}); }
};

std::string difference(Tensor<float> const& got, Tensor<float> const& expected) {
  if (!(got.shape() == expected.shape())) return "shape " + to_string(got.shape()) + ", expected " + to_string(expected.shape());
  auto const a = got.to_vector(), b = expected.to_vector();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i])) return "element " + std::to_string(i) + " is " + std::to_string(a[i]) + ", expected " + std::to_string(b[i]);
  }
  return "";
}

struct Schedule {
  std::mt19937_64 random;
  Slots<A> on_a;
  Slots<B> on_b;
  Slots<Cpu> like_a, like_b;
  std::vector<Stream<A>> streams_a;
  std::vector<Stream<B>> streams_b;
  std::vector<Tensor<float, Pinned>> pinned;
  std::vector<Tensor<float>> like_pinned;
  std::vector<std::pair<Pending<Tensor<float, Pinned>>, Tensor<float>>> pending;
  std::string log;

  explicit Schedule(uint64_t seed) : random(seed) {
    streams_a.push_back(Stream<A>::default_stream());
    streams_b.push_back(Stream<B>::default_stream());
    std::size_t const count = 1 + pick(3);
    for (std::size_t k = 0; k < count; ++k) streams_a.emplace_back();
    if (pick(2)) streams_b.emplace_back();
    for (std::size_t k = 0; k < 3; ++k) {
      Tensor<float> const start = fresh();
      like_a.x.push_back(start.clone());
      like_b.x.push_back(start.clone());
      on_a.x.push_back(start.to(A{}));
      on_b.x.push_back(start.to(B{}));
      pinned.push_back(pin(start));
      like_pinned.push_back(start.clone());
    }
  }
  std::size_t pick(std::size_t n) { return static_cast<std::size_t>(random() % n); }
  Tensor<float> fresh() {
    Tensor<float> result = empty<float>({rows, columns});
    for (int64_t k = 0; k < result.size(); ++k) result.data()[k] = static_cast<float>(random() % 251);
    return result;
  }

  /// One operation on one device.
  template <class D>
  void compute(Slots<D>& there, Slots<Cpu>& here) {
    std::size_t const to = pick(3), a = pick(3), b = pick(3), kind = pick(9);
    auto const f = static_cast<float>(1 + pick(5));
    auto const row = static_cast<int64_t>(pick(static_cast<std::size_t>(rows)));
    auto const both = [&](auto const& step) { step(here), step(there); };
    log += " " + std::to_string(kind);
    switch (kind) {
      case 0: return both([&](auto& s) { s.combine(to, a, b, f); });
      case 1: return both([&](auto& s) { s.combine_itself(to, a, f); });
      case 2: return both([&](auto& s) { s.add_in_place(to, a); });
      case 3: return both([&](auto& s) { s.write_row(to, a, row, f); });
      case 4: return both([&](auto& s) { s.write_transposed(to, a); });
      case 5: return both([&](auto& s) { s.subtract_sums(to, a); });
      case 6: return both([&](auto& s) { s.copy(to, a); });
      case 7: return both([&](auto& s) { s.share(to, a); });
      default: return both([&](auto& s) { s.clear(to); });
    }
  }
  /// One transfer between a device and the host.
  template <class D>
  void transfer(Slots<D>& there, Slots<Cpu>& here) {
    std::size_t const to = pick(3), a = pick(3), kind = pick(7);
    log += " t" + std::to_string(kind);
    switch (kind) {
      case 0: here.x[to] = like_pinned[a].clone(), there.x[to] = pinned[a].to_async(D{}); break;
      case 1: {  // the source changes behind the copy
        here.x[to] = like_pinned[a].clone(), there.x[to] = pinned[a].to_async(D{});
        Tensor<float> const next = fresh();
        pinned[a].assign(next), like_pinned[a].assign(next);
        break;
      }
      case 2: {  // the source goes behind the copy
        here.x[to] = like_pinned[a].clone(), there.x[to] = pinned[a].to_async(D{});
        Tensor<float> const next = fresh();
        pinned[a] = pin(next), like_pinned[a] = next.clone();
        break;
      }
      case 3: pending.emplace_back(there.x[a].to_async(Pinned{}), here.x[a].clone()); break;
      case 4: {
        auto const h = there.x[a].t()[3].to_async(Pinned{});
        pending.emplace_back(h, here.x[a].t()[3].clone());
        break;
      }
      case 5: (void)there.x[a].to_async(Pinned{}); break;  // nobody waits for it
      default: {
        std::string const found = difference(there.x[a].to(Cpu{}), here.x[a]);
        if (!found.empty()) FAIL(log << ": " << found);
      }
    }
  }
  void exchange() {
    std::size_t const to = pick(3), a = pick(3);
    log += " x";
    if (pick(2)) on_b.x[to] = on_a.x[a].to(B{}), like_b.x[to] = like_a.x[a].clone();
    else on_a.x[to] = small(on_b.x[a] + 1.f).to_async(A{}), like_a.x[to] = small(like_b.x[a] + 1.f);
  }
  void step() {
    StreamGuard const guard_a{streams_a[pick(streams_a.size())]};
    StreamGuard const guard_b{streams_b[pick(streams_b.size())]};
    std::size_t const kind = pick(10);
    if (kind < 4) compute(on_a, like_a);
    else if (kind < 6) compute(on_b, like_b);
    else if (kind < 7) transfer(on_a, like_a);
    else if (kind < 8) transfer(on_b, like_b);
    else if (kind < 9) exchange();
    else if (pick(2)) emulated::delay(Stream<A>::current(), 0.2);
    else emulated::delay(Stream<B>::current(), 0.2);
  }
  /// Empty when everything is as it was computed in order.
  std::string result() {
    for (std::size_t k = 0; k < 3; ++k) {
      std::string found = difference(on_a.x[k].to(Cpu{}), like_a.x[k]);
      if (found.empty()) found = difference(on_b.x[k].to(Cpu{}), like_b.x[k]);
      if (found.empty()) found = difference(pinned[k].clone(), like_pinned[k]);
      if (!found.empty()) return found;
    }
    for (auto const& [arrives, expected] : pending) {
      std::string const found = difference(arrives.get().clone(), expected);
      if (!found.empty()) return "pending: " + found;
    }
    return "";
  }
};

}  // namespace

TEST_CASE("random schedules of several streams give what they give in order") {
  char const* const asked = std::getenv("SITU_TEST_SCHEDULES");
  uint64_t const count = asked ? std::strtoull(asked, nullptr, 10) : 3000;
  emulated::configure({.memory = std::size_t{1} << 20, .delays = 1});
  std::string wrong;
  for (uint64_t seed = 0; seed < count && wrong.empty(); ++seed) {
    Schedule schedule(seed);
    std::size_t const steps = 4 + schedule.pick(14);
    for (std::size_t k = 0; k < steps; ++k) schedule.step();
    wrong = schedule.result();
    if (!wrong.empty()) wrong = "schedule " + std::to_string(seed) + schedule.log + ": " + wrong;
  }
  CHECK(wrong == "");
  synchronize(A{});
  synchronize(B{});
  CHECK(emulated::statistics(0).bytes == 0);
  CHECK(emulated::statistics(1).bytes == 0);
  emulated::configure();
}

TEST_CASE("several host threads use one tensor on streams of their own") {
  emulated::configure({.delays = 7});
  {
    Tensor<float> const start = arange<float>(0, 1000, 1) % 64.f;
    for (int round = 0; round < 60; ++round) {
      auto x = std::optional(start.to(A{}));
      Tensor<float, A> const shared = *x * 2.f;  // on the default stream, and read there on
      constexpr int threads = 3;
      std::vector<Tensor<float, A>> results(threads);
      struct Work {
        Tensor<float, A> x;
        Tensor<float, A>* result;
        int k;
      };
      std::vector<Work> works;
      for (int k = 0; k < threads; ++k) works.push_back({shared, &results[static_cast<std::size_t>(k)], k});
      std::vector<pthread_t> running(threads);
      for (int k = 0; k < threads; ++k) {
        REQUIRE(pthread_create(
            &running[static_cast<std::size_t>(k)], nullptr,
            [](void* given) -> void* {
              Work& work = *static_cast<Work*>(given);
              std::optional<Stream<A>> own;
              std::optional<StreamGuard<A>> guard;
              if (work.k > 0) own.emplace(), guard.emplace(*own);
              Tensor<float, A> y = work.x + static_cast<float>(work.k);
              for (int n = 0; n < 4; ++n) y = std::move(y) + work.x;
              *work.result = y;
              work.x = {};
              return nullptr;
            },
            &works[static_cast<std::size_t>(k)]) == 0);
      }
      Tensor<float, A> const mine = shared * 3.f;
      x.reset();
      for (pthread_t const thread : running) pthread_join(thread, nullptr);
      for (int k = 0; k < threads; ++k) {
        REQUIRE(difference(results[static_cast<std::size_t>(k)].to(Cpu{}), start * 10.f + static_cast<float>(k)) == "");
      }
      REQUIRE(difference(mine.to(Cpu{}), start * 6.f) == "");
    }
  }
  emulated::configure();
}

TEST_CASE("two devices are used by several host threads at once, and exchange what they compute") {
  emulated::configure({.delays = 11});
  {
    Tensor<float> const start = arange<float>(0, 500, 1) % 32.f;
    for (int round = 0; round < 20; ++round) {
      constexpr int threads = 4;
      struct Work {
        Tensor<float, A> from_a;
        Tensor<float, B> from_b;
        Tensor<float, A>* result_a;
        Tensor<float, B>* result_b;
        int k;
      };
      Tensor<float, A> const shared_a = start.to(A{}) + 1.f;
      Tensor<float, B> const shared_b = start.to(B{}) * 2.f;
      std::vector<Tensor<float, A>> results_a(threads);
      std::vector<Tensor<float, B>> results_b(threads);
      std::vector<Work> works;
      for (int k = 0; k < threads; ++k) works.push_back({shared_a, shared_b, &results_a[static_cast<std::size_t>(k)], &results_b[static_cast<std::size_t>(k)], k});
      std::vector<pthread_t> running(threads);
      for (int k = 0; k < threads; ++k) {
        REQUIRE(pthread_create(
            &running[static_cast<std::size_t>(k)], nullptr,
            [](void* given) -> void* {
              Work& work = *static_cast<Work*>(given);
              std::optional<StreamGuard<A>> on_a;
              std::optional<StreamGuard<B>> on_b;
              if (work.k % 2 == 0) on_a.emplace(Stream<A>());  // the others share the default streams
              if (work.k > 1) on_b.emplace(Stream<B>());
              Tensor<float, A> x = work.from_a;
              Tensor<float, B> y = work.from_b;
              for (int n = 0; n < 5; ++n) {
                Tensor<float, B> const there = x.to(B{});
                x = small(y.to_async(A{}) + static_cast<float>(work.k));
                y = small(there * 3.f + work.from_b);
              }
              *work.result_a = x;
              *work.result_b = y;
              work.from_a = {};
              work.from_b = {};
              return nullptr;
            },
            &works[static_cast<std::size_t>(k)]) == 0);
      }
      for (pthread_t const thread : running) pthread_join(thread, nullptr);
      for (int k = 0; k < threads; ++k) {
        Tensor<float> x = start + 1.f, y = start * 2.f;
        for (int n = 0; n < 5; ++n) {
          Tensor<float> const there = x;
          x = small(y + static_cast<float>(k));
          y = small(there * 3.f + start * 2.f);
        }
        REQUIRE(difference(results_a[static_cast<std::size_t>(k)].to(Cpu{}), x) == "");
        REQUIRE(difference(results_b[static_cast<std::size_t>(k)].to(Cpu{}), y) == "");
      }
    }
  }
  emulated::configure();
}
