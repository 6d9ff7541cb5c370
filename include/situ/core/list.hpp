/// A row of elements that grows at its end, for code that is not hot.
///
/// std::vector has a compiler instantiate and optimise some sixty functions for each element type; this has five, and what moves the elements is shared.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include <situ/config.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The memory of a List, the type of its elements forgotten.
struct ListMemory {
  char* first = nullptr;
  std::size_t size = 0, room = 0;  ///< in elements
};
/// Moves the elements to memory for `room` of them. `move` makes one of another and ends that; null where their bytes do.
__attribute__((noinline, cold)) inline void grow_list(ListMemory& list, std::size_t room, std::size_t item, void (*move)(void* to, void* from) noexcept) {
  char* const to = static_cast<char*>(::operator new(room * item));
  if (move) {
    for (std::size_t k = 0; k < list.size; ++k) move(to + k * item, list.first + k * item);
  } else if (list.size > 0) {
    std::memcpy(to, list.first, list.size * item);
  }
  ::operator delete(list.first);
  list.first = to, list.room = room;
}

/// A place at the end.
__attribute__((noinline)) inline void* list_place(ListMemory& list, std::size_t item, void (*move)(void* to, void* from) noexcept) {
  if (list.size == list.room) grow_list(list, 2 * list.room + 4, item, move);
  return list.first + list.size * item;
}
/// Ends the elements from number `count` on.
__attribute__((noinline)) inline void cut_list(ListMemory& list, std::size_t count, std::size_t item, void (*end)(void*) noexcept) noexcept {
  for (std::size_t k = count; end && k < list.size; ++k) end(list.first + k * item);
  list.size = count;
}

/// Elements are moved when there is no more room.
template <class T>
class List {
 public:
  static_assert(std::is_nothrow_move_constructible_v<T> && alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  List() = default;
  List(List&& other) noexcept : memory_(std::exchange(other.memory_, ListMemory())) {}
  List(List const& other) : List() {
    reserve(other.size());
    for (T const& x : other) push_back(x);
  }
  List& operator=(List other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~List() {
    if (!memory_.first) return;
    clear();
    ::operator delete(memory_.first);
  }

  std::size_t size() const { return memory_.size; }
  bool empty() const { return memory_.size == 0; }
  T* data() { return reinterpret_cast<T*>(memory_.first); }
  T const* data() const { return reinterpret_cast<T const*>(memory_.first); }
  T* begin() { return reinterpret_cast<T*>(memory_.first); }
  T const* begin() const { return reinterpret_cast<T const*>(memory_.first); }
  T* end() { return reinterpret_cast<T*>(memory_.first) + memory_.size; }
  T const* end() const { return reinterpret_cast<T const*>(memory_.first) + memory_.size; }
  T& operator[](std::size_t k) { return reinterpret_cast<T*>(memory_.first)[k]; }
  T const& operator[](std::size_t k) const { return reinterpret_cast<T const*>(memory_.first)[k]; }
  T& back() { return reinterpret_cast<T*>(memory_.first)[memory_.size - 1]; }

  /// Room for `count` elements in all, so that so many can be added without an exception.
  void reserve(std::size_t count) {
    if (count > memory_.room) grow_list(memory_, count, sizeof(T), mover);
  }
  SITU_NOINLINE void push_back(T x) {
    ::new (list_place(memory_, sizeof(T), mover)) T(static_cast<T&&>(x));
    ++memory_.size;
  }
  void pop_back() { cut_list(memory_, memory_.size - 1, sizeof(T), ender); }
  void clear() noexcept { cut_list(memory_, 0, sizeof(T), ender); }
  /// Keeps the first `count` elements.
  void truncate(std::size_t count) noexcept { cut_list(memory_, count, sizeof(T), ender); }
  /// Of numbers and pointers; new ones are 0.
  void resize(std::size_t count)
    requires std::is_trivially_copyable_v<T>
  {
    reserve(count);
    if (count > memory_.size) std::memset(static_cast<void*>(end()), 0, (count - memory_.size) * sizeof(T));
    memory_.size = count;
  }

 private:
  static void move(void* to, void* from) noexcept {
    ::new (to) T(static_cast<T&&>(*static_cast<T*>(from)));
    static_cast<T*>(from)->~T();
  }
  static void destroy(void* x) noexcept { static_cast<T*>(x)->~T(); }
  static constexpr void (*mover)(void*, void*) noexcept = std::is_trivially_copyable_v<T> ? nullptr : &move;
  static constexpr void (*ender)(void*) noexcept = std::is_trivially_destructible_v<T> ? nullptr : &destroy;

  ListMemory memory_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
