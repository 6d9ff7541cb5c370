/// How samples become a batch: the buffers of its fields, and what is written to them.
#pragma once

#include <exception>

#include <situ/data/dataset.hpp>
#include <situ/tensor/transfer_async.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Memory in which a field's batches are made: what is handed out is this memory, which is used again when nobody holds it any more.
template <class Memory>
struct FieldBuffer {
  Handle full, value;

  /// Room for `rows` samples; enough for `capacity` of them is taken at once.
  SITU_NOINLINE void* room(Shape const& sample, int64_t rows, int64_t capacity, std::size_t item) {
    value = {};
    if (full.body() && full.use_count() == 1 && holds(full.body()->layout.shape, rows, sample)) value = full;
    else take_room(sample, rows, capacity, static_cast<int64_t>(item));
    before_write<Memory>(value.body()->storage.head());
    return value.body()->first;
  }
  int64_t bytes(std::size_t item) const { return value.body() ? value.body()->size * static_cast<int64_t>(item) : 0; }

 private:
  static bool holds(Shape const& shape, int64_t rows, Shape const& sample) {
    bool same = shape.rank() == sample.rank() + 1 && shape[0] == rows;
    for (int k = 0; same && k < sample.rank(); ++k) same = shape[k + 1] == sample[k];
    return same;
  }
  /// Of another shape than the last one, or while that is held by somebody.
  [[gnu::cold]] SITU_NOINLINE void take_room(Shape const& sample, int64_t rows, int64_t capacity, int64_t item) {
    Shape shape = sample;
    shape.insert(0, rows);
    int64_t const needed = count_of(shape, "DataLoader", item);
    if (!full.body() || full.use_count() != 1 || full.body()->size < needed) {
      Shape most = shape;
      if (rows < capacity) most[0] = capacity;
      int64_t const count = count_of(most, "DataLoader", item);
      full = make_fresh<Memory>(static_cast<std::size_t>(count * item), count, most);
      if (most[0] == rows) value = full;
    }
    if (!value.body()) value = make_view(full.body()->storage, full.body()->first, Layout(shape));
  }
};

/// One field in one slot of a loader: for a device, memory that the device copies from.
template <class T, class D>
class StagedField final : public data::BatchField<T> {
  using Home = std::conditional_t<host_device<D>, D, Pinned>;

 public:
  void prepare(int64_t capacity, bool pin) {
    capacity_ = capacity;
    pin_ = pin;
  }
  void begin(int64_t rows) {
    this->rows_ = rows;
    home_.value = {};
    plain_.value = {};
  }
  T* room(Shape const& sample) override {
    if constexpr (!host_device<D>) {
      if (!pin_) return static_cast<T*>(plain_.room(sample, this->rows_, capacity_, sizeof(T)));
    }
    return static_cast<T*>(home_.room(sample, this->rows_, capacity_, sizeof(T)));
  }
  int64_t bytes() const { return home_.bytes(sizeof(T)) + plain_.bytes(sizeof(T)); }

  /// What was written; for a device a copy that is enqueued on this thread's current stream.
  Tensor<T, D> take() {
    if constexpr (host_device<D>) {
      return Tensor<T, D>::from_handle(std::move(home_.value));
    } else {
      TransferSite const scope(CallSite::here("DataLoader"), place_of<Pinned>, place_of<D>);
      Tensor<T, D> result = pin_ ? transfer_async<D>(Tensor<T, Pinned>::from_handle(home_.value)) : transfer<D>(Tensor<T, Cpu>::from_handle(plain_.value));
      begin(0);
      return result;
    }
  }

 private:
  FieldBuffer<Home> home_;
  FieldBuffer<Cpu> plain_;
  int64_t capacity_ = 1;
  bool pin_ = true;
};

// ---- exceptions ----------------------------------------------------------------------------------------------------------

/// Throws an E with this message where the exception that is handled is one.
template <class E>
void rethrow_as(MessageText const& text) {
  try {
    throw;
  } catch (E const&) {
    throw_message<E>(text);
  } catch (...) {
  }
}
/// To be called while an exception is handled: throws it again with `where` before its message.
[[noreturn, gnu::cold]] SITU_NOINLINE inline void rethrow_with(std::string const& where) {
  try {
    throw;
  } catch (OutOfMemory const& e) {
    OutOfMemory copy(message({where, e.what()}));
    copy.requested = e.requested, copy.free = e.free, copy.total = e.total, copy.allocated = e.allocated, copy.reserved = e.reserved;
    throw copy;
  } catch (std::exception const& e) {
    MessageText text;
    add_to(text, where, e.what());
    rethrow_as<AxisError>(text), rethrow_as<ShapeError>(text), rethrow_as<LayoutError>(text), rethrow_as<IndexError>(text), rethrow_as<TypeError>(text), rethrow_as<DeviceUnavailable>(text);
    rethrow_as<CudaError>(text), rethrow_as<GradientError>(text), rethrow_as<LinalgError>(text), rethrow_as<IoError>(text);
    std::throw_with_nested(Error(text.c_str()));
  } catch (...) {
    std::throw_with_nested(Error(message({where, "something was thrown that is no std::exception"})));
  }
}

// ---- samples -----------------------------------------------------------------------------------------------------------

/// What the generators of samples are drawn from.
struct SampleKey {
  uint64_t seed;
  int64_t epoch;
  Generator generator_of(int64_t index) const {
    RandomStream const stream{seed, static_cast<uint64_t>(epoch) | uint64_t{3} << 62};
    return Generator(stream.draw(index));
  }
};

template <class T>
struct FieldWriter {
  data::BatchField<T>& field;
  T* at = nullptr;  ///< null, too, for samples without elements
  bool begun = false;
  Shape shape{};  ///< of a sample
  int64_t count = 0;
  int64_t first_index = 0;

  /// Room for one more sample.
  T* next(Shape const& sample, int64_t index, int number) {
    if (!begun) {
      shape = sample;
      count = count_of(sample, "DataLoader", sizeof(T));
      first_index = index;
      at = field.room(sample);
      begun = true;
    } else if (SITU_UNLIKELY(!(sample == shape))) {
      fail<ShapeError>("field ", number, " has shape ", sample, ", and ", shape, " in sample ", first_index,
                       " of the same batch; samples of one batch have one shape: pad them, or give the dataset a get_batch that does");
    }
    T* const result = at;
    if (at) at += count;
    return result;
  }
};

template <class T, class F>
void write_field(FieldWriter<T>& writer, F const& field, int64_t index, int number) {
  if constexpr (situ::number<F>) {
    *writer.next({}, index, number) = static_cast<T>(field);
  } else if constexpr (expression<F>) {
    T* const to = writer.next(field.shape(), index, number);
    if (writer.count == 0) return;
    if constexpr (requires { field.is_contiguous(); field.data(); }) {
      if (field.is_contiguous()) {
        std::memcpy(to, field.data(), static_cast<std::size_t>(writer.count) * sizeof(T));
        return;
      }
    }
    evaluate<Cpu>(to, Layout(writer.shape), true, field);
  } else {
    T* const to = writer.next(Shape(static_cast<int64_t>(field.size())), index, number);
    if (writer.count > 0) std::memcpy(to, field.data(), static_cast<std::size_t>(writer.count) * sizeof(T));
  }
}

/// Fills the fields of a batch.
template <class X, class... Ts>
void collate(X const& dataset, std::span<int64_t const> indices, SampleKey const& key, data::BatchField<Ts>&... fields) {
  if constexpr (requires { dataset.get_batch(indices, fields...); }) {
    try {
      dataset.get_batch(indices, fields...);
    } catch (...) {
      std::string where = "samples ";
      for (std::size_t k = 0; k < indices.size() && k < 8; ++k) where += message({k ? ", " : "", indices[k]});
      where += indices.size() > 8 ? ", ...: " : ": ";
      rethrow_with(where);
    }
  } else {
    std::tuple<FieldWriter<Ts>...> writers{FieldWriter<Ts>{fields}...};
    for (int64_t const index : indices) {
      try {
        Generator generator = gives_random_samples<X> ? key.generator_of(index) : Generator(0);
        auto const& sample = sample_at(dataset, index, generator);
        if constexpr (sample_field<sample_of<X>>) {
          write_field(std::get<0>(writers), sample, index, 0);
        } else {
          [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
            (write_field(std::get<Ks>(writers), std::get<Ks>(sample), index, static_cast<int>(Ks)), ...);
          }(std::index_sequence_for<Ts...>{});
        }
      } catch (...) {
        rethrow_with(message({"sample ", index, ": "}));
      }
    }
  }
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
