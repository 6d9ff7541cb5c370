/// Storage: a reference-counted piece of one device's memory.
#pragma once

#include <cstddef>
#include <utility>

#include <situ/core/device.hpp>
#include <situ/core/scalar.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The head of a storage. It lies in ordinary host memory, and in front of the data where the device allocates so.
struct StorageHead {
  int64_t references = 1;
  void* memory = nullptr;
  std::size_t bytes = 0;
  void (*destroy)(StorageHead*) noexcept = nullptr;
  void* context = nullptr;       ///< of a foreign deleter
  bool allocated_here = true;    ///< false for from_blob: never reused behind the owner's back
  bool read_only = false;
};

/// A counted pointer to a storage head. Counts are atomic: handles may be copied from several threads.
class Storage {
 public:
  constexpr Storage() = default;
  explicit Storage(StorageHead* adopted) : head_(adopted) {}
  Storage(Storage const& other) noexcept : head_(other.head_) {
    if (head_) __atomic_fetch_add(&head_->references, 1, __ATOMIC_RELAXED);
  }
  Storage(Storage&& other) noexcept : head_(std::exchange(other.head_, nullptr)) {}
  Storage& operator=(Storage const& other) noexcept {
    Storage(other).swap(*this);
    return *this;
  }
  Storage& operator=(Storage&& other) noexcept {
    Storage(std::move(other)).swap(*this);
    return *this;
  }
  ~Storage() {
    // The last owner needs no atomic decrement: nobody else can see the count.
    if (head_ && (__atomic_load_n(&head_->references, __ATOMIC_ACQUIRE) == 1 ||
                  __atomic_fetch_sub(&head_->references, 1, __ATOMIC_ACQ_REL) == 1)) {
      head_->destroy(head_);
    }
  }
  void swap(Storage& other) noexcept { std::swap(head_, other.head_); }

  StorageHead* head() const { return head_; }
  explicit operator bool() const { return head_ != nullptr; }
  int64_t use_count() const { return head_ ? __atomic_load_n(&head_->references, __ATOMIC_ACQUIRE) : 0; }
  friend bool operator==(Storage const& a, Storage const& b) { return a.head_ == b.head_; }

 private:
  StorageHead* head_ = nullptr;
};

template <class D>
struct OwnedStorage {
  static constexpr std::size_t head_bytes = 64;
  static_assert(sizeof(StorageHead) <= head_bytes);

  static void destroy_with_data(StorageHead* head) noexcept { device_traits<D>::deallocate(head, head->bytes + head_bytes); }
  static void destroy_apart(StorageHead* head) noexcept {
    device_traits<D>::deallocate(head->memory, head->bytes);
    delete head;
  }
};

/// Memory of `bytes` bytes on D, uninitialised, in one allocation of the device. No memory is asked for when bytes is 0.
template <class D>
Storage allocate(std::size_t bytes) {
  using Owned = OwnedStorage<D>;
  if (bytes == 0) return {};
  if constexpr (requires { device_traits<D>::head_before_data; }) {
    char* const block = static_cast<char*>(device_traits<D>::allocate(bytes + Owned::head_bytes));
    auto* const head = ::new (static_cast<void*>(block)) StorageHead;
    head->memory = block + Owned::head_bytes;
    head->bytes = bytes;
    head->destroy = &Owned::destroy_with_data;
    return Storage(head);
  } else {
    auto* const head = new StorageHead;
    try {
      head->memory = device_traits<D>::allocate(bytes);
    } catch (...) {
      delete head;
      throw;
    }
    head->bytes = bytes;
    head->destroy = &Owned::destroy_apart;
    return Storage(head);
  }
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
