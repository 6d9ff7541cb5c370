// error: a_Pending_value_is_read_with_get<.*Tensor<.*
#include <situ/tensor.hpp>

#include <ostream>

void misuse(std::ostream& out, situ::Pending<situ::Tensor<float, situ::Pinned>> const& h) {
#ifdef SITU_EXPECT_ERROR
  out << h;
#else
  out << h.get();
#endif
}
