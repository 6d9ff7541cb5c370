// error: this_is_no_dataset__give_it_an_int64_t_size_const
#include <situ/data.hpp>

struct Squares {
#ifndef SITU_EXPECT_ERROR
  int64_t size() const { return 10; }
#endif
  int64_t get(int64_t i) const { return i * i; }
};

void misuse() { situ::data::DataLoader loader{Squares{}, {.batch_size = 2}}; }
