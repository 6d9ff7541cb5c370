/// Linear algebra on a GPU: cuSOLVER, one call for each matrix of a batch. Written for cusolverDn's 32-bit interface.
///
/// Launches no kernel of situ's own, so that host compilers can compile it too: copies between layouts are the runtime's where
/// rows stay rows, and cuBLAS' (geam, copy) where they do not; triangles are cut out by packing and unpacking them.
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/ops/cuda/cusolver.hpp>
#include <situ/ops/linalg_common.hpp>

#if defined(SITU_WITH_CUDA)

namespace situ::inline SITU_ABI {
namespace detail {
namespace cuda {
inline namespace SITU_ABI_CUDA {

/// A number for the libraries' 32-bit interface. Throws ShapeError.
inline int as_int(int64_t n, char const* what) {
  if (n > INT32_MAX || n < -INT32_MAX) fail<ShapeError>("linear algebra on cuda: ", what, " ", n, " does not fit the 32 bits of cuBLAS and cuSOLVER; use contiguous()");
  return static_cast<int>(n);
}
inline int leading(int64_t n) { return n > 1 ? static_cast<int>(n) : 1; }

/// Calls f(offset in `to`, offset in `from`) for every index of the batch axes of two layouts of one shape.
template <class F>
void for_each_pair(Layout const& to, Layout const& from, F f) {
  int const batch = to.rank() - 2;
  int64_t const count = product(batch_of(to.shape));
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, there = 0, here = 0;
    for (int k = batch - 1; k >= 0; --k) {
      there += rest % to.shape[k] * to.strides[k];
      here += rest % to.shape[k] * from.strides[k];
      rest /= to.shape[k];
    }
    f(there, here);
  }
}

/// Copies matrices of any strides to matrices whose rows or columns are contiguous.
template <class T>
void copy_matrices(int device, T* to, Layout const& target, T const* from, Layout const& source) {
  if (target.size() == 0) return;
  DeviceGuard const guard(device);
  int const rank = target.rank();
  if (rank == 1) return copy_matrices(device, to, unsqueezed(target, 0), from, unsqueezed(source, 0));
  int row = rank - 2, column = rank - 1;  // in what follows the target's columns are contiguous, as the libraries want them
  if (target.strides[column] == 1 && !(target.strides[row] == 1 && target.shape[column] == 1)) row = rank - 1, column = rank - 2;
  int64_t const m = target.shape[row], n = target.shape[column], step = target.strides[column];
  int64_t const s0 = m == 1 ? 1 : source.strides[row], s1 = n == 1 ? (s0 == 1 ? m : 1) : source.strides[column];
  cudaStream_t const stream = current_stream(device);
  if (s0 == 1 && s1 >= m) {
    for_each_pair(target, source, [&](int64_t there, int64_t here) {
      check(device,
            cudaMemcpy2DAsync(to + there, static_cast<std::size_t>(n == 1 ? m : step) * sizeof(T), from + here, static_cast<std::size_t>(s1) * sizeof(T),
                              static_cast<std::size_t>(m) * sizeof(T), static_cast<std::size_t>(n), cudaMemcpyDeviceToDevice, stream),
            "cudaMemcpy2DAsync");
    });
    return;
  }
  BlasCall<T> const call(device);
  int const ms = as_int(m, "an extent of"), ns = as_int(n, "an extent of"), ld = leading(n == 1 ? m : as_int(step, "a stride of"));
  if (s1 == 1 && s0 >= n) {
    T const one = 1, zero = 0;
    int const lds = as_int(s0, "a stride of");
    for_each_pair(target, source, [&](int64_t there, int64_t here) {
      call.check(call.f.geam(call.handle, as_its_transpose, as_it_is, ms, ns, &one, from + here, lds, &zero, to + there, ld, to + there, ld), "cublas geam");
    });
    return;
  }
  int const increment = as_int(s0, "a stride of");
  for_each_pair(target, source, [&](int64_t there, int64_t here) {
    for (int64_t j = 0; j < n; ++j) {
      T const* const first = from + here + j * s1;  // a negative increment starts from the other end
      call.check(call.f.copy(call.handle, ms, s0 < 0 ? first + (m - 1) * s0 : first, increment, to + there + j * step, 1), "cublas copy");
    }
  });
}

/// Keeps one triangle of n x n matrices, as cuBLAS sees them, and sets the rest to 0: their rows are `ld` apart, they `stride`.
template <class T, class D>
void cut_triangle(int device, T* a, int64_t n, int64_t ld, int64_t stride, int64_t count, int uplo) {
  if (n < 2) return;
  Temporary<D> const packed(static_cast<std::size_t>(n * (n + 1) / 2) * sizeof(T));
  BlasCall<T> const call(device);
  auto* const triangle = static_cast<T*>(packed.get());
  for (int64_t i = 0; i < count; ++i) {
    T* const matrix = a + i * stride;
    call.check(call.f.pack_triangle(call.handle, uplo, leading(n), matrix, leading(ld), triangle), "cublas trttp");
    check(device,
          cudaMemset2DAsync(matrix, static_cast<std::size_t>(ld) * sizeof(T), 0, static_cast<std::size_t>(n) * sizeof(T), static_cast<std::size_t>(n),
                            current_stream(device)),
          "cudaMemset2DAsync");
    call.check(call.f.unpack_triangle(call.handle, uplo, leading(n), triangle, matrix, leading(ld)), "cublas tpttr");
  }
}

/// `count` matrices that are 1 on the diagonal and 0 elsewhere. Waits.
template <class T>
void fill_identity(int device, T* a, int64_t rows, int64_t columns, int64_t count) {
  if (count * rows * columns == 0) return;
  DeviceGuard const guard(device);
  int64_t const diagonal = rows < columns ? rows : columns;
  std::vector<T> const ones(static_cast<std::size_t>(diagonal), T(1));
  cudaStream_t const stream = current_stream(device);
  check(device, cudaMemsetAsync(a, 0, static_cast<std::size_t>(count * rows * columns) * sizeof(T), stream), "cudaMemsetAsync");
  for (int64_t i = 0; i < count; ++i) {
    check(device,
          cudaMemcpy2DAsync(a + i * rows * columns, static_cast<std::size_t>(columns + 1) * sizeof(T), ones.data(), sizeof(T), sizeof(T),
                            static_cast<std::size_t>(diagonal), cudaMemcpyHostToDevice, stream),
          "cudaMemcpy2DAsync");
  }
  check(device, cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // the ones end here
}

}  // namespace SITU_ABI_CUDA
}  // namespace cuda

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
      cuda::copy_matrices(device, to.data(), to.layout(), from.data(), expanded(from.layout(), to.shape(), "linear algebra"));
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
    cuda::fill_identity(device, result.data(), shape.rows, shape.rows, shape.count());
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
        for (int64_t i = 0; i < count; ++i) {
          call.check(call.f.copy(call.handle, cuda::leading(n), a.data() + i * n * n, cuda::leading(n) + 1, static_cast<T*>(diagonals.get()) + i * n, 1), "cublas copy");
        }
      }
      device_traits<D>::copy_to_host(diagonal.data(), diagonals.get(), numbers * sizeof(T));
      device_traits<D>::copy_to_host(exchanges.data(), pivots.get(), numbers * sizeof(int));
    }
    for (int64_t i = 0; i < count; ++i) {
      T value = 1, magnitude = 0;
      for (int64_t k = 0; k < n; ++k) {
        std::size_t const at = static_cast<std::size_t>(i * n + k);
        T const pivot = exchanges[at] == k + 1 ? diagonal[at] : -diagonal[at];
        if (det) {
          value *= pivot;
        } else {
          value = pivot > 0 ? value : pivot < 0 ? -value : pivot;
          magnitude += static_cast<T>(SITU_LIBM(log)(static_cast<double>(pivot < 0 ? -pivot : pivot)));
        }
      }
      values[static_cast<std::size_t>(i)] = !det && value == 0 ? T(0) : value;
      logarithms[static_cast<std::size_t>(i)] = magnitude;
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
    {
      cuda::SolverCall<T> const call(device);
      int size = 0;
      call.check(call.f.potrf_size(call.handle, uplo, order, a.data(), order, &size), "cusolver potrf_bufferSize");
      Temporary<D> const work(static_cast<std::size_t>(size) * sizeof(T));
      for (int64_t i = 0; i < count; ++i) {
        call.check(call.f.potrf(call.handle, uplo, order, a.data() + i * n * n, order, static_cast<T*>(work.get()), size, reports.data() + i), "cusolver potrf");
      }
    }
    cuda::cut_triangle<T, D>(device, a.data(), n, n, n * n, count, uplo);
  }

  template <class T>
  static void qr(Tensor<T, D> a, Tensor<T, D> r, int64_t q_columns) {
    MatrixShape const as(a.shape(), "qr"), rs(r.shape(), "qr");
    int64_t const m = as.columns, n = rs.columns, k = m < n ? m : n, count = as.count();
    if (count == 0) return;
    if (k == 0) return cuda::fill_identity(device, a.data(), as.rows, m, count);
    int const rows = cuda::leading(m), columns = cuda::leading(n), reflectors = cuda::leading(k), qs = cuda::leading(q_columns);
    int factor_size = 0, product_size = 0;
    cuda::SolverCall<T> const call(device);
    Temporary<D> const taus(static_cast<std::size_t>(count * k) * sizeof(T)), infos(sizeof(int));
    auto* const tau = static_cast<T*>(taus.get());
    auto* const info = static_cast<int*>(infos.get());
    call.check(call.f.geqrf_size(call.handle, rows, columns, a.data(), rows, &factor_size), "cusolver geqrf_bufferSize");
    call.check(call.f.orgqr_size(call.handle, rows, qs, reflectors, a.data(), rows, tau, &product_size), "cusolver orgqr_bufferSize");
    int const size = factor_size > product_size ? factor_size : product_size;
    Temporary<D> const work(static_cast<std::size_t>(size) * sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
      call.check(call.f.geqrf(call.handle, rows, columns, a.data() + i * as.rows * m, rows, tau + i * k, static_cast<T*>(work.get()), size, info), "cusolver geqrf");
    }
    if (rs.rows > k) {
      cuda::check(device, cudaMemsetAsync(r.data(), 0, static_cast<std::size_t>(r.size()) * sizeof(T), cuda::current_stream(device)), "cudaMemsetAsync");
    }
    auto const factored = a.slice(-2, 0, n).transpose(-2, -1);  // [..., m, n]
    write(r.slice(-2, 0, k), Tensor<T, D>(factored.slice(-2, 0, k)));
    cuda::cut_triangle<T, D>(device, r.data(), k, n, rs.rows * n, count, cuda::fill_lower);
    for (int64_t i = 0; i < count; ++i) {
      call.check(call.f.orgqr(call.handle, rows, qs, reflectors, a.data() + i * as.rows * m, rows, tau + i * k, static_cast<T*>(work.get()), size, info), "cusolver orgqr");
    }
  }

  /// gesvd takes no matrix that is wider than tall: of a tall one the transpose is given in our order, a wide one already is.
  template <class T>
  static void svd(Tensor<T, D> a, Tensor<T, D> s, Tensor<T, D> u, Tensor<T, D> vh, char job, MatrixReports<D> const& reports) {
    MatrixShape const shape(a.shape(), "svd");
    int64_t const m = shape.rows, n = shape.columns, k = shape.smaller(), count = shape.count();
    if (count == 0) return;
    if (k == 0) {
      if (job == 'A') cuda::fill_identity(device, u.data(), m, m, count), cuda::fill_identity(device, vh.data(), n, n, count);
      return clear(reports, count);
    }
    bool const tall = m > n, vectors = job != 'N';
    // Theirs is `rows` x `columns` by columns, with rows >= columns; left and right are its U and Vᵀ, by columns.
    int64_t const rows = tall ? m : n, columns = tall ? n : m, left_columns = job == 'A' ? rows : k;
    Tensor<T, D> matrix = a, left = vh, right = u;
    if (tall) {
      matrix = Tensor<T, D>::uninitialized(with_axes(shape.batch, n, m), "svd");
      write(matrix, Tensor<T, D>(a.transpose(-2, -1)));
      if (vectors) {
        left = Tensor<T, D>::uninitialized(with_axes(shape.batch, left_columns, m), "svd");
        right = Tensor<T, D>::uninitialized(vh.shape(), "svd");
      }
    }
    {
      int const ms = cuda::leading(rows), ns = cuda::leading(columns);
      auto const letter = static_cast<signed char>(job);
      int size = 0;
      cuda::SolverCall<T> const call(device);
      call.check(call.f.gesvd_size(call.handle, ms, ns, &size), "cusolver gesvd_bufferSize");
      Temporary<D> const work(static_cast<std::size_t>(size) * sizeof(T));
      for (int64_t i = 0; i < count; ++i) {
        call.check(call.f.gesvd(call.handle, letter, letter, ms, ns, matrix.data() + i * m * n, ms, s.data() + i * k,
                                vectors ? left.data() + i * rows * left_columns : nullptr, ms, vectors ? right.data() + i * columns * columns : nullptr, ns,
                                static_cast<T*>(work.get()), size, nullptr, reports.data() + i),
                   "cusolver gesvd");
      }
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
    call.check(call.f.syevd_size(call.handle, job, uplo, order, a.data(), order, values.data(), &size), "cusolver syevd_bufferSize");
    Temporary<D> const work(static_cast<std::size_t>(size) * sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
      call.check(call.f.syevd(call.handle, job, uplo, order, a.data() + i * n * n, order, values.data() + i * n, static_cast<T*>(work.get()), size, reports.data() + i),
                 "cusolver syevd");
    }
  }

 private:
  static void clear(MatrixReports<D> const& reports, int64_t count) {
    if (count == 0) return;
    cuda::DeviceGuard const guard(device);
    cuda::check(device, cudaMemsetAsync(reports.data(), 0, static_cast<std::size_t>(count) * sizeof(int32_t), cuda::current_stream(device)), "cudaMemsetAsync");
  }

  template <class T>
  static void factor(Tensor<T, D>& a, int* pivots, int32_t* reports) {
    MatrixShape const shape(a.shape(), "solve");
    int64_t const n = shape.rows, count = shape.count();
    if (count == 0) return;
    cuda::SolverCall<T> const call(device);
    if (n == 0) {
      cuda::check(device, cudaMemsetAsync(reports, 0, static_cast<std::size_t>(count) * sizeof(int32_t), cuda::current_stream(device)), "cudaMemsetAsync");
      return;
    }
    int const order = cuda::leading(n);
    int size = 0;
    call.check(call.f.getrf_size(call.handle, order, order, a.data(), order, &size), "cusolver getrf_bufferSize");
    Temporary<D> const work(static_cast<std::size_t>(size) * sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
      call.check(call.f.getrf(call.handle, order, order, a.data() + i * n * n, order, static_cast<T*>(work.get()), pivots + i * n, reports + i), "cusolver getrf");
    }
  }

  /// `b` holds the columns of the right sides. The factors are those of the transposes.
  template <class T>
  static void solve_factored(Tensor<T, D>& factors, int const* pivots, Tensor<T, D>& b, BatchMap const& factors_of, int trans = cuda::as_its_transpose) {
    MatrixShape const bs(b.shape(), "solve");
    int64_t const n = bs.columns, columns = bs.rows, count = bs.count();
    if (count * n * columns == 0) return;
    int const order = cuda::leading(n);
    cuda::SolverCall<T> const call(device);
    Temporary<D> const info(sizeof(int));
    for (int64_t i = 0; i < count; ++i) {
      int64_t const f = factors_of(i);
      call.check(call.f.getrs(call.handle, trans, order, cuda::leading(columns), factors.data() + f * n * n, order, pivots + f * n, b.data() + i * n * columns, order,
                              static_cast<int*>(info.get())),
                 "cusolver getrs");
    }
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
