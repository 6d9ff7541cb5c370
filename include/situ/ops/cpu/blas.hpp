/// Running products on the CPU: by the BLAS where SITU_WITH_BLAS says that one is linked, else by situ's own kernels.
///
/// The functions of the BLAS are declared here under names of their own, so that a program may include any <cblas.h>.
/// SITU_BLAS_INT is its integer type: int, or int64_t for a BLAS with 64-bit integers.
///
/// Products by OpenBLAS are shared out among situ's threads, and OpenBLAS uses one thread in each of them: its threads and OpenMP's
/// on the same cores would wait for one another, which makes a step of training five times as long. Other libraries are called once
/// for a product, and use what threads they like, as does an OpenBLAS that is itself built with OpenMP: its threads are situ's.
#pragma once

#include <unistd.h>

#include <situ/core/device.hpp>
#include <situ/device/memory_statistics.hpp>
#include <situ/ops/cpu/gemm_batch.hpp>

#if defined(SITU_WITH_BLAS)
#ifndef SITU_BLAS_INT
#define SITU_BLAS_INT int
#endif
#define SITU_TEXT_OF(X) #X
#define SITU_TEXT(X) SITU_TEXT_OF(X)
extern "C" {
void situ_cblas_sgemm(int order, int transpose_a, int transpose_b, SITU_BLAS_INT m, SITU_BLAS_INT n, SITU_BLAS_INT k, float alpha, float const* a,
                      SITU_BLAS_INT lda, float const* b, SITU_BLAS_INT ldb, float beta, float* c, SITU_BLAS_INT ldc) __asm__(SITU_TEXT(__USER_LABEL_PREFIX__) "cblas_sgemm");
void situ_cblas_dgemm(int order, int transpose_a, int transpose_b, SITU_BLAS_INT m, SITU_BLAS_INT n, SITU_BLAS_INT k, double alpha, double const* a,
                      SITU_BLAS_INT lda, double const* b, SITU_BLAS_INT ldb, double beta, double* c, SITU_BLAS_INT ldc) __asm__(SITU_TEXT(__USER_LABEL_PREFIX__) "cblas_dgemm");
#if defined(__ELF__)
// OpenBLAS's own, and null where the BLAS is another one.
int situ_openblas_get_parallel(void) __asm__("openblas_get_parallel") __attribute__((weak));
int situ_openblas_get_num_threads(void) __asm__("openblas_get_num_threads") __attribute__((weak));
void situ_openblas_set_num_threads(int) __asm__("openblas_set_num_threads") __attribute__((weak));
#endif
}
#undef SITU_TEXT
#undef SITU_TEXT_OF
#endif

namespace situ::inline SITU_ABI {
namespace detail::cpu {
#if defined(SITU_WITH_BLAS)
inline namespace SITU_ABI_THREADS {

inline void blas_gemm(int ta, int tb, SITU_BLAS_INT m, SITU_BLAS_INT n, SITU_BLAS_INT k, float const* a, SITU_BLAS_INT lda, float const* b,
                      SITU_BLAS_INT ldb, float* c, SITU_BLAS_INT ldc) {
  situ_cblas_sgemm(101, ta, tb, m, n, k, 1.0f, a, lda, b, ldb, 0.0f, c, ldc);
}
inline void blas_gemm(int ta, int tb, SITU_BLAS_INT m, SITU_BLAS_INT n, SITU_BLAS_INT k, double const* a, SITU_BLAS_INT lda, double const* b,
                      SITU_BLAS_INT ldb, double* c, SITU_BLAS_INT ldc) {
  situ_cblas_dgemm(101, ta, tb, m, n, k, 1.0, a, lda, b, ldb, 0.0, c, ldc);
}

/// A matrix as the BLAS takes it: row-major as it is (111) or transposed (112), with its leading dimension; 0 where it takes neither.
struct BlasMatrix {
  int how = 0;
  int64_t step = 0;
  BlasMatrix(int64_t rows, int64_t columns, int64_t row_step, int64_t column_step) {
    int64_t const limit = sizeof(SITU_BLAS_INT) == 4 ? INT32_MAX : INT64_MAX;
    if (rows > limit || columns > limit) return;
    if ((column_step == 1 || columns == 1) && (row_step >= columns || rows == 1)) how = 111, step = rows == 1 ? columns : row_step;
    else if ((row_step == 1 || rows == 1) && (column_step >= rows || columns == 1)) how = 112, step = columns == 1 ? rows : column_step;
    if (step > limit) how = 0;
  }
};

/// Whether the BLAS is an OpenBLAS that can be kept from using threads of its own.
inline bool is_threaded_by_situ() {
#if defined(__ELF__) && defined(_OPENMP)
  constexpr int by_openmp = 2;
  return situ_openblas_get_parallel && situ_openblas_get_num_threads && situ_openblas_set_num_threads && situ_openblas_get_parallel() != by_openmp;
#else
  return false;
#endif
}

#if defined(__ELF__)
/// One per process.
struct BlasThreads {
  int64_t lock = 0, guards = 0;
  int before = 0;  ///< OpenBLAS's number, found by the first guard
};
SITU_PROCESS_STATE BlasThreads& blas_threads() {
  static constinit BlasThreads state;
  return state;
}
#endif

/// While one of these lives, OpenBLAS's calls run on the thread that makes them; the last one gives back the number of threads that was found.
class SingleThreadedBlas {
 public:
  SingleThreadedBlas() { count(1); }
  SingleThreadedBlas(SingleThreadedBlas const&) = delete;
  SingleThreadedBlas& operator=(SingleThreadedBlas const&) = delete;
  ~SingleThreadedBlas() { count(-1); }

 private:
  static void count([[maybe_unused]] int change) {
#if defined(__ELF__)
    BlasThreads& state = blas_threads();
    SpinLock const held(state.lock);
    int const now = situ_openblas_get_num_threads();
    if (state.guards == 0) state.before = now;
    state.guards += change;
    if (change > 0 && now > 1) situ_openblas_set_num_threads(1);
    if (state.guards == 0 && now == 1 && state.before > 1) situ_openblas_set_num_threads(state.before);
#endif
  }
};

/// Cuts m x n products of depth k where each piece is a call of the BLAS: by the sizes and the machine, not by the number of threads,
/// since the BLAS may sum pieces of other sizes in another order.
inline ProductCut cut_blas_product(int64_t m, int64_t n, int64_t k, int64_t batches) {
  ProductCut cut{m, n, 1, 1, batches};
  if (!is_threaded_by_situ()) return cut;
  static int64_t const processors = ::sysconf(_SC_NPROCESSORS_ONLN);
  constexpr double worth_a_piece = 1 << 23, worth_a_thread = 1 << 21;  // multiplications
  double const work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  int64_t const pieces = work < worth_a_piece * static_cast<double>(processors) ? static_cast<int64_t>(work / worth_a_piece) : processors;
  bool const by_columns = work < (1 << 25);  // OpenBLAS packs an operand once more: the left one costs it less while both are small
  int64_t least = INT64_MAX;
  for (int64_t r = 1; r <= pieces; ++r) {  // as near to squares as can be, which read least
    int64_t const c = pieces / r, edges = m / r + n / c;
    if (r * c != pieces || edges > least || (edges == least && by_columns)) continue;
    least = edges;
    cut.rows = ((m + r - 1) / r + 31) / 32 * 32, cut.columns = ((n + c - 1) / c + 31) / 32 * 32;
  }
  cut.row_items = (m + cut.rows - 1) / cut.rows, cut.column_items = (n + cut.columns - 1) / cut.columns;
  cut.grain = pieces > 1 ? 0 : static_cast<int64_t>(worth_a_thread / work) + 1;
  return cut;
}

/// The batch, a call of the BLAS for each piece of its products.
template <class T>
struct BlasKernel {
  BatchKernel<T> batch;
  int how_a, how_b;
  int64_t step_a, step_b;

  void operator()(int64_t first, int64_t last) const {
    if (!is_threaded_by_situ()) return run(first, last);
    SingleThreadedBlas const guard;
    run(first, last);
  }

 private:
  void run(int64_t first, int64_t last) const {
    using Ix = SITU_BLAS_INT;
    ProductCut const& cut = batch.cut;
    for (int64_t item = first; item < last; ++item) {
      Product<T> one = batch.product;
      batch.move_to(one, item / (cut.row_items * cut.column_items));
      int64_t const i = item % cut.row_items * cut.rows, j = item / cut.row_items % cut.column_items * cut.columns;
      int64_t const rows = one.m - i < cut.rows ? one.m - i : cut.rows, columns = one.n - j < cut.columns ? one.n - j : cut.columns;
      T* const c = one.c + i * one.c_i + j;
      blas_gemm(how_a, how_b, static_cast<Ix>(rows), static_cast<Ix>(columns), static_cast<Ix>(one.k), one.a + i * one.a_i, static_cast<Ix>(step_a), one.b + j * one.b_j,
                static_cast<Ix>(step_b), c, static_cast<Ix>(one.c_i));
      if (one.finish) one.finish(one, c, one.c_i, i, j, rows, columns);
    }
  }
};

}  // namespace SITU_ABI_THREADS
#endif

inline namespace SITU_ABI_BLAS {

/// Runs a batch of products on D: `one` is the product of the first matrices, strides a, b and c lead to the others.
template <class D, class T>
SITU_NOINLINE void run_product(Product<T>& one, int rank, int64_t const* sizes, int64_t const* a, int64_t const* b, int64_t const* c) {
  if (one.k == 0) one.a_i = one.b_j = 0;  // nothing is read, and operands without elements need not lie anywhere
  bool const is_row = one.m == 1 && one.n > 1;  // a row times a matrix is the transposed matrix times a column
  if (is_row) {
    std::swap(one.m, one.n), std::swap(one.a, one.b), std::swap(one.a_i, one.b_j), std::swap(one.a_k, one.b_k);
    std::swap(one.c_i, one.c_j), std::swap(one.bias_i, one.bias_j);
  }
  bool const is_small = one.m < 4096 && one.n < 4096 && one.k < 4096 && one.m * one.n * one.k <= 4096;
  if (rank == 0 && is_small) return device_traits<D>::launch(SingleKernel<T, std::conditional_t<is_immediate<D>, Product<T> const&, Product<T>>>{one}, 1, 1);

  if constexpr (is_product_type<T>) {
    if (rank == 0 && NarrowRowsKernel<T>::takes(one)) return device_traits<D>::launch(NarrowRowsKernel<T>{one}, one.m, (int64_t{1} << 18) / (one.n * one.k + 4) + 1);
  }
  BatchKernel<T> kernel;
  kernel.product = one;
  kernel.rank = rank;
  int64_t batches = 1;
  for (int axis = 0; axis < rank; ++axis) {
    kernel.sizes[axis] = sizes[axis], kernel.a[axis] = (is_row ? b : a)[axis], kernel.b[axis] = (is_row ? a : b)[axis], kernel.c[axis] = c[axis];
    if (one.k == 0) kernel.a[axis] = kernel.b[axis] = 0;
    batches *= sizes[axis];
  }
  if constexpr (is_product_type<T>) {
    if (rank > 0 && is_small_batch(one)) {
      int64_t const grain = (int64_t{1} << 18) / (one.m * one.n * one.k + 16) + 1;
      return device_traits<D>::launch(SmallBatchKernel<T>{kernel}, batches, grain);
    }
  }
#if defined(SITU_WITH_BLAS)
  if constexpr (is_one_of<T, float, double>) {
    BlasMatrix const left(one.m, one.k, one.a_i, one.a_k), right(one.k, one.n, one.b_k, one.b_j);
    if (left.how != 0 && right.how != 0 && one.n > 1 && one.m > 1 && one.k > 0 && !is_small && one.c_j == 1 && one.c_i <= INT32_MAX) {
      kernel.cut = cut_blas_product(one.m, one.n, one.k, batches);
      return device_traits<D>::launch(BlasKernel<T>{kernel, left.how, right.how, left.step, right.step}, kernel.cut.row_items * kernel.cut.column_items * batches,
                                      kernel.cut.grain);
    }
  }
#endif
  kernel.cut = cut_product<T>(one.m, one.n, one.k, num_threads());
  device_traits<D>::launch(kernel, kernel.cut.row_items * kernel.cut.column_items * batches, kernel.cut.grain);
}

}  // namespace SITU_ABI_BLAS
}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
