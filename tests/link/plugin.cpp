// A part that a program loads, and lets go of: what it has begun goes on.
#include <situ/situ.hpp>

#include <optional>

namespace {
std::optional<situ::profile> running;
}

extern "C" {
__attribute__((visibility("default"))) void begin_profile() { running.emplace(); }
__attribute__((visibility("default"))) void end_profile() { running.reset(); }
/// Starts a stream's thread, and asks for a second derivative: both have the process keep pointers to code.
__attribute__((visibility("default"))) double compute() {
  using namespace situ;
  Variable<double, Emulated<0>> const x(full<double>({4}, 3.0, Emulated<0>{}), true);
  return sum(grad(sum(grad(sum(x * x * x), x, create_graph)), x)).item();
}
}
