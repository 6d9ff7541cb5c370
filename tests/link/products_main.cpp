// One file without a BLAS and one with it: both are right, and only the second one calls it.
#include <cmath>
#include <cstdio>
#include <vector>

std::vector<std::vector<float>> products_without_blas(const std::vector<float>& values, long n);
std::vector<std::vector<float>> products_with_blas(const std::vector<float>& values, long n);

static int calls = 0;

// A BLAS for this test: row-major, as slow as can be.
extern "C" void cblas_sgemm(int, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b, int ldb,
                            float beta, float* c, int ldc) {
  ++calls;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) sum += (transpose_a == 111 ? a[i * lda + l] : a[l * lda + i]) * (transpose_b == 111 ? b[l * ldb + j] : b[j * ldb + l]);
      c[i * ldc + j] = alpha * sum + (beta == 0 ? 0 : beta * c[i * ldc + j]);
    }
  }
}
extern "C" void cblas_dgemm(int, int, int, int, int, int, double, const double*, int, const double*, int, double, double*, int) {}

int main() {
  const long n = 48;
  std::vector<float> a(n * n);
  for (long i = 0; i < n * n; ++i) a[static_cast<std::size_t>(i)] = static_cast<float>(i * 7 % 23) - 11.0f;
  std::vector<float> expected(n * n);
  for (long i = 0; i < n; ++i) {
    for (long j = 0; j < n; ++j) {
      double sum = 0;
      for (long k = 0; k < n; ++k) sum += static_cast<double>(a[static_cast<std::size_t>(i * n + k)]) * static_cast<double>(a[static_cast<std::size_t>(k * n + j)]);
      expected[static_cast<std::size_t>(i * n + j)] = static_cast<float>(sum);
    }
  }
  int failures = 0;
  const auto check = [&](const char* name, auto function, int wanted_calls) {
    const int before = calls;
    for (const std::vector<float>& product : function(a, n)) {
      if (product != expected) std::printf("%s: a product is wrong\n", name), ++failures;  // whole numbers: exact
    }
    if (calls - before != wanted_calls) std::printf("%s: the BLAS was called %d times instead of %d\n", name, calls - before, wanted_calls), ++failures;
  };
  for (int round = 0; round < 2; ++round) {
    check("without_blas", products_without_blas, 0);
    check("with_blas", products_with_blas, 3);
  }
  return failures != 0;
}
