// The device chores of a GPU tutorial, in situ: which devices there are, making and moving tensors, what moving costs,
// when to wait, and what running out of memory says. Comments after the code tell what is settled at compile time.
//
//   ./examples/run tour
//
// Runs on the CPU and on an emulated accelerator, which has memory and a stream of its own; and on GPU 0 when nvcc
// compiled it and there is one.

#include <situ/situ.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <type_traits>

using namespace situ;

void heading(std::string const& text) { std::cout << "\n--- " << text << " ---\n"; }

// Milliseconds that f takes, with the device's work: the best of seven runs.
template <class Device, class F>
double milliseconds(Device device, F f) {
  double best = 1e30;
  for (int run = 0; run < 7; ++run) {
    auto const start = std::chrono::steady_clock::now();
    f();
    synchronize(device);  // launches are only enqueued on an accelerator
    std::chrono::duration<double, std::milli> const elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count());
  }
  return best;
}

// Whether `a + b` is a program at all: asked of types, answered without running anything.
template <class A, class B>
concept can_be_added = requires(A const& a, B const& b) { a + b; };

static_assert(can_be_added<Tensor<float, Emulated<0>>, Tensor<float, Emulated<0>>>);
static_assert(can_be_added<Tensor<float, Cpu>, Tensor<float, Pinned>>);           // both are host memory
static_assert(!can_be_added<Tensor<float, Cpu>, Tensor<float, Emulated<0>>>);     // never copied behind your back
static_assert(!can_be_added<Tensor<float, Cuda<0>>, Tensor<float, Cuda<1>>>);     // known in every build, GPU or not
static_assert(!std::is_convertible_v<Tensor<float, Cpu>, Tensor<float, Cuda<0>>>);  // `=` does not move a tensor,
static_assert(std::is_constructible_v<Tensor<float, Cuda<0>>, Tensor<float, Cpu>>);  // braces and to() do

void devices() {
  heading("devices");
  std::cout << "GPUs: " << gpu::device_count() << "\n";  // asks in a build with CUDA, is 0 in any other
  for (int i = 0; i < gpu::device_count(); ++i) std::cout << "  cuda:" << i << " is " << gpu::device_name(i) << "\n";
  std::cout << "emulated accelerators: " << emulated::device_count() << "\n";
  std::cout << "try_gpu(0) gives " << try_gpu(0) << ", try_gpu(10) gives " << try_gpu(10) << ", try_all_gpus() gives";
  for (AnyDevice const& device : try_all_gpus()) std::cout << " " << device;  // a value: the choice is made at run time
  std::cout << "\n";
}

template <class Device>
void tensors(Device device) {
  heading("tensors on " + to_string(AnyDevice(device)));
  Tensor<float> const a{{1, 2, 3}, {4, 5, 6}};  // Tensor<float, Cpu>: the defaults; braces hold values, never a shape
  auto const ones_there = ones({2, 3}, device);  // Tensor<float, Device>: made there, nothing is copied
  auto const a_there = a.to(device);             // Tensor<float, Device>: the one way across, visible in the source
  std::cout << "a_there =\n" << a_there << "\n";

  auto const formula = a_there * 2 + ones_there;  // no kernel yet; its type is the formula, and fixes device and dtype
  Tensor<float, Device> const y = formula;        // one kernel, generated for this formula; another device is rejected
  std::cout << "a * 2 + 1 =\n" << y << "\n";
  std::cout << "y(1, 2) is " << y.item(1, 2) << "\n";  // item() is on every device; y(1, 2) compiles on the host alone

  auto const again = y.to(device);  // there already: To and From are one type, so no copy is even compiled
  std::cout << "moved to where it is: " << (again.data() == y.data() ? "the same storage" : "a copy") << ", "
            << y.use_count() << " handles\n";

  // auto const mixed = a + ones({2, 3}, Emulated<0>{});
  //
  //   error: use of deleted function 'void situ::v0_1_0::operator+(L&&, R&&) [with L = const Tensor<float>&;
  //   R = Tensor<float, Emulated<0> >;
  //   Error = error::operands_on_different_devices__move_one_with_to<Cpu, Emulated<0> >]'
}

template <class Device>
void views(Device device) {
  heading("view and reshape on " + to_string(AnyDevice(device)));
  auto const x = arange<float>(6, device).view({2, 3});  // a view is a Tensor too: the same type, the same storage
  auto const t = x.t();                                  // strides change, no element moves
  std::cout << "x.t() has shape " << t.shape() << " and strides " << t.strides() << "\n";
  try {
    auto const flat = t.view({6});  // whether strides allow it is known at run time: shapes are values
    std::cout << flat << "\n";
  } catch (LayoutError const& error) {
    std::cout << "LayoutError: " << error.what() << "\n";
  }
  std::cout << "reshape copies where it must: " << t.reshape({6}) << "\n";
}

template <class Device>
void copies(Device device) {
  heading("one large copy or many small ones, to " + to_string(AnyDevice(device)));
  Tensor<float> const host = rand({1000, 1000});
  auto there = empty({1000, 1000}, device);
  double const large = milliseconds(device, [&] { there = host.to(device); });
  double const small = milliseconds(device, [&] {
    for (int i = 0; i < 1000; ++i) there[i] = host[i].to(device);  // `[i] =` writes in place: its left side is temporary
  });
  std::printf("4 MB at once: %.2f ms; in 1000 rows: %.2f ms\n", large, small);
}

template <class Device>
void waiting(Device device) {
  heading("1000 products of 100 x 100 on " + to_string(AnyDevice(device)));
  auto const x = full({100, 100}, 1.0001f, device);
  float at_end = 0, each_time = 0;
  double const once = milliseconds(device, [&] {
    auto z = x.clone();
    for (int i = 0; i < 1000; ++i) z = z * x;  // the type of z * x says elementwise: z's own memory is written again
    at_end = norm(z).item();                   // item() is the only line here that can wait
  });
  double const always = milliseconds(device, [&] {
    auto z = x.clone();
    for (int i = 0; i < 1000; ++i) {
      z = z * x;
      each_time = norm(z).item();
    }
  });
  std::printf("the norm at the end: %.2f ms; read back each time: %.2f ms; the norm is %.4f%s\n", once, always, at_end,
              at_end == each_time ? "" : " or another");
}

void out_of_memory() {
  heading("out of memory");
  emulated::configure({.memory = 1 << 20});  // one MiB, so that every machine can run out of it
  Emulated<0> const device;
  auto const kept = zeros({128, 1024}, device);
  try {
    auto const more = zeros({256, 1024}, device);
    std::cout << more.shape() << "\n";
  } catch (OutOfMemory const& error) {
    std::cout << "OutOfMemory: " << error.what() << "\n";
  }
  auto const smaller = ones({64, 1024}, device);  // what was there is as it was, and the next call works
  std::cout << "then a smaller one: its sum is " << sum(smaller + kept[0]).item() << "\n";
}

template <class Device>
void tour(Device device) {
  tensors(device);
  views(device);
  if constexpr (!host_device<Device>) copies(device);  // on the host there is nothing to cross, known from the type
  waiting(device);
}

int main() try {
  devices();
  tour(Cpu{});
  tour(Emulated<0>{});
  // Instantiates tour for Cuda<0> where this build has it, and calls the one that try_gpu found.
  visit<Cpu, Cuda<0>>(try_gpu(0), [](auto device) {
    if constexpr (!host_device<decltype(device)>) tour(device);
  });
  out_of_memory();
} catch (std::exception const& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
