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

TEST_CASE("streams of emulated devices go on in a child and in its parent") {
  using D = Emulated<0>;
  Tensor<float, D> const x = ones({1000}).to(D{});
  Tensor<float, D> const y = x * 2;
  Stream<D> const side;
  auto const z = [&] {
    StreamGuard const guard(side);
    return Tensor<float, D>(y + 1);
  }();
  CHECK(holds_in_a_child([&] {
    Stream<D> const other;
    StreamGuard const guard(other);
    return sum(y).item() == 2000 && sum(z + y).item() == 5000;
  }));
  CHECK(sum(z * y).item() == 6000);
}
