// error: backward_takes_a_gradient__and_retain_graph<bool>
#include <situ/autograd/backward.hpp>

#ifdef SITU_EXPECT_ERROR
void misuse(situ::Variable<float>& loss) { loss.backward(true); }
#else
void misuse(situ::Variable<float>& loss) { loss.backward(situ::retain_graph); }
#endif
