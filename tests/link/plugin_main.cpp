// Loads a plugin, lets go of it, and goes on with what the two share.
#include <situ/situ.hpp>

#include <cstdio>
#include <thread>

#include <dlfcn.h>

int main(int, char** argv) {
  using namespace situ;
  (void)rand({4});  // some of the state is the program's
  void* const plugin = dlopen(argv[1], RTLD_LOCAL | RTLD_NOW);
  if (!plugin) return std::puts(dlerror()), 1;
  // On threads that end: one that has used a plugin keeps it loaded.
  auto const call = [&](char const* name) { std::thread(reinterpret_cast<void (*)()>(dlsym(plugin, name))).join(); };
  bool right = true;
  std::thread([&] { right = reinterpret_cast<double (*)()>(dlsym(plugin, "compute"))() == 4 * 18; }).join();
  call("begin_profile");
  profile mine;
  call("end_profile");
  dlclose(plugin);

  right = right && eval(ones({1000}) * 2).item(1) == 2;
  Variable<double, Emulated<0>> const x(full<double>({4}, 3.0, Emulated<0>{}), true);
  auto const second = grad(sum(grad(sum(x * x * x), x, create_graph)), x, create_graph);
  sum(second).backward();
  right = right && x.grad().item(0) == 6;
  mine.stop();
  if (!right) std::puts("results differ after a plugin was let go of");
  return right ? 0 : 1;
}
