// A steady training step asks the system for nothing: every way to ask is counted, in all threads.
#include <doctest/doctest.h>

#include <situ/train.hpp>

#include <situ/device/query.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/losses.hpp>
#include <situ/optim/adam.hpp>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

using namespace situ;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SITU_TEST_COUNTS 0
#elif defined(__has_feature)
#define SITU_TEST_COUNTS !(__has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer))
#else
#define SITU_TEST_COUNTS 1
#endif
#if !defined(__GLIBC__)
#undef SITU_TEST_COUNTS
#define SITU_TEST_COUNTS 0
#endif

namespace {
int64_t asked = 0;
[[maybe_unused]] void count() { __atomic_fetch_add(&asked, 1, __ATOMIC_RELAXED); }
int64_t so_far() { return __atomic_load_n(&asked, __ATOMIC_RELAXED); }
}  // namespace

#if SITU_TEST_COUNTS
// In front of the system's own; operator new calls malloc.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  count();
  return __libc_malloc(bytes);
}
void* calloc(size_t n, size_t bytes) {
  count();
  return __libc_calloc(n, bytes);
}
void* realloc(void* memory, size_t bytes) {
  count();
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  count();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  count();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** result, size_t alignment, size_t bytes) {
  count();
  *result = __libc_memalign(alignment, bytes);
  return *result ? 0 : ENOMEM;
}
void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  count();
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}
}
#endif

namespace {

template <class Device>
struct Net {
  nn::Linear<float, Device> a_layer_with_a_long_name{64, 128}, another_layer_with_a_long_name{128, 10};
  auto forward(auto const& x) const { return another_layer_with_a_long_name(relu(a_layer_with_a_long_name(x))); }
  SITU_MODULE(a_layer_with_a_long_name, another_layer_with_a_long_name)
};

/// What was asked for during some steps: of the system, and of situ's own caches.
struct Mark {
  int64_t calls, reserved;
};
template <class D>
Mark mark(D device) {
  synchronize(device);  // what a device frees late is free now
  return {so_far(), gpu::memory_reserved(device)};
}
}  // namespace

TEST_CASE("the counters see what asks for memory") {
#if SITU_TEST_COUNTS
  int64_t const before = so_far();
  delete new Net<Cpu>;
  int64_t const after = so_far();
  CHECK(after > before);
  void* const mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED);
  ::munmap(mapped, 4096);
  CHECK(so_far() == after + 1);
#endif
}

TEST_CASE_TEMPLATE("a steady step asks for no memory", D, Cpu, Emulated<0>) {
  auto net = to(Net<Cpu>{}, D{});
  optim::Adam optimizer{net, {.lr = 1e-3}};
  auto const x = full<float>({64, 64}, .5f, D{});
  auto const labels = full<int64_t>({64}, 3, D{});
  auto const weights = parameters(net);
  auto const step = [&] {
    cross_entropy(net(x), labels).backward();
    optim::clip_grad_norm(weights, 1.);
    optim::clip_grad_value(weights, .5);
    optimizer.step();
    zero_grad(net);
  };
  for (int k = 0; k < 4; ++k) step(), synchronize(D{});
  Mark const before = mark(D{});
  for (int k = 0; k < 8; ++k) step(), synchronize(D{});
  Mark const after = mark(D{});
#if SITU_TEST_COUNTS
  if (host_device<D>) CHECK(after.calls == before.calls);  // the queue of an emulated device is of objects
#endif
  CHECK(after.reserved == before.reserved);
}

TEST_CASE_TEMPLATE("neither does the Trainer's loop, with threads that make batches", D, Cpu, Emulated<0>) {
  auto const x = full<float>({64 * 12, 64}, .5f);
  auto const y = full<int64_t>({64 * 12}, 3);
  data::TensorDataset const samples{x, y};
  for (int workers = 0; workers < 2; ++workers) {
    CAPTURE(workers);
    Net<Cpu> net;
    std::vector<Mark> marks;
    marks.reserve(64);
    train::Trainer<D> const trainer{{.epochs = 3, .batch_size = 64, .workers = workers, .clip_norm = 1, .progress = nullptr}};
    auto const loss = [&](auto const& scores, auto const& digits) {
      marks.push_back(mark(D{}));  // from one step to the next
      return cross_entropy(scores, digits);
    };
    trainer.fit(net, samples, train::none, loss, [](auto& model) { return optim::Adam{model, {.lr = 1e-3}}; });
    REQUIRE(marks.size() == 36);
    Mark const first = marks[26], last = marks[35];  // of the last epoch, but for its beginning
#if SITU_TEST_COUNTS
    if (host_device<D>) CHECK(last.calls == first.calls);
#endif
    CHECK(last.reserved == first.reserved);
  }
}
