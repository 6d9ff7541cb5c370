// error: this_is_no_dataset__give_it_a_get_of_an_index_const
#include <situ/data.hpp>

struct Squares {
  int64_t size() const { return 10; }
#ifdef SITU_EXPECT_ERROR
  int64_t get(int64_t i) { return i * i; }  // not const: samples are read from several threads
#else
  int64_t get(int64_t i) const { return i * i; }
#endif
};

void misuse() { situ::data::DataLoader loader{Squares{}, {.batch_size = 2}, situ::Emulated<0>{}}; }
