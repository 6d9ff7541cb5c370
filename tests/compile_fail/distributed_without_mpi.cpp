// error: several_processes_need_MPI__define_SITU_WITH_MPI_and_link_an_MPI_library
#undef SITU_WITH_MPI
#include <situ/parallel/collectives.hpp>

void misuse(situ::Tensor<float>& x) {
#ifdef SITU_EXPECT_ERROR
  situ::distributed::all_reduce(x, situ::distributed::reduce_op::avg);
#else
  (void)x;
#endif
}
