// error: is_one_of<[^>]*float, double,
#include <situ/tensor.hpp>

#include <string>

#ifdef SITU_EXPECT_ERROR
void misuse(situ::Tensor<std::string>& a) { (void)a; }
#else
void misuse(situ::Tensor<double>& a) { (void)a; }
#endif
