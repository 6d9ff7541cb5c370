/// NumPy's archives: tensors in a .npz file, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <situ/io/detail/elements.hpp>
#include <situ/io/detail/zip_format.hpp>
#include <situ/io/npy.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// A view of bytes that can be read like a file.
struct BytesSource {
  unsigned char const* bytes;
  int64_t bytes_size;
  int64_t size() const { return bytes_size; }
  void read(void* to, int64_t offset, int64_t count) const {
    if (count > 0) std::memcpy(to, bytes + offset, static_cast<size_t>(count));
  }
};

/// The header of a member that is an npy file. `head` holds the member's first bytes then.
template <class Source>
npy_header read_npy_head(ZipStream<Source>& stream, ZipMember const& member, std::string& head, FileContext const& context) {
  head.resize(static_cast<size_t>(member.size < npy_max_preamble ? member.size : npy_max_preamble));
  stream.read(head.data(), static_cast<int64_t>(head.size()));
  return parse_npy_header(reinterpret_cast<unsigned char const*>(head.data()), head.size(), context);
}

/// The tensor in a member.
template <element T, class Source>
Tensor<T> decode_npz(Source const& file, ZipMember const& member, FileContext const& context) {
  ZipStream<Source> stream(file, member, context);
  std::string head;
  npy_header const header = read_npy_head(stream, member, head, context);
  int64_t const bytes = check_npy_data(header, dtype_of<T>, member.size, context);
  Handle result = fresh_for_npy(header, bytes);
  if (bytes == 0) return Tensor<T>::from_handle(std::move(result));
  auto* const data = static_cast<unsigned char*>(result.body()->first);
  int64_t const read = static_cast<int64_t>(head.size()) - header.data_begin;
  std::memcpy(data, head.data() + header.data_begin, static_cast<size_t>(read));
  if (read < bytes) stream.read(data + read, bytes - read);
  if (npy_is_transposed(header)) return Tensor<T>::from_handle(npy_elements(data, header, bytes));
  npy_to_native(data, header);
  return Tensor<T>::from_handle(std::move(result));
}

struct NpzFile {
  int64_t references = 1;
  std::string path;
  FileContext context;
  InputFile file;
  List<ZipMember> members;

  explicit NpzFile(std::string const& name) : path(name), context{"load_npz", path.c_str()}, file(context), members(ZipReader::members(file, context)) {}
  NpzFile(NpzFile const&) = delete;
  NpzFile& operator=(NpzFile const&) = delete;
};

/// Numbers above `most` are written as zip64 writes them.
[[gnu::cold]] inline void write_npz(std::string const& path, std::vector<io::NamedTensor> const& tensors, uint64_t most = 0xfffffffe) {
  FileContext const context{"save_npz", path.c_str()};
  List<std::string_view> names;
  int64_t on_devices = 0;
  for (io::NamedTensor const& tensor : tensors) {
    std::string_view const name = tensor.name();
    if (name.size() > 65000) context.fail("a name of ", name.size(), " bytes was given; the format has room for 65000");
    if (name.find('\0') != std::string_view::npos) context.fail("the name ", quote_bytes(name), " has a zero byte; names of files have none");
    names.push_back(name);
    if (!tensor.device().host) on_devices += tensor.size() * bytes_of_dtype(tensor.dtype());
  }
  if (std::string_view const* const twice = sort_names(names)) context.fail("the name ", quote_bytes(*twice), " was given twice; names are unique");
  OutputFile file(context);
  ZipWriter archive(file, most);
  Staging staging(on_devices);
  for (io::NamedTensor const& tensor : tensors) {
    std::string const preamble = npy_preamble(tensor.dtype(), tensor.shape());
    archive.begin(tensor.name() + ".npy", static_cast<int64_t>(preamble.size()) + tensor.size() * npy_type_of(tensor.dtype()).item_size);
    archive.write(preamble.data(), static_cast<int64_t>(preamble.size()));
    write_elements(archive, tensor, staging);
    archive.end();
  }
  archive.finish();
  file.commit();
}

}  // namespace detail

namespace io {

/// A .npz file, open for reading: a handle, of which copies share the file. Arrays are read when they are asked for.
///
/// Throws    IoError, `Npz::load: <path>['x']: what is wrong: found; needed`, for a member that is no npy file, is damaged (its CRC-32 is compared), encrypted, or deflated
///           in a program of which no file is compiled with SITU_WITH_ZLIB.
class Npz {
 public:
  explicit Npz(std::string const& path) : file_(new detail::NpzFile(path)) {}

  /// The names of the arrays, without ".npy", in the order of the archive.
  std::vector<std::string> keys() const {
    std::vector<std::string> result;
    for (auto const& member : file_->members) result.emplace_back(key_of(member));
    return result;
  }
  int64_t size() const { return static_cast<int64_t>(file_->members.size()); }
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// Reads the beginning of the member.
  Shape shape(std::string_view key) const {
    auto const& member = checked("shape", key);
    std::string const name = name_of(key);
    detail::FileContext const context{"Npz::shape", name.c_str()};
    detail::ZipStream<detail::InputFile> stream(file_->file, member, context);
    std::string head;
    return detail::read_npy_head(stream, member, head, context).shape;
  }
  /// An array of element type T, exactly, as io::load_npy reads it.
  ///
  /// Device    any; done when it returns.
  /// Throws    IoError also if there is no such array, or it has another element type; OutOfMemory.
  /// Cost      one read into the tensor's memory, and its CRC-32.
  template <element T, situ::device D = Cpu>
  Tensor<T, D> load(std::string_view key, D = {}) const {
    auto const& member = checked("load", key);
    std::string const name = name_of(key);
    return detail::transfer<D>(detail::decode_npz<T>(file_->file, member, {"Npz::load", name.c_str()}));
  }

 private:
  static std::string_view key_of(detail::ZipMember const& member) {
    std::string_view const name = member.name;
    return name.size() >= 4 && name.substr(name.size() - 4) == ".npy" ? name.substr(0, name.size() - 4) : name;
  }
  std::string name_of(std::string_view key) const { return detail::message({file_->path, "[", detail::quote_bytes(key), "]"}); }
  detail::ZipMember const* find(std::string_view key) const {
    for (auto const& member : file_->members) {
      if (key_of(member) == key) return &member;
    }
    return nullptr;
  }
  detail::ZipMember const& checked(char const* who, std::string_view key) const {
    if (auto const* const found = find(key)) return *found;
    detail::MessageText names;
    int64_t count = 0;
    for (auto const& each : file_->members) {
      if (count++ < 8) detail::add_to(names, names.empty() ? "" : ", ", detail::quote_bytes(key_of(each)));
    }
    if (count > 8) detail::add_to(names, " and ", count - 8, " more");
    detail::fail_with<IoError>({"Npz::", who, ": ", name_of(key), ": there is no such array; the file has ", count == 0 ? "none" : names.c_str()});
  }

  detail::Counted<detail::NpzFile> file_;
};

/// Opens an archive that NumPy wrote: np.savez, or np.savez_compressed where a file of the program is compiled with SITU_WITH_ZLIB.
///
/// Throws    IoError, `load_npz: <path>: what is wrong`, if the path is no ordinary file or its list of members is not right: nothing in it is trusted.
/// Example   io::Npz const digits = io::load_npz("digits.npz");
///           Tensor<float> images = digits.load<float>("images");
inline Npz load_npz(std::string const& path) { return Npz(path); }

/// Writes tensors, and values of expressions, of any element types and devices, as np.savez does, uncompressed: np.load and load_npz read them by their names.
///
/// The file appears whole or not at all, as with save_npy. Elements of bfloat16 are two raw bytes (`<V2`).
/// Throws    IoError for a name that stands twice, and where save_npy does; a file that was there is then as it was.
/// Cost      one write, and a CRC-32 of what is written; strided tensors and those of devices go through small buffers.
/// Example   io::save_npz("ab.npz", {{"a", a}, {"b", b * 2}});
inline void save_npz(std::string const& path, std::vector<NamedTensor> const& tensors) { detail::write_npz(path, tensors); }

}  // namespace io
}  // namespace situ::inline SITU_ABI
