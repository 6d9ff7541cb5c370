// error: this_operation_has_no_forward
// in-header
#include <situ/autograd/function.hpp>

struct Double {
#ifndef SITU_EXPECT_ERROR
  static auto forward(auto&, auto const& x) { return x * 2; }
#endif
  static auto backward(auto&, auto const& g) { return g * 2; }
};

void misuse(situ::Variable<float>& v) { (void)situ::autograd::apply<Double>(v); }
