// error: a_view_of_a_Variable_is_not_written_to__write_a_part_by_its_indices_as_in_y_of_1_or_the_value_in_a_no_grad<(situ::)?([a-z0-9_]+::)?Variable<
#include <situ/autograd.hpp>

void misuse(situ::Variable<float>& y, situ::Variable<float>& x) {
#ifdef SITU_EXPECT_ERROR
  y.t() = x;
#else
  y[0] = x;
#endif
}
