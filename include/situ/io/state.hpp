/// Tensors by name, whatever their element types and devices: what files of weights are written from and read into.
///
///     io::named_state(net)                       all parameters and buffers of a module, or what an optimiser remembers
///     std::vector<io::NamedTensor>{{"a", a}}     tensors of any types on any devices
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <situ/core/storage.hpp>
#include <situ/expr/node.hpp>
#include <situ/io/detail/safetensors_format.hpp>
#include <situ/tensor/transfer_async.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What files ask of a device that is known at run time only.
struct DeviceFunctions {
  bool host;                                                            ///< the host may dereference its pointers
  void (*before_read)(StorageHead const*);
  void (*before_write)(StorageHead*);
  void (*to_host)(void* to, void const* from, std::size_t bytes);       ///< done when it returns
  void (*from_host)(void* to, void const* from, std::size_t bytes);     ///< the same
  void (*upload)(StorageHead& staging, void* to, void const* from, std::size_t bytes);    ///< from page-locked memory; enqueued where the device can
  void (*download)(StorageHead& staging, void* to, void const* from, std::size_t bytes);  ///< to page-locked memory
  void (*copy)(void* to, void const* from, std::size_t bytes);          ///< within the device; enqueued where it can
  Handle (*fresh)(std::size_t bytes, int64_t size, Shape const& shape);  ///< of a contiguous tensor
  void (*check)();                                                      ///< throws what kernels found wrong
};

template <class D>
struct DeviceFunctionsOf {
  static void before_read(StorageHead const* head) { detail::before_read<D>(head); }
  static void before_write(StorageHead* head) { detail::before_write<D>(head); }
  static void to_host(void* to, void const* from, std::size_t bytes) { device_traits<D>::copy_to_host(to, from, bytes); }
  static void from_host(void* to, void const* from, std::size_t bytes) { device_traits<D>::copy_from_host(to, from, bytes); }
  static void upload(StorageHead& staging, void* to, void const* from, std::size_t bytes) {
    if constexpr (from_pinned_to_device<D, Pinned>) {
      CopyNote note(device_traits<D>::stream_driver(), D::ordinal, device_traits<D>::current_stream(), false);
      device_traits<D>::copy_from_pinned(to, from, bytes);
      note.publish(staging);
    } else {
      device_traits<D>::copy_from_host(to, from, bytes);
    }
  }
  static void download(StorageHead& staging, void* to, void const* from, std::size_t bytes) {
    if constexpr (from_device_to_pinned<Pinned, D>) {
      CopyNote note(device_traits<D>::stream_driver(), D::ordinal, device_traits<D>::current_stream(), true);
      device_traits<D>::copy_to_pinned(to, from, bytes);
      note.publish(staging);
    } else {
      device_traits<D>::copy_to_host(to, from, bytes);
    }
  }
  static void copy(void* to, void const* from, std::size_t bytes) { device_traits<D>::copy(to, from, bytes); }
  static void check() {
    if constexpr (requires { device_traits<D>::fault(); }) check_faults<D>();
  }
  static constexpr DeviceFunctions table{host_device<D>, &before_read, &before_write, &to_host, &from_host, &upload, &download, &copy, &make_fresh<D>, &check};
};

template <class X>
inline constexpr bool is_tensor_handle = false;
template <class T, class D>
inline constexpr bool is_tensor_handle<Tensor<T, D>> = true;

/// What shares its storage with a Tensor: a Variable, or a Counter of a module.
template <class X>
concept holds_tensor = requires(X const& x) { x.state(); x.value(); } || requires(X const& x) { x.tensor(); };

}  // namespace detail

namespace io {

/// A tensor with a name: a handle that forgets its element type and device. Made of a Tensor, a Variable or a Counter, with which it shares the storage, or
/// of an expression, whose value it holds.
class NamedTensor {
 public:
  template <class X>
    requires(expression<X> || detail::holds_tensor<X>)
  NamedTensor(std::string name, X const& x) : name_(std::move(name)) {
    if constexpr (detail::is_tensor_handle<X>) hold(x);
    else if constexpr (requires { x.tensor(); }) hold(x.tensor());
    else if constexpr (detail::holds_tensor<X>) hold(x.value());
    else {
      hold(Tensor(x));
      is_value_ = true;
    }
  }
  [[gnu::cold]] NamedTensor(NamedTensor&&) = default;
  [[gnu::cold]] NamedTensor& operator=(NamedTensor&&) = default;
  [[gnu::cold]] NamedTensor(NamedTensor const&) = default;
  [[gnu::cold]] NamedTensor& operator=(NamedTensor const&) = default;
  [[gnu::cold]] ~NamedTensor() = default;

  std::string const& name() const { return name_; }
  situ::dtype dtype() const { return dtype_; }
  Shape const& shape() const { return layout().shape; }
  int64_t size() const { return handle_.body() ? handle_.body()->size : 0; }

  // What follows is for situ's own use.
  Layout const& layout() const { return handle_.body() ? handle_.body()->layout : detail::empty_layout; }
  bool is_contiguous() const { return handle_.body() ? handle_.body()->contiguous : true; }
  void* first() const { return handle_.body() ? handle_.body()->first : nullptr; }
  detail::StorageHead* head() const { return handle_.body() ? handle_.body()->storage.head() : nullptr; }
  detail::DeviceFunctions const& device() const { return *device_; }
  /// It holds the value of an expression: nobody would see what is written to it.
  bool is_value() const { return is_value_; }
  /// It stands for its memory: where another one of a model is the same, one of them is enough in a file.
  bool may_be_tied() const { return may_be_tied_; }
  void set_may_be_tied() { may_be_tied_ = true; }
  void set_name(std::string name) { name_ = std::move(name); }
  /// Memory of its own, on the same device, contiguous and not initialised.
  [[gnu::cold]] NamedTensor fresh(std::string name) const {
    NamedTensor result = *this;
    result.name_ = std::move(name);
    result.handle_ = device_->fresh(static_cast<std::size_t>(size() * detail::bytes_of_dtype(dtype_)), size(), shape());
    return result;
  }
  [[gnu::cold]] bool is_tied_to(NamedTensor const& other) const {
    return may_be_tied_ && other.may_be_tied_ && size() > 0 && first() == other.first() && dtype_ == other.dtype_ && layout().shape == other.layout().shape &&
           layout().strides == other.layout().strides;
  }

 private:
  template <class T, class D>
  void hold(Tensor<T, D> const& x) {
    handle_ = x.handle();
    dtype_ = dtype_of<T>;
    device_ = &detail::DeviceFunctionsOf<D>::table;
  }

  std::string name_;
  detail::Handle handle_;
  situ::dtype dtype_ = situ::dtype::float32;
  detail::DeviceFunctions const* device_ = nullptr;
  bool is_value_ = false, may_be_tied_ = false;
};

}  // namespace io

/// Collects the state of a module or an optimiser. It stands in this namespace so that every for_each_state is found from where it is called.
struct StateCollector {
  std::vector<io::NamedTensor>* to;
  std::string_view prefix;
  template <class X>
  [[gnu::cold]] void operator()(std::string const& name, X const& x) const {
    add(name, io::NamedTensor({}, x));
  }
  [[gnu::cold]] SITU_NOINLINE void add(std::string const& name, io::NamedTensor&& each) const {
    each.set_name(std::string(prefix) + name);
    each.set_may_be_tied();
    to->push_back(std::move(each));
  }
};

/// What has named parameters and buffers: a module, an optimiser, and whatever for_each_state(x, f) was written for.
template <class X>
concept has_state = requires(X& x, StateCollector const& f) { for_each_state(x, f); };

namespace io {

/// The state of a module or an optimiser, by name, in its order; `prefix` comes before each name, as "model." would. Handles: what is loaded through them is
/// loaded into x.
///
/// Example   auto all = io::named_state(net, "model.");
///           for (auto& each : io::named_state(optimizer, "optimizer.")) all.push_back(each);
///           io::save_safetensors("checkpoint.safetensors", all);
template <class X>
  requires has_state<std::remove_reference_t<X>>
[[gnu::cold]] std::vector<NamedTensor> named_state(X&& x, std::string_view prefix = {}) {
  std::vector<NamedTensor> result;
  for_each_state(x, StateCollector{&result, prefix});
  return result;
}

}  // namespace io
}  // namespace situ::inline SITU_ABI
