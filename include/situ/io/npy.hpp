/// NumPy's files: a tensor from a .npy file and back.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include <situ/config.hpp>
#include <situ/core/device.hpp>
#include <situ/core/scalar.hpp>
#include <situ/core/shape.hpp>
#include <situ/expr/node.hpp>
#include <situ/io/detail/file.hpp>
#include <situ/io/detail/npy_format.hpp>
#include <situ/tensor/tensor.hpp>
#include <situ/tensor/transfer.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Fresh memory for what a header describes.
inline Handle fresh_for_npy(npy_header const& header, int64_t bytes) { return make_fresh<Cpu>(static_cast<size_t>(bytes), header.count, header.shape); }

/// The elements that lie at `raw` as they stand in the file, as a tensor holds them.
[[gnu::cold]] inline Handle npy_elements(unsigned char const* raw, npy_header const& header, int64_t bytes) {
  Handle result = fresh_for_npy(header, bytes);
  if (bytes == 0) return result;
  auto* const data = static_cast<unsigned char*>(result.body()->first);
  if (npy_is_transposed(header)) npy_from_fortran(raw, data, header);
  else std::memcpy(data, raw, static_cast<size_t>(bytes));
  npy_to_native(data, header);
  return result;
}

/// The tensor in the `size` bytes of an npy file; `file` is what messages call it. Throws IoError.
template <element T>
Tensor<T> decode_npy(unsigned char const* bytes, size_t size, char const* file) {
  FileContext const context{"load_npy", file};
  npy_header const header = parse_npy_header(bytes, size, context);
  int64_t const data_bytes = check_npy_data(header, dtype_of<T>, static_cast<int64_t>(size), context);
  return Tensor<T>::from_handle(npy_elements(bytes + header.data_begin, header, data_bytes));
}

[[gnu::cold]] inline Handle read_npy(std::string const& path, dtype type) {
  FileContext const context{"load_npy", path.c_str()};
  InputFile const file(context);
  std::string head(static_cast<size_t>(file.size() < npy_max_preamble ? file.size() : npy_max_preamble), '\0');
  file.read(head.data(), 0, static_cast<int64_t>(head.size()));
  npy_header const header = parse_npy_header(reinterpret_cast<unsigned char const*>(head.data()), head.size(), context);
  int64_t const bytes = check_npy_data(header, type, file.size(), context);
  Handle result = fresh_for_npy(header, bytes);
  if (bytes == 0) return result;
  auto* const data = static_cast<unsigned char*>(result.body()->first);
  file.read(data, header.data_begin, bytes);
  if (npy_is_transposed(header)) return npy_elements(data, header, bytes);
  npy_to_native(data, header);
  return result;
}

[[gnu::cold]] inline void write_npy(std::string const& path, dtype type, Shape const& shape, void const* data) {
  std::string const preamble = npy_preamble(type, shape);
  OutputFile file({"save_npy", path.c_str()});
  file.write(preamble.data(), static_cast<int64_t>(preamble.size()));
  file.write(data, product(shape) * npy_type_of(type).item_size);
  file.commit();
}

}  // namespace detail

namespace io {

/// Reads an array that NumPy (`np.save`) or save_npy wrote.
///
/// Shape     as in the file, row-major; an array in Fortran order comes out as the same array.
/// Dtype     exactly T: `<f4` is float, `<f2` float16, `|b1` bool (every byte but 0 is true), `<V2` bfloat16, as
///           ml_dtypes saves it. Big-endian elements are swapped.
/// Throws    IoError, `load_npy: <path>: what is wrong: found; needed`, if the path is no ordinary file, the header
///           is not the format's, the elements have another type (objects and structures are never read), there
///           are more than eight dimensions, or the file is not exactly as long as its header says.
/// Cost      one read into the tensor's memory, which is allocated only when the file is known to fill it; Fortran
///           order takes a second buffer of that size.
/// Example   auto images = io::load_npy<uint8_t>("images.npy");
template <element T>
Tensor<T> load_npy(std::string const& path) {
  return Tensor<T>::from_handle(detail::read_npy(path, dtype_of<T>));
}

/// Writes a tensor, or the value of an expression, byte for byte as NumPy would; `np.load` and load_npy read it.
///
/// The file appears whole or not at all: it is written under another name in the same folder and renamed. It is not
/// forced onto the disk. An existing file keeps its permissions, a symbolic link is followed.
///
/// Dtype     every element type; bfloat16 as two raw bytes (`<V2`), which `x.view(ml_dtypes.bfloat16)` reads in NumPy.
/// Device    any; waits for the value and copies it to the host. Nothing is copied if it is there and contiguous.
/// Throws    IoError if the folder cannot be written, the disk is full, or the path is no ordinary file; a file that
///           was there is then as it was.
/// Example   io::save_npy("means.npy", means);
template <expression E>
void save_npy(std::string const& path, E const& tensor) {
  using T = value_of<E>;
  using D = device_of<E>;
  Tensor<T, D> const value = tensor;
  if constexpr (host_device<D>) {
    auto const rows = value.contiguous();
    detail::write_npy(path, dtype_of<T>, rows.shape(), rows.data());
  } else {
    auto const rows = value.cpu().contiguous();
    detail::write_npy(path, dtype_of<T>, rows.shape(), rows.data());
  }
}

}  // namespace io
}  // namespace situ::inline SITU_ABI
