// error: from_mdspan_takes_an_mdspan<
#include <situ/interop/mdspan.hpp>

void misuse(float* elements) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::interop::from_mdspan(elements);
#else
  (void)situ::from_blob(elements, {2, 3});
#endif
}
