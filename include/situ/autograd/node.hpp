/// The graph that gradients flow back through, with types forgotten: nodes, their counts, and the order of a backward pass.
///
/// A *node* is a leaf, or the result of a recorded operation. It holds its operation's inputs, counted; nothing points the other way.
/// A result lies deeper than all of its inputs, so that a backward pass, which always takes the deepest node that a gradient has
/// reached, has seen all uses of a node when it comes to it. No order of creation is needed, and no state of the process.
#pragma once

#include <utility>
#include <vector>

#include <situ/core/block_pool.hpp>
#include <situ/core/error.hpp>
#include <situ/core/shape.hpp>
#include <situ/core/storage.hpp>
#include <situ/device/memory_statistics.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

class Flow;

/// A handle that a Variable's parts are written through, while it stays where it is and holds what they are parts of. Counted by the parts, and by the
/// node until the handle leaves it.
struct Whole {
  int64_t references = 1;
  void* handle = nullptr;  ///< null: it has ended, was moved or assigned to
  bool records = false;    ///< whether what it held then wanted a gradient
  Whole* next = nullptr;   ///< that of another handle of the node
  SITU_NOINLINE static void* operator new(std::size_t bytes) { return take_block(bytes); }
  SITU_NOINLINE static void operator delete(void* whole) noexcept { give_block(whole); }
};

struct Node {
  int64_t references = 1;  ///< held by results made of it, and one by all handles together
  int64_t depth = 0;       ///< of a leaf 0, of an operation more than of its inputs: see depth_beyond
  char const* name = nullptr;  ///< of the operation; null for a leaf
  Node** inputs = nullptr;     ///< counted; null where no gradient is wanted
  int input_count = 0;
  bool queued = false;    ///< a gradient has reached it
  bool target = false;    ///< of grad(): its gradient is kept apart
  bool released = false;  ///< its backward has run, and what it saved is gone
  bool saves_nothing = false;  ///< its backward may run again: there is nothing to be given back
  bool hooked = false;    ///< somebody wants to see its gradient first
  bool requires_grad = false;
  bool is_view = false;   ///< its value lies in that of another Variable
  bool calls_others = false;  ///< its backward may reach Variables that are not among its inputs
  bool takes_late = false;    ///< its backward may compute its gradient itself, a part at a time: see LateGradient
  uint64_t mark = 0;      ///< the last grad() that came by: 2k, or 2k + 1 where one of its inputs leads to a target
  Node* next = nullptr;   ///< in the list of those that die
  Whole* wholes = nullptr;  ///< of the handles that parts were taken of; under wholes_lock, because they may be copied, read and ended from several threads
  Shape shape;            ///< of the value

  Node() = default;
  Node(Node const&) = delete;
  Node& operator=(Node const&) = delete;
  virtual ~Node() = default;
  SITU_NOINLINE static void* operator new(std::size_t bytes) { return take_block(bytes); }
  SITU_NOINLINE static void operator delete(void* node) noexcept { give_block(node); }

  /// Shows the gradient that has arrived to the hooks, which may replace it.
  virtual void call_hooks() = 0;
  /// Passes on the gradient that has arrived.
  virtual void backward(Flow& flow) = 0;
  /// Keeps a copy of the gradient that has arrived, for grad(), on top of what is kept.
  virtual void capture() = 0;
  /// Forgets what was kept.
  virtual void forget_captured() noexcept {}
  /// Forgets what has arrived: the pass was given up.
  virtual void forget() noexcept = 0;
  /// Gives back what was saved for backward.
  virtual void release() noexcept = 0;
};

SITU_PROCESS_STATE constinit int64_t wholes_lock = 0;
/// Takes that of `handle` from a node that it leaves; null where there is none. Under wholes_lock.
inline Whole* take_whole(Node& node, void const* handle) noexcept {
  Whole** at = &node.wholes;
  while (*at && (*at)->handle != handle) at = &(*at)->next;
  Whole* const whole = *at;
  if (whole) __atomic_store_n(at, whole->next, __ATOMIC_RELAXED);
  return whole;
}
inline void add_whole(Node& node, Whole* whole) noexcept {
  whole->next = node.wholes;
  __atomic_store_n(&node.wholes, whole, __ATOMIC_RELAXED);
}
/// The handle holds the node no more, or is another one now.
__attribute__((noinline, cold)) inline void leave_whole(Node& node, void const* handle) noexcept {
  SpinLock const locked(wholes_lock);
  Whole* const whole = take_whole(node, handle);
  if (!whole) return;
  whole->records = node.requires_grad;
  __atomic_store_n(&whole->handle, nullptr, __ATOMIC_RELEASE);
  if (count_down(whole->references)) delete whole;
}
/// The handle is about to hold another node, with the same elements.
SITU_NOINLINE inline void pass_whole(Node& from, Node& to, void const* handle) noexcept {
  SpinLock const locked(wholes_lock);
  if (Whole* const whole = take_whole(from, handle)) add_whole(to, whole);
}
SITU_INLINE void leave(Node& node, void const* handle) noexcept {
  if (SITU_UNLIKELY(__atomic_load_n(&node.wholes, __ATOMIC_RELAXED) != nullptr)) leave_whole(node, handle);
}
/// A part's way to its Whole.
class WholePointer {
 public:
  /// For parts that are taken of `handle`, which holds the node.
  SITU_NOINLINE WholePointer(Node& node, void* handle) {
    SpinLock const locked(wholes_lock);
    whole_ = node.wholes;
    while (whole_ && whole_->handle != handle) whole_ = whole_->next;
    if (!whole_) {
      whole_ = new Whole;
      whole_->handle = handle;
      add_whole(node, whole_);
    }
    count_up(whole_->references);
  }
  WholePointer(WholePointer const& other) noexcept : whole_(other.whole_) {
    if (whole_) count_up(whole_->references);
  }
  WholePointer& operator=(WholePointer other) noexcept {
    std::swap(whole_, other.whole_);
    return *this;
  }
  ~WholePointer() { forget(); }
  void forget() noexcept {
    if (whole_ && count_down(whole_->references)) delete whole_;
    whole_ = nullptr;
  }
  explicit operator bool() const { return whole_ != nullptr; }
  /// Null when it has left.
  void* handle() const { return __atomic_load_n(&whole_->handle, __ATOMIC_ACQUIRE); }
  /// Of one that has left.
  bool records() const { return whole_->records; }

 private:
  Whole* whole_;
};

/// Nodes to be destroyed: a loop instead of a recursion, since chains may be a million nodes long.
struct DyingNodes {
  Node* first = nullptr;
  bool running = false;
};
SITU_PROCESS_STATE constinit thread_local DyingNodes dying_nodes;

/// Ends one reference. What a node saved is given back before it is destroyed.
SITU_NOINLINE inline void drop(Node* node) noexcept {
  if (!node || !count_down(node->references)) return;
  DyingNodes& dying = dying_nodes;
  node->next = dying.first;
  dying.first = node;
  if (dying.running) return;
  dying.running = true;
  while (Node* const last = dying.first) {
    dying.first = last->next;
    if (!last->released) last->release();
    delete last;
  }
  dying.running = false;
}

/// A gradient that is not computed yet: the node that it has reached, if it is the next one, does so in parts, and needs no memory for the whole.
struct LateGradient {
  Node* node = nullptr;
  void const* lies_at = nullptr;  ///< where there is nothing to compute: its elements
  virtual ~LateGradient() = default;
  SITU_NOINLINE static void* operator new(std::size_t bytes) { return take_block(bytes); }
  SITU_NOINLINE static void operator delete(void* late) noexcept { give_block(late); }
  /// Elements [first, first + count), on any thread.
  virtual void compute(void* to, int64_t first, int64_t count) const = 0;
  /// All of it, as what has arrived at the node.
  virtual void settle() = 0;
};

/// Ends the references to the inputs.
SITU_NOINLINE inline void drop_inputs(Node& node) noexcept {
  for (int k = 0; k < node.input_count; ++k) drop(std::exchange(node.inputs[k], nullptr));
  node.input_count = 0;
}

/// The depth of an operation on `from`. What has 1 or 2 comes after all else on the way back, but before the leaves that it reads: there gradients arrive from
/// other devices, and to wait for them is to keep their own device from what it still has to do.
inline int64_t depth_beyond(Node const& from) { return from.depth < 2 ? 3 : from.depth + 1; }

/// Makes `from` input number k of a node.
SITU_NOINLINE inline void connect_input(Node& node, int k, Node* from) noexcept {
  node.inputs[k] = from;
  count_up(from->references);
  if (from->depth >= node.depth) node.depth = depth_beyond(*from);
}

/// The operation whose backward runs, for messages.
SITU_PROCESS_STATE constinit thread_local char const* running_operation = nullptr;
struct OperationName {
  char const* before;
  explicit OperationName(char const* name) : before(std::exchange(running_operation, name)) {}
  OperationName(OperationName const&) = delete;
  OperationName& operator=(OperationName const&) = delete;
  ~OperationName() { running_operation = before; }
};

/// Places for nodes: a thread keeps those that its last heap had, so that backward again asks for none.
struct NodePlaces {
  Node** nodes = nullptr;
  std::size_t room = 0;
};
/// What a thread keeps is there as long as the thread, also when this has ended.
struct NodePlacesEnd {
  NodePlaces& kept;
  ~NodePlacesEnd() { delete[] std::exchange(kept, NodePlaces{}).nodes; }
};
SITU_PROCESS_STATE NodePlaces& kept_node_places() {
  static constinit thread_local NodePlaces kept;
  [[maybe_unused]] static thread_local NodePlacesEnd const end{kept};
  return kept;
}

/// Nodes by depth, the deepest (or the shallowest) first. Holds references.
class NodeHeap {
 public:
  explicit NodeHeap(bool deepest_first) : sign_(deepest_first ? 1 : -1) {}
  NodeHeap(NodeHeap const&) = delete;
  NodeHeap& operator=(NodeHeap const&) = delete;
  ~NodeHeap() {
    for (std::size_t k = 0; k < size_; ++k) drop(nodes_[k]);
    if (SITU_UNLIKELY(nodes_ != few_)) give_places();
  }
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  Node* operator[](std::size_t k) const { return nodes_[k]; }

  SITU_NOINLINE void push(Node* node) {
    if (size_ == room_) grow();
    count_up(node->references);
    std::size_t at = size_++;
    for (; at > 0 && before(node, nodes_[(at - 1) / 2]); at = (at - 1) / 2) nodes_[at] = nodes_[(at - 1) / 2];
    nodes_[at] = node;
  }
  /// The first; the reference passes to the caller.
  SITU_NOINLINE Node* pop() {
    Node* const first = nodes_[0];
    Node* const last = nodes_[--size_];
    std::size_t at = 0;
    for (std::size_t child; (child = 2 * at + 1) < size_; at = child) {
      if (child + 1 < size_ && before(nodes_[child + 1], nodes_[child])) ++child;
      if (!before(nodes_[child], last)) break;
      nodes_[at] = nodes_[child];
    }
    nodes_[at] = last;
    return first;
  }

 private:
  bool before(Node const* a, Node const* b) const { return sign_ > 0 ? a->depth > b->depth : a->depth < b->depth; }
  SITU_NOINLINE void grow() {
    NodePlaces& kept = kept_node_places();
    NodePlaces const more = kept.room > room_ ? std::exchange(kept, {}) : NodePlaces{new Node*[2 * room_], 2 * room_};
    for (std::size_t k = 0; k < size_; ++k) more.nodes[k] = nodes_[k];
    if (nodes_ != few_) delete[] nodes_;
    nodes_ = more.nodes;
    room_ = more.room;
  }
  SITU_NOINLINE void give_places() {
    constexpr std::size_t most = std::size_t{1} << 16;  // that a thread keeps
    NodePlaces& kept = kept_node_places();
    NodePlaces mine{nodes_, room_};
    if (mine.room > kept.room && mine.room <= most) std::swap(mine, kept);
    delete[] mine.nodes;
  }
  Node* few_[32];
  Node** nodes_ = few_;
  std::size_t size_ = 0, room_ = 32;
  int sign_;
};

/// Whether the calling thread is in a hook that a grad() calls. A pass that began there would meet what that grad() has marked and added.
SITU_PROCESS_STATE constinit thread_local bool in_hook_of_grad = false;
inline void check_not_in_hook(char const* who) {
  if (SITU_UNLIKELY(in_hook_of_grad)) fail<GradientError>(who, ": a hook that is called by grad cannot start a pass; call ", who, " after that grad");
}

/// One backward pass.
class Flow {
 public:
  /// `run` is 0 where all leaves accumulate; else only what leads to the targets marked by that number is computed.
  Flow(bool keeps_graph, bool creates_graph, uint64_t run) : keeps_graph_(keeps_graph), creates_graph_(creates_graph), run_(run) {}
  ~Flow() {  // with nodes left only when an operation has thrown
    delete late_;
    for (std::size_t k = 0; k < waiting_.size(); ++k) {
      waiting_[k]->queued = false;
      waiting_[k]->forget();
    }
  }

  /// Whether the gradient of an input is to be computed: not that of a leaf that was frozen since.
  bool wants(Node const* input) const { return input && input->requires_grad && (SITU_LIKELY(run_ == 0) || leads_to_target(*input)); }
  bool keeps_graph() const { return keeps_graph_; }
  /// Whether gradients are themselves recorded.
  bool creates_graph() const { return creates_graph_; }
  bool for_targets() const { return run_ != 0; }
  uint64_t number() const { return run_; }
  /// The node whose backward runs.
  Node* running() const { return running_; }

  /// A gradient has been added to a node's.
  void arrived(Node* node) {
    if (node->queued) return;
    waiting_.push(node);
    node->queued = true;
  }

  /// The same, of one that is not computed yet.
  void arrived_late(LateGradient* late) {
    late_ = late;
    arrived(late->node);
  }
  /// That of the running node, which passes to the caller; null where its gradient has been computed.
  LateGradient* take_late() { return std::exchange(late_, nullptr); }

  void run() {
    OperationName const outer(running_operation);
    while (!waiting_.empty()) {
      struct Held {
        Node* node;
        ~Held() { drop(node); }
      } const held{waiting_.pop()};
      Node* const node = held.node;
      node->queued = false;
      struct Forget {
        Node* node;
        ~Forget() { node->forget(); }
      } const forget{node};
      if (SITU_UNLIKELY(late_ && late_->node != node)) settle_late();
      if (SITU_UNLIKELY(node->hooked)) call_hooks(*node);
      if (node->target && run_ != 0) node->capture();
      if (run_ != 0 && node->mark != 2 * run_ + 1) continue;
      if (SITU_UNLIKELY(node->released)) {
        fail<GradientError>("backward: what ", node->name ? node->name : "a leaf",
                            " saved for its gradient was given back by the backward before; call that one as backward(retain_graph)");
      }
      running_ = node;
      running_operation = node->name;
      node->backward(*this);
      if (!keeps_graph_ && node->name && !node->saves_nothing) node->release();
    }
  }

 private:
  __attribute__((noinline, cold)) void settle_late() {
    late_->settle();
    delete take_late();
  }
  __attribute__((noinline, cold)) void call_hooks(Node& node) const {
    struct Within {
      bool before;
      ~Within() { in_hook_of_grad = before; }
    } const within{std::exchange(in_hook_of_grad, run_ != 0)};
    node.call_hooks();
  }
  SITU_NOINLINE bool leads_to_target(Node const& input) const { return input.mark == 2 * run_ + 1 || (input.target && input.mark == 2 * run_); }

  NodeHeap waiting_{true};
  bool keeps_graph_, creates_graph_;
  uint64_t run_;
  Node* running_ = nullptr;
  LateGradient* late_ = nullptr;
};

/// Whether all that a pass wants of these nodes is the gradient of one, of that shape, that may be computed late.
SITU_NOINLINE inline bool takes_late(Flow const& flow, Node const* const* nodes, int count, Shape const& whole) {
  int wanted = 0;
  bool result = true;
  for (int j = 0; j < count; ++j) {
    Node const* const node = nodes[j];
    if (!flow.wants(node)) continue;
    ++wanted;
    result = result && node->takes_late && !node->queued && !node->hooked && !node->target && node->shape == whole;
  }
  return result && wanted == 1;
}

/// The number of the next grad().
SITU_PROCESS_STATE uint64_t next_gradient_run() {
  static uint64_t runs = 0;
  return __atomic_add_fetch(&runs, 1, __ATOMIC_RELAXED);
}

/// Marks every node below the roots by `run`: 2 run + 1 where an input is a target or leads to one, as what calls others may, and what was given back may have.
/// What `run` has marked before stays so. Gives whether none may lead to a target unseen: an unmarked target has no gradient then.
/// Throws    GradientError where another pass is under way: it would take what this one adds.
inline bool mark_way_to_targets(Node* const* roots, int count, uint64_t run) {
  NodeHeap found(false);
  bool busy = false, all_seen = true;
  std::vector<Node*> open(roots, roots + count);
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (node->mark / 2 == run) continue;
    node->mark = 2 * run;
    busy = busy || node->queued;
    found.push(node);
    for (int k = 0; k < node->input_count; ++k) {
      if (node->inputs[k]) open.push_back(node->inputs[k]);
    }
  }
  while (!found.empty()) {  // the inputs come before what was made of them
    Node* const node = found.pop();
    if (node->calls_others || node->released) node->mark = 2 * run + 1, all_seen = false;
    for (int k = 0; k < node->input_count; ++k) {
      Node const* const input = node->inputs[k];
      if (input && (input->target || input->mark == 2 * run + 1)) node->mark = 2 * run + 1;
    }
    drop(node);
  }
  if (busy) fail<GradientError>("grad: a backward pass that has come by here is still running; call grad after it, or of a formula that shares nothing with it");
  return all_seen;
}

SITU_PROCESS_STATE constinit thread_local bool records_gradients = true;

}  // namespace detail

/// While it lives, operations of the calling thread are not recorded: `no_grad guard;`.
class [[nodiscard]] no_grad {
 public:
  [[nodiscard]] no_grad() : before_(std::exchange(detail::records_gradients, false)) {}
  no_grad(no_grad const&) = delete;
  no_grad& operator=(no_grad const&) = delete;
  ~no_grad() { detail::records_gradients = before_; }

 private:
  bool before_;
};

/// The opposite, inside of a no_grad.
class [[nodiscard]] enable_grad {
 public:
  [[nodiscard]] enable_grad() : before_(std::exchange(detail::records_gradients, true)) {}
  enable_grad(enable_grad const&) = delete;
  enable_grad& operator=(enable_grad const&) = delete;
  ~enable_grad() { detail::records_gradients = before_; }

 private:
  bool before_;
};

}  // namespace situ::inline SITU_ABI
