/// Batch normalisation on the CPU, channel by channel, and its gradient.
///
/// A channel's elements lie in runs, one in each image. Long runs are summed along, and every channel is finished before the next one, while it
/// is in the cache. Runs shorter than a register are columns of a matrix of images: many columns are summed down side by side, and those
/// of a channel joined. Sums are made in short chains of the computing type, and these are added in double. The moments of blocks of images,
/// each about the mean of all before it, are merged: elements are read once, and nothing cancels. How work is cut depends on shapes alone.
#pragma once

#include <situ/ops/batch_norm_plan.hpp>
#include <situ/ops/cpu/rows_math.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

// ---- a channel in runs -----------------------------------------------------------------------------------------------------------

/// Runs of one channel, no shorter than the widest register.
template <class T>
struct ChannelRuns {
  using C = compute_t<T>;
  T const* x;
  T const* g;
  T* out;
  int64_t runs, step, length;
  ChannelCoefficients<C> by;
  double sum, products;  ///< the result of SumRunsBody
};

/// The sums of d = x - shift and of d²; with g, of g and of g d.
template <class T, bool HasG>
struct SumRunsBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(ChannelRuns<T>* a) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    constexpr int64_t longest_chain = 128 * N;  // 64 additions for each lane of the two sums
    using P = pack<C, N, Isa>;
    int64_t const length = a->length, whole = length / N * N, left = length - whole;
    P const shift(a->by.shift), zero(C(0));
    auto const old = lanes_below<C, N, Isa>(N - left);  // of the last pack, which overlaps the one before it
    P s(C(0)), s1 = s, q = s, q1 = s;
    int64_t chain = 0;
    double sum = 0, products = 0;
    for (int64_t run = 0; run < a->runs; ++run) {
      T const* const x = a->x + run * a->step;
      T const* const g = HasG ? a->g + run * a->step : nullptr;
      for (int64_t i = 0; i < whole;) {
        int64_t const stop = i + longest_chain < whole ? i + longest_chain : whole;
        chain += stop - i;
        for (; i + 2 * N <= stop; i += 2 * N) {
          P const d = P(load_lanes<T, N, Isa>(x + i)) - shift, d1 = P(load_lanes<T, N, Isa>(x + i + N)) - shift;
          if constexpr (HasG) {
            P const h = load_lanes<T, N, Isa>(g + i), h1 = load_lanes<T, N, Isa>(g + i + N);
            s = s + h, s1 = s1 + h1;
            q = multiply_add(h, d, q), q1 = multiply_add(h1, d1, q1);
          } else {
            s = s + d, s1 = s1 + d1;
            q = multiply_add(d, d, q), q1 = multiply_add(d1, d1, q1);
          }
        }
        if (i < stop) {
          add<Isa>(load_lanes<T, N, Isa>(x + i) - shift, g ? g + i : nullptr, zero, old, false, s, q);
          i += N;
        }
        if (chain < longest_chain) continue;
        sum += static_cast<double>(sum_of_lanes(s + s1)), products += static_cast<double>(sum_of_lanes(q + q1));
        s = zero, s1 = zero, q = zero, q1 = zero;
        chain = 0;
      }
      if (left > 0) {
        P const d = select(old, zero, load_lanes<T, N, Isa>(x + length - N) - shift);
        add<Isa>(d, g ? g + length - N : nullptr, zero, old, true, s1, q1);
        chain += N;
      }
    }
    a->sum = sum + static_cast<double>(sum_of_lanes(s + s1));
    a->products = products + static_cast<double>(sum_of_lanes(q + q1));
    return 0;
  }

 private:
  template <class Isa, int N>
  SITU_INLINE static void add(pack<C, N, Isa> const& d, T const* g, pack<C, N, Isa> const& zero, typename pack<C, N, Isa>::mask_type const& old, bool is_tail,
                              pack<C, N, Isa>& s, pack<C, N, Isa>& q) {
    if constexpr (HasG) {
      pack<C, N, Isa> h = load_lanes<T, N, Isa>(g);
      if (is_tail) h = select(old, zero, h);
      s = s + h;
      q = multiply_add(h, d, q);
    } else {
      s = s + d;
      q = multiply_add(d, d, q);
    }
  }
};

/// (x - shift) scale + low, with g slope.
template <class T, bool HasG, class Isa, int N, class C>
SITU_INLINE pack<C, N, Isa> channel_element(T const* x, T const* g, pack<C, N, Isa> const& shift, pack<C, N, Isa> const& scale, pack<C, N, Isa> const& low,
                                            pack<C, N, Isa> const& slope) {
  pack<C, N, Isa> const value = multiply_add(keep_order(load_lanes<T, N, Isa>(x) - shift), scale, low);
  if constexpr (HasG) return multiply_add(pack<C, N, Isa>(load_lanes<T, N, Isa>(g)), slope, value);
  else return value;
}

template <class T, bool HasG>
struct ScaleRunsBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(ChannelRuns<T> const* a) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    int64_t const length = a->length;
    P const shift(a->by.shift), scale(a->by.scale), low(a->by.low), slope(a->by.slope);
    for (int64_t run = 0; run < a->runs; ++run) {
      T const* const x = a->x + run * a->step;
      T const* const g = HasG ? a->g + run * a->step : a->x;
      T* const out = a->out + run * a->step;
      int64_t i = 0;
      for (; i + 2 * N <= length; i += 2 * N) {
        P const y = channel_element<T, HasG, Isa>(x + i, g + i, shift, scale, low, slope);
        P const y1 = channel_element<T, HasG, Isa>(x + i + N, g + i + N, shift, scale, low, slope);
        store_lanes<T, N, Isa>(y, out + i);
        store_lanes<T, N, Isa>(y1, out + i + N);
      }
      while (i < length) {
        if (i + N > length) i = length - N;  // once more what is there already
        store_lanes<T, N, Isa>(channel_element<T, HasG, Isa>(x + i, g + i, shift, scale, low, slope), out + i);
        i += N;
      }
    }
    return 0;
  }
};

// ---- channels in columns -----------------------------------------------------------------------------------------------------------

inline constexpr int64_t column_room = 640;  ///< for a chunk of columns: 512, with what is left of a group, and of a channel

/// A chunk of columns, rows `step` apart.
template <class T>
struct ChannelColumns {
  using C = compute_t<T>;
  T const* x;
  T const* g;
  T* out;
  int64_t rows, step, columns;
  alignas(64) C shift[column_room], scale[column_room], low[column_room], slope[column_room];
  alignas(64) C chain_sum[column_room], chain_products[column_room];
  double sum[column_room], products[column_room];  ///< the result of SumColumnsBody
};

template <class T, bool HasG>
struct SumColumnsBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(ChannelColumns<T>* a) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    int64_t const columns = a->columns, step = a->step;
    int64_t const whole = columns / N * N;
    P const zero(C(0));
    for (int64_t k = 0; k < columns; ++k) a->sum[k] = a->products[k] = 0, a->chain_sum[k] = a->chain_products[k] = C(0);
    for (int64_t row = 0; row < a->rows;) {
      int64_t const stop = row + 256 < a->rows ? row + 256 : a->rows;
      while (row < stop) {
        int64_t const four = row + 4 <= stop ? 4 : 1;
        T const* const x = a->x + row * step;
        T const* const g = HasG ? a->g + row * step : x;
        if (four == 4) {
          for (int64_t k = 0; k < whole; k += N) add<Isa, 4>(*a, x + k, g + k, k);
        } else {
          for (int64_t k = 0; k < whole; k += N) add<Isa, 1>(*a, x + k, g + k, k);
        }
        if (whole < columns) {
          for (int64_t r = 0; r < four; ++r) {
            for (int64_t k = whole; k < columns; ++k) {
              C const d = convert_scalar<C>(x[r * step + k]) - a->shift[k], h = HasG ? convert_scalar<C>(g[r * step + k]) : d;
              a->chain_sum[k] += h;
              a->chain_products[k] += h * d;
            }
          }
        }
        row += four;
      }
      for (int64_t k = 0; k < columns; ++k) {
        a->sum[k] += static_cast<double>(a->chain_sum[k]), a->products[k] += static_cast<double>(a->chain_products[k]);
        a->chain_sum[k] = a->chain_products[k] = C(0);
      }
    }
    return 0;
  }

 private:
  template <class Isa, int Rows>
  SITU_INLINE static void add(ChannelColumns<T>& a, T const* x, T const* g, int64_t k) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    int64_t const step = a.step;
    P const shift = P::load(a.shift + k);
    P s = P::load(a.chain_sum + k), q = P::load(a.chain_products + k);
    if constexpr (Rows == 1) {
      P const d = load_lanes<T, N, Isa>(x) - shift;
      if constexpr (HasG) {
        P const h = load_lanes<T, N, Isa>(g);
        s = s + h, q = multiply_add(h, d, q);
      } else {
        s = s + d, q = multiply_add(d, d, q);
      }
    } else {
      P const d0 = load_lanes<T, N, Isa>(x) - shift, d1 = load_lanes<T, N, Isa>(x + step) - shift;
      P const d2 = load_lanes<T, N, Isa>(x + 2 * step) - shift, d3 = load_lanes<T, N, Isa>(x + 3 * step) - shift;
      if constexpr (HasG) {
        P const h0 = load_lanes<T, N, Isa>(g), h1 = load_lanes<T, N, Isa>(g + step);
        P const h2 = load_lanes<T, N, Isa>(g + 2 * step), h3 = load_lanes<T, N, Isa>(g + 3 * step);
        s = s + ((h0 + h1) + (h2 + h3));
        q = q + (multiply_add(h0, d0, h1 * d1) + multiply_add(h2, d2, h3 * d3));
      } else {
        s = s + ((d0 + d1) + (d2 + d3));
        q = q + (multiply_add(d0, d0, d1 * d1) + multiply_add(d2, d2, d3 * d3));
      }
    }
    s.store(a.chain_sum + k);
    q.store(a.chain_products + k);
  }
};

template <class T, bool HasG>
struct ScaleColumnsBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(ChannelColumns<T> const* a) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    int64_t const columns = a->columns;
    for (int64_t row = 0; row < a->rows; ++row) {
      T const* const x = a->x + row * a->step;
      T const* const g = HasG ? a->g + row * a->step : x;
      T* const out = a->out + row * a->step;
      if (columns < N) {
        for (int64_t k = 0; k < columns; ++k) {
          C const y = (convert_scalar<C>(x[k]) - a->shift[k]) * a->scale[k] + a->low[k];
          out[k] = convert_scalar<T>(HasG ? convert_scalar<C>(g[k]) * a->slope[k] + y : y);
        }
        continue;
      }
      for (int64_t k = 0; k < columns; k += N) {
        if (k + N > columns) k = columns - N;
        P const slope = HasG ? P::load(a->slope + k) : P(C(0));
        store_lanes<T, N, Isa>(channel_element<T, HasG, Isa>(x + k, g + k, P::load(a->shift + k), P::load(a->scale + k), P::load(a->low + k), slope), out + k);
      }
    }
    return 0;
  }
};

// ---- the kernel ------------------------------------------------------------------------------------------------------------------------

/// y from x, or with `g` its gradient by x. Items are channels in runs, or groups of channels in columns.
template <class T, bool HasG>
struct BatchNormKernel {
  using C = compute_t<T>;
  BatchNormPlan plan;
  T const* x;
  T const* g;
  T* out;  ///< null where only the gradients of weight and bias are wanted
  ChannelValues weight_gradient, bias_gradient;

  static constexpr int64_t shortest_run = 64 / static_cast<int64_t>(sizeof(C));
  bool in_runs() const { return plan.inner >= shortest_run; }
  /// Of a group: 64 columns, or a few more.
  int64_t group() const { return (63 + plan.inner) / plan.inner; }
  int64_t items() const { return in_runs() ? plan.channels : plan.channels <= group() ? 1 : plan.channels / group(); }
  int64_t grain() const {
    int64_t const work = plan.count() * (in_runs() ? 1 : group());
    return (int64_t{1} << 15) / (work < 1 << 15 ? work + 1 : 1 << 15) + 1;
  }

  void operator()(int64_t first, int64_t last) const {
    if (in_runs()) {
      for (int64_t c = first; c < last; ++c) do_channel(c);
    } else {
      int64_t const end = last == items() ? plan.channels : last * group(), most = 512 / plan.inner;
      for (int64_t c = first * group(); c < end;) {
        int64_t const stop = end - c < most + group() ? end : c + most;
        do_columns(c, stop);
        c = stop;
      }
    }
  }

 private:
  bool needs_sums() const { return HasG ? plan.training || weight_gradient.data || bias_gradient.data : plan.training; }

  void do_channel(int64_t c) const {
    int64_t const at = c * plan.inner;
    ChannelRuns<T> a{};
    a.x = x ? x + at : nullptr, a.runs = plan.images, a.step = plan.channels * plan.inner, a.length = plan.inner;
    a.out = out ? out + at : nullptr;
    if constexpr (HasG) {
      a.g = g + at;
      a.by.shift = plan.template centre<C>(c);
      if (needs_sums()) dispatch<SumRunsBody<T, true>>(&a);
      a.by = plan.template differentiating<C>(c, a.sum, a.products, weight_gradient, bias_gradient);
      if (!out) return;
      if (plan.training) return void(dispatch<ScaleRunsBody<T, true>>(const_cast<ChannelRuns<T> const*>(&a)));
      a.x = a.g;
    } else {
      ChannelMoments moments;
      if (plan.training) moments = moments_of(a);
      a.x = x + at, a.runs = plan.images, a.out = out + at;
      a.by = plan.template normalizing<C>(c, moments);
    }
    dispatch<ScaleRunsBody<T, false>>(const_cast<ChannelRuns<T> const*>(&a));
  }

  /// Images of the first block, which is read twice. Each of the others is as large as all before it.
  int64_t first_block(int64_t elements) const {
    int64_t const block = (elements + plan.inner - 1) / plan.inner;
    return block < plan.images ? block : plan.images;
  }

  ChannelMoments moments_of(ChannelRuns<T>& a) const {
    ChannelMoments moments;
    T const* const from = a.x;
    a.runs = first_block(2048);
    a.by.shift = convert_scalar<C>(*from);
    dispatch<SumRunsBody<T, false>>(&a);
    double guess = static_cast<double>(a.by.shift) + a.sum / static_cast<double>(a.runs * plan.inner);
    for (int64_t image = 0; image < plan.images;) {
      a.x = from + image * a.step;
      a.by.shift = static_cast<C>(guess);
      dispatch<SumRunsBody<T, false>>(&a);
      MergedMoments(image * plan.inner, a.runs * plan.inner).add(moments, static_cast<double>(a.by.shift), a.sum, a.products);
      guess = moments.mean;
      image += a.runs;
      a.runs = image < plan.images - image ? image : plan.images - image;
    }
    return moments;
  }

  void do_columns(int64_t first, int64_t last) const {
    int64_t const inner = plan.inner, at = first * inner;
    ChannelColumns<T> a;
    a.rows = plan.images, a.step = plan.channels * inner, a.columns = (last - first) * inner;
    a.x = x ? x + at : nullptr, a.g = HasG ? g + at : nullptr, a.out = out ? out + at : nullptr;
    ChannelMoments moments[HasG ? 1 : column_room];
    if constexpr (HasG) {
      for (int64_t k = 0; k < a.columns; ++k) a.shift[k] = plan.template centre<C>(first + k / inner);
      if (needs_sums()) dispatch<SumColumnsBody<T, true>>(&a);
    } else {
      if (plan.training) gather_moments(a, moments);
    }
    for (int64_t c = first, k = 0; c < last; ++c, k += inner) {
      ChannelCoefficients<C> by;
      if constexpr (HasG) {
        double sum = 0, products = 0;
        for (int64_t j = k; needs_sums() && j < k + inner; ++j) sum += a.sum[j], products += a.products[j];
        by = plan.template differentiating<C>(c, sum, products, weight_gradient, bias_gradient);
      } else {
        ChannelMoments all = moments[k];
        for (int64_t j = 1; plan.training && j < inner; ++j) MergedMoments(j * plan.images, plan.images).add(all, moments[k + j]);
        by = plan.template normalizing<C>(c, all);
      }
      for (int64_t j = k; j < k + inner; ++j) a.shift[j] = by.shift, a.scale[j] = by.scale, a.low[j] = by.low, a.slope[j] = by.slope;
    }
    if (!out) return;
    if constexpr (HasG) {
      if (plan.training) return void(dispatch<ScaleColumnsBody<T, true>>(const_cast<ChannelColumns<T> const*>(&a)));
      a.x = a.g;
    }
    dispatch<ScaleColumnsBody<T, false>>(const_cast<ChannelColumns<T> const*>(&a));
  }

  void gather_moments(ChannelColumns<T>& a, ChannelMoments* moments) const {
    T const* const from = a.x;
    int64_t const images = a.rows;
    a.rows = images < 16 ? images : 16;
    for (int64_t k = 0; k < a.columns; ++k) a.shift[k] = convert_scalar<C>(from[k]);
    dispatch<SumColumnsBody<T, false>>(&a);
    double const share = 1.0 / static_cast<double>(a.rows);
    for (int64_t k = 0; k < a.columns; ++k) a.shift[k] += static_cast<C>(a.sum[k] * share);
    for (int64_t image = 0; image < images;) {
      a.x = from + image * a.step;
      dispatch<SumColumnsBody<T, false>>(&a);
      MergedMoments const merged(image, a.rows);
      for (int64_t k = 0; k < a.columns; ++k) {
        merged.add(moments[k], static_cast<double>(a.shift[k]), a.sum[k], a.products[k]);
        a.shift[k] = static_cast<C>(moments[k].mean);
      }
      image += a.rows;
      a.rows = image < images - image ? image : images - image;
    }
    a.x = from, a.rows = images;
  }
};

}  // namespace detail::cpu

namespace detail {

/// Runs a plan on D, which has the CPU's kernels.
template <class D, class T>
void launch_batch_norm(cpu_kernels, BatchNormPlan const& plan, T const* x, T* y) {
  cpu::BatchNormKernel<T, false> const kernel{plan, x, nullptr, y, {}, {}};
  device_traits<D>::launch(kernel, kernel.items(), kernel.grain());
}
template <class D, class T>
void launch_batch_norm_gradient(cpu_kernels, BatchNormPlan const& plan, T const* g, T const* x, T* out, ChannelValues const& weight_gradient, ChannelValues const& bias_gradient) {
  cpu::BatchNormKernel<T, true> const kernel{plan, x, g, out, weight_gradient, bias_gradient};
  device_traits<D>::launch(kernel, kernel.items(), kernel.grain());
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
