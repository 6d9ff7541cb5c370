/// Asynchronous transfers between page-locked memory and devices: enqueued, and read when they are there.
///
/// A transfer is one copy. What is contiguous but for the order of its axes keeps that order; rows with gaps between them are packed by
/// the copy itself; anything else is packed first, on the side that it comes from.
#pragma once

#include <situ/device/host_functions.hpp>
#include <situ/device/event.hpp>
#include <situ/tensor/transfer.hpp>

namespace situ::inline SITU_ABI {

/// What is on its way to the host: a value that cannot be read before it is there.
template <class>
class Pending;

/// A tensor in page-locked memory that a device is copying to. Handles share the copy; the last one may go before it has ended.
///
/// Throws    from wait() and get(): CudaError, and IndexError for what a kernel found wrong before the copy.
/// Threads   a handle is used by one thread at a time; each thread may have its own.
/// Example   Pending<Tensor<float, Pinned>> h = g.to_async(Pinned{});  prepare_more();  use(h.get());
template <element T>
class Pending<Tensor<T, Pinned>> {
 public:
  using value_type = T;

  Pending() = default;

  /// Whether get() returns at once.
  bool ready() const { return moment_.passed(); }
  /// Waits until the copy has ended.
  void wait() const {
    moment_.wait();
    if (check_) check_();
  }
  /// The tensor; waits for it.
  Tensor<T, Pinned> get() const {
    wait();
    if (finish_) {
      if (detail::host_function_stream()) {
        detail::fail<Error>("get: what has arrived is first converted, in memory of its own, which a host function cannot make: call get() outside of it, or copy a tensor of "
                            "the type and layout that is wanted");
      }
      value_ = finish_(raw_);
      finish_ = nullptr;
      raw_ = {};
    }
    return value_;
  }

  /// For situ's own use. `finish` makes the value of what arrives.
  Pending(Tensor<T, Pinned> const& value, detail::Moment const& end, void (*checks)()) : value_(value), moment_(end), check_(checks) {}
  Pending(detail::Handle const& raw, Tensor<T, Pinned> (*finish)(detail::Handle const&), detail::Moment const& end, void (*checks)())
      : raw_(raw), finish_(finish), moment_(end), check_(checks) {}
  detail::Moment const& moment() const { return moment_; }
  detail::Handle const& coming() const { return finish_ ? raw_ : value_.handle(); }
  auto check() const { return check_; }

 private:
  mutable Tensor<T, Pinned> value_;
  mutable detail::Handle raw_;
  mutable Tensor<T, Pinned> (*finish_)(detail::Handle const&) = nullptr;
  detail::Moment moment_;
  void (*check_)() = nullptr;
};

template <class Stream, element T, class Error = error::a_Pending_value_is_read_with_get<Tensor<T, Pinned>>>
void operator<<(Stream&, Pending<Tensor<T, Pinned>> const&) = delete;

namespace detail {

/// Throws what kernels of D found wrong.
template <class D>
void check_faults() {
  if (IndexFault* const fault = device_traits<D>::fault()) throw_fault(*fault, [] { return device_traits<D>::name(); });
}

template <class To, class From>
concept from_pinned_to_device = std::is_same_v<From, Pinned> && requires(void* to, void const* from) { device_traits<To>::copy_from_pinned(to, from, 0); };
template <class To, class From>
concept from_device_to_pinned = std::is_same_v<To, Pinned> && requires(void* to, void const* from) { device_traits<From>::copy_to_pinned(to, from, 0); };
template <class To, class From>
concept crosses_asynchronously = from_pinned_to_device<To, From> || from_device_to_pinned<To, From> || (std::is_same_v<To, From> && (asynchronous<To> || std::is_same_v<To, Pinned>)) ||
                                 (asynchronous<To> && asynchronous<From> && copies_directly<To, From>);

/// What came broadcast, with elements of its own.
template <class T>
Tensor<T, Pinned> finish_broadcast(Handle const& raw) {
  return Tensor<T, Pinned>::from_handle(raw).clone();
}

/// Pending where the host is to wait for it; a tensor on a device, which orders those who use it.
template <class T, class From, class To>
struct transferred_async {
  static constexpr bool waits = std::is_same_v<To, Pinned> && (std::is_same_v<From, Pinned> || from_device_to_pinned<To, From>);
  using type = std::conditional_t<waits, Pending<Tensor<T, Pinned>>, Tensor<T, To>>;
};

template <class To, class T, class From>
typename transferred_async<T, From, To>::type transfer_async(Tensor<T, From> const& from) {
  if constexpr (std::is_same_v<To, From> && std::is_same_v<To, Pinned>) {
    return Pending<Tensor<T, Pinned>>(from, {}, nullptr);
  } else if constexpr (!from_pinned_to_device<To, From> && !from_device_to_pinned<To, From>) {
    return transfer<To>(from);
  } else {
    constexpr bool to_host = std::is_same_v<To, Pinned>;
    using D = std::conditional_t<to_host, From, To>;
    Tensor<T, From> source = from;
    Crossing crossing = crossing_of(source.layout(), sizeof(T));
    bool spans = false;  // gaps included
    if (!crossing.whole && crossing.rows.count == 0) {
      if constexpr (!to_host || std::is_same_v<typename device_traits<From>::kernels, cpu_kernels>) {
        source = std::as_const(source).clone();
        crossing = crossing_of(source.layout(), sizeof(T));
      } else {  // without a kernel, so that files of the host's compiler can do the same
        spans = true;
        auto const extent = source.layout().extent();
        crossing.elements = extent.last - extent.first + 1;
        crossing.first = extent.first;
        crossing.origin = -extent.first;
        crossing.strides = source.layout().strides;
      }
    }
    Layout layout = source.layout();
    layout.strides = crossing.strides;
    int64_t const repeated = to_host ? 1 : repetitions(layout);
    Tensor<T, To> flat = Tensor<T, To>::uninitialized({repeated, crossing.elements}, "to_async");
    if (repeated > 1) lay_apart(layout, crossing.elements);
    T* const begin = flat.body() ? static_cast<T*>(flat.body()->first) : nullptr;
    auto result = Tensor<T, To>::from_handle(make_view(flat.storage(), begin ? begin + crossing.origin : nullptr, layout));
    if (crossing.elements == 0) {
      if constexpr (to_host) return Pending<Tensor<T, Pinned>>(result, {}, nullptr);
      else return result;
    } else {
      auto* const head = const_cast<StorageHead*>(to_host ? result.storage_head() : source.storage_head());
      CopyNote note(device_traits<D>::stream_driver(), D::ordinal, device_traits<D>::current_stream(), to_host);
      T const* const first = std::as_const(source).data() + crossing.first;
      T* const to = begin;
      bool const whole = crossing.whole || spans;
      std::size_t const bytes = static_cast<std::size_t>(crossing.elements) * sizeof(T);
      if constexpr (to_host) {
        if (whole) device_traits<D>::copy_to_pinned(to, first, bytes);
        else device_traits<D>::copy_rows_to_pinned(to, first, crossing.rows);
        if (layout.is_broadcast()) return Pending<Tensor<T, Pinned>>(result.handle(), &finish_broadcast<T>, note.publish(*head), &check_faults<D>);
        return Pending<Tensor<T, Pinned>>(result, note.publish(*head), &check_faults<D>);
      } else {
        if (whole) device_traits<D>::copy_from_pinned(to, first, bytes);
        else device_traits<D>::copy_rows_from_pinned(to, first, crossing.rows);
        note.publish(*head);
        repeat_bytes<D>(to, bytes, repeated);
        return result;
      }
    }
  }
}

template <class U, class T>
Tensor<U, Pinned> finish_conversion(Handle const& raw) {
  return Tensor<U, Pinned>(cast<U>(Tensor<T, Pinned>::from_handle(raw)));
}

/// Narrowing happens before the copy, widening after it: the fewer bytes cross.
template <class U, class To, class T, class From>
typename transferred_async<U, From, To>::type convert_and_transfer_async(Tensor<T, From> const& from) {
  if constexpr (std::is_same_v<U, T>) return transfer_async<To>(from);
  else if constexpr (sizeof(U) <= sizeof(T)) return transfer_async<To>(converted<U>(from));
  else if constexpr (std::is_same_v<To, Pinned>) {
    auto const arrives = transfer_async<To>(from);
    return Pending<Tensor<U, Pinned>>(arrives.coming(), &finish_conversion<U, T>, arrives.moment(), arrives.check());
  } else {
    return converted<U>(transfer_async<To>(from));
  }
}

/// The tensor itself, or the value of a formula where it was computed: in page-locked memory if all of its operands are there.
template <class E>
auto kept_in_place(E const& e) {
  return Tensor<value_of<E>, device_of<E>>(e);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
