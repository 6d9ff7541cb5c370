// The kernels that check_ptx.sh looks at: three float inputs, in a fused expression and in a reduction.
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using Gpu = Tensor<float, Cuda<0>>;

Gpu fused(Gpu const& a, Gpu const& b, Gpu const& c) { return a * b + c; }
Gpu reduced(Gpu const& a) { return sum(square(a), 1); }
