#include <situ/io/npy_dataset.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <situ/data/loader.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>

using namespace situ;
using situ_test::thrown;

namespace {

/// Files that go with their scope.
struct Folder {
  std::string path = std::string(P_tmpdir) + "/situ_npy_dataset_" + std::to_string(::getpid());
  std::string const images = path + "_images.npy", labels = path + "_labels.npy";
  ~Folder() {
    ::unlink(images.c_str());
    ::unlink(labels.c_str());
  }
};
std::string const corpus = std::string(SITU_REPOSITORY) + "/tests/io/corpus/";

}  // namespace

TEST_CASE("rows of npy files are samples, gathered from the mapped files") {
  Folder const folder;
  io::save_npy(folder.images, arange<float>(60).reshape({10, 2, 3}));
  io::save_npy(folder.labels, arange<int64_t>(10) * 10);
  data::NpyDataset<float, int64_t> const dataset{folder.images, folder.labels};
  CHECK(dataset.size() == 10);
  CHECK(std::get<0>(dataset.get(2)).to_vector() == std::vector<float>{12, 13, 14, 15, 16, 17});
  for (int workers : {0, 2}) {
    data::DataLoader loader{dataset, {.batch_size = 4, .shuffle = true, .seed = 1, .workers = workers}};
    int64_t rows = 0;
    for (auto [x, y] : loader) {
      CHECK(x.shape() == Shape{y.size(), 2, 3});
      for (int64_t k = 0; k < y.size(); ++k, ++rows) CHECK(x(k, 1, 2) == static_cast<float>(y(k) / 10 * 6 + 5));
      x += 1;  // a batch may be written to
    }
    CHECK(rows == 10);
  }
  auto x = std::get<0>(dataset.get(3));
  CHECK(x(1, 2) == 23);  // of handles that are not const, too
  x += 1;
  CHECK(std::get<0>(dataset.get(3)).item(1, 2) == 23);  // the file is as it was
  data::NpyDataset<float> const one{folder.images};
  CHECK(one.get(9).shape() == Shape{2, 3});
  CHECK(thrown<ShapeError>([&] { (data::NpyDataset<float, float>{folder.images, corpus + "float32_2x3.npy"}); },
                           "TensorDataset: tensors of shapes [10, 2, 3] and [2, 3] have different numbers of rows: 10 != 2") == "");
}

TEST_CASE("a mapped array is read-only, outlives its name, and is loaded where it cannot be mapped") {
  Folder const folder;
  io::save_npy(folder.images, arange<float>(6).reshape({2, 3}));
  Tensor<float> x = io::map_npy<float>(folder.images);
  ::unlink(folder.images.c_str());
  CHECK(x.to_vector() == std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK_THROWS_AS(x(0, 0) = 1, TypeError);
  CHECK(std::as_const(x).data() == std::as_const(x).view({6}).data());
  Tensor<float> y = x.clone();
  y(0, 0) = 7;
  x = Tensor<float>();
  CHECK(y(0, 0) == 7);
  for (char const* file : {"fortran_big.npy", "big_float32.npy", "float32_2x3.npy", "bool_4.npy", "scalar.npy", "empty_3x0x2.npy"}) {
    CAPTURE(file);
    std::string const path = corpus + file;
    auto const same = [&]<class T>(T) {
      try {
        Tensor<T> const loaded = io::load_npy<T>(path);
        Tensor<T> const mapped = io::map_npy<T>(path);
        CHECK(mapped.shape() == loaded.shape());
        CHECK(mapped.to_vector() == loaded.to_vector());
        return 1;
      } catch (IoError const& e) {
        CHECK(thrown<IoError>([&] { io::map_npy<T>(path); }, e.what()) == "");
        return 0;
      }
    };
    CHECK(same(float{}) + same(double{}) + same(bool{}) + same(int64_t{}) + same(int32_t{}) + same(int16_t{}) == 1);
  }
}
