/// Elements on their way between a file and tensors: of any type, on any device, at any strides, in pieces, without kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <situ/core/layout.hpp>
#include <situ/core/scalar.hpp>
#include <situ/device/pinned.hpp>
#include <situ/io/detail/file.hpp>
#include <situ/io/detail/safetensors_format.hpp>
#include <situ/io/state.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

// ---- conversion ----------------------------------------------------------------------------------------------------------------

template <class From, class To>
SITU_NOINLINE void convert_run(void const* from, void* to, int64_t count) {
  auto const* const source = static_cast<From const*>(from);
  auto* const target = static_cast<To*>(to);
  for (int64_t k = 0; k < count; ++k) target[k] = convert_scalar<To>(source[k]);
}

using ConvertRun = void (*)(void const* from, void* to, int64_t count);

/// Converts as cast<T>(x) does. Between types that no function joins directly it goes in steps: 16-bit floats through float, float through double,
/// integers through int64, each of which holds all that comes to it.
[[gnu::cold]] inline void convert_elements(dtype from, void const* in, dtype to, void* out, int64_t count) {
  static constexpr ConvertRun from_double[] = {&convert_run<double, float>, nullptr, nullptr, nullptr, &convert_run<double, bool>, &convert_run<double, int8_t>,
                                               &convert_run<double, int16_t>, &convert_run<double, int32_t>, &convert_run<double, int64_t>, &convert_run<double, uint8_t>};
  static constexpr ConvertRun to_int64[] = {&convert_run<bool, int64_t>, &convert_run<int8_t, int64_t>, &convert_run<int16_t, int64_t>, &convert_run<int32_t, int64_t>, nullptr,
                                            &convert_run<uint8_t, int64_t>};
  static constexpr ConvertRun from_int64[] = {&convert_run<int64_t, float>, &convert_run<int64_t, double>, nullptr, nullptr, &convert_run<int64_t, bool>, &convert_run<int64_t, int8_t>,
                                              &convert_run<int64_t, int16_t>, &convert_run<int64_t, int32_t>, nullptr, &convert_run<int64_t, uint8_t>};
  auto const is_short = [](dtype type) { return type == dtype::float16 || type == dtype::bfloat16; };
  ConvertRun run = nullptr;
  dtype middle = dtype::float32;
  if (from == dtype::float32 || from == dtype::float64 || is_short(from)) {
    if (is_short(from) && to == dtype::float32) run = from == dtype::float16 ? &convert_run<float16, float> : &convert_run<bfloat16, float>;
    else if (from == dtype::float32 && is_short(to)) run = to == dtype::float16 ? &convert_run<float, float16> : &convert_run<float, bfloat16>;
    else if (from == dtype::float32 && to == dtype::float64) run = &convert_run<float, double>;
    else if (from == dtype::float64 && is_short(to)) run = to == dtype::float16 ? &convert_run<double, float16> : &convert_run<double, bfloat16>;  // rounded once
    else if (from == dtype::float64) run = from_double[static_cast<int>(to)];
    else if (from == dtype::float32) middle = dtype::float64;
  } else if (from != dtype::int64) {
    if (to == dtype::int64) run = to_int64[static_cast<int>(from) - static_cast<int>(dtype::boolean)];
    else middle = dtype::int64;
  } else if (!is_short(to)) {
    run = from_int64[static_cast<int>(to)];
  }
  if (run) return run(in, out, count);
  constexpr int64_t piece = 1024;
  int64_t between[piece];
  static_assert(sizeof(double) == sizeof(int64_t));
  auto const* source = static_cast<unsigned char const*>(in);
  auto* target = static_cast<unsigned char*>(out);
  for (; count > 0; count -= piece) {
    int64_t const n = count < piece ? count : piece;
    convert_elements(from, source, middle, between, n);
    convert_elements(middle, between, to, target, n);
    source += n * bytes_of_dtype(from);
    target += n * bytes_of_dtype(to);
  }
}

/// Every byte but 0 is true.
inline void normalise_bools(unsigned char* bytes, int64_t count) {
  for (int64_t k = 0; k < count; ++k) bytes[k] = bytes[k] != 0;
}

// ---- strides -----------------------------------------------------------------------------------------------------------------

/// Moves `count` elements from number `first` on, in row-major order, between a strided tensor in host memory and a packed piece.
[[gnu::cold]] inline void move_elements(bool gather, unsigned char* memory, Layout const& layout, int64_t item, int64_t first, int64_t count, unsigned char* packed) {
  int const last = layout.rank() - 1;
  if (last < 0) {
    std::memcpy(gather ? packed : memory, gather ? memory : packed, static_cast<std::size_t>(count * item));
    return;
  }
  int64_t index[max_rank];
  for (int k = last; k >= 0; --k) {
    index[k] = first % layout.shape[k];
    first /= layout.shape[k];
  }
  while (count > 0) {
    int64_t const rest = layout.shape[last] - index[last], n = rest < count ? rest : count;
    int64_t offset = 0;
    for (int k = 0; k <= last; ++k) offset += index[k] * layout.strides[k];
    unsigned char* const row = memory + offset * item;
    int64_t const step = layout.strides[last] * item;
    if (gather) copy_words(item, row, step, packed, item, n);
    else copy_words(item, packed, item, row, step, n);
    packed += n * item;
    count -= n;
    index[last] += n;
    for (int k = last; k > 0 && index[k] == layout.shape[k]; --k) index[k] = 0, ++index[k - 1];
  }
}

// ---- staging -----------------------------------------------------------------------------------------------------------------

/// Two buffers in page-locked memory: while one is copied to or from a device, the other is filled or emptied.
class Staging {
 public:
  static constexpr int64_t capacity = 8 << 20;

  /// `bytes`: how many will pass, at most; smaller buffers do then.
  explicit Staging(int64_t bytes) : size_(bytes < capacity ? bytes : capacity) {}
  Staging(Staging const&) = delete;
  Staging& operator=(Staging const&) = delete;

  int64_t size() const { return size_; }

  /// Room for `bytes` bytes, at most size(), behind what was given out before; waits for the copies from there.
  [[gnu::cold]] unsigned char* room(int64_t bytes) {
    if (used_ + bytes > size_) {
      turn_ ^= 1;
      used_ = 0;
      if (buffers_[turn_].body()) before_write<Pinned>(head(turn_));
    }
    unsigned char* const result = buffer(turn_) + used_;
    used_ += (bytes + 63) / 64 * 64;
    return result;
  }
  /// The head of the buffer that the last room is in.
  StorageHead& head() { return *head(turn_); }

  unsigned char* buffer(int k) {
    if (!buffers_[k].body()) buffers_[k] = make_fresh<Pinned>(static_cast<std::size_t>(size_), size_, Shape(size_));
    return static_cast<unsigned char*>(buffers_[k].body()->first);
  }
  StorageHead* head(int k) { return buffers_[k].body()->storage.head(); }

  /// Waits for all copies.
  [[gnu::cold]] void wait() {
    for (int k = 0; k < 2; ++k) {
      if (buffers_[k].body()) before_write<Pinned>(head(k));
    }
  }

 private:
  int64_t size_, used_ = 0;
  int turn_ = 0;
  Handle buffers_[2];
};

// ---- files ---------------------------------------------------------------------------------------------------------------------

/// Elements in a file, packed.
struct StoredElements {
  InputFile const& file;
  int64_t offset;
  situ::dtype dtype;

  /// Elements [first, first + count) as type `as`. Waits for the disk.
  [[gnu::cold]] void read(int64_t first, int64_t count, situ::dtype as, void* to) const {
    int64_t const item = bytes_of_dtype(dtype);
    if (as == dtype) {
      file.read_fast(to, offset + first * item, count * item);
      if (as == situ::dtype::boolean) normalise_bools(static_cast<unsigned char*>(to), count);
      return;
    }
    constexpr int64_t piece = 1 << 18;
    std::string raw(static_cast<std::size_t>(count * item < piece ? count * item : piece), '\0');
    auto* target = static_cast<unsigned char*>(to);
    for (int64_t done = 0; done < count;) {
      int64_t const n = count - done < piece / item ? count - done : piece / item;
      file.read(raw.data(), offset + (first + done) * item, n * item);
      if (dtype == situ::dtype::boolean) normalise_bools(reinterpret_cast<unsigned char*>(raw.data()), n);
      convert_elements(dtype, raw.data(), as, target, n);
      target += n * bytes_of_dtype(as);
      done += n;
    }
  }
};

/// The elements of a strided tensor in host memory: where they lie, or, of a device, a copy of all that it reaches, gaps included.
class HostElements {
 public:
  [[gnu::cold]] explicit HostElements(io::NamedTensor const& x) : x_(x), item_(bytes_of_dtype(x.dtype())), at_(static_cast<unsigned char*>(x.first())) {
    if (x.device().host) return;
    auto const extent = x.layout().extent();
    copy_.resize(static_cast<std::size_t>((extent.last - extent.first + 1) * item_));
    first_ = at_ + extent.first * item_;
    x.device().to_host(copy_.data(), first_, copy_.size());
    at_ = reinterpret_cast<unsigned char*>(copy_.data()) - extent.first * item_;
  }
  /// Packs elements from number `first` on.
  void gather(int64_t first, int64_t count, void* packed) const { move_elements(true, at_, x_.layout(), item_, first, count, static_cast<unsigned char*>(packed)); }
  void scatter(int64_t first, int64_t count, void const* packed) {
    move_elements(false, at_, x_.layout(), item_, first, count, static_cast<unsigned char*>(const_cast<void*>(packed)));
  }
  /// Brings what was scattered to the device.
  void write_back() const {
    if (!copy_.empty()) x_.device().from_host(first_, copy_.data(), copy_.size());
  }
  /// f(first, count, packed) in pieces, of which each has room in `packed`.
  template <class F>
  void in_pieces(F const& f) {
    constexpr int64_t piece = 1 << 17;
    int64_t const count = x_.size();
    std::string packed(static_cast<std::size_t>((count < piece ? count : piece) * item_), '\0');
    for (int64_t done = 0; done < count; done += piece) f(done, count - done < piece ? count - done : piece, packed.data());
  }

 private:
  io::NamedTensor const& x_;
  int64_t item_;
  unsigned char* at_;
  unsigned char* first_ = nullptr;
  std::string copy_;
};

/// Reads all elements of a tensor. Copies to a device may still run when this returns: `staging` waits for them.
[[gnu::cold]] inline void read_elements(StoredElements const& from, io::NamedTensor const& to, Staging& staging) {
  int64_t const count = to.size(), item = bytes_of_dtype(to.dtype());
  if (count == 0) return;
  DeviceFunctions const& device = to.device();
  to.head()->note_write("load_safetensors");
  device.before_write(to.head());
  auto* const memory = static_cast<unsigned char*>(to.first());
  if (to.is_contiguous()) {
    if (device.host) return from.read(0, count, to.dtype(), memory);
    int64_t const piece = staging.size() / item;
    for (int64_t done = 0; done < count;) {
      int64_t const n = count - done < piece ? count - done : piece;
      unsigned char* const packed = staging.room(n * item);
      from.read(done, n, to.dtype(), packed);
      device.upload(staging.head(), memory + done * item, packed, static_cast<std::size_t>(n * item));
      done += n;
    }
    return;
  }
  HostElements elements(to);
  elements.in_pieces([&](int64_t first, int64_t n, void* packed) {
    from.read(first, n, to.dtype(), packed);
    elements.scatter(first, n, packed);
  });
  elements.write_back();
}

/// Reads tensors whose elements follow one another in a file. Small ones that lie in the host's memory as in the file are read together.
class TensorReader {
 public:
  TensorReader(InputFile const& file, Staging& staging) : file_(file), staging_(staging) {}
  TensorReader(TensorReader const&) = delete;
  TensorReader& operator=(TensorReader const&) = delete;

  [[gnu::cold]] void read(StoredElements const& from, io::NamedTensor const& to) {
    int64_t const bytes = to.size() * bytes_of_dtype(to.dtype());
    if (bytes == 0) return;
    bool const together = bytes <= largest && to.device().host && to.is_contiguous() && to.dtype() == from.dtype && from.dtype != dtype::boolean;
    if (!together || from.offset != end_ || count_ == most) flush();
    if (!together) return read_elements(from, to, staging_);
    to.head()->note_write("load_safetensors");
    to.device().before_write(to.head());
    if (count_ == 0) begin_ = from.offset;
    places_[count_++] = {to.first(), static_cast<std::size_t>(bytes)};
    end_ = from.offset + bytes;
  }
  void flush() {
    if (count_ > 0) file_.read_in_a_row(places_, std::exchange(count_, 0), begin_);
  }

 private:
  static constexpr int64_t largest = 1 << 20;
  static constexpr int most = 64;
  InputFile const& file_;
  Staging& staging_;
  int64_t begin_ = 0, end_ = -1;  ///< in the file, of what waits
  int count_ = 0;
  ::iovec places_[most];
};

/// Writes all elements of a tensor, packed, to what has `write(from, bytes)`.
template <class Output>
[[gnu::cold]] void write_elements(Output& file, io::NamedTensor const& from, Staging& staging) {
  int64_t const count = from.size(), item = bytes_of_dtype(from.dtype()), bytes = count * item;
  if (count == 0) return;
  DeviceFunctions const& device = from.device();
  device.before_read(from.head());
  auto* const memory = static_cast<unsigned char*>(from.first());
  if (from.is_contiguous()) {
    if (device.host) return file.write(memory, bytes);
    int64_t const piece = staging.size();
    for (int64_t at = 0, turn = 0;; at += piece, turn ^= 1) {
      int const here = static_cast<int>(turn);
      int64_t const n = bytes - at < piece ? bytes - at : piece;
      if (n > 0) {
        unsigned char* const buffer = staging.buffer(here);
        device.download(*staging.head(here), buffer, memory + at, static_cast<std::size_t>(n));
      }
      if (at > 0) {
        before_read<Pinned>(staging.head(here ^ 1));
        file.write(staging.buffer(here ^ 1), n > 0 ? piece : bytes - at + piece);
      }
      if (n <= 0) break;
    }
    return device.check();
  }
  HostElements elements(from);
  elements.in_pieces([&](int64_t first, int64_t n, void* packed) {
    elements.gather(first, n, packed);
    file.write(packed, n * item);
  });
}

/// Writes one tensor to another of the same shape and element type, wherever both are.
[[gnu::cold]] inline void copy_elements(io::NamedTensor const& from, io::NamedTensor const& to, char const* who) {
  int64_t const count = from.size();
  std::size_t const bytes = static_cast<std::size_t>(count * bytes_of_dtype(from.dtype()));
  if (count == 0) return;
  DeviceFunctions const &source = from.device(), &target = to.device();
  source.before_read(from.head());
  to.head()->note_write(who);
  target.before_write(to.head());
  if (from.is_contiguous() && to.is_contiguous()) {
    if (&source == &target || (source.host && target.host)) return target.copy(to.first(), from.first(), bytes);
    if (source.host) return target.from_host(to.first(), from.first(), bytes);
    if (target.host) return source.to_host(to.first(), from.first(), bytes);
  }
  std::string packed(bytes, '\0');
  if (from.is_contiguous()) source.to_host(packed.data(), from.first(), bytes);
  else HostElements(from).gather(0, count, packed.data());
  if (to.is_contiguous()) return target.from_host(to.first(), packed.data(), bytes);
  HostElements elements(to);
  elements.scatter(0, count, packed.data());
  elements.write_back();
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
