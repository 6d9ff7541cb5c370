// A CUDA runtime that runs on the host: one device, on which everything is done at once. The blocks of a kernel run one after the other, those of a
// cluster together, their threads in turns, each until it waits for others or ends. An allocation ends where a page does, and the next page is closed: a kernel that reads or writes
// behind it ends the program. What is in front is looked at when it comes back.
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>

#if !defined(__x86_64__)
#error "kernels run on the host by the calling convention of x86-64"
#endif

namespace on_host {

struct Index {
  unsigned x, y, z;
};
Index thread_index, block_index;
dim3 block_size, grid_size;
unsigned cluster_size = 1;
int first_thread;
unsigned char shown[8 * 1024][16];

namespace {

[[noreturn]] void give_up(char const* what) {
  std::fprintf(stderr, "CUDA on the host: %s\n", what);
  std::abort();
}

// Switches to another stack: saves what a function must preserve, and where it stands.
asm(R"(
.type situ_switch_stack, @function
situ_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
extern "C" void situ_switch_stack(void** save, void* load);

/// A kernel's argument: up to 16 bytes come in registers, more on the stack, where a kernel reads as many of these as it has.
struct Argument {
  unsigned char bytes[16384];
};
using Kernel = void (*)(std::uint64_t, std::uint64_t, Argument);

struct Barrier {
  int arrived = 0, alive = 0, holds = 0, result = 0;
  unsigned generation = 0;
};
struct Thread {
  void* stack;
  bool ended;
  unsigned phase;  ///< of the cluster's barrier, where it arrived
};

constexpr std::size_t stack_bytes = 256 * 1024;
constexpr int most_blocks = 8, most_threads = most_blocks * 1024;  // of a cluster
std::recursive_mutex running;
Thread threads[most_threads];
void* scheduler;
int current;
long progress;
int per_block;
Barrier cluster, blocks[most_blocks], warps[most_threads / 32];
Kernel kernel;
Argument const* argument;

void let_others_run() { situ_switch_stack(&threads[current].stack, scheduler); }

int wait_at(Barrier& barrier, bool condition) {
  unsigned const generation = barrier.generation;
  ++barrier.arrived;
  barrier.holds += condition;
  while (barrier.generation == generation) {
    if (barrier.arrived < barrier.alive) {
      let_others_run();
      continue;
    }
    barrier.result = barrier.holds;
    barrier.holds = barrier.arrived = 0;
    ++barrier.generation;
    ++progress;
  }
  return barrier.result;
}

void run_thread() {
  std::uint64_t words[2];
  std::memcpy(words, argument, sizeof words);
  kernel(words[0], words[1], *argument);
  threads[current].ended = true;
  --cluster.alive;
  --blocks[current / per_block].alive;
  --warps[current / 32].alive;
  ++progress;
  void* nowhere;
  situ_switch_stack(&nowhere, scheduler);
}

/// Runs neighbouring blocks, of which the first is (x, y, z).
void run_cluster(char* stacks, Index first) {
  int const warps_each = (per_block + 31) / 32, blocks_here = static_cast<int>(cluster_size), count = per_block * blocks_here;
  if (blocks_here > 1 && per_block % 32 != 0) give_up("the blocks of a cluster are whole warps");
  cluster = {};
  cluster.alive = count;
  for (int b = 0; b < blocks_here; ++b) {
    blocks[b] = {};
    blocks[b].alive = per_block;
    for (int w = 0; w < warps_each; ++w) {
      Barrier& warp = warps[b * warps_each + w] = {};
      warp.alive = per_block - w * 32 < 32 ? per_block - w * 32 : 32;
    }
  }
  for (int t = 0; t < count; ++t) {
    auto* top = reinterpret_cast<std::uint64_t*>(stacks + static_cast<std::size_t>(t + 1) * stack_bytes - 64);
    *--top = 0;  // where a call would have left the place to return to
    *--top = reinterpret_cast<std::uint64_t>(&run_thread);
    for (int saved = 0; saved < 6; ++saved) *--top = 0;
    threads[t] = {top, false, 0};
  }
  for (int left = count; left > 0;) {
    long const before = progress;
    for (int t = 0; t < count; ++t) {
      if (threads[t].ended) continue;
      current = t;
      first_thread = t / per_block * per_block;
      block_index = {first.x + static_cast<unsigned>(t / per_block), first.y, first.z};
      auto const at = static_cast<unsigned>(t - first_thread);
      thread_index = {at % block_size.x, at / block_size.x % block_size.y, at / block_size.x / block_size.y};
      situ_switch_stack(&scheduler, threads[t].stack);
      left -= threads[t].ended;
    }
    if (progress == before) give_up("the threads of a block wait for each other for ever");
  }
}

/// How many bytes can be read from there on, which is on the stack of the calling thread.
std::size_t readable(void const* from) {
  static thread_local char const* const end = [] {
    pthread_attr_t attributes;
    void* lowest = nullptr;
    std::size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0 || pthread_attr_getstack(&attributes, &lowest, &bytes) != 0) give_up("where the stack ends is not known");
    pthread_attr_destroy(&attributes);
    return static_cast<char const*>(lowest) + bytes;
  }();
  auto const left = static_cast<std::size_t>(end - static_cast<char const*>(from));
  return left < sizeof(Argument) ? left : sizeof(Argument);
}

void run(void const* function, dim3 grid, dim3 size, unsigned blocks_each, void const* with) {
  std::lock_guard const lock(running);
  static char* const stacks =
      static_cast<char*>(mmap(nullptr, stack_bytes * most_threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  kernel = reinterpret_cast<Kernel>(const_cast<void*>(function));
  static Argument copy;  // how long an argument is, only its kernel knows
  std::memcpy(&copy, with, readable(with));
  argument = &copy;
  grid_size = grid, block_size = size, cluster_size = blocks_each;
  per_block = static_cast<int>(size.x * size.y * size.z);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += blocks_each) run_cluster(stacks, {x, y, z});
    }
  }
}

constexpr std::size_t total_memory = std::size_t{8} << 30, page = 4096, alignment = 16;
constexpr unsigned char fresh = 0xc7;
struct Allocation {
  std::size_t bytes;
  char* pages;  ///< the first of them, which is closed as the last one is
  std::size_t length;
};
std::mutex memory;
std::map<char*, Allocation> allocations;
std::map<char*, std::size_t> page_locked;
std::size_t used, reserved, most_used;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
bool is_fresh(char const* from, char const* end) {
  while (from < end && static_cast<unsigned char>(*from) == fresh) ++from;
  return from == end;
}

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t failed(cudaError_t code) { return last_error = code; }

}  // namespace

int wait_for_block(bool condition) { return wait_at(blocks[current / per_block], condition); }
void arrive_at_cluster() {
  threads[current].phase = cluster.generation;
  ++cluster.arrived;
}
void wait_for_cluster() {
  while (cluster.generation == threads[current].phase) {
    if (cluster.arrived < cluster.alive) {
      let_others_run();
      continue;
    }
    cluster.arrived = 0;
    ++cluster.generation;
    ++progress;
  }
}
void wait_for_warp() { wait_at(warps[current / 32], false); }

}  // namespace on_host

using namespace on_host;

extern "C" {

cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* config, void const* function, void** arguments) {
  dim3 const grid = config->gridDim, size = config->blockDim;
  unsigned cluster_of = 1;
  for (unsigned k = 0; k < config->numAttrs; ++k) {
    if (config->attrs[k].id == cudaLaunchAttributeClusterDimension) cluster_of = config->attrs[k].val.clusterDim.x;
  }
  auto const per_block = static_cast<std::uint64_t>(size.x) * size.y * size.z;
  bool const fits = grid.x > 0 && grid.x <= 2147483647u && grid.y > 0 && grid.y <= 65535u && grid.z > 0 && grid.z <= 65535u && per_block > 0 && per_block <= 1024 &&
                    cluster_of > 0 && cluster_of <= most_blocks && grid.x % cluster_of == 0;
  if (!fits) return failed(cudaErrorInvalidConfiguration);
  run(function, grid, size, cluster_of, arguments[0]);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(void const* function, dim3 grid, dim3 size, void** arguments, std::size_t, cudaStream_t) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = size;
  return cudaLaunchKernelExC(&config, function, arguments);
}

cudaError_t cudaGetLastError() {
  cudaError_t const code = last_error;
  last_error = cudaSuccess;
  return code;
}
char const* cudaGetErrorName(cudaError_t code) {
  switch (code) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorUnknown";
  }
}
char const* cudaGetErrorString(cudaError_t code) { return code == cudaErrorMemoryAllocation ? "out of memory" : "error of the runtime on the host"; }

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(char const*, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *function = nullptr, *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice); }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : attribute == cudaDevAttrComputeCapabilityMajor ? 9 : attribute == cudaDevAttrComputeCapabilityMinor ? 0 : 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "the host");
  properties->major = 9, properties->multiProcessorCount = 4, properties->warpSize = 32, properties->totalGlobalMem = total_memory;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void const*, int, std::size_t) { return *blocks = 8, cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void const*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void const*, cudaLaunchConfig_t const*) { return *clusters = 4, cudaSuccess; }

cudaError_t cudaMallocAsync(void** result, std::size_t bytes, cudaStream_t) {
  std::lock_guard const lock(memory);
  *result = nullptr;
  if (bytes > total_memory - used) return failed(cudaErrorMemoryAllocation);
  std::size_t const open = rounded_up(bytes, page), length = open + 2 * page;
  void* const pages = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
  char* const first = static_cast<char*>(pages) + page;
  if (mprotect(first, open, PROT_READ | PROT_WRITE) != 0) give_up("pages could not be opened");
  std::memset(first, fresh, open);
  char* const at = first + open - rounded_up(bytes, alignment);
  allocations[at] = {bytes, static_cast<char*>(pages), length};
  used += bytes;
  if (used > most_used) most_used = used;
  if (used > reserved) reserved = used;
  *result = at;
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t) {
  std::lock_guard const lock(memory);
  auto const found = allocations.find(static_cast<char*>(address));
  if (found == allocations.end()) return failed(cudaErrorInvalidValue);
  auto const [at, allocation] = *found;
  if (!is_fresh(allocation.pages + page, at)) give_up("something was written in front of an allocation");
  if (!is_fresh(at + allocation.bytes, allocation.pages + allocation.length - page)) give_up("something was written behind an allocation");
  munmap(allocation.pages, allocation.length);
  used -= allocation.bytes;
  allocations.erase(found);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** result, std::size_t bytes, unsigned) {
  *result = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*result) return failed(cudaErrorMemoryAllocation);
  std::lock_guard const lock(memory);
  page_locked[static_cast<char*>(*result)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* at) {
  std::lock_guard const lock(memory);
  if (page_locked.erase(static_cast<char*>(at)) == 0) give_up("memory was unlocked that is not locked");
  return std::free(at), cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) { return *free = total_memory - used, *total = total_memory, cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, void const* at) {
  std::lock_guard const lock(memory);
  std::memset(attributes, 0, sizeof *attributes);
  auto* const address = static_cast<char*>(const_cast<void*>(at));
  auto found = allocations.upper_bound(address);
  bool const on_device = found != allocations.begin() && (--found)->first + found->second.bytes > at;
  auto locked = page_locked.upper_bound(address);
  bool const is_locked = locked != page_locked.begin() && (--locked)->first + locked->second > at;
  attributes->type = on_device ? cudaMemoryTypeDevice : is_locked ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  attributes->devicePointer = const_cast<void*>(at);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { return *pool = reinterpret_cast<cudaMemPool_t>(&allocations), cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
  bool const high = attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh;
  *static_cast<std::uint64_t*>(value) = high ? most_used : attribute == cudaMemPoolAttrReservedMemCurrent ? reserved : used;
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return reserved = used, cudaSuccess; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, cudaMemAccessDesc const*, std::size_t) { return cudaSuccess; }

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) { return std::memset(to, value, bytes), cudaSuccess; }
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width, std::size_t height, cudaStream_t) {
  for (std::size_t k = 0; k < height; ++k) std::memset(static_cast<char*>(to) + k * pitch, value, width);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) { return std::memmove(to, from, bytes), cudaSuccess; }
cudaError_t cudaMemcpy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind) { return std::memmove(to, from, bytes), cudaSuccess; }
cudaError_t cudaMemcpyPeerAsync(void* to, int, void const* from, int, std::size_t bytes, cudaStream_t) { return std::memmove(to, from, bytes), cudaSuccess; }
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, void const* from, std::size_t from_pitch, std::size_t width, std::size_t height, cudaMemcpyKind,
                              cudaStream_t) {
  for (std::size_t k = 0; k < height; ++k) std::memmove(static_cast<char*>(to) + k * to_pitch, static_cast<char const*>(from) + k * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaMemcpy3DPeerAsync(cudaMemcpy3DPeerParms const* copy, cudaStream_t) {
  auto const row = [](cudaPitchedPtr const& p, std::size_t z, std::size_t y) { return static_cast<char*>(p.ptr) + (z * p.ysize + y) * p.pitch; };
  for (std::size_t z = 0; z < copy->extent.depth; ++z) {
    for (std::size_t y = 0; y < copy->extent.height; ++y) std::memmove(row(copy->dstPtr, z, y), row(copy->srcPtr, z, y), copy->extent.width);
  }
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = static_cast<cudaStream_t>(std::malloc(1));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return std::free(stream), cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) { return *status = cudaStreamCaptureStatusNone, cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return failed(cudaErrorNotSupported); }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return failed(cudaErrorNotSupported); }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) { return function(data), cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) { return failed(cudaErrorNotSupported); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return failed(cudaErrorNotSupported); }
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, std::size_t*) { return failed(cudaErrorNotSupported); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new std::timespec{});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<std::timespec*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) { return clock_gettime(CLOCK_MONOTONIC, reinterpret_cast<std::timespec*>(event)), cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  auto const& a = *reinterpret_cast<std::timespec*>(first);
  auto const& b = *reinterpret_cast<std::timespec*>(last);
  *milliseconds = static_cast<float>(static_cast<double>(b.tv_sec - a.tv_sec) * 1e3 + static_cast<double>(b.tv_nsec - a.tv_nsec) * 1e-6);
  return cudaSuccess;
}

}
