// Compiled without SITU_WITH_BLAS and with it, into one program: each copy keeps its own products.
#include <situ/ops/einsum.hpp>
#include <situ/ops/linear.hpp>
#include <situ/tensor.hpp>

#include <vector>

#ifdef SITU_WITH_BLAS
#define SITU_TEST_PRODUCTS products_with_blas
#else
#define SITU_TEST_PRODUCTS products_without_blas
#endif

/// a a, of a square matrix, three times: by matmul, linear and einsum.
std::vector<std::vector<float>> SITU_TEST_PRODUCTS(const std::vector<float>& values, long n) {
  const situ::Tensor<float> a(values, {n, n});
  const situ::Tensor<float> b = a.t();
  return {matmul(a, a).to_vector(), linear(a, b).to_vector(), situ::einsum("ij,jk->ik", a, a).to_vector()};
}
