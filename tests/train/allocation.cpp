// A steady training step asks the system for nothing: every way to ask is counted, in all threads.
#include <doctest/doctest.h>

#include <situ/train.hpp>

#include <situ/device/query.hpp>
#include <situ/device/stream.hpp>
#include <situ/nn/activations.hpp>
#include <situ/nn/batch_norm.hpp>
#include <situ/nn/conv2d.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/losses.hpp>
#include <situ/nn/pool2d.hpp>
#include <situ/nn/sequential.hpp>
#include <situ/nn/transformer.hpp>
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

template <class Device, class T = float>
struct Net {
  nn::Linear<T, Device> a_layer_with_a_long_name{64, 128}, another_layer_with_a_long_name{128, 10};
  auto forward(auto const& x) const { return another_layer_with_a_long_name(relu(a_layer_with_a_long_name(x))); }
  SITU_MODULE(a_layer_with_a_long_name, another_layer_with_a_long_name)
};

struct Deep {
  nn::TransformerEncoderLayer<float> a{32, 4}, b{32, 4}, c{32, 4}, d{32, 4}, e{32, 4}, f{32, 4};
  auto forward(auto const& x) const { return f(e(d(c(b(a(x)))))); }
  SITU_MODULE(a, b, c, d, e, f)
};

/// What was asked for during some steps: of the system, and of situ's own caches.
struct Mark {
  int64_t calls, reserved;
};
/// A device that is late: the steps that warm up hold all that any later one can hold, however far the host runs ahead.
template <class D>
void delay(D device) {
  if constexpr (!host_device<D>) enqueue(device, [] { ::usleep(20'000); });
}
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
  for (int k = 0; k < 4; ++k) delay(D{}), step(), synchronize(D{});
  Mark const before = mark(D{});
  for (int k = 0; k < 8; ++k) step(), synchronize(D{});
  Mark const after = mark(D{});
#if SITU_TEST_COUNTS
  if (host_device<D>) CHECK(after.calls == before.calls);  // the queue of an emulated device is of objects
#endif
  CHECK(after.reserved == before.reserved);
}

TEST_CASE_TEMPLATE("neither does a step of mixed precision with a scaled loss", D, Cpu, Emulated<0>) {
  auto net = to(Net<Cpu>{}, D{});
  optim::Adam optimizer{net, {.lr = 1e-3}};
  optim::GradScaler scaler;
  auto const x = full<float>({64, 64}, .5f, D{});
  auto const labels = full<int64_t>({64}, 3, D{});
  auto const weights = parameters(net);
  int64_t taken = 0;
  auto const step = [&] {
    optimizer.zero_grad();
    Variable<float16, D> y = mixed<float16>(net)(cast<float16>(x));
    scaler.scale(cross_entropy(y.template to<float>(), labels)).backward();
    scaler.unscale(optimizer);
    optim::clip_grad_norm(weights, 1.);
    taken += scaler.step(optimizer);
    scaler.update();
  };
  for (int k = 0; k < 4; ++k) delay(D{}), step(), synchronize(D{});
  Mark const before = mark(D{});
  for (int k = 0; k < 8; ++k) step(), synchronize(D{});
  Mark const after = mark(D{});
  CHECK(taken == 12);
#if SITU_TEST_COUNTS
  if (host_device<D>) CHECK(after.calls == before.calls);
#endif
  CHECK(after.reserved == before.reserved);
}

TEST_CASE("neither do steps of deep networks, which hold many blocks of one size at once") {
  auto const steady = [](auto& net, auto const& x, auto const& labels, auto const& scores) {
    optim::Adam optimizer{net, {.lr = 1e-3}};
    auto const step = [&] {
      cross_entropy(scores(net(x)), labels).backward();
      optimizer.step();
      optimizer.zero_grad();
    };
    for (int k = 0; k < 4; ++k) step();
    Mark const before = mark(Cpu{});
    for (int k = 0; k < 4; ++k) step();
    Mark const after = mark(Cpu{});
#if SITU_TEST_COUNTS
    CHECK(after.calls == before.calls);
#endif
    CHECK(after.reserved == before.reserved);
  };
  nn::Sequential images{nn::Conv2d<float>{1, 8, 3, {.padding = 1}}, nn::BatchNorm2d<float>{8}, nn::ReLU{}, nn::MaxPool2d{2},
                        nn::Conv2d<float>{8, 16, 3, {.padding = 1}}, nn::BatchNorm2d<float>{16}, nn::ReLU{}, nn::MaxPool2d{2}};
  steady(images, full<float>({16, 1, 8, 8}, .5f), full<int64_t>({16}, 3), [](auto const& y) { return y.reshape({16, 64}); });
  Deep words;
  steady(words, full<float>({4, 16, 32}, .5f), full<int64_t>({64}, 3), [](auto const& y) { return y.reshape({64, 32}); });
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
    learning::Trainer<D> const trainer{{.epochs = 3, .batch_size = 64, .workers = workers, .clip_norm = 1, .progress = nullptr}};
    auto const loss = [&](auto const& scores, auto const& digits) {
      marks.push_back(mark(D{}));  // from one step to the next
      if (marks.size() < 25) delay(D{});
      return cross_entropy(scores, digits);
    };
    trainer.fit(net, samples, learning::none, loss, [](auto& model) { return optim::Adam{model, {.lr = 1e-3}}; });
    REQUIRE(marks.size() == 36);
    Mark const first = marks[26], last = marks[35];  // of the last epoch, but for its beginning
#if SITU_TEST_COUNTS
    if (host_device<D>) CHECK(last.calls == first.calls);
#endif
    CHECK(last.reserved == first.reserved);
  }
}
