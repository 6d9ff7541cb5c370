/// Collectives on GPUs by NCCL, which is found when it is first used, through prototypes written here: programs neither link nor include it.
#pragma once

#include <situ/parallel/mpi.hpp>

#if defined(SITU_WITH_CUDA) && defined(SITU_WITH_MPI) && defined(SITU_WITH_NCCL)

#include <situ/device/cuda/device.hpp>
#include <situ/ops/cuda/library.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// ncclUniqueId.
struct NcclId {
  char bytes[128];
};
/// The functions that are used; communicators as void*, enumerations as int. tests/cuda/nccl.cu compares them with the header.
struct NcclFunctions {
  int (*unique_id)(NcclId* id);
  int (*init_rank)(void** comm, int size, NcclId id, int rank);
  char const* (*error_string)(int status);
  int (*all_reduce)(void const* from, void* to, std::size_t count, int type, int operation, void* comm, cudaStream_t stream);
  int (*broadcast)(void const* from, void* to, std::size_t count, int type, int root, void* comm, cudaStream_t stream);
  int (*all_gather)(void const* from, void* to, std::size_t count, int type, void* comm, cudaStream_t stream);
  int (*reduce_scatter)(void const* from, void* to, std::size_t count, int type, int operation, void* comm, cudaStream_t stream);
};
struct NcclCommunicator {
  int device;
  void* comm;
};
/// One per process. Communicators stay until the end of the program: to destroy one would wait for all others.
struct NcclState {
  pthread_mutex_t mutex;
  bool loaded;
  NcclFunctions f;
  NcclCommunicator communicators[max_devices];
  int count;
};
SITU_PROCESS_STATE NcclState& nccl_state() {
  static constinit NcclState state{PTHREAD_MUTEX_INITIALIZER, false, {}, {}, 0};
  return state;
}

inline namespace SITU_ABI_CUDA {

/// Values of NCCL's enumerations: 16-bit integers are none of its types.
template <class T>
inline constexpr int nccl_type = std::is_same_v<T, float>      ? 7
                                 : std::is_same_v<T, double>   ? 8
                                 : std::is_same_v<T, float16>  ? 6
                                 : std::is_same_v<T, bfloat16> ? 9
                                 : std::is_same_v<T, int64_t>  ? 4
                                 : std::is_same_v<T, int32_t>  ? 2
                                 : std::is_same_v<T, int8_t>   ? 0
                                                               : 1;
inline constexpr int nccl_bytes = 1;
/// bool: see reduce_op.
template <class T>
constexpr int nccl_operation(distributed::reduce_op op) {
  constexpr int sum = 0, prod = 1, max = 2, min = 3, avg = 4;
  constexpr int of_numbers[] = {sum, avg, prod, min, max}, of_bools[] = {max, max, min, min, max};
  return (std::is_same_v<T, bool> ? of_bools : of_numbers)[static_cast<int>(op)];
}

inline void check_nccl(int device, int status, char const* call) {
  if (status != 0) [[unlikely]] fail<CudaError>("cuda:", device, ": ", call, " failed: ", nccl_state().f.error_string(status), " (", status, ")");
}
inline void load_nccl() {
  NcclState& state = nccl_state();
  if (state.loaded) return;
  void* const library = open_library("nccl", 2, "install NCCL 2, or add its folder to LD_LIBRARY_PATH");
  NcclFunctions& f = state.f;
  find_function(f.unique_id, library, "ncclGetUniqueId");
  find_function(f.init_rank, library, "ncclCommInitRank");
  find_function(f.error_string, library, "ncclGetErrorString");
  find_function(f.all_reduce, library, "ncclAllReduce");
  find_function(f.broadcast, library, "ncclBroadcast");
  find_function(f.all_gather, library, "ncclAllGather");
  find_function(f.reduce_scatter, library, "ncclReduceScatter");
  state.loaded = true;
}

/// The communicator of a GPU, which all processes make when they first use one: the first of them tells the others where to meet.
inline void* nccl_communicator(int device, MPI_Comm meeting) {
  NcclState& state = nccl_state();
  MutexLock const lock(state.mutex);
  for (int k = 0; k < state.count; ++k) {
    if (state.communicators[k].device == device) return state.communicators[k].comm;
  }
  load_nccl();
  DeviceGuard const guard(device);
  NcclId id{};
  if (mpi::process().rank == 0) check_nccl(device, state.f.unique_id(&id), "ncclGetUniqueId");
  mpi::check("distributed: MPI_Bcast", MPI_Bcast(id.bytes, sizeof id.bytes, MPI_BYTE, 0, meeting));
  void* comm = nullptr;
  check_nccl(device, state.f.init_rank(&comm, mpi::process().size, id, mpi::process().rank), "ncclCommInitRank");
  state.communicators[state.count++] = {device, comm};
  return comm;
}

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
