// error: an_Embedding_is_given_a_Tensor_of_integers
// in-header
#include <situ/nn/embedding.hpp>
#include <situ/tensor/factories.hpp>

#ifdef SITU_EXPECT_ERROR
using Index = float;
#else
using Index = int32_t;
#endif

void misuse(situ::nn::Embedding<float> const& table) { (void)table(situ::zeros<Index>({3})); }
