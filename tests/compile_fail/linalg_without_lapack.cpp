// error: linear_algebra_on_the_host_needs_LAPACK__define_SITU_WITH_LAPACK_and_link_lapacke<(situ::)?(v[0-9_]+::)?Cpu>
#include <situ/ops.hpp>
#include <situ/ops/linalg.hpp>

template <class T>
concept decomposable = requires(T const& x) { svd(x); };
static_assert(!decomposable<situ::Tensor<float>>);

void misuse(situ::Tensor<float>& a) {
#ifdef SITU_EXPECT_ERROR
  auto y = svd(a, {.full_matrices = false});
#else
  auto y = sum(a);
#endif
  (void)a, (void)y;
}
