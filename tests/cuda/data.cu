// A DataLoader's batches on a GPU, copied on a stream of its own while others are used, against those on the host.
#include <situ/data.hpp>

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using Gpu = Cuda<0>;

TEST_CASE("batches on a GPU are those on the host, with workers or without, from page-locked memory or ordinary one") {
  data::TensorDataset const dataset{arange<float>(1000 * 300).reshape({1000, 300}), arange<int64_t>(1000)};
  data::DataLoader host{dataset, {.batch_size = 64, .shuffle = true, .seed = 2}};
  std::vector<float> sums;
  std::vector<int64_t> labels;
  for (auto [x, y] : host) {
    sums.push_back(Tensor<float>(sum(x / 1000, {0, 1})).item());
    for (int64_t label : y.to_vector()) labels.push_back(label);
  }
  for (int workers : {0, 1, 3}) {
    for (bool pin : {true, false}) {
      data::DataLoader loader{dataset, {.batch_size = 64, .shuffle = true, .seed = 2, .workers = workers, .pin = pin}, Gpu{}};
      static_assert(std::is_same_v<decltype(loader)::value_type, std::tuple<Tensor<float, Gpu>, Tensor<int64_t, Gpu>>>);
      Stream<Gpu> const compute;
      std::vector<Tensor<float, Gpu>> results;
      std::vector<Tensor<int64_t, Gpu>> kept;
      {
        StreamGuard const guard(compute);
        for (auto [x, y] : loader) {  // nothing waits for the host in this loop
          results.push_back(sum(x / 1000, {0, 1}));
          kept.push_back(y);
        }
      }
      REQUIRE(results.size() == sums.size());
      std::size_t at = 0;
      for (std::size_t k = 0; k < sums.size(); ++k) {
        CHECK(results[k].item() == doctest::Approx(sums[k]).epsilon(1e-5));
        for (int64_t label : kept[k].to_vector()) CHECK(label == labels[at++]);
      }
      for (auto [x, y] : loader) break;  // and a loop that is left
    }
  }
}

