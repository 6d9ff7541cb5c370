/// Linear algebra on a GPU: cuSOLVER and cuBLAS. Many small matrices go into one call, where there is a routine for batches; others into
/// one call each. Written for the libraries' 32-bit interfaces; launches no kernel of situ's own but copies, so that host compilers can
/// compile it too.
#pragma once

#include <situ/ops/cuda/linalg_copy.hpp>
#include <situ/ops/linalg_common.hpp>

#if defined(SITU_WITH_CUDA)

namespace situ::inline SITU_ABI {
namespace detail {
/// Every function takes fresh tensors that it may write over, and enqueues.
template <class D>
struct Linalg<D, cuda_kernels> {
  static constexpr int device = device_traits<D>::ordinal;

  /// Writes an expression to a tensor whose rows or columns are contiguous, broadcast.
  template <class T, class E>
  static void write(Tensor<T, D> to, E const& e) {
    to.assign(e);
  }
  template <class T>
  static void write(Tensor<T, D> to, Tensor<T, D> const& from) {
    if (to.is_contiguous() && from.is_contiguous() && to.shape() == from.shape()) {
      device_traits<D>::copy(to.data(), from.data(), static_cast<std::size_t>(to.size()) * sizeof(T));
    } else {
      cuda::copy_matrices<D>(to.data(), to.layout(), from.data(), expanded(from.layout(), to.shape(), "linear algebra"));
    }
  }

  template <class T>
  static void solve(Tensor<T, D> a, Tensor<T, D> b, MatrixReports<D> const& reports) {
    MatrixShape const as(a.shape(), "solve"), bs(b.shape(), "solve");
    Temporary<D> const pivots(static_cast<std::size_t>(as.count() * as.rows) * sizeof(int));
    factor(a, static_cast<int*>(pivots.get()), reports.data());
    solve_factored(a, static_cast<int const*>(pivots.get()), b, BatchMap(as.batch, bs.batch));
  }

  template <class T>
  static Tensor<T, D> inverse(Tensor<T, D> a, MatrixReports<D> const& reports) {
    MatrixShape const shape(a.shape(), "inv");
    auto result = Tensor<T, D>::uninitialized(a.shape(), "inv");
    Temporary<D> const pivots(static_cast<std::size_t>(shape.count() * shape.rows) * sizeof(int));
    factor(a, static_cast<int*>(pivots.get()), reports.data());
    int64_t const n = shape.rows, count = shape.count();
    if (cuda::in_one_call(n, count)) {
      Temporary<D> const infos(static_cast<std::size_t>(count) * sizeof(int));  // as the factorisation reports
      cuda::MatrixPointers<T, D> const factors(a.data(), n * n, count), results(result.data(), n * n, count);
      cuda::BlasCall<T> const call(device);
      cuda::ObservedWork work(device, cuda::current_stream(device), "inv (cuBLAS)");
      call.check(call.f.getri_batched(call.handle, cuda::leading(n), factors.data(), cuda::leading(n), static_cast<int const*>(pivots.get()), results.data(),
                                      cuda::leading(n), static_cast<int*>(infos.get()), cuda::as_int(count, "a batch of")),
                 "cublas getriBatched");
      work.enqueued();
      return result;
    }
    cuda::fill_identity<D>(result.data(), n, n, count);
    // The factors are those of the transpose, and so is what lies in the result: solved as it is, both cancel.
    solve_factored(a, static_cast<int const*>(pivots.get()), result, BatchMap(shape.batch, shape.batch), cuda::as_it_is);
    return result;
  }

  /// Multiplied on the host, from the diagonals of the factors.
  template <class T>
  static void determinant(Tensor<T, D> a, T* det, T* sign, T* logarithm) {
    MatrixShape const shape(a.shape(), "det");
    int64_t const n = shape.rows, count = shape.count();
    if (count == 0) return;
    std::size_t const numbers = static_cast<std::size_t>(count * n);
    std::vector<T> diagonal(numbers), values(static_cast<std::size_t>(count), T(1)), logarithms(static_cast<std::size_t>(count), T(0));
    std::vector<int> exchanges(numbers);
    if (n > 0) {
      Temporary<D> const pivots(numbers * sizeof(int)), diagonals(numbers * sizeof(T));
      MatrixReports<D> const reports(shape.batch);
      factor(a, static_cast<int*>(pivots.get()), reports.data());
      {
        cuda::BlasCall<T> const call(device);
        auto* const to = static_cast<T*>(diagonals.get());
        if (count > n && n * n <= INT32_MAX && count <= INT32_MAX) {  // the k-th elements of all diagonals at once
          for (int64_t k = 0; k < n; ++k) {
            call.check(call.f.copy(call.handle, static_cast<int>(count), a.data() + k * (n + 1), static_cast<int>(n * n), to + k, cuda::leading(n)), "cublas copy");
          }
        } else {
          for (int64_t i = 0; i < count; ++i) {
            call.check(call.f.copy(call.handle, cuda::leading(n), a.data() + i * n * n, cuda::leading(n) + 1, to + i * n, 1), "cublas copy");
          }
        }
      }
      device_traits<D>::copy_to_host(diagonal.data(), diagonals.get(), numbers * sizeof(T));
      device_traits<D>::copy_to_host(exchanges.data(), pivots.get(), numbers * sizeof(int));
    }
    for (int64_t i = 0; i < count; ++i) {
      PivotProduct product;
      for (int64_t k = 0; k < n; ++k) {
        std::size_t const at = static_cast<std::size_t>(i * n + k);
        product.multiply(static_cast<double>(exchanges[at] == k + 1 ? diagonal[at] : -diagonal[at]));
      }
      values[static_cast<std::size_t>(i)] = static_cast<T>(det ? product.value() : product.sign());
      logarithms[static_cast<std::size_t>(i)] = static_cast<T>(product.logarithm());
    }
    device_traits<D>::copy_from_host(det ? det : sign, values.data(), values.size() * sizeof(T));
    if (!det) device_traits<D>::copy_from_host(logarithm, logarithms.data(), logarithms.size() * sizeof(T));
  }

  template <class T>
  static void cholesky(Tensor<T, D> a, bool upper, MatrixReports<D> const& reports) {
    MatrixShape const shape(a.shape(), "cholesky");
    int64_t const n = shape.rows, count = shape.count();
    if (n == 0) return clear(reports, count);
    if (count == 0) return;
    int const order = cuda::leading(n), uplo = upper ? cuda::fill_lower : cuda::fill_upper;
    if (cuda::in_one_call(n, count)) {
      cuda::MatrixPointers<T, D> const matrices(a.data(), n * n, count);
      cuda::SolverCall<T> const call(device);
      cuda::ObservedWork work(device, cuda::current_stream(device), "cholesky (cuSOLVER)");
      call.check(call.f.potrf_batched(call.handle, uplo, order, matrices.data(), order, reports.data(), cuda::as_int(count, "a batch of")), "cusolver potrfBatched");
      work.enqueued();
    } else {
      cuda::SolverCall<T> const call(device);
      int size = 0;
      call.check(call.f.potrf_size(call.handle, uplo, order, a.data(), order, &size), "cusolver potrf_bufferSize");
      Temporary<D> const space(static_cast<std::size_t>(size) * sizeof(T));
      cuda::ObservedWork work(device, cuda::current_stream(device), "cholesky (cuSOLVER)");
      for (int64_t i = 0; i < count; ++i) {
        call.check(call.f.potrf(call.handle, uplo, order, a.data() + i * n * n, order, static_cast<T*>(space.get()), size, reports.data() + i), "cusolver potrf");
      }
      work.enqueued();
    }
    cuda::cut_triangle<D>(a.data(), n, n, n * n, count, uplo);
  }

  template <class T>
  static void qr(Tensor<T, D> a, Tensor<T, D> r, int64_t q_columns) {
    MatrixShape const as(a.shape(), "qr"), rs(r.shape(), "qr");
    int64_t const m = as.columns, n = rs.columns, k = m < n ? m : n, count = as.count();
    if (count == 0) return;
    if (k == 0) return cuda::fill_identity<D>(a.data(), as.rows, m, count);
    int const rows = cuda::leading(m), columns = cuda::leading(n), reflectors = cuda::leading(k), qs = cuda::leading(q_columns);
    int factor_size = 0, product_size = 0;
    cuda::SolverCall<T> const call(device);
    Temporary<D> const taus(static_cast<std::size_t>(count * k) * sizeof(T)), infos(sizeof(int));
    auto* const tau = static_cast<T*>(taus.get());
    auto* const info = static_cast<int*>(infos.get());
    call.check(call.f.geqrf_size(call.handle, rows, columns, a.data(), rows, &factor_size), "cusolver geqrf_bufferSize");
    call.check(call.f.orgqr_size(call.handle, rows, qs, reflectors, a.data(), rows, tau, &product_size), "cusolver orgqr_bufferSize");
    int const size = factor_size > product_size ? factor_size : product_size;
    Temporary<D> const space(static_cast<std::size_t>(size) * sizeof(T));
    cuda::ObservedWork work(device, cuda::current_stream(device), "qr (cuSOLVER)");
    if (cuda::in_one_call(m > n ? m : n, count)) {
      cuda::MatrixPointers<T, D> const matrices(a.data(), as.rows * m, count), places(tau, k, count);
      cuda::BlasCall<T> const blas(device);
      int wrong = 0;
      blas.check(blas.f.geqrf_batched(blas.handle, rows, columns, matrices.data(), rows, places.data(), &wrong, cuda::as_int(count, "a batch of")), "cublas geqrfBatched");
    }
    for (int64_t i = 0; i < count && !cuda::in_one_call(m > n ? m : n, count); ++i) {
      call.check(call.f.geqrf(call.handle, rows, columns, a.data() + i * as.rows * m, rows, tau + i * k, static_cast<T*>(space.get()), size, info), "cusolver geqrf");
    }
    work.enqueued();
    if (rs.rows > k) {
      cuda::check(device, cudaMemsetAsync(r.data(), 0, static_cast<std::size_t>(r.size()) * sizeof(T), cuda::current_stream(device)), "cudaMemsetAsync");
    }
    auto const factored = a.slice(-2, 0, n).transpose(-2, -1);  // [..., m, n]
    write(r.slice(-2, 0, k), Tensor<T, D>(factored.slice(-2, 0, k)));
    cuda::cut_triangle<D>(r.data(), k, n, rs.rows * n, count, cuda::fill_lower);
    cuda::ObservedWork products(device, cuda::current_stream(device), "qr (cuSOLVER)");
    for (int64_t i = 0; i < count; ++i) {
      call.check(call.f.orgqr(call.handle, rows, qs, reflectors, a.data() + i * as.rows * m, rows, tau + i * k, static_cast<T*>(space.get()), size, info), "cusolver orgqr");
    }
    products.enqueued();
  }

  /// gesvd takes no matrix that is wider than tall: of a tall one the transpose is given in our order, a wide one already is.
  template <class T>
  static void svd(Tensor<T, D> a, Tensor<T, D> s, Tensor<T, D> u, Tensor<T, D> vh, char job, MatrixReports<D> const& reports) {
    MatrixShape const shape(a.shape(), "svd");
    int64_t const m = shape.rows, n = shape.columns, k = shape.smaller(), count = shape.count();
    if (count == 0) return;
    if (k == 0) {
      if (job == 'A') cuda::fill_identity<D>(u.data(), m, m, count), cuda::fill_identity<D>(vh.data(), n, n, count);
      return clear(reports, count);
    }
    bool const tall = m > n, vectors = job != 'N';
    // Theirs is `rows` x `columns` by columns, with rows >= columns; left and right are its U and Vᵀ, by columns.
    int64_t const rows = tall ? m : n, columns = tall ? n : m, left_columns = job == 'A' ? rows : k;
    Tensor<T, D> matrix = a, left = vh, right = u;
    if (tall) {
      matrix = Tensor<T, D>::uninitialized(with_axes(shape.batch, n, m), "svd");
      write(matrix, Tensor<T, D>(a.transpose(-2, -1)));
      if (vectors && !cuda::by_jacobi(rows, count)) {
        left = Tensor<T, D>::uninitialized(with_axes(shape.batch, left_columns, m), "svd");
        right = Tensor<T, D>::uninitialized(vh.shape(), "svd");
      }
    }
    if (cuda::by_jacobi(rows, count)) return svd_of_small(matrix, s, u, vh, tall, vectors, reports);
    {
      int const ms = cuda::leading(rows), ns = cuda::leading(columns);
      auto const letter = static_cast<signed char>(job);
      int size = 0;
      cuda::SolverCall<T> const call(device);
      call.check(call.f.gesvd_size(call.handle, ms, ns, &size), "cusolver gesvd_bufferSize");
      Temporary<D> const space(static_cast<std::size_t>(size) * sizeof(T));
      cuda::ObservedWork work(device, cuda::current_stream(device), "svd (cuSOLVER)");
      for (int64_t i = 0; i < count; ++i) {
        call.check(call.f.gesvd(call.handle, letter, letter, ms, ns, matrix.data() + i * m * n, ms, s.data() + i * k,
                                vectors ? left.data() + i * rows * left_columns : nullptr, ms, vectors ? right.data() + i * columns * columns : nullptr, ns,
                                static_cast<T*>(space.get()), size, nullptr, reports.data() + i),
                   "cusolver gesvd");
      }
      work.enqueued();
    }
    if (tall && vectors) {
      write(u, Tensor<T, D>(left.transpose(-2, -1)));
      write(vh, Tensor<T, D>(right.transpose(-2, -1)));
    }
  }

  template <class T>
  static void eigh(Tensor<T, D> a, Tensor<T, D> values, bool upper, bool vectors, MatrixReports<D> const& reports) {
    MatrixShape const shape(a.shape(), "eigh");
    int64_t const n = shape.rows, count = shape.count();
    if (n == 0) return clear(reports, count);
    if (count == 0) return;
    int const order = cuda::leading(n), uplo = upper ? cuda::fill_lower : cuda::fill_upper;
    int const job = vectors ? cuda::values_and_vectors : cuda::values_alone;
    int size = 0;
    cuda::SolverCall<T> const call(device);
    if (cuda::by_jacobi(n, count)) {
      auto const& library = cuda::solver_library();
      cuda::JacobiOptions const options(device, library.syevj_options_create, library.syevj_options_destroy);
      int const batches = cuda::as_int(count, "a batch of");
      call.check(call.f.syevj_size(call.handle, job, uplo, order, a.data(), order, values.data(), &size, options.get(), batches), "cusolver syevjBatched_bufferSize");
      Temporary<D> const space(static_cast<std::size_t>(size) * sizeof(T));
      cuda::ObservedWork work(device, cuda::current_stream(device), "eigh (cuSOLVER)");
      call.check(call.f.syevj_batched(call.handle, job, uplo, order, a.data(), order, values.data(), static_cast<T*>(space.get()), size, reports.data(), options.get(), batches),
                 "cusolver syevjBatched");
      work.enqueued();
      return;
    }
    call.check(call.f.syevd_size(call.handle, job, uplo, order, a.data(), order, values.data(), &size), "cusolver syevd_bufferSize");
    Temporary<D> const space(static_cast<std::size_t>(size) * sizeof(T));
    cuda::ObservedWork work(device, cuda::current_stream(device), "eigh (cuSOLVER)");
    for (int64_t i = 0; i < count; ++i) {
      call.check(call.f.syevd(call.handle, job, uplo, order, a.data() + i * n * n, order, values.data() + i * n, static_cast<T*>(space.get()), size, reports.data() + i),
                 "cusolver syevd");
    }
    work.enqueued();
  }

 private:
  static void clear(MatrixReports<D> const& reports, int64_t count) {
    if (count == 0) return;
    cuda::DeviceGuard const guard(device);
    cuda::check(device, cudaMemsetAsync(reports.data(), 0, static_cast<std::size_t>(count) * sizeof(int32_t), cuda::current_stream(device)), "cudaMemsetAsync");
  }

  /// `matrix` holds the columns of matrices that are not wider than tall: of those that were given, or of their transposes. Jacobi's
  /// routine gives both sides whole, and V itself rather than its transpose.
  template <class T>
  static void svd_of_small(Tensor<T, D>& matrix, Tensor<T, D>& s, Tensor<T, D>& u, Tensor<T, D>& vh, bool tall, bool vectors, MatrixReports<D> const& reports) {
    MatrixShape const shape(matrix.shape(), "svd");
    int64_t const rows = shape.columns, columns = shape.rows;
    // Asked for values alone, cuSOLVER 12 writes to them all the same where matrices are not square.
    auto left = Tensor<T, D>::uninitialized(with_axes(shape.batch, rows, rows), "svd");
    auto right = Tensor<T, D>::uninitialized(with_axes(shape.batch, columns, columns), "svd");
    {
      int const ms = cuda::leading(rows), ns = cuda::leading(columns), batches = cuda::as_int(shape.count(), "a batch of");
      int const job = vectors ? cuda::values_and_vectors : cuda::values_alone;
      T *const us = left.data(), *const vs = right.data();
      auto const& library = cuda::solver_library();
      cuda::JacobiOptions const options(device, library.gesvdj_options_create, library.gesvdj_options_destroy);
      int size = 0;
      cuda::SolverCall<T> const call(device);
      call.check(call.f.gesvdj_size(call.handle, job, ms, ns, matrix.data(), ms, s.data(), us, ms, vs, ns, &size, options.get(), batches),
                 "cusolver gesvdjBatched_bufferSize");
      Temporary<D> const space(static_cast<std::size_t>(size) * sizeof(T));
      cuda::ObservedWork work(device, cuda::current_stream(device), "svd (cuSOLVER)");
      call.check(call.f.gesvdj_batched(call.handle, job, ms, ns, matrix.data(), ms, s.data(), us, ms, vs, ns, static_cast<T*>(space.get()), size, reports.data(),
                                       options.get(), batches),
                 "cusolver gesvdjBatched");
      work.enqueued();
    }
    if (!vectors) return;
    if (tall) {
      write(u, Tensor<T, D>(left.slice(-2, 0, u.size(-1)).transpose(-2, -1)));
      write(vh, right);
    } else {
      write(u, Tensor<T, D>(right.transpose(-2, -1)));
      write(vh, Tensor<T, D>(left.slice(-2, 0, vh.size(-2))));
    }
  }

  template <class T>
  static void factor(Tensor<T, D>& a, int* pivots, int32_t* reports) {
    MatrixShape const shape(a.shape(), "solve");
    int64_t const n = shape.rows, count = shape.count();
    if (count == 0) return;
    if (cuda::in_one_call(n, count)) {
      cuda::MatrixPointers<T, D> const matrices(a.data(), n * n, count);
      cuda::BlasCall<T> const call(device);
      cuda::ObservedWork work(device, cuda::current_stream(device), "LU factorisation (cuBLAS)");
      call.check(call.f.getrf_batched(call.handle, cuda::leading(n), matrices.data(), cuda::leading(n), pivots, reports, cuda::as_int(count, "a batch of")),
                 "cublas getrfBatched");
      work.enqueued();
      return;
    }
    cuda::SolverCall<T> const call(device);
    if (n == 0) {
      cuda::check(device, cudaMemsetAsync(reports, 0, static_cast<std::size_t>(count) * sizeof(int32_t), cuda::current_stream(device)), "cudaMemsetAsync");
      return;
    }
    int const order = cuda::leading(n);
    int size = 0;
    call.check(call.f.getrf_size(call.handle, order, order, a.data(), order, &size), "cusolver getrf_bufferSize");
    Temporary<D> const space(static_cast<std::size_t>(size) * sizeof(T));
    cuda::ObservedWork work(device, cuda::current_stream(device), "LU factorisation (cuSOLVER)");
    for (int64_t i = 0; i < count; ++i) {
      call.check(call.f.getrf(call.handle, order, order, a.data() + i * n * n, order, static_cast<T*>(space.get()), pivots + i * n, reports + i), "cusolver getrf");
    }
    work.enqueued();
  }

  /// `b` holds the columns of the right sides. The factors are those of the transposes.
  template <class T>
  static void solve_factored(Tensor<T, D>& factors, int const* pivots, Tensor<T, D>& b, BatchMap const& factors_of, int trans = cuda::as_its_transpose) {
    MatrixShape const bs(b.shape(), "solve");
    int64_t const n = bs.columns, columns = bs.rows, count = bs.count();
    if (count * n * columns == 0) return;
    int const order = cuda::leading(n);
    if (cuda::in_one_call(n, count) && MatrixShape(factors.shape(), "solve").count() == count) {
      cuda::MatrixPointers<T, D> const matrices(factors.data(), n * n, count), right_sides(b.data(), n * columns, count);
      int wrong = 0;
      cuda::BlasCall<T> const call(device);
      cuda::ObservedWork work(device, cuda::current_stream(device), "solve (cuBLAS)");
      call.check(call.f.getrs_batched(call.handle, trans, order, cuda::leading(columns), matrices.data(), order, pivots, right_sides.data(), order, &wrong,
                                      cuda::as_int(count, "a batch of")),
                 "cublas getrsBatched");
      work.enqueued();
      return;
    }
    cuda::SolverCall<T> const call(device);
    Temporary<D> const info(sizeof(int));
    cuda::ObservedWork work(device, cuda::current_stream(device), "solve (cuSOLVER)");
    for (int64_t i = 0; i < count; ++i) {
      int64_t const f = factors_of(i);
      call.check(call.f.getrs(call.handle, trans, order, cuda::leading(columns), factors.data() + f * n * n, order, pivots + f * n, b.data() + i * n * columns, order,
                              static_cast<int*>(info.get())),
                 "cusolver getrs");
    }
    work.enqueued();
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
