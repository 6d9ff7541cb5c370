// error: grad_takes_inputs_in_braces__then_a_gradient__and_retain_graph_or_create_graph<
#include <situ/autograd/backward.hpp>

#ifdef SITU_EXPECT_ERROR
void misuse(situ::Variable<float>& y, situ::Variable<float>& x, situ::Variable<float>& w) { (void)situ::grad(y, x, w); }
#else
void misuse(situ::Variable<float>& y, situ::Variable<float>& x, situ::Variable<float>& w) { (void)situ::grad(y, {x, w}); }
#endif
