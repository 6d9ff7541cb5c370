// error: this_operation_has_no_gradient__take_the_value_or_detach<float>
#define SITU_WITH_LAPACK 1
#include <situ/autograd.hpp>

template <class T>
concept decomposable = requires(T const& x) { svd(x); } || requires(T const& x) { qr(x); } || requires(T const& x) { eigh(x); } ||
                       requires(T const& x) { pinv(x); } || requires(T const& x) { lstsq(x, x.value()); } || requires(T const& x) { lstsq(x.value(), x); };
static_assert(!decomposable<situ::Variable<float>>);

void misuse(situ::Variable<float>& v) {
#ifdef SITU_EXPECT_ERROR
  auto [u, s, vh] = svd(v, {.full_matrices = false});
#else
  auto [u, s, vh] = svd(v.value(), {.full_matrices = false});
#endif
  (void)v, (void)u, (void)s, (void)vh;
}
