/// safetensors, the format of Hugging Face: the weights of a model, by name.
///
///     io::save_safetensors("net.safetensors", net);               // a module or an optimiser, wherever its parameters are
///     io::load_safetensors("net.safetensors", net);               // in place, straight to the device
///     io::save_safetensors("ab.safetensors", {{"a", a}, {"b", b}});
///     io::Safetensors file{"ab.safetensors"};                     // one by one
///     Tensor<float> const a = file.view<float>("a");              // not even read before it is used
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <situ/io/detail/elements.hpp>
#include <situ/io/detail/safetensors_format.hpp>
#include <situ/io/state.hpp>
#include <situ/tensor/factories.hpp>

namespace situ::inline SITU_ABI {
namespace io {

struct LoadOptions {
  bool strict = true;  ///< all names must be in the file, and no others; shapes and element types must fit in any case
  bool cast = false;   ///< convert from other element types, as cast<T>(x) does
};
/// What did not fit; empty when loading was strict.
struct LoadResult {
  std::vector<std::string> missing;     ///< names of x that the file has not
  std::vector<std::string> unexpected;  ///< names of the file that x has not
};
struct CastOptions {
  bool cast = false;  ///< convert from another element type, as cast<T>(x) does
};

}  // namespace io
namespace detail {

/// A file whose header has been read and found right.
struct SafetensorsFile {
  int64_t references = 1;
  std::string path;
  FileContext context;
  InputFile file;
  SafetensorsHeader header;

  SafetensorsFile(char const* who, std::string const& name) : path(name), context{who, path.c_str()}, file(context), header(read_header()) {}
  SafetensorsFile(SafetensorsFile const&) = delete;
  SafetensorsFile& operator=(SafetensorsFile const&) = delete;

  StoredElements elements(SafetensorsEntry const& entry) const { return {file, header.data_begin + entry.begin, entry.dtype()}; }

 private:
  SafetensorsHeader read_header() const {
    unsigned char first[8] = {};
    if (file.size() >= 8) file.read(first, 0, 8);
    int64_t const length = safetensors_header_length(first, file.size(), context);
    List<unsigned char> text;
    text.resize(static_cast<size_t>(length));
    file.read(text.data(), 8, length);
    return parse_safetensors_header(text.data(), length, file.size(), context);
  }
};

struct MappedSafetensors : SafetensorsFile {
  Mapping mapping;
  io::Metadata metadata;
  explicit MappedSafetensors(std::string const& name) : SafetensorsFile("Safetensors", name), mapping(file, file.size()), metadata(header.copy_metadata()) {}
};

inline bool has_shape(SafetensorsEntry const& entry, Shape const& shape) { return entry.axes <= max_rank && entry.shape == shape; }
inline char const* type_name(dtype type) { return safetensors_name(type); }

[[noreturn, gnu::cold]] inline void fail_twice(FileContext const& context, std::string_view name) {
  context.fail("two tensors are called ", quoted_name(name), "; names are unique");
}

[[gnu::cold]] inline void save_tensors(std::string const& path, std::vector<io::NamedTensor> const& tensors, io::Metadata const& metadata) {
  FileContext const context{"save_safetensors", path.c_str()};
  List<io::NamedTensor const*> order;
  order.reserve(tensors.size());
  for (io::NamedTensor const& tensor : tensors) {
    bool tied = false;
    if (tensor.may_be_tied() && tensor.size() > 0) {
      for (io::NamedTensor const* const earlier : order) tied = tied || tensor.is_tied_to(*earlier);
    }
    if (!tied) order.push_back(&tensor);
  }
  sort_pointers<io::NamedTensor>(order, [](io::NamedTensor const& a, io::NamedTensor const& b) {
    int const difference = safetensors_rank(b.dtype()) - safetensors_rank(a.dtype());
    return difference != 0 ? difference : a.name().compare(b.name());
  });
  List<SafetensorsEntry> entries;
  List<std::string_view> names;
  int64_t on_devices = 0;
  for (io::NamedTensor const* const tensor : order) {
    SafetensorsEntry entry;
    entry.name = tensor->name();
    entry.kind = static_cast<int>(tensor->dtype());
    entry.shape = tensor->shape();
    entries.push_back(entry);
    names.push_back(entry.name);
    if (!tensor->device().host) on_devices += tensor->size() * bytes_of_dtype(tensor->dtype());
  }
  if (std::string_view const* const twice = sort_names(names)) fail_twice(context, *twice);
  std::string const preamble = safetensors_preamble(entries, metadata, context);

  OutputFile file(context);
  file.write(preamble.data(), static_cast<int64_t>(preamble.size()));
  Staging staging(on_devices);
  for (io::NamedTensor const* const tensor : order) write_elements(file, *tensor, staging);
  file.commit(true);
}

/// Which element of the file goes to which tensor, and what does not fit.
struct LoadPlan {
  List<io::NamedTensor const*> targets;  ///< of each entry of the file; null for none
  List<std::string_view> missing, unexpected;
  MessageText problems;
};

[[gnu::cold]] inline void plan_load(LoadPlan& plan, SafetensorsHeader const& header, std::vector<io::NamedTensor> const& tensors, io::LoadOptions const& options) {
  plan.targets.resize(header.entries.size());
  MessageText unexpected, misshaped, mistyped;
  for (io::NamedTensor const& tensor : tensors) {
    SafetensorsEntry const* const entry = header.find(tensor.name());
    if (!entry) continue;
    plan.targets[static_cast<size_t>(entry - header.entries.data())] = &tensor;
    QuotedName const name = quoted_name(tensor.name());
    char const* const type = type_name(tensor.dtype());
    if (!has_shape(*entry, tensor.shape())) add_to(misshaped, "\n  another shape: ", name, " is ", tensor.shape(), ", in the file ", shape_text(*entry));
    if (!entry->is_own_type()) {
      add_to(mistyped, "\n  another element type: ", name, " is ", type, ", in the file ", quoted_name(entry->type), ", which situ has not");
    } else if (entry->dtype() != tensor.dtype() && !options.cast) {
      add_to(mistyped, "\n  another element type: ", name, " is ", type, ", in the file ", entry->type, "; ask for {.cast = true} to convert it");
    }
  }
  MessageText missing;
  for (io::NamedTensor const& tensor : tensors) {
    if (header.find(tensor.name())) continue;
    bool tied = false;
    for (io::NamedTensor const* const other : plan.targets) tied = tied || (other && tensor.is_tied_to(*other));
    if (tied) continue;
    plan.missing.push_back(tensor.name());
    add_to(missing, "\n  missing in the file: ", quoted_name(tensor.name()), ", ", type_name(tensor.dtype()), " ", tensor.shape());
  }
  for (size_t k = 0; k < header.entries.size(); ++k) {
    if (plan.targets[k]) continue;
    SafetensorsEntry const& entry = header.entries[k];
    plan.unexpected.push_back(entry.name);
    add_to(unexpected, "\n  unexpected in the file: ", quoted_name(entry.name), ", ", quoted_name(entry.type), " ", shape_text(entry));
  }
  if (options.strict) add_to(plan.problems, missing.c_str(), unexpected.c_str());
  add_to(plan.problems, misshaped.c_str(), mistyped.c_str());
}

[[gnu::cold]] SITU_NOINLINE inline std::vector<std::string> copy_names(List<std::string_view> const& names) { return std::vector<std::string>(names.begin(), names.end()); }

[[gnu::cold]] inline io::LoadResult load_tensors(std::string const& path, std::vector<io::NamedTensor> const& tensors, io::LoadOptions const& options) {
  constexpr char const* who = "load_safetensors";
  FileContext const context{who, path.c_str()};
  List<std::string_view> names;
  for (io::NamedTensor const& tensor : tensors) names.push_back(tensor.name());
  if (std::string_view const* const twice = sort_names(names)) fail_twice(context, *twice);
  for (io::NamedTensor const& tensor : tensors) {
    if (tensor.is_value()) fail_with<TypeError>({who, ": ", quoted_name(tensor.name()), " is the value of an expression: nobody would see what is loaded into it; give a tensor"});
    if (tensor.layout().is_broadcast()) fail_broadcast_write(who, tensor.layout());
    if (tensor.head() && tensor.head()->read_only) fail_read_only(who);
  }
  SafetensorsFile const file(who, path);
  LoadPlan plan;
  plan_load(plan, file.header, tensors, options);
  if (!plan.problems.empty()) context.fail("the file does not fit; nothing was loaded:", plan.problems.c_str());

  int64_t on_devices = 0;
  for (io::NamedTensor const* const tensor : plan.targets) {
    if (tensor && !tensor->device().host) on_devices += tensor->size() * bytes_of_dtype(tensor->dtype()) + 64;
  }
  Staging staging(on_devices);
  TensorReader reader(file.file, staging);
  for (size_t k = 0; k < plan.targets.size(); ++k) {
    if (plan.targets[k]) reader.read(file.elements(file.header.entries[k]), *plan.targets[k]);
  }
  reader.flush();
  staging.wait();
  return {copy_names(plan.missing), copy_names(plan.unexpected)};
}

}  // namespace detail
namespace io {

/// Writes tensors by name: {{"a", a}, {"b", b}}, of any element types and devices; expressions are evaluated.
///
/// The file is, byte for byte, what the reference implementation writes: the widest element type first, then by name. It appears whole or not at all: it is
/// written under another name in the same folder, forced onto the disk, and renamed. An existing file keeps its permissions, a symbolic link is followed.
///
/// Device    any; waits for the values. They pass through page-locked memory, in pieces. Nothing is copied if it is on the host and contiguous.
/// Throws    IoError for a name that stands twice or is not UTF-8, and if the folder cannot be written or the disk is full; a file that was there is then as
///           it was, and nothing else is left. IndexError for what a kernel found wrong.
/// Example   io::save_safetensors("ab.safetensors", {{"a", a}, {"b", b * 2}}, {{"format", "pt"}});
inline void save_safetensors(std::string const& path, std::vector<NamedTensor> const& tensors, Metadata const& metadata = {}) {
  detail::save_tensors(path, tensors, metadata);
}
/// The same for the state of a module or an optimiser: what for_each_state(x, f) visits. A parameter that stands in several places is written once, under
/// its first name. PyTorch's load_state_dict takes what safetensors.torch.load_file makes of it.
template <class X>
  requires has_state<std::remove_reference_t<X>>
void save_safetensors(std::string const& path, X&& x, Metadata const& metadata = {}) {
  detail::save_tensors(path, named_state(x), metadata);
}

/// Reads tensors by name into those given, in place, wherever they are and whatever their strides.
///
/// Everything is compared first: all names that are missing or unexpected and all shapes and element types that differ are in one IoError, and nothing is
/// changed then. A parameter that stands in several places needs one of its names in the file.
///
/// Device    any; done when it returns. To the host: from the file into the tensor, by all threads. To a device: through two pieces of page-locked memory, of
///           which one is filled while the other is copied. Strided tensors on a device go to the host and back.
/// Throws    IoError if the path is no ordinary file, the file is not the format's (all checks of the reference, and names that stand twice), or does not fit;
///           TypeError for read-only tensors and values of expressions, LayoutError for broadcast ones. If the disk fails or the file becomes shorter while the
///           elements are read, the tensors hold what was read until then.
/// Cost      one read, no memory the size of the file.
/// Example   io::LoadResult const result = io::load_safetensors("old.safetensors", net, {.strict = false});
inline LoadResult load_safetensors(std::string const& path, std::vector<NamedTensor> const& tensors, LoadOptions options = {}) {
  return detail::load_tensors(path, tensors, options);
}
/// The same for the state of a module or an optimiser. What was recorded of its parameters is out of date: a backward() that needs them says so.
template <class X>
  requires has_state<std::remove_reference_t<X>>
LoadResult load_safetensors(std::string const& path, X&& x, LoadOptions options = {}) {
  return detail::load_tensors(path, named_state(x), options);
}

/// A safetensors file, open for reading: a handle, of which copies share the file.
///
/// The header is read and checked at once, elements when they are asked for: the file is mapped into memory, and views lie in it. It stays as it was opened when
/// another one is renamed over it, as save_safetensors does. Who writes into it changes what views see, and who makes it shorter ends a program that reads a view
/// behind the new end (SIGBUS), as with the reference implementation; what was loaded is safe from both.
///
/// Throws    IoError as load_safetensors does.
/// Example   io::Safetensors file{"net.safetensors"};
///           for (auto const& key : file.keys()) std::cout << key << ' ' << file.shape(key) << '\n';
class Safetensors {
 public:
  explicit Safetensors(std::string const& path) : file_(new detail::MappedSafetensors(path)) {}

  /// The names of the tensors, in the order of the file.
  std::vector<std::string> keys() const {
    std::vector<std::string> result;
    for (auto const& entry : file_->header.entries) result.emplace_back(entry.name);
    return result;
  }
  int64_t size() const { return static_cast<int64_t>(file_->header.entries.size()); }
  bool contains(std::string_view key) const { return file_->header.find(key) != nullptr; }
  /// Throws    IoError if there is no such tensor; ShapeError if it has more axes than a Tensor can have.
  Shape shape(std::string_view key) const { return checked_shape("shape", entry("shape", key)); }
  /// Throws    TypeError for an element type that situ has not: type_name(key) has its name.
  situ::dtype dtype(std::string_view key) const { return checked_type("dtype", entry("dtype", key)); }
  /// The element type as it is written: "F32", "F8_E4M3".
  std::string type_name(std::string_view key) const { return std::string(entry("type_name", key).type); }

  /// The texts under "__metadata__".
  Metadata const& metadata() const { return file_->metadata; }
  /// One of them; null if there is none of that key.
  std::string const* metadata(std::string_view key) const {
    for (auto const& pair : metadata()) {
      if (pair.first == key) return &pair.second;
    }
    return nullptr;
  }

  /// A tensor, in memory of its own.
  ///
  /// Device    any; done when it returns. See load_safetensors.
  /// Throws    IoError if there is no such tensor or it has another element type than T, unless {.cast = true} converts it; TypeError for types that situ has not;
  ///           ShapeError; OutOfMemory.
  /// Example   auto w = file.load<float>("fc1.weight", Cuda<0>{});
  template <element T, situ::device D = Cpu>
  Tensor<T, D> load(std::string_view key, D = {}, CastOptions options = {}) const {
    auto const& found = checked_entry("load", key, dtype_of<T>, options.cast);
    auto result = Tensor<T, D>::uninitialized(checked_shape("load", found), "Safetensors::load");
    detail::Staging staging(host_device<D> ? 0 : result.size() * static_cast<int64_t>(sizeof(T)));
    detail::read_elements(file_->elements(found), NamedTensor({}, result), staging);
    staging.wait();
    return result;
  }

  /// A tensor on the host whose elements are the file's own memory: nothing is read before it is used, and nothing twice. It keeps the file open, and is read-only: name it
  /// const; writing to it, and data() and a(i, j) of a handle that is not const, throw TypeError.
  ///
  /// What does not lie in the file as a T must is read instead: elements that are not aligned, and bools that are neither 0 nor 1. That is read-only, too.
  /// Throws    as load.
  template <element T>
  Tensor<T> view(std::string_view key) const {
    auto const& found = checked_entry("view", key, dtype_of<T>, false);
    Shape const shape = checked_shape("view", found);
    unsigned char const* const bytes = file_->mapping.data();
    if (found.bytes() > 0 && bytes) {
      unsigned char const* const first = bytes + file_->header.data_begin + found.begin;
      bool fits = reinterpret_cast<uintptr_t>(first) % alignof(T) == 0;
      if constexpr (std::is_same_v<T, bool>) {
        for (int64_t k = 0; k < found.bytes(); ++k) fits = fits && first[k] <= 1;
      }
      if (fits) return from_blob(reinterpret_cast<T const*>(first), shape, Layout(shape).strides, KeepOpen{file_});
    }
    Tensor<T> read = load<T>(key);
    if (detail::StorageHead* const head = read.storage().head()) head->read_only = true, head->allocated_here = false;  // as the file's memory
    return read;
  }

 private:
  struct KeepOpen {
    detail::Counted<detail::MappedSafetensors> file;
    void operator()(void const*) const {}
  };

  detail::SafetensorsEntry const& entry(char const* who, std::string_view key) const {
    if (auto const* const found = file_->header.find(key)) return *found;
    detail::MessageText names;
    int64_t count = 0;
    for (auto const& each : file_->header.entries) {
      if (count++ < 8) detail::add_to(names, names.empty() ? "" : ", ", detail::quoted_name(each.name));
    }
    if (count > 8) detail::add_to(names, " and ", count - 8, " more");
    fail<IoError>(who, {"there is no tensor ", detail::quoted_name(key), "; it has ", count == 0 ? "none" : names.c_str()});
  }
  Shape checked_shape(char const* who, detail::SafetensorsEntry const& found) const {
    if (found.axes > max_rank) fail<ShapeError>(who, {"tensor ", detail::quoted_name(found.name), " has ", found.axes, " axes; a Tensor has at most ", max_rank});
    return found.shape;
  }
  situ::dtype checked_type(char const* who, detail::SafetensorsEntry const& found) const {
    if (!found.is_own_type()) {
      fail<TypeError>(who, {"tensor ", detail::quoted_name(found.name), " has elements of type ", detail::quoted_name(found.type), ", which situ has not; convert the file"});
    }
    return found.dtype();
  }
  detail::SafetensorsEntry const& checked_entry(char const* who, std::string_view key, situ::dtype asked, bool cast) const {
    auto const& found = entry(who, key);
    if (situ::dtype const type = checked_type(who, found); type != asked && !cast) {
      fail<IoError>(who, {"tensor ", detail::quoted_name(key), " has another element type: ", found.type, " found, ", detail::type_name(asked), " was asked for; ask for ", name(type),
                          ", or convert it: load<T>(key, device, {.cast = true})"});
    }
    return found;
  }
  template <class E>
  [[noreturn]] SITU_NOINLINE void fail(char const* who, detail::MessageParts parts) const {
    detail::MessageText text;
    detail::add_to(text, "Safetensors::", who, ": ", file_->path, ": ");
    detail::write_parts(text, parts);
    detail::throw_message<E>(text);
  }

  detail::Counted<detail::MappedSafetensors> file_;
};

/// Opens a file, as load_npz does: its tensors by name.
///
/// Example   io::Safetensors const file = io::load_safetensors("net.safetensors");
///           Tensor<float> const w = file.view<float>("fc1.weight");   // mapped, nothing is copied
///           Tensor<float> b = file.load<float>("fc1.bias");           // in memory of its own
inline Safetensors load_safetensors(std::string const& path) { return Safetensors(path); }

}  // namespace io
}  // namespace situ::inline SITU_ABI
