/// Storage: a reference-counted piece of one device's memory, and the counted description of a tensor in it.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include <situ/core/device.hpp>
#include <situ/core/layout.hpp>
#include <situ/core/scalar.hpp>

#if defined(__has_include)
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define SITU_SINGLE_THREADED __libc_single_threaded
#endif
#endif
#ifndef SITU_SINGLE_THREADED
#define SITU_SINGLE_THREADED 0
#endif

namespace situ::inline SITU_ABI {
namespace detail {

// Counts are atomic, because handles may be copied from several threads; a process that has only one pays nothing for it.
SITU_INLINE void count_up(int64_t& count) noexcept {
  if (SITU_SINGLE_THREADED) __atomic_store_n(&count, __atomic_load_n(&count, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
  else __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
}
/// Whether this was the last one. The only owner needs no atomic operation: nobody else can see the count.
SITU_INLINE bool count_down(int64_t& count) noexcept {
  int64_t const before = __atomic_load_n(&count, __ATOMIC_ACQUIRE);
  if (before == 1) return true;
  if (SITU_SINGLE_THREADED) {
    __atomic_store_n(&count, before - 1, __ATOMIC_RELAXED);
    return false;
  }
  return __atomic_fetch_sub(&count, 1, __ATOMIC_ACQ_REL) == 1;
}

/// The head of a storage, in ordinary host memory.
struct StorageHead {
  int64_t references = 1;
  void* memory = nullptr;
  std::size_t bytes = 0;
  void (*destroy)(StorageHead*) noexcept = nullptr;
  bool allocated_here = true;  ///< false for from_blob: never written again behind the owner's back
  bool read_only = false;
};

/// A counted pointer to a storage head.
class Storage {
 public:
  constexpr Storage() = default;
  explicit Storage(StorageHead* adopted) : head_(adopted) {}
  Storage(Storage const& other) noexcept : head_(other.head_) {
    if (head_) count_up(head_->references);
  }
  Storage(Storage&& other) noexcept : head_(std::exchange(other.head_, nullptr)) {}
  Storage& operator=(Storage other) noexcept {
    std::swap(head_, other.head_);
    return *this;
  }
  ~Storage() {
    if (head_ && count_down(head_->references)) head_->destroy(head_);
  }

  StorageHead* head() const { return head_; }
  explicit operator bool() const { return head_ != nullptr; }
  int64_t use_count() const { return head_ ? __atomic_load_n(&head_->references, __ATOMIC_ACQUIRE) : 0; }
  friend bool operator==(Storage const& a, Storage const& b) { return a.head_ == b.head_; }

 private:
  StorageHead* head_ = nullptr;
};

/// What a tensor is: where its first element lies, and its layout. Never changes once it is shared.
struct Body {
  int64_t handles = 1;
  Storage storage;
  void* first = nullptr;
  Layout layout;
  int64_t size = 0;
  bool contiguous = true;
  bool apart = true;  ///< false where it lies in the storage's own block
};

/// A counted pointer to a body: all that a Tensor holds. A null handle is an empty tensor.
class Handle {
 public:
  constexpr Handle() = default;
  explicit Handle(Body* adopted) : body_(adopted) {}
  Handle(Handle const& other) noexcept : body_(other.body_) {
    if (body_) count_up(body_->handles);
  }
  Handle(Handle&& other) noexcept : body_(std::exchange(other.body_, nullptr)) {}
  Handle& operator=(Handle other) noexcept {
    std::swap(body_, other.body_);
    return *this;
  }
  ~Handle() {
    if (body_) drop(body_);
  }

  Body* body() const { return body_; }
  /// Handles of this body, and other views of its storage.
  int64_t use_count() const {
    return body_ ? __atomic_load_n(&body_->handles, __ATOMIC_ACQUIRE) + (body_->storage ? body_->storage.use_count() - 1 : 0) : 0;
  }

 private:
  // Out of line: expressions end many handles, and each of them would be inlined twice, once for exceptions.
  static SITU_NOINLINE void drop(Body* body) noexcept {
    if (SITU_LIKELY(!count_down(body->handles))) return;
    Storage const last = std::move(body->storage);  // may end the block that the body lies in
    if (body->apart) delete body;
  }
  Body* body_ = nullptr;
};

/// A handle to another view of the same storage.
inline Handle make_view(Storage const& storage, void* first, Layout const& layout) {
  return Handle(new Body{1, storage, first, layout, layout.size(), layout.is_contiguous(), true});
}

/// The head and the body of a fresh tensor, side by side in front of its data or in a block of their own.
struct FreshBlock {
  StorageHead head;
  Body body;
  FreshBlock(Shape const& shape, int64_t size) : body{1, {}, nullptr, Layout(shape), size, true, false} {}
};
inline constexpr std::size_t fresh_block_bytes = (sizeof(FreshBlock) + 63) / 64 * 64;

template <class D>
struct FreshStorage {
  static constexpr bool in_front = requires { device_traits<D>::head_before_data; };

  static void destroy(StorageHead* head) noexcept {
    auto* const block = reinterpret_cast<FreshBlock*>(head);
    if constexpr (in_front) {
      device_traits<D>::deallocate(block, head->bytes + fresh_block_bytes);
    } else {
      if (head->memory) device_traits<D>::deallocate(head->memory, head->bytes);
      delete block;
    }
  }
};

/// A fresh tensor's body over `bytes` bytes of D for a contiguous shape of `size` elements, uninitialised: one allocation of the device, none when
/// bytes is 0.
template <class D>
SITU_NOINLINE Handle make_fresh(std::size_t bytes, int64_t size, Shape const& shape) {
  if (SITU_UNLIKELY(bytes == 0)) return make_view({}, nullptr, Layout(shape));
  FreshBlock* block;
  void* memory;
  if constexpr (FreshStorage<D>::in_front) {
    char* const all = static_cast<char*>(device_traits<D>::allocate(bytes + fresh_block_bytes));
    block = ::new (static_cast<void*>(all)) FreshBlock(shape, size);
    memory = all + fresh_block_bytes;
  } else {
    block = new FreshBlock(shape, size);
    try {
      memory = device_traits<D>::allocate(bytes);
    } catch (...) {
      delete block;
      throw;
    }
  }
  block->head.memory = block->body.first = memory;
  block->head.bytes = bytes;
  block->head.destroy = &FreshStorage<D>::destroy;
  block->body.storage = Storage(&block->head);
  return Handle(&block->body);
}

/// Memory of D for the time of an operation: freed in the order of what is enqueued.
template <class D>
class Temporary {
 public:
  explicit Temporary(std::size_t bytes) : bytes_(bytes), memory_(bytes ? device_traits<D>::allocate(bytes) : nullptr) {}
  Temporary(Temporary const&) = delete;
  Temporary& operator=(Temporary const&) = delete;
  ~Temporary() {
    if (memory_) device_traits<D>::deallocate(memory_, bytes_);
  }
  void* get() const { return memory_; }

 private:
  std::size_t bytes_;
  void* memory_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
