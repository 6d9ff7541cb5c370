/// What records of work have in common on every device: the storages that the work uses, and those that it made.
#pragma once

#include <utility>

#include <situ/core/list.hpp>
#include <situ/device/order.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What a graph of device D is made of: `record`.
template <class D>
struct graph_of;

/// Notes the storages of what is recorded. All of them are held, so that a replay finds them where they were.
class GraphRecorder : public StreamRecorder {
 public:
  GraphRecorder() {
    use = [](StreamRecorder* self, StorageHead& head, bool writes) { static_cast<GraphRecorder*>(self)->note_use(head, writes); };
    make = [](StreamRecorder* self, StorageHead& head) { static_cast<GraphRecorder*>(self)->made_.push_back(held(head)); };
  }

  /// Before a replay: this thread's stream comes behind those whose work on the storages comes first, and is noted as their user.
  template <class D>
  void order() const {
    auto const written = [](StorageHead* head) {
      before_write<D>(head);
      head->note_write("gpu::Graph::replay");
    };
    for (Use const& each : used_) {
      if (each.writes) written(each.storage.head());
      else before_read<D>(each.storage.head());
    }
    for (Storage const& each : made_) written(each.head());
  }

 protected:
  ~GraphRecorder() = default;

  /// Lets go of what was made and is no longer held by anybody else: as long as it is recorded, its memory is the record's.
  void drop_dead() noexcept {
    for (std::size_t k = 0; k < made_.size();) {
      if (made_[k].use_count() > 1) {
        ++k;
        continue;
      }
      Storage const dead = std::exchange(made_[k], std::move(made_.back()));
      made_.pop_back();
    }
  }
  void forget() noexcept {
    used_.clear();
    made_.clear();
  }
  List<Storage> const& made() const { return made_; }

 private:
  struct Use {
    Storage storage;
    bool writes;
  };

  static Storage held(StorageHead& head) {
    count_up(head.references);
    return Storage(&head);
  }
  void note_use(StorageHead& head, bool writes) {
    for (Use& each : used_) {
      if (each.storage.head() != &head) continue;
      each.writes = each.writes || writes;
      return;
    }
    used_.push_back({held(head), writes});
  }

  List<Use> used_;
  List<Storage> made_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
