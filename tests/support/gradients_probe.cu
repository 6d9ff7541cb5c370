// The kernels of gradients that check_kernels.sh looks at: those of the benchmarks.
#include <situ/autograd.hpp>
#include <situ/nn/cross_entropy.hpp>

using namespace situ;
using V = Variable<float, Cuda<0>>;

void tanh_chain(V const& x, V const& w, V const& b, V const& y) { sum(tanh(x * w + b) * y).backward(); }
void gelu_chain(V const& x) { sum(gelu(x)).backward(); }
void layer_norm_chain(V const& x, Tensor<float, Cuda<0>> const& y) { sum(layer_norm(x, {100}) * y).backward(); }
void cross_entropy_chain(V const& x, Tensor<int64_t, Cuda<0>> const& labels) { cross_entropy(x, labels).backward(); }
