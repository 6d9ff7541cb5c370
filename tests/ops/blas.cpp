// Products that OpenBLAS makes on situ's threads leave its own number of threads as it was. Any other BLAS, or none, has nothing to leave.
#include <situ/ops/matmul.hpp>

#include <doctest/doctest.h>

#include <thread>
#include <vector>

#include "matmul_support.hpp"

using namespace situ;
using situ_test::numbers;

extern "C" {
__attribute__((weak)) int openblas_get_parallel();
__attribute__((weak)) int openblas_get_num_threads();
__attribute__((weak)) void openblas_set_num_threads(int);
}

TEST_CASE("products give OpenBLAS back its number of threads, also where several threads multiply at once") {
  if (!openblas_get_parallel || openblas_get_parallel() == 2 || !openblas_get_num_threads || !openblas_set_num_threads) return;  // 2: OpenMP's, which follow OpenMP
  auto const a = numbers<float>({300, 300}, 1), b = numbers<float>({300, 300}, 2);
  int const before = openblas_get_num_threads();
  for (int const wanted : {2, 1}) {
    openblas_set_num_threads(wanted);
    auto const expected = matmul(a, b).to_vector();
    CHECK(openblas_get_num_threads() == wanted);
    std::vector<int> wrong(3);
    std::vector<std::thread> users;
    for (int& each : wrong) {
      users.emplace_back([&] {
        for (int k = 0; k < 20; ++k) each += matmul(a, b).to_vector() != expected;
      });
    }
    for (std::thread& user : users) user.join();
    CHECK(wrong == std::vector<int>{0, 0, 0});
    CHECK(openblas_get_num_threads() == wanted);
  }
  openblas_set_num_threads(before);
}
