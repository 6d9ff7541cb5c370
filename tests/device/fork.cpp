/// A child process goes on with what the parent had, on the one thread that it has.
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include <situ/ops/matmul.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

/// Whether a child process finds it right, within ten seconds.
bool holds_in_a_child(std::function<bool()> const& f) {
  pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(10);
    bool right = false;
    try {
      right = f();
    } catch (...) {
    }
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

}  // namespace

// The sanitizer of g++ 12 itself waits for ever in such a child.
TEST_CASE("a child of a program whose threads allocate can allocate, also on threads of its own" * doctest::skip(SITU_ASAN)) {
  std::atomic<bool> stop{false};
  std::thread large([&] {
    while (!stop) {
      auto const x = empty({100000});
      auto const y = empty({200000});
    }
  });
  std::thread small([&] {
    while (!stop) std::thread([] { auto const x = zeros({10}); }).join();
  });
  int wrong = 0;
  for (int k = 0; k < 60; ++k) {
    wrong += !holds_in_a_child([] {
      auto const before = gpu::memory_allocated(Cpu{});
      for (int round = 0; round < 3; ++round) {
        std::thread([] { auto const x = ones({1000}); }).join();
        auto const x = ones({100000});
        if (x.item(99999) != 1) return false;
      }
      return gpu::memory_allocated(Cpu{}) == before;
    });
    if (wrong > 0) break;
  }
  stop = true;
  large.join();
  small.join();
  CHECK(wrong == 0);
}

TEST_CASE("a child of a program whose kernels ran on several threads computes on one") {
  set_num_threads(2);
  auto const a = ones({300, 300});
  CHECK(matmul(a, a).item(0, 0) == 300);
  CHECK(holds_in_a_child([&] { return matmul(a, a).item(299, 299) == 300 && sum(a).item() == 90000; }));
  CHECK(sum(matmul(a, a)).item() == 27000000);
}

TEST_CASE("a child and its parent go on with a profile") {
  profile p;
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) (void)eval(ones({4}) * 2);
  });
  int wrong = 0;
  for (int k = 0; k < 30 && wrong == 0; ++k) wrong += !holds_in_a_child([] { return eval(ones({4}) * 2).item(3) == 2; });
  stop = true;
  busy.join();
  p.stop();
  CHECK(wrong == 0);
}

TEST_CASE("streams of emulated devices go on in a child and in its parent") {
  using D = Emulated<0>;
  Tensor<float, D> const x = ones({1000}).to(D{});
  Tensor<float, D> const y = x * 2;
  Stream<D> const side;
  auto const z = [&] {
    StreamGuard const guard(side);
    return Tensor<float, D>(y + 1);
  }();
  side.synchronize();
  synchronize(D{});
  CHECK(holds_in_a_child([&] {
    Stream<D> const other;
    StreamGuard const guard(other);
    return sum(y).item() == 2000 && sum(z + y).item() == 5000;
  }));
  CHECK(sum(z * y).item() == 6000);
}

TEST_CASE("what a stream is held up by does not hold up fork, and is lost in the child, which says so") {
  using D = Emulated<0>;
  Tensor<float, D> const x = ones({1000}).to(D{});
  Stream<D> const side;
  std::atomic<bool> open{false};
  enqueue(side, [&] {
    while (!open) ::usleep(100);
  });
  Tensor<float, D> const y = [&] {
    StreamGuard const guard(side);
    return Tensor<float, D>(x * 2);
  }();
  CHECK(holds_in_a_child([&] {
    return situ_test::thrown<Error>([&] { (void)y.item(0); }, "emulated:0: work was under way when the process was forked, and is lost in the child; wait for it before: synchronize(Emulated<0>{})") == "";
  }));
  open = true;
  CHECK(y.item(0) == 2);
}

TEST_CASE("a job that allocates is under way during fork") {
  Stream<Emulated<0>> const side;
  for (int k = 0; k < 20; ++k) {
    enqueue(side, [] {
      for (int round = 0; round < 20; ++round) (void)empty({100000});
    });
    CHECK(holds_in_a_child([] { return ones({100000}).item(5) == 1; }));
  }
  side.synchronize();
}
