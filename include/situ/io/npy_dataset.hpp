/// Datasets of NumPy's files: arrays that are mapped into memory rather than read, and their rows as samples.
///
///     data::NpyDataset<uint8_t, int64_t> digits{"images.npy", "labels.npy"};
#pragma once

#include <situ/data/dataset.hpp>
#include <situ/io/npy.hpp>
#include <situ/tensor/factories.hpp>

namespace situ::inline SITU_ABI {
namespace io {

/// The array in a .npy file as a read-only tensor over the file itself: what is not used is not read.
///
/// What does not lie in the file as a tensor holds it (Fortran order, big-endian or badly aligned elements, bool) is loaded, as by load_npy.
/// The file must not become shorter while a handle lives: reading what is gone ends the program.
/// Throws    IoError as load_npy. Writing to it throws TypeError; clone() gives a copy to write to.
template <element T>
Tensor<T> map_npy(std::string const& path) {
  detail::FileContext const context{"load_npy", path.c_str()};
  detail::InputFile const file(context);
  std::string head(static_cast<size_t>(file.size() < detail::npy_max_preamble ? file.size() : detail::npy_max_preamble), '\0');
  file.read(head.data(), 0, static_cast<int64_t>(head.size()));
  detail::npy_header const header = detail::parse_npy_header(reinterpret_cast<unsigned char const*>(head.data()), head.size(), context);
  int64_t const bytes = detail::check_npy_data(header, dtype_of<T>, file.size(), context);
  bool const as_it_is = !detail::npy_is_transposed(header) && (header.byte_order != '>' || sizeof(T) == 1) && !std::is_same_v<T, bool> && header.data_begin % static_cast<int64_t>(alignof(T)) == 0;
  if (!as_it_is || bytes == 0) return load_npy<T>(path);
  auto* const mapping = new detail::Mapping(file, file.size());
  if (!mapping->data()) {  // not every file system can
    delete mapping;
    return load_npy<T>(path);
  }
  auto const* const first = reinterpret_cast<T const*>(mapping->data() + header.data_begin);
  return from_blob(first, header.shape, Layout(header.shape).strides, [mapping](T*) { delete mapping; });
}

}  // namespace io

namespace data {

/// Rows of npy files as samples: sample i is a copy of row i of each file, a tuple where there are several. The files are mapped into memory: a batch is
/// gathered straight from them, and what no batch asks for is never read.
///
/// Throws    IoError for a file that is no array of that element type, ShapeError when the numbers of rows differ.
/// Example   DataLoader loader{NpyDataset<uint8_t, int64_t>{"images.npy", "labels.npy"}, {.batch_size = 64, .shuffle = true, .workers = 2}};
template <element... Ts>
  requires(sizeof...(Ts) > 0)
class NpyDataset : public TensorDataset<Tensor<Ts>...> {
 public:
  template <class... Paths>
    requires(sizeof...(Paths) == sizeof...(Ts) && (std::is_convertible_v<Paths const&, std::string> && ...))
  explicit NpyDataset(Paths const&... paths) : TensorDataset<Tensor<Ts>...>(io::map_npy<Ts>(paths)...) {}

  /// A copy, since the files are read-only, and a sample may be written to. Throws IndexError.
  auto get(int64_t i) const {
    auto const row = TensorDataset<Tensor<Ts>...>::get(i);
    if constexpr (sizeof...(Ts) == 1) return row.clone();
    else return std::apply([](auto const&... fields) { return std::tuple<Tensor<Ts>...>(fields.clone()...); }, row);
  }
};

}  // namespace data
}  // namespace situ::inline SITU_ABI
