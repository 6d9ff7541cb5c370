// error: a_sample_is_a_tensor_or_number_on_the_host_or_a_tuple_of_them.*string
#include <string>

#include <situ/data.hpp>

struct Words {
  int64_t size() const { return 10; }
#ifdef SITU_EXPECT_ERROR
  std::string get(int64_t) const { return "word"; }
#else
  int64_t get(int64_t) const { return 4; }
#endif
};

void misuse() { situ::data::DataLoader loader{Words{}}; }
