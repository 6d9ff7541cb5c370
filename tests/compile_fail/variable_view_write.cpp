// error: a_Variable_is_written_by_its_parts_as_in_y_of_1__or_as_a_value_in_a_no_grad<(situ::)?([a-z0-9_]+::)?Variable<
#include <situ/autograd.hpp>

void misuse(situ::Variable<float>& y, situ::Variable<float>& x) {
#ifdef SITU_EXPECT_ERROR
  y.t() = x;
#else
  y[0] = x;
#endif
}
