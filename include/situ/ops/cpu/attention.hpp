/// Attention on the CPU, and its gradients.
///
/// An item is a block of queries of one head: their scores are a product that stays in the second cache, softmax is one pass over it, and
/// a second product leads to the output. The scores of all queries never stand in memory. Kept for the gradients are two numbers for each
/// query, the shift of its softmax and the inverse of its sum: backward makes the weights again, from one product more.
#pragma once

#include <situ/ops/attention_plan.hpp>
#include <situ/ops/cpu/gemm.hpp>
#include <situ/ops/cpu/rows_math.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// A block of scores (queries x keys) and what is done with them. Rows are `stride` apart, a multiple of 64 bytes.
template <class T>
struct ScoreBlock {
  using C = compute_t<T>;
  C* scores;             ///< in: q kᵀ; out: weights
  C* slopes;             ///< backward. In: g vᵀ; out: the gradient of q kᵀ
  int64_t stride, rows, keys;
  int64_t first_row;     ///< its number among the queries
  AttentionSettings<T> settings;
  int mask_kind;
  void const* mask;      ///< of the first row
  int64_t mask_row, mask_column;
  C *added, *factors;    ///< memory for a row of each
  int64_t random;        ///< the first row's first word
  C* statistics;         ///< shift and inverse sum of each row
};

template <class T, bool Backward>
struct ScoreBlockBody {
  using C = compute_t<T>;
  static constexpr C infinity = std::numeric_limits<C>::infinity();

  template <class Isa>
  SITU_INLINE static int run(ScoreBlock<T> const* given) {
    ScoreBlock<T> const b = *given;
    for (int64_t row = 0; row < b.rows; ++row) {
      int64_t const seen = b.first_row + row + 1;
      int64_t const n = b.settings.causal && seen < b.keys ? seen : b.keys;
      if (b.mask_kind != 0 && (row == 0 || b.mask_row != 0)) read_mask<Isa>(b, row, b.mask_row == 0 ? b.keys : n);
      if (b.settings.dropout.row_words != 0) draw<Isa>(b, row, n);
      if constexpr (Backward) backward<Isa>(b, row, n);
      else forward<Isa>(b, row, n);
    }
    return 0;
  }

 private:
  template <class Isa>
  static constexpr int lanes_in = Isa::bytes / static_cast<int>(sizeof(C));

  /// The row of the mask as numbers that are added. Whole packs may be written.
  template <class Isa>
  SITU_INLINE static void read_mask(ScoreBlock<T> const& b, int64_t row, int64_t n) {
    constexpr int N = lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    int64_t j = 0;
    if (b.mask_kind == 1) {
      bool const* const from = static_cast<bool const*>(b.mask) + row * b.mask_row;
      if (b.mask_column == 1) {
        for (; j + N <= n; j += N) select(load_lanes<bool, N, Isa>(from + j), P(C(0)), P(-infinity)).store(b.added + j);
      }
      for (; j < n; ++j) b.added[j] = from[j * b.mask_column] ? C(0) : -infinity;
    } else {
      T const* const from = static_cast<T const*>(b.mask) + row * b.mask_row;
      if (b.mask_column == 1) {
        for (; j + N <= n; j += N) load_lanes<T, N, Isa>(from + j).store(b.added + j);
      }
      for (; j < n; ++j) b.added[j] = static_cast<C>(from[j * b.mask_column]);
    }
  }
  /// The row's factors of dropout: 0, or 1 / (1 - p).
  template <class Isa>
  SITU_INLINE static void draw(ScoreBlock<T> const& b, int64_t row, int64_t n) {
    constexpr int N = lanes_in<Isa>, step = 4 * PhiloxLanes<Isa>::N;
    auto const& op = b.settings.dropout.op;
    PhiloxKeys<Isa> const keys(op.stream.seed);
    int64_t const first = b.random + row * b.settings.dropout.row_words;
    for (int64_t j = 0; j < n; j += step) {
      for (int l = 0; l < step; l += N) pack<C, N, Isa>(C(1)).store(b.factors + j + l);
      op.make(philox_lanes(keys, static_cast<uint64_t>(first + j) / 4, op.stream.call), b.factors + j);
    }
  }

  /// What the exponential is taken of, before shift and factor; -inf behind the last key.
  template <class Isa>
  SITU_INLINE static pack<C, lanes_in<Isa>, Isa> score(ScoreBlock<T> const& b, C const* x, int64_t j, int64_t n, bool plain) {
    constexpr int N = lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    P s = P::load(x + j);
    if (!plain) {
      s = s * P(b.settings.scale);
      if (b.mask_kind != 0) s = s + P::load(b.added + j);
    }
    if (SITU_UNLIKELY(j + N > n)) s = select(lanes_below<C, N, Isa>(n - j), s, P(-infinity));
    return s;
  }
  /// Whether the shift may be taken before the scale: the largest score is the largest product then.
  SITU_INLINE static bool is_plain(ScoreBlock<T> const& b) { return b.mask_kind == 0 && b.settings.scale > C(0); }

  template <class Isa>
  SITU_INLINE static void forward(ScoreBlock<T> const& b, int64_t row, int64_t n) {
    constexpr int N = lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    C* const x = b.scores + row * b.stride;
    bool const plain = is_plain(b), dropping = b.settings.dropout.row_words != 0;
    P m(-infinity), m1(-infinity);
    int64_t j = 0;
    for (; j + 2 * N <= n && plain; j += 2 * N) m = larger(P::load(x + j), m), m1 = larger(P::load(x + j + N), m1);
    for (; j < n; j += N) {
      P const s = score<Isa>(b, x, j, n, plain);
      if (!plain || j + N > n) s.store(x + j);
      m = larger(s, m);
    }
    C const largest = largest_lane(larger(m, m1));
    C const top = largest == -infinity ? C(0) : largest;
    P const shift(top), factor(plain ? b.settings.scale : C(1));
    double total = 0;
    for (j = 0; j < n;) {
      int64_t const stop = j + row_block < n ? j + row_block : n;
      P s(C(0)), s1(C(0));
      for (; j + N < stop; j += 2 * N) {
        P const e = exp_of_negative((P::load(x + j) - shift) * factor), e1 = exp_of_negative((P::load(x + j + N) - shift) * factor);
        e.store(x + j), e1.store(x + j + N);
        s = s + e, s1 = s1 + e1;
      }
      if (j < stop) {
        P const e = exp_of_negative((P::load(x + j) - shift) * factor);
        e.store(x + j);
        s = s + e;
        j += N;
      }
      total += static_cast<double>(sum_of_lanes(s + s1));
    }
    C const inverse = total == 0 ? C(0) : static_cast<C>(1 / total);  // a query that sees no key gives 0
    b.statistics[2 * row] = top;
    b.statistics[2 * row + 1] = inverse;
    P const scale(inverse);
    if (dropping) {
      for (j = 0; j < n; j += N) (P::load(x + j) * scale * P::load(b.factors + j)).store(x + j);
    } else {
      for (j = 0; j < n; j += N) (P::load(x + j) * scale).store(x + j);
    }
    for (; j < b.keys; j += N) P(C(0)).store(x + j);
  }

  /// With p the weights, f the factors of dropout, h = f (g vᵀ): p (h - Σ p h) scale, and p f.
  template <class Isa>
  SITU_INLINE static void backward(ScoreBlock<T> const& b, int64_t row, int64_t n) {
    constexpr int N = lanes_in<Isa>;
    using P = pack<C, N, Isa>;
    C *const x = b.scores + row * b.stride, *const d = b.slopes + row * b.stride;
    bool const plain = is_plain(b), dropping = b.settings.dropout.row_words != 0;
    P const shift(b.statistics[2 * row]), factor(plain ? b.settings.scale : C(1)), inverse(b.statistics[2 * row + 1]);
    double total = 0;
    for (int64_t j = 0; j < n;) {
      int64_t const stop = j + row_block < n ? j + row_block : n;
      P s(C(0));
      for (; j < stop; j += N) {
        P const p = exp_of_negative((score<Isa>(b, x, j, n, plain) - shift) * factor) * inverse;
        P h = P::load(d + j);
        if (dropping) h = h * P::load(b.factors + j);
        if (SITU_UNLIKELY(j + N > n)) h = select(lanes_below<C, N, Isa>(n - j), h, P(C(0)));
        p.store(x + j);
        if (dropping || j + N > n) h.store(d + j);
        s = multiply_add(p, h, s);
      }
      total += static_cast<double>(sum_of_lanes(s));
    }
    P const mean(static_cast<C>(total)), scale(b.settings.scale);
    int64_t j = 0;
    for (; j < n; j += N) {
      P const p = P::load(x + j);
      (p * (P::load(d + j) - mean) * scale).store(d + j);
      if (dropping) (p * P::load(b.factors + j)).store(x + j);
    }
    for (; j < b.keys; j += N) P(C(0)).store(x + j), P(C(0)).store(d + j);
  }
};

/// Matrices of the heads: one operand.
template <class T>
struct Heads {
  T* data = nullptr;
  int64_t row = 0, column = 0;
  int64_t steps[max_rank - 2] = {};  ///< of the batch axes

  Heads() = default;
  Heads(T* first, Layout const& layout) : data(first) {
    int const batch = layout.rank() - 2;
    row = layout.strides[batch], column = layout.strides[batch + 1];
    for (int k = 0; k < batch; ++k) steps[k] = layout.strides[k];
  }
};

/// Memory of the device for threads at work: each takes a free part. Trivially copyable; the memory is the launch's.
struct ScratchParts {
  int32_t* taken;  ///< 16 apart
  unsigned char* memory;
  int64_t bytes;
  int count;

  int take() const {
    for (int k = 0;; k = k + 1 < count ? k + 1 : 0) {
      if (__atomic_exchange_n(taken + 16 * k, 1, __ATOMIC_ACQUIRE) == 0) return k;
    }
  }
  void give(int part) const { __atomic_store_n(taken + 16 * part, 0, __ATOMIC_RELEASE); }
};

/// Items are blocks of `block` queries of one head; in the backward pass heads, whose blocks are summed in their order.
template <class T, bool Backward>
struct AttentionKernel {
  using C = compute_t<T>;
  static constexpr bool converts = !std::is_same_v<T, C>;
  int64_t rows, keys, depth, width, block, blocks, stride;
  int rank;
  int64_t sizes[max_rank - 2];
  AttentionSettings<T> settings;
  int mask_kind;
  Heads<void const> mask;
  Heads<T const> q, k, v, g;
  Heads<T> out, dq, dk, dv;  ///< of gradients, those with data are wanted
  C* statistics;             ///< [batches, rows, 2]
  ScratchParts scratch;

  /// Elements of a thread's memory.
  int64_t scratch_size() const {
    int64_t size = 2 * stride + 64 + (Backward ? 2 : 1) * block * stride;
    if (Backward && rows > block) size += padded(keys * (depth > width ? depth : width));
    if (converts) size += padded(rows * depth) + padded(keys * depth) + padded(keys * width) + padded(rows * width) + 64;
    if (converts && Backward) size += padded(rows * depth) + padded(keys * depth) + padded(keys * width);
    return size;
  }

  void operator()(int64_t first, int64_t last) const {
    int const part = scratch.take();
    C* const memory = reinterpret_cast<C*>(scratch.memory + part * scratch.bytes);
    for (int64_t item = first; item < last; ++item) {
      if constexpr (Backward) head(memory, item);
      else queries(memory, item / blocks, item % blocks * block);
    }
    scratch.give(part);
  }

 private:
  static int64_t padded(int64_t n) { return (n + 79) / 16 * 16; }  // packing may write 64 bytes behind the end
  static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

  /// A matrix in the type of the arithmetic.
  struct Matrix {
    C* data;
    int64_t row, column;
    Matrix from(int64_t r) const { return {data + r * row, row, column}; }
    Matrix transposed() const { return {data, column, row}; }
  };
  template <class X>
  X* at(Heads<X> const& heads, int64_t batch, int64_t size) const {
    int64_t offset = 0;
    for (int axis = rank - 1; axis >= 0; --axis) offset += batch % sizes[axis] * heads.steps[axis], batch /= sizes[axis];
    if constexpr (std::is_void_v<X>) return static_cast<char const*>(heads.data) + offset * size;
    else return heads.data + offset;
  }
  /// Rows of an operand as the products read them: where they lie, or converted.
  Matrix read(Heads<T const> const& heads, int64_t batch, int64_t first, int64_t count, int64_t columns, C*& memory) const {
    T const* const from = at(heads, batch, 1) + first * heads.row;
    if constexpr (converts) {
      Matrix const result{memory, columns, 1};
      pack_panel<T>(memory, columns, from, heads.column, heads.row, columns, count);
      memory += padded(count * columns);
      return result;
    } else {
      return {const_cast<C*>(from), heads.row, heads.column};
    }
  }
  Matrix place(Heads<T> const& heads, int64_t batch, int64_t first, int64_t count, int64_t columns, C*& memory) const {
    if constexpr (converts) {
      Matrix const result{memory, columns, 1};
      memory += padded(count * columns);
      return result;
    } else {
      return {at(heads, batch, 1) + first * heads.row, heads.row, heads.column};
    }
  }
  void write(Heads<T> const& heads, int64_t batch, int64_t first, int64_t count, int64_t columns, Matrix const& from) const {
    if constexpr (converts) store_sums<T>(at(heads, batch, 1) + first * heads.row, heads.row, heads.column, from.data, from.row, count, columns);
  }
  /// c = a b, of m x n elements and depth d. A single row is the transposed matrix times a column.
  static void multiply_matrices(Matrix const& a, Matrix const& b, Matrix const& c, int64_t m, int64_t n, int64_t d) {
    if (m == 0 || n == 0) return;
    if (m == 1 && n > 1) return multiply_matrices(b.transposed(), a.transposed(), c.transposed(), n, m, d);
    multiply(Product<C>{m, n, d, a.data, a.row, a.column, b.data, b.row, b.column, c.data, c.row, c.column}, 0, m, 0, n);
  }
  ScoreBlock<T> score_block(C* memory, int64_t batch, int64_t first, int64_t count, int64_t seen) const {
    ScoreBlock<T> b{};
    b.added = memory, b.factors = memory + stride + 32;
    b.scores = memory + 2 * stride + 64, b.slopes = b.scores + block * stride;
    b.stride = stride, b.rows = count, b.keys = seen, b.first_row = first;
    b.settings = settings;
    b.mask_kind = mask_kind;
    if (mask_kind != 0) {
      int64_t const size = mask_kind == 1 ? 1 : static_cast<int64_t>(sizeof(T));
      b.mask = static_cast<char const*>(at(mask, batch, size)) + first * mask.row * size;
      b.mask_row = mask.row, b.mask_column = mask.column;
    }
    b.random = (batch * rows + first) * settings.dropout.row_words;
    b.statistics = statistics + 2 * (batch * rows + first);
    return b;
  }
  /// How many keys the queries before `end` see.
  int64_t seen_before(int64_t end) const { return settings.causal && end < keys ? end : keys; }

  void queries(C* memory, int64_t batch, int64_t first) const {
    int64_t const count = least(block, rows - first), seen = seen_before(first + count);
    ScoreBlock<T> const b = score_block(memory, batch, first, count, seen);
    C* rest = b.scores + block * stride;
    Matrix const q_block = read(q, batch, first, count, depth, rest), k_head = read(k, batch, 0, seen, depth, rest);
    Matrix const weights{b.scores, stride, 1};
    multiply_matrices(q_block, k_head.transposed(), weights, count, seen, depth);
    dispatch<ScoreBlockBody<T, false>>(&b);
    Matrix const v_head = read(v, batch, 0, seen, width, rest), y = place(out, batch, first, count, width, rest);
    multiply_matrices(weights, v_head, y, count, width, seen);
    write(out, batch, first, count, width, y);
  }

  void head(C* memory, int64_t batch) const {
    C* rest = memory + 2 * stride + 64 + 2 * block * stride;
    C* const shares = rest;  // what a block adds to the gradients of keys and values
    if (rows > block) rest += padded(keys * (depth > width ? depth : width));
    Matrix const q_head = read(q, batch, 0, rows, depth, rest), k_head = read(k, batch, 0, keys, depth, rest);
    Matrix const v_head = read(v, batch, 0, keys, width, rest), g_head = read(g, batch, 0, rows, width, rest);
    Matrix to_q{}, to_k{}, to_v{};
    if (dq.data) to_q = place(dq, batch, 0, rows, depth, rest);
    if (dk.data) to_k = place(dk, batch, 0, keys, depth, rest);
    if (dv.data) to_v = place(dv, batch, 0, keys, width, rest);
    // From the last block, which sees most keys, to the first.
    for (int64_t number = blocks - 1; number >= 0; --number) {
      int64_t const first = number * block, count = least(block, rows - first), seen = seen_before(first + count);
      ScoreBlock<T> const b = score_block(memory, batch, first, count, seen);
      Matrix const weights{b.scores, stride, 1}, slopes{b.slopes, stride, 1};
      multiply_matrices(q_head.from(first), k_head.transposed(), weights, count, seen, depth);
      multiply_matrices(g_head.from(first), v_head.transposed(), slopes, count, seen, width);
      dispatch<ScoreBlockBody<T, true>>(&b);
      if (to_v.data) add(to_v, weights.transposed(), g_head.from(first), seen, width, count, number, shares);
      if (to_k.data) add(to_k, slopes.transposed(), q_head.from(first), seen, depth, count, number, shares);
      if (to_q.data) multiply_matrices(slopes, k_head, to_q.from(first), count, depth, seen);
    }
    if (dq.data) write(dq, batch, 0, rows, depth, to_q);
    if (dk.data) write(dk, batch, 0, keys, depth, to_k);
    if (dv.data) write(dv, batch, 0, keys, width, to_v);
  }
  /// to += a b, or = in the last block; keys that no query sees become 0.
  void add(Matrix const& to, Matrix const& a, Matrix const& b, int64_t m, int64_t n, int64_t d, int64_t number, C* shares) const {
    if (number == blocks - 1) {
      multiply_matrices(a, b, to, m, n, d);
      for (int64_t i = m; i < keys; ++i) {
        for (int64_t j = 0; j < n; ++j) to.data[i * to.row + j * to.column] = C(0);
      }
      return;
    }
    multiply_matrices(a, b, {shares, n, 1}, m, n, d);
    for (int64_t i = 0; i < m; ++i) {
      C* const row = to.data + i * to.row;
      C const* const share = shares + i * n;
      if (to.column == 1) {
        for (int64_t j = 0; j < n; ++j) row[j] += share[j];
      } else {
        for (int64_t j = 0; j < n; ++j) row[j * to.column] += share[j];
      }
    }
  }
};

/// Fills what the shapes tell.
template <class T, bool Backward>
void plan_kernel(AttentionKernel<T, Backward>& kernel, AttentionPlan const& plan, AttentionSettings<T> const& settings) {
  using C = compute_t<T>;
  kernel.rows = plan.rows, kernel.keys = plan.keys, kernel.depth = plan.depth, kernel.width = plan.width;
  kernel.settings = settings;
  kernel.rank = plan.batch.rank();
  for (int k = 0; k < kernel.rank; ++k) kernel.sizes[k] = plan.batch[k];
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(C));
  kernel.stride = (plan.keys + line - 1) / line * line;
  if (kernel.stride == 0 || kernel.stride * static_cast<int64_t>(sizeof(C)) % 2048 == 0) kernel.stride += line;  // rows at other places of the first cache
  int64_t block = 131072 / static_cast<int64_t>(sizeof(C)) / kernel.stride;
  block = block < 24 ? 24 : block > 72 ? 72 : block / 24 * 24;
  kernel.block = plan.rows < block ? (plan.rows > 0 ? plan.rows : 1) : block;
  kernel.blocks = (plan.rows + kernel.block - 1) / kernel.block;
}

inline namespace SITU_ABI_THREADS {
template <class D, class Kernel>
void launch_attention(Kernel& kernel, int64_t items) {
  int64_t const cost = kernel.block * kernel.keys * (kernel.depth + kernel.width) + 1;
  int64_t const grain = (int64_t{1} << 19) / cost + 1;
  int const threads = num_threads();
  kernel.scratch.count = static_cast<int>(items < threads ? items : threads);
  kernel.scratch.bytes = (kernel.scratch_size() * static_cast<int64_t>(sizeof(typename Kernel::C)) + 4095) / 4096 * 4096;
  auto free = filled<int32_t, D>({16 * kernel.scratch.count}, 0, "scaled_dot_product_attention");
  Temporary<D> const memory(static_cast<std::size_t>(kernel.scratch.count * kernel.scratch.bytes));
  kernel.scratch.taken = free.data();
  kernel.scratch.memory = static_cast<unsigned char*>(memory.get());
  device_traits<D>::launch(kernel, items, grain);
}
}  // namespace SITU_ABI_THREADS

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
