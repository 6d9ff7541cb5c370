/// Clusters: blocks that run at once and reach each other's shared memory, so that a team of threads is larger than a block. They need compute
/// capability 9.0; a cluster of one block runs on every GPU.
#pragma once

#include <limits>

#include <situ/ops/cuda/teams.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int cluster_threads = 512;  ///< of each block
inline constexpr int cluster_blocks = 8;     ///< at most: what every GPU that has clusters grants

/// All threads of a cluster, which work on one output.
class ClusterTeam {
 public:
  int blocks = 1;  ///< a power of 2
  SITU_DEVICE ClusterTeam() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    blocks = static_cast<int>(__clusterSizeInBlocks());
    if (blocks == 1) return;
    if (threadIdx.x == 0) Meeting::open();
    __cluster_barrier_arrive_relaxed();  // that all have begun is looked at when they first meet
#endif
  }
  SITU_DEVICE int lanes() const { return blocks * cluster_threads; }
  SITU_DEVICE int block() const { return static_cast<int>(blockIdx.x) & (blocks - 1); }
  SITU_DEVICE int lane() const { return block() * cluster_threads + static_cast<int>(threadIdx.x); }

  /// Joins M values of every thread, each in an order that is always the same, by an f that commutes.
  template <int M, class C, class F>
  SITU_DEVICE void join(C (&mine)[M], F f) {
    constexpr int warps = cluster_threads / 32;
    // The warps of all blocks, twice in turns: when all have met once more, none reads what was written before.
    __shared__ Several<C, M> of_warps[2][cluster_blocks * warps];
    int const me = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, count = blocks * warps;
    in_warp(mine, f);
    Several<C, M>* to = &of_warps[round % 2][block() * warps + warp];
    if (blocks == 1) {
      if (me == 0) write(to, mine);
      __syncthreads();
    } else {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
      if (round == 0) __cluster_barrier_wait();
      Meeting const meeting(round);
      if (threadIdx.x == 0) meeting.expect(count * static_cast<int>(sizeof *to));
      if (me < blocks) {
#pragma unroll
        for (int m = 0; m < M; ++m) meeting.send(&to->of[m], me, mine[m]);
      }
      meeting.wait();
#endif
    }
    Several<C, M> const* const from = of_warps[round % 2];
    ++round;
#pragma unroll
    for (int m = 0; m < M; ++m) mine[m] = from[me & (count - 1)].of[m];
#pragma unroll 1
    for (int k = me + 32; k < count; k += 32) {
#pragma unroll
      for (int m = 0; m < M; ++m) mine[m] = f(mine[m], from[k].of[m]);
    }
    in_warp(mine, f, count);
  }

 private:
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1201)
  /// What compilers of the host see, and CUDA before 12.1: by the cluster's barrier.
  struct Meeting {
    SITU_DEVICE static void open() {}
    SITU_DEVICE explicit Meeting(unsigned) {}
    SITU_DEVICE void expect(int) const {}
    template <class C>
    SITU_DEVICE void send(C* place, int block, C value) const {
      *static_cast<C*>(__cluster_map_shared_rank(place, static_cast<unsigned>(block))) = value;
    }
    SITU_DEVICE void wait() const {
      __cluster_barrier_arrive();
      __cluster_barrier_wait();
    }
  };
#elif __CUDA_ARCH__ >= 900
  /// One of two in turns. Each block has a barrier of its own, which counts the bytes that have come: numbers and the news of them travel together, and no
  /// thread waits until its other stores are seen, as with the cluster's barrier.
  class Meeting {
   public:
    /// By one thread of the block, before all threads of the cluster meet.
    SITU_DEVICE static void open() {
      for (unsigned k = 0; k < 2; ++k) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(barriers() + k)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    SITU_DEVICE explicit Meeting(unsigned round) : barrier_(address_of(barriers() + round % 2)), parity_(round / 2 % 2) {}
    /// By one thread: so many bytes come.
    SITU_DEVICE void expect(int bytes) const { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_), "r"(bytes) : "memory"); }
    /// A number to where `place` is in another block.
    SITU_DEVICE void send(float const* place, int block, float value) const {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there(address_of(place), block)), "r"(__float_as_uint(value)),
                   "r"(there(barrier_, block))
                   : "memory");
    }
    SITU_DEVICE void send(double const* place, int block, double value) const {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(there(address_of(place), block)), "l"(__double_as_longlong(value)),
                   "r"(there(barrier_, block))
                   : "memory");
    }
    SITU_DEVICE void wait() const {
      unsigned done = 0;
      while (!done) {
        asm volatile(
            "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(barrier_), "r"(parity_)
            : "memory");
      }
    }

   private:
    SITU_DEVICE static uint64_t* barriers() {
      __shared__ uint64_t of_block[2];
      return of_block;
    }
    SITU_DEVICE static unsigned address_of(void const* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }
    SITU_DEVICE static unsigned there(unsigned address, int block) {
      unsigned result;
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(block));
      return result;
    }
    unsigned barrier_, parity_;
  };
#endif
  template <int M, class C>
  SITU_DEVICE static void write(Several<C, M>* to, C const (&values)[M]) {
#pragma unroll
    for (int m = 0; m < M; ++m) to->of[m] = values[m];
  }
  template <int M, class C, class F>
  SITU_DEVICE static void in_warp(C (&mine)[M], F f, int lanes = 32) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      if (step >= lanes) continue;
#pragma unroll
      for (int m = 0; m < M; ++m) mine[m] = f(mine[m], static_cast<C>(__shfl_xor_sync(0xffffffffu, mine[m], step)));
    }
  }
  unsigned round = 0;
};

template <bool ToAll, int M, class C, class F>
SITU_DEVICE void join_team(ClusterTeam& team, C (&mine)[M], F f) {
  team.join(mine, f);
}

/// Whether a kernel runs in clusters of most blocks on a GPU, which is asked once: it has them, and what it runs was compiled for one that has.
template <auto Kernel>
bool runs_in_clusters(int device) {
  static constinit signed char known[max_devices] = {};  // 1: no, 2: yes
  signed char answer = __atomic_load_n(&known[device], __ATOMIC_RELAXED);
  if (answer == 0) {
    DeviceGuard const guard(device);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster_blocks, 1, 1};
    cudaLaunchConfig_t const config{dim3(cluster_blocks), dim3(cluster_threads), 0, nullptr, &attribute, 1};
    cudaFuncAttributes function{};
    int at_once = 0;
    auto const kernel = reinterpret_cast<void const*>(Kernel);
    bool const is_there = cudaFuncGetAttributes(&function, kernel) == cudaSuccess, is_for_clusters = is_there && function.ptxVersion >= 90;
    bool const is_known = is_there && (!is_for_clusters || cudaOccupancyMaxActiveClusters(&at_once, kernel, &config) == cudaSuccess);
    answer = at_once > 0 ? 2 : 1;
    if (is_known) __atomic_store_n(&known[device], answer, __ATOMIC_RELAXED);
    else (void)cudaGetLastError();  // it may be short of memory
  }
  return answer == 2;
}

/// How many blocks hold each of `rows` rows of so many threads' shares; 0 where a cluster has too few, or the kernel runs in none.
template <auto Kernel>
int blocks_that_hold(int device, int64_t rows, int64_t shares) {
  int64_t const needed = (shares + cluster_threads - 1) / cluster_threads;
  if (needed > cluster_blocks || rows > std::numeric_limits<int>::max() / cluster_blocks || (needed > 1 && !runs_in_clusters<Kernel>(device))) return 0;
  return power_of_2_above(needed, cluster_blocks);
}

/// Starts kernel(argument) in a cluster of `blocks` blocks for each of `rows` rows. As launch.
template <class Argument>
void launch_clusters(int device, LaunchName what, void (*kernel)(Argument), int64_t rows, int blocks, std::remove_cv_t<Argument> const& argument) {
  launch(device, what, kernel, dim3(static_cast<unsigned>(rows * blocks)), cluster_threads, argument, blocks);
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
