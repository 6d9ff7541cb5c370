/// What linear algebra on a GPU does beside calling routines: matrices between layouts, triangles, identities, and lists of a batch's
/// matrices. Without nvcc, copies are the runtime's where rows stay rows, and cuBLAS' (geam, copy) where they do not.
#pragma once

#include <vector>

#include <situ/core/storage.hpp>
#include <situ/device/cuda/device.hpp>
#include <situ/ops/cuda/cusolver.hpp>
#include <situ/ops/linalg_common.hpp>

#if defined(SITU_WITH_CUDA)

namespace situ::inline SITU_ABI {
namespace detail::cuda {
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
void copy_by_libraries(int device, T* to, Layout const& target, T const* from, Layout const& source) {
  DeviceGuard const guard(device);
  int const rank = target.rank();
  if (rank == 1) return copy_by_libraries(device, to, unsqueezed(target, 0), from, unsqueezed(source, 0));
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

/// Keeps one triangle of n x n matrices, as cuBLAS sees them, and sets the rest to 0: their columns are `ld` apart, they `stride`.
template <class D, class T>
void cut_triangle(T* a, int64_t n, int64_t ld, int64_t stride, int64_t count, int uplo) {
  constexpr int device = device_traits<D>::ordinal;
  if (n < 2 || count == 0) return;
  cudaStream_t const stream = current_stream(device);
  if (n <= 2 * count && stride <= INT32_MAX / static_cast<int64_t>(sizeof(T))) {  // column by column, of all matrices at once
    DeviceGuard const guard(device);
    for (int64_t j = 0; j < n; ++j) {
      int64_t const first = uplo == fill_lower ? 0 : j + 1, cleared = uplo == fill_lower ? j : n - 1 - j;
      if (cleared == 0) continue;
      check(device,
            cudaMemset2DAsync(a + j * ld + first, static_cast<std::size_t>(stride) * sizeof(T), 0, static_cast<std::size_t>(cleared) * sizeof(T),
                              static_cast<std::size_t>(count), stream),
            "cudaMemset2DAsync");
    }
    return;
  }
  Temporary<D> const packed(static_cast<std::size_t>(n * (n + 1) / 2) * sizeof(T));
  BlasCall<T> const call(device);
  auto* const triangle = static_cast<T*>(packed.get());
  for (int64_t i = 0; i < count; ++i) {
    T* const matrix = a + i * stride;
    call.check(call.f.pack_triangle(call.handle, uplo, leading(n), matrix, leading(ld), triangle), "cublas trttp");
    check(device,
          cudaMemset2DAsync(matrix, static_cast<std::size_t>(ld) * sizeof(T), 0, static_cast<std::size_t>(n) * sizeof(T), static_cast<std::size_t>(n), stream),
          "cudaMemset2DAsync");
    call.check(call.f.unpack_triangle(call.handle, uplo, leading(n), triangle, matrix, leading(ld)), "cublas tpttr");
  }
}

/// `count` matrices that are 1 on the diagonal and 0 elsewhere. Waits.
template <class D, class T>
void fill_identity(T* a, int64_t rows, int64_t columns, int64_t count) {
  constexpr int device = device_traits<D>::ordinal;
  int64_t const size = rows * columns;
  if (count * size == 0) return;
  refuse_while_recording(device, "a matrix that the host makes was asked for");
  DeviceGuard const guard(device);
  int64_t const diagonal = rows < columns ? rows : columns;
  std::vector<T> const ones(static_cast<std::size_t>(diagonal), T(1));
  cudaStream_t const stream = current_stream(device);
  check(device, cudaMemsetAsync(a, 0, static_cast<std::size_t>(size) * sizeof(T), stream), "cudaMemsetAsync");
  check(device,
        cudaMemcpy2DAsync(a, static_cast<std::size_t>(columns + 1) * sizeof(T), ones.data(), sizeof(T), sizeof(T), static_cast<std::size_t>(diagonal),
                          cudaMemcpyHostToDevice, stream),
        "cudaMemcpy2DAsync");
  for (int64_t done = 1; done < count; done *= 2) {  // twice as many each time
    int64_t const more = done <= count - done ? done : count - done;
    check(device, cudaMemcpyAsync(a + done * size, a, static_cast<std::size_t>(more * size) * sizeof(T), cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  }
  check(device, cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // the ones end here
}

/// Whether a batch is one for the routines that take all of it at once: they work on each matrix with one block, or a few.
inline bool in_one_call(int64_t order, int64_t count) { return count > 1 && order > 0 && order <= 256; }
/// Whether Jacobi's method takes it, which holds a matrix in a block's shared memory.
inline bool by_jacobi(int64_t order, int64_t count) { return count > 1 && order <= 32; }

/// Where the matrices of a batch begin, in the device's memory.
template <class T, class D>
class MatrixPointers {
 public:
  MatrixPointers(T* first, int64_t step, int64_t count) : memory_(static_cast<std::size_t>(count) * sizeof(T*)) {
    constexpr int device = device_traits<D>::ordinal;
    refuse_while_recording(device, "a list of matrices that the host makes was asked for");
    std::vector<T*> places(static_cast<std::size_t>(count));
    for (T*& place : places) place = first, first += step;
    DeviceGuard const guard(device);  // the runtime keeps what it has not copied yet: nothing waits
    check(device, cudaMemcpyAsync(memory_.get(), places.data(), places.size() * sizeof(T*), cudaMemcpyHostToDevice, current_stream(device)), "cudaMemcpyAsync");
  }
  T** data() const { return static_cast<T**>(memory_.get()); }

 private:
  Temporary<D> memory_;
};

}  // namespace SITU_ABI_CUDA

inline namespace SITU_ABI_COMPILER {
/// Copies matrices of any strides to matrices whose rows or columns are contiguous: by a kernel where nvcc compiles the file.
template <class D, class T>
void copy_matrices(T* to, Layout const& target, T const* from, Layout const& source) {
  if (target.size() == 0) return;
#if defined(__CUDACC__)
  evaluate<D>(to, target, target.is_contiguous(), Tensor<T, D>::from_handle(make_view({}, const_cast<T*>(from), source)));
#else
  copy_by_libraries(device_traits<D>::ordinal, to, target, from, source);
#endif
}
}  // namespace SITU_ABI_COMPILER
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
