// error: several_processes_need_MPI__define_SITU_WITH_MPI_and_link_an_MPI_library
#undef SITU_WITH_MPI
#include <situ/parallel/distributed_data_parallel.hpp>

struct Net {
  situ::Variable<float> weight;
  auto forward(auto const& x) const { return x * weight; }
  SITU_MODULE(weight)
};

void misuse(Net& net) {
#ifdef SITU_EXPECT_ERROR
  situ::DistributedDataParallel ddp{net};
#else
  (void)net;
#endif
}
