// error: randint_takes_integers__use_cast<int, double>
#include <situ/ops/random.hpp>

void misuse() {
#ifdef SITU_EXPECT_ERROR
  (void)situ::randint(0, 3.5, {4});
#else
  (void)situ::randint(0, 3, {4}), (void)situ::randint<float>(3, {4});
#endif
}
