/// Storage: a reference-counted piece of one device's memory, and the counted description of a tensor in it.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include <situ/core/block_pool.hpp>
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
  if (SITU_SINGLE_THREADED) ++count;  // plainly, so that the compiler knows what it leaves alone
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

struct StreamState;
struct StreamRecorder;

/// Which stream a thread's work on an asynchronous device goes to. One per thread and device.
struct CurrentStream {
  uint64_t segment = 0;          ///< names the stream and this stay of the thread on it; 0: nothing was done yet
  bool used = false;             ///< something was done in this segment
  void* native = nullptr;        ///< as the device's own functions know it; null is its default stream
  StreamState* state = nullptr;  ///< null is the default stream
  StreamRecorder* recorder = nullptr;
};

/// Which streams used a storage of an asynchronous device, as segments: see device/order.hpp.
struct StreamUses {
  static constexpr uint64_t nobody = 2;
  uint64_t stamp = nobody;    ///< the segment that used it last; bit 0: a write must look closer
  uint64_t written = nobody;  ///< the segment that wrote it last
  uint64_t read = 0;          ///< one that read it since; 0 for none
  uint64_t* more = nullptr;   ///< the others
  int more_count = 0;
};

/// The head of a storage, in ordinary host memory.
struct StorageHead {
  int64_t references = 1;
  void* memory = nullptr;
  std::size_t bytes = 0;
  void (*destroy)(StorageHead*) noexcept = nullptr;
  bool allocated_here = true;  ///< false for from_blob: never written again behind the owner's back
  bool read_only = false;
  uint32_t version = 0;          ///< how often its elements were written in place
  char const* writer = nullptr;  ///< by which function last
  uint32_t recorded = 0;         ///< the version that the last write gave it which was recorded as one of a Variable's part
  void* uses = nullptr;          ///< what is in flight: StreamUses on an asynchronous device, CopyInFlight in page-locked memory

  /// Atomic, so that threads which write different parts of one storage do not race for these two.
  void note_write(char const* who) noexcept {
    __atomic_store_n(&version, __atomic_load_n(&version, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&writer, who, __ATOMIC_RELAXED);
  }
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

  Body(Storage const& of, void* at, Layout const& view) noexcept : Body(of, at, view, view.measure()) {}
  Body(Shape const& shape, int64_t count) noexcept : layout(shape), size(count), apart(false) {}

  static void* operator new(std::size_t bytes) { return take_block(bytes); }
  static void operator delete(void* body) noexcept { give_block(body); }

 private:
  Body(Storage const& of, void* at, Layout const& view, Layout::Measure measure) noexcept
      : storage(of), first(at), layout(view), size(measure.size), contiguous(measure.contiguous) {}
};

/// A counted pointer to a body: all that a Tensor holds. A null handle is an empty tensor.
class Handle {
 public:
  constexpr Handle() = default;
  explicit Handle(Body* adopted) : body_(adopted) {}
  Handle(Handle const& other) noexcept : body_(other.body_) { hold(body_); }
  Handle(Handle&& other) noexcept : body_(std::exchange(other.body_, nullptr)) {}
  Handle& operator=(Handle other) noexcept {
    std::swap(body_, other.body_);
    return *this;
  }
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ warns at the end of every std::optional<Tensor>
#endif
  ~Handle() {
    if (!(__builtin_constant_p(body_ == nullptr) && body_ == nullptr)) drop(body_);
  }
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

  void swap(Handle& other) noexcept { std::swap(body_, other.body_); }

  Body* body() const { return body_; }
  /// Handles of this body, and other views of its storage.
  int64_t use_count() const {
    return body_ ? __atomic_load_n(&body_->handles, __ATOMIC_ACQUIRE) + (body_->storage ? body_->storage.use_count() - 1 : 0) : 0;
  }

 private:
  static SITU_NOINLINE void hold(Body* body) noexcept {
    if (SITU_LIKELY(body != nullptr)) count_up(body->handles);
  }
  // Out of line: expressions end many handles, and each end would be inlined twice, once for exceptions.
  static SITU_NOINLINE void drop(Body* body) noexcept {
    if (body && SITU_UNLIKELY(count_down(body->handles))) end(body);
  }
  static SITU_NOINLINE void end(Body* body) noexcept {  // apart from drop, which then needs no registers of its caller
    Storage const last = std::move(body->storage);        // may end the block that the body lies in
    if (body->apart) delete body;
  }
  Body* body_ = nullptr;
};

/// A handle to another view of the same storage.
SITU_NOINLINE inline Handle make_view(Storage const& storage, void* first, Layout const& layout) {
  return Handle(new Body(storage, first, layout));
}
/// A handle to elements of `item` bytes of another one's storage, whatever their type.
SITU_NOINLINE inline Handle make_view(Handle const& of, Viewed const& view, std::size_t item) {
  Body const* const body = of.body();
  if (SITU_UNLIKELY(!body)) return make_view(Storage(), nullptr, view.layout);
  char* const first = static_cast<char*>(body->first);
  return Handle(new Body(body->storage, first ? first + view.offset * static_cast<int64_t>(item) : nullptr, view.layout));
}

/// D runs its work later, on streams: whoever touches a storage of it says so first.
template <class D>
concept asynchronous = requires { device_traits<D>::current_stream(); };
/// D is host memory that asynchronous copies start from and end in.
template <class D>
concept copied_asynchronously = requires(StorageHead& head) { device_traits<D>::await_copies(head, true); };

/// To be called before work that reads a storage is enqueued on this thread's stream of D, or before the host reads it. One comparison as long as
/// one stream is in use; otherwise that stream is made to wait for those that wrote it.
template <class D>
SITU_INLINE void before_read(StorageHead const* head) {
  if constexpr (asynchronous<D>) {
    if (!head) return;
    auto const* const uses = static_cast<StreamUses const*>(__atomic_load_n(&head->uses, __ATOMIC_RELAXED));
    uint64_t const mine = device_traits<D>::current_stream().segment;
    if (SITU_LIKELY(uses && (__atomic_load_n(&uses->stamp, __ATOMIC_RELAXED) | 1) == (mine | 1))) return;
    device_traits<D>::order_after_others(*const_cast<StorageHead*>(head), false);
  } else if constexpr (copied_asynchronously<D>) {
    if (SITU_UNLIKELY(head && __atomic_load_n(&head->uses, __ATOMIC_RELAXED))) device_traits<D>::await_copies(*const_cast<StorageHead*>(head), false);
  }
}
/// The same before a write, which waits for those that read it as well.
template <class D>
SITU_INLINE void before_write(StorageHead* head) {
  if constexpr (asynchronous<D>) {
    if (!head) return;
    auto const* const uses = static_cast<StreamUses const*>(__atomic_load_n(&head->uses, __ATOMIC_RELAXED));
    if (SITU_LIKELY(uses && __atomic_load_n(&uses->stamp, __ATOMIC_RELAXED) == device_traits<D>::current_stream().segment)) return;
    device_traits<D>::order_after_others(*head, true);
  } else if constexpr (copied_asynchronously<D>) {
    if (SITU_UNLIKELY(head && __atomic_load_n(&head->uses, __ATOMIC_RELAXED))) device_traits<D>::await_copies(*head, true);
  }
}
/// Whether something may be in flight on it that this thread's stream of D is not behind.
template <class D>
SITU_INLINE bool in_flight_elsewhere(StorageHead const* head) {
  if constexpr (asynchronous<D>) {
    auto const* const uses = static_cast<StreamUses const*>(head->uses);
    if (SITU_LIKELY(uses && __atomic_load_n(&uses->stamp, __ATOMIC_RELAXED) == device_traits<D>::current_stream().segment)) return false;
    return device_traits<D>::used_by_others(*head);
  } else if constexpr (copied_asynchronously<D>) {
    return head->uses != nullptr;
  } else {
    return false;
  }
}

/// Tells a recorder that a storage was made: device/order.hpp.
void made_while_recording(StreamRecorder* recorder, StorageHead& head);

/// To be called before memory of D that somebody else owns goes back to them: what is enqueued from then on in this thread's stream of D comes
/// behind all uses; page-locked memory is waited for.
template <class D>
void before_release(StorageHead* head) noexcept {
  if constexpr (asynchronous<D> || copied_asynchronously<D>) {
    if (head->uses) device_traits<D>::end_uses(*head);
  }
}

/// The head and the body of a fresh tensor, side by side in front of its data or in a block of their own.
struct FreshBlock {
  StorageHead head;
  Body body;
  FreshBlock(Shape const& shape, int64_t size) : body(shape, size) {}
};
inline constexpr std::size_t fresh_block_bytes = (sizeof(FreshBlock) + 63) / 64 * 64;

struct FreshUsedBlock : FreshBlock {
  StreamUses uses;
  using FreshBlock::FreshBlock;
};

template <class D>
struct FreshStorage {
  static constexpr bool in_front = requires { device_traits<D>::head_before_data; };
  using ApartBlock = std::conditional_t<asynchronous<D>, FreshUsedBlock, FreshBlock>;

  static void destroy(StorageHead* head) noexcept {
    auto* const block = reinterpret_cast<FreshBlock*>(head);
    if constexpr (copied_asynchronously<D>) {
      if (SITU_UNLIKELY(head->uses != nullptr) && device_traits<D>::deallocate_after_copies(*head, block, head->bytes + fresh_block_bytes)) return;
    }
    if constexpr (in_front) {
      device_traits<D>::deallocate(block, head->bytes + fresh_block_bytes);
    } else {
      if constexpr (asynchronous<D>) {
        if (SITU_LIKELY(static_cast<ApartBlock*>(block)->uses.stamp == device_traits<D>::current_stream().segment)) device_traits<D>::deallocate(head->memory, head->bytes);
        else device_traits<D>::deallocate_after_others(*head);
      } else if (head->memory) {
        device_traits<D>::deallocate(head->memory, head->bytes);
      }
      delete static_cast<ApartBlock*>(block);
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
    auto* const apart = new typename FreshStorage<D>::ApartBlock(shape, size);
    try {
      if constexpr (asynchronous<D>) {
        apart->head.uses = &apart->uses;
        apart->uses.stamp = apart->uses.written = device_traits<D>::use_stream();
      }
      memory = device_traits<D>::allocate(bytes);
    } catch (...) {
      delete apart;
      throw;
    }
    block = apart;
  }
  block->head.memory = block->body.first = memory;
  block->head.bytes = bytes;
  block->head.destroy = &FreshStorage<D>::destroy;
  block->body.storage = Storage(&block->head);
  Handle result(&block->body);
  if constexpr (asynchronous<D>) {
    if (StreamRecorder* const recorder = device_traits<D>::current_stream().recorder; SITU_UNLIKELY(recorder != nullptr)) made_while_recording(recorder, block->head);
  }
  return result;
}

/// The same for elements of `item` bytes. Throws ShapeError for what cannot be a shape.
template <class D>
SITU_NOINLINE Handle make_uninitialized(Shape const& shape, std::size_t item, char const* who) {
  int64_t const count = count_of(shape, who, static_cast<int64_t>(item));
  return make_fresh<D>(static_cast<std::size_t>(count) * item, count, shape);
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
