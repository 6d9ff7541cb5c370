// The default generator is one per process: a shared library with hidden symbols goes on where the program stopped.
#include <situ/situ.hpp>

#include <cstdio>
#include <thread>

std::vector<float> drawn_by_library();
void allocate_in_library();

int main() {
  situ::manual_seed(7);
  const std::vector<float> first = situ::rand({4}).to_vector(), second = situ::rand({4}).to_vector();
  situ::manual_seed(7);
  const bool begins_alike = drawn_by_library() == first, goes_on_alike = situ::rand({4}).to_vector() == second;
  if (!begins_alike) std::printf("the library does not see the seed that the program sets\n");
  if (!goes_on_alike) std::printf("the program does not see what the library has drawn\n");
  if (first == second) std::printf("two draws are the same\n");

  // Threads that end have used memory in both.
  std::vector<std::thread> threads;
  for (int k = 0; k < 8; ++k) {
    threads.emplace_back([] {
      for (int round = 0; round < 200; ++round) {
        std::thread([] {
          auto const x = situ::empty({100});
          allocate_in_library();
        }).join();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  const bool counts_all = situ::gpu::memory_allocated(situ::Cpu{}) == 0;
  if (!counts_all) std::printf("memory of threads that have ended is counted\n");
  return begins_alike && goes_on_alike && first != second && counts_all ? 0 : 1;
}
