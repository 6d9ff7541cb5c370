// The default generator is one per process: a shared library with hidden symbols goes on where the program stopped.
#include <situ/situ.hpp>

#include <cstdio>

std::vector<float> drawn_by_library();

int main() {
  situ::manual_seed(7);
  const std::vector<float> first = situ::rand({4}).to_vector(), second = situ::rand({4}).to_vector();
  situ::manual_seed(7);
  const bool begins_alike = drawn_by_library() == first, goes_on_alike = situ::rand({4}).to_vector() == second;
  if (!begins_alike) std::printf("the library does not see the seed that the program sets\n");
  if (!goes_on_alike) std::printf("the program does not see what the library has drawn\n");
  if (first == second) std::printf("two draws are the same\n");
  return begins_alike && goes_on_alike && first != second ? 0 : 1;
}
