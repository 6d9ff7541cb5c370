/// DLPack: tensors that are passed to other libraries and taken from them, without a copy.
///
///     #include <dlpack/dlpack.h>                                        // or <ATen/dlpack.h>: situ brings none, and wants it before the first call
///
///     at::Tensor theirs = at::fromDLPack(interop::to_dlpack(x));        // x and theirs share the elements
///     auto mine = interop::from_dlpack<float>(at::toDLPack(theirs));    // a Tensor<float, Cpu>
///
/// The type and the device of what is taken are named, as those of every tensor are, and checked. On a GPU the elements are ready on the device's current stream, and what
/// comes is taken to be ready there: beside a library that works on another stream, make that one current (Stream::wrap and StreamGuard), or wait with an Event.
///
/// Source    the ABI of DLPack, versions 0.6 to 1: https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

#include <situ/device/any.hpp>
#include <situ/tensor/factories.hpp>

struct DLManagedTensor;  // which <dlpack/dlpack.h> completes

namespace situ::inline SITU_ABI {

namespace error {
template <class Device>
struct dlpack_knows_the_devices_Cpu_Pinned_and_Cuda__move_it_with_to {};
}  // namespace error

namespace detail::dlpack {

// The numbers of DLDataTypeCode and DLDeviceType.
inline constexpr int code_int = 0, code_uint = 1, code_float = 2, code_bfloat = 4, code_bool = 6;
inline constexpr int device_cpu = 1, device_cuda = 2, device_cuda_host = 3, device_cuda_managed = 13;

template <element T>
constexpr int code_of() {
  if constexpr (std::is_same_v<T, bool>) return code_bool;
  else if constexpr (std::is_same_v<T, bfloat16>) return code_bfloat;
  else if constexpr (floating<T>) return code_float;
  else if constexpr (std::is_signed_v<T>) return code_int;
  else return code_uint;
}
template <class D>
inline constexpr int ordinal_of = -1;
template <>
inline constexpr int ordinal_of<Cpu> = 0;
template <>
inline constexpr int ordinal_of<Pinned> = 0;
template <int N>
inline constexpr int ordinal_of<Cuda<N>> = N;

/// Whether memory of a device that DLPack names is memory of D. The host reads what is page-locked or managed.
template <class D>
constexpr bool is_memory_of(int type, int ordinal) {
  if constexpr (std::is_same_v<D, Cpu>) return type == device_cpu || type == device_cuda_host || type == device_cuda_managed;
  else if constexpr (std::is_same_v<D, Pinned>) return type == device_cuda_host;
  else return (type == device_cuda || type == device_cuda_managed) && ordinal == ordinal_of<D>;
}

inline std::string type_text(int code, int bits, int lanes) {
  std::string const width = std::to_string(bits), many = lanes == 1 ? "" : " in vectors of " + std::to_string(lanes);
  switch (code) {
    case code_int: return "int" + width + many;
    case code_uint: return "uint" + width + many;
    case code_float: return "float" + width + many;
    case code_bfloat: return "bfloat" + width + many;
    case code_bool: return (bits == 8 ? "bool" : "bool of " + width + " bits") + many;
    default: return "type code " + std::to_string(code) + " of " + width + " bits" + many;
  }
}
inline std::string device_text(int type, int ordinal) {
  switch (type) {
    case device_cpu: return "cpu";
    case device_cuda: return "cuda:" + std::to_string(ordinal);
    case device_cuda_host: return "page-locked memory";
    case device_cuda_managed: return "managed memory of cuda:" + std::to_string(ordinal);
    default: return "device type " + std::to_string(type);
  }
}

/// What a DLManagedTensor that was given away refers to.
template <class Managed, class T, class D>
struct Given {
  Managed managed{};
  Tensor<T, D> tensor;
  int64_t shape[max_rank], strides[max_rank];
};

/// Ends what was taken.
template <class Managed>
struct End {
  Managed* managed;
  void operator()(void const*) const {
    if (managed->deleter) managed->deleter(managed);
  }
};

}  // namespace detail::dlpack

namespace interop {

/// A DLManagedTensor that shares the storage of x, strides and all. Whoever gets it calls its deleter once; until then the storage stays.
///
/// Managed   DLManagedTensor, or DLManagedTensorVersioned of DLPack 1, whose flag says that read-only storage is.
/// Throws    TypeError for read-only storage in a DLManagedTensor, which cannot say so.
template <class Managed = DLManagedTensor, element T, device D>
  requires(detail::dlpack::ordinal_of<D> >= 0)
Managed* to_dlpack(Tensor<T, D> const& x) {
  using Given = detail::dlpack::Given<Managed, T, D>;
  detail::StorageHead const* const head = x.storage_head();
  bool const read_only = head && head->read_only;
  if constexpr (!requires(Managed m) { m.flags; }) {
    if (read_only) detail::fail<TypeError>("to_dlpack: the storage is read-only, which a DLManagedTensor cannot say; give x.clone(), or a DLManagedTensorVersioned");
  }
  Tensor<T, D> handle = x;
  T* const data = read_only ? const_cast<T*>(x.data()) : handle.data();
  auto* const given = new Given{{}, std::move(handle), {}, {}};
  int const rank = x.rank();
  for (int k = 0; k < rank; ++k) given->shape[k] = x.shape()[k], given->strides[k] = x.strides()[k];
  auto& about = given->managed.dl_tensor;
  about.data = data;
  about.device = {static_cast<decltype(about.device.device_type)>(device_traits<D>::host_memory ? detail::dlpack::device_cpu : detail::dlpack::device_cuda), detail::dlpack::ordinal_of<D>};
  about.ndim = rank;
  about.dtype = {static_cast<uint8_t>(detail::dlpack::code_of<T>()), static_cast<uint8_t>(8 * sizeof(T)), 1};
  about.shape = given->shape;
  about.strides = given->strides;
  about.byte_offset = 0;
  if constexpr (requires(Managed m) { m.flags; }) {
    given->managed.version = {1, 0};
    given->managed.flags = read_only ? 1 : 0;
  }
  given->managed.manager_ctx = given;
  given->managed.deleter = [](Managed* managed) { delete static_cast<Given*>(managed->manager_ctx); };
  return &given->managed;
}
template <class Managed = DLManagedTensor, element T, device D, class Error = error::dlpack_knows_the_devices_Cpu_Pinned_and_Cuda__move_it_with_to<D>>
  requires(detail::dlpack::ordinal_of<D> < 0)
Managed* to_dlpack(Tensor<T, D> const&) = delete;

/// The elements of another library's tensor as a Tensor<T, D>: nothing is copied, and the other's deleter is called when the last handle goes.
///
/// Managed   DLManagedTensor or DLManagedTensorVersioned, of which read-only storage is read-only here, too.
/// Throws    TypeError for other elements or another device, ShapeError beyond eight axes, LayoutError for elements that are not aligned, Error for a null pointer and for
///           DLPack from version 2 on; the tensor is still the caller's then.
template <element T, device D = Cpu, class Managed = DLManagedTensor>
  requires(detail::dlpack::ordinal_of<D> >= 0)
Tensor<T, D> from_dlpack(Managed* managed) {
  namespace dlpack = detail::dlpack;
  if (!managed) detail::fail<Error>("from_dlpack: a null pointer was given");
  bool read_only = false;
  if constexpr (requires { managed->flags; }) {
    if (managed->version.major != 1) detail::fail<Error>("from_dlpack: DLPack of version ", static_cast<int64_t>(managed->version.major), ".", static_cast<int64_t>(managed->version.minor), "; version 1 is understood");
    read_only = (managed->flags & 1) != 0;
  }
  auto const& about = managed->dl_tensor;
  int const code = about.dtype.code, bits = about.dtype.bits, lanes = about.dtype.lanes, type = static_cast<int>(about.device.device_type), ordinal = static_cast<int>(about.device.device_id);
  if (code != dlpack::code_of<T>() || bits != static_cast<int>(8 * sizeof(T)) || lanes != 1 || !dlpack::is_memory_of<D>(type, ordinal)) {
    detail::fail<TypeError>("from_dlpack: ", dlpack::type_text(dlpack::code_of<T>(), static_cast<int>(8 * sizeof(T)), 1), " on ", AnyDevice(D{}), " was asked for, and the tensor has ",
                            dlpack::type_text(code, bits, lanes), " on ", dlpack::device_text(type, ordinal), "; ask for what it has, and convert that with to");
  }
  if (about.ndim < 0 || about.ndim > max_rank) detail::fail<ShapeError>("from_dlpack: the tensor has ", static_cast<int64_t>(about.ndim), " axes; a Tensor has at most ", max_rank);
  Shape shape, strides;
  for (int k = 0; k < about.ndim; ++k) shape.push_back(about.shape[k]);
  if (detail::count_of(shape, "from_dlpack", sizeof(T)) > 0 && !about.data) detail::fail<Error>("from_dlpack: the tensor of shape ", shape, " has a null pointer in place of its elements");
  if (about.strides) {
    for (int k = 0; k < about.ndim; ++k) strides.push_back(about.strides[k]);
  } else {
    strides = Layout(shape).strides;
  }
  auto* const data = reinterpret_cast<T*>(static_cast<char*>(about.data) + about.byte_offset);
  if (reinterpret_cast<std::uintptr_t>(data) % alignof(T) != 0) detail::fail<LayoutError>("from_dlpack: the elements are not aligned to ", static_cast<int64_t>(alignof(T)), " bytes; copy them there");
  if (read_only) return from_blob(const_cast<T const*>(data), shape, strides, dlpack::End<Managed>{managed}, D{});
  return from_blob(data, shape, strides, dlpack::End<Managed>{managed}, D{});
}
template <element T, device D, class Managed = DLManagedTensor, class Error = error::dlpack_knows_the_devices_Cpu_Pinned_and_Cuda__move_it_with_to<D>>
  requires(detail::dlpack::ordinal_of<D> < 0)
Tensor<T, D> from_dlpack(Managed*) = delete;

}  // namespace interop
}  // namespace situ::inline SITU_ABI
