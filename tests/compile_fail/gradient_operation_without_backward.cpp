// error: this_operation_has_no_backward
// in-header
#include <situ/autograd/function.hpp>

struct Double {
  static auto forward(auto&, auto const& x) { return x * 2; }
#ifndef SITU_EXPECT_ERROR
  static auto backward(auto&, auto const& g) { return g * 2; }
#endif
};

void misuse(situ::Variable<float>& v) { (void)situ::autograd::apply<Double>(v); }
