/// erf, erfc, gelu and gelu_tanh of packs and numbers.
#pragma once

#include <situ/expr/math/piecewise.hpp>
#include <situ/expr/math/sigmoid.hpp>

namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float erf(float x) { return SITU_LIBM(erff)(x); }
SITU_HOST_DEVICE inline double erf(double x) { return SITU_LIBM(erf)(x); }
SITU_HOST_DEVICE inline float erfc(float x) { return SITU_LIBM(erfcf)(x); }
SITU_HOST_DEVICE inline double erfc(double x) { return SITU_LIBM(erfc)(x); }
#if defined(__CUDA_ARCH__)
namespace detail {
/// A product that no compiler makes one operation with what it is added to.
__device__ inline float product_alone(float x, float y) { return ::__fmul_rn(x, y); }
__device__ inline double product_alone(double x, double y) { return ::__dmul_rn(x, y); }
__device__ inline float fused(float x, float y, float to) { return ::fmaf(x, y, to); }
__device__ inline double fused(double x, double y, double to) { return ::fma(x, y, to); }

/// Φ(−a) = power ratio, power = exp(−a²/2), for 0 <= a <= 15 in float, as gelu_anywhere below makes it: ratio = h(v) / (a + 3), v = (a − 3) / (a + 3).
struct DeviceTail {
  float power, ratio;
  __device__ explicit DeviceTail(float a) {
    float const square = product_alone(a, a), square_low = fused(a, a, -square);
    constexpr float c = -0.72134752f, c_low = -9.62981496e-09f;  // −1 / (2 ln 2)
    float const w = product_alone(square, c), w_low = fused(square, c, -w) + fused(square_low, c, square * c_low);
    float const e = math::exp2(w);
    power = fused(e, 0.693147181f * w_low, e);
    float const u = quotient(1.0f, a + 3.0f), v = fused(-6.0f, u, 1.0f);
    constexpr float coefficients[] = {5.21401962e-05f, 0.000127202933f, -0.00024353445f, -0.00102806545f, 0.00102492748f, 0.00696759438f,
                                      -0.0104626361f, -0.0472624376f, 0.230017707f, -0.509332001f, 0.729083717f};
    float h = coefficients[0];
#pragma unroll
    for (int k = 1; k < 11; ++k) h = fused(h, v, coefficients[k]);
    ratio = u * h;
  }
};
/// x Φ(x) in float: x < 0: x Φ(x);   x > 0:  x − x Φ(−x)
__device__ inline float gelu_of_device(float x) {
  float const a = ::fminf(::fabsf(x), 15.0f);
  DeviceTail const parts(a);
  float const tail = a * parts.ratio * parts.power;
  return x < 0 ? -tail : x - tail;
}
/// Its slope: s = Φ(−a) − a φ(a) for x < 0, 1 − s for x > 0.
__device__ inline float gelu_slope_of_device(float x) {
  float const a = ::fminf(::fabsf(x), 15.0f);
  DeviceTail const parts(a);
  float const s = parts.power * fused(-0.398942280f, a, parts.ratio);
  return x < 0 ? s : x >= 0 ? 1 - s : x;
}

/// The same to 18 bits, for the 16-bit floats. The power is 2³² times as large, and the polynomial as much smaller: neither is subnormal.
__device__ inline float gelu_of_narrow(float x) {
  float const a = ::fminf(::fabsf(x), 15.0f), power = approximate_exp2(fused(a * a, -0.72134752f, 32.0f));
  float const u = approximate_reciprocal(a + 3.0f), v = fused(-6.0f, u, 1.0f);
  constexpr float coefficients[] = {0.00137005851f, 0.00612932351f, -0.0107866554f, -0.0470336042f, 0.230075061f, -0.509349823f, 0.729082525f};
  constexpr float scale = 0x1p-32f;
  float h = coefficients[0] * scale;
#pragma unroll
  for (int k = 1; k < 7; ++k) h = fused(h, v, coefficients[k] * scale);
  float const tail = a * u * (h * power);  // h alone would lose what is left of a tiny a
  return x < 0 ? -tail : x - tail;
}
/// gelu_tanh to as many: x / (1 + e), x e / (1 + e) for x < 0, e = exp(−2√(2/π) (a + 0.044715 a³)), a = |x|.
__device__ inline float gelu_tanh_of_narrow(float x) {
  float const g = x < -50 ? -50.0f : x, a = ::fabsf(g);  // a NaN stays
  float const e = 0x1p-32f * approximate_exp2(fused(-a, fused(a * a, 0.102943240f, 2.30220819f), 32.0f));
  return (g < 0 ? g * e : g) * approximate_reciprocal(1.0f + e);
}

/// e^−z, z = √(2/π) (x + 0.044715 x³), for 0 <= x <= 50. The tail has the absolute error of z, so z/ln 2 is kept in two numbers; not in double, of whose
/// units most GPUs have few.
template <class T>
__device__ inline T gelu_tanh_tail(T x) {
  constexpr bool narrow = sizeof(T) == 4;
  constexpr T c = narrow ? T(1.15110409) : T(1.1511040990721624), c_low = narrow ? T(6.47420118e-09) : T(6.566413020384856e-17);  // √(2/π) / ln 2
  constexpr T d = narrow ? T(0.0514716208) : T(0.051471619790011747), d_low = narrow ? T(-1.00809927e-09) : T(-2.989088700359372e-18);  // 0.044715 c
  T const square = product_alone(x, x), square_low = fused(x, x, -square);
  T const cubic = product_alone(d, square), cubic_low = fused(d, square, -cubic) + fused(d, square_low, d_low * square);
  T const sum = c + cubic, part = sum - c, sum_low = (c - (sum - part)) + (cubic - part) + (cubic_low + c_low);
  T const w = product_alone(x, sum), w_low = fused(x, sum_low, fused(x, sum, -w));
  T const h = math::exp2(-w);
  return fused(h, T(-0.69314718055994531) * w_low, h);
}
}  // namespace detail
#endif

/// x Φ(x), Φ the normal distribution: gelu in its exact form.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T gelu(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) return detail::gelu_of_device(x);
#endif
  // −x/√2 = u + d: erfc(u + d) = erfc(u) − 2/√π e^(−u²) d, and e^(−u²)/erfc(u) is close to √π (u + 1/(2u)) where that
  // matters, in the tail.
  T u, d;
  if constexpr (sizeof(T) == 4) {
    u = x * -0.707106769f;
    d = SITU_LIBM(fmaf)(x, -0.707106769f, -u) + x * -1.21016175e-08f;
  } else {
    u = x * -0.7071067811865476;
    d = SITU_LIBM(fma)(x, -0.7071067811865476, -u) + x * 4.833646656726457e-17;
  }
  if (u > 40) return T(-0.0);
  T const y = x * (T(0.5) * math::erfc(u));
  return u > 1 && y != 0 ? y - y * d * (2 * u + detail::quotient(T(1), u)) : y;  // −0 stays
}
/// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2: gelu as it is often approximated.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T gelu_tanh(T x) {
#if defined(__CUDA_ARCH__)
  T const g = x < -50 ? T(-50) : x, a = g < 0 ? -g : g, tail = detail::gelu_tanh_tail(a > 50 ? T(50) : a);  // a NaN stays
  T const y = detail::quotient(g < 0 ? g * tail : g, 1 + tail * tail);
  return g < 0 ? y * tail : y;
#else
  if (x < -50) return T(-0.0);
  if (x > 50) return x;
  double const y = static_cast<double>(x);
  double const z = 0.7978845608028654 * y * (1 + 0.044715 * y * y);  // half of what sigmoid takes
  double const a = z < 0 ? z : -z;
  T const high = static_cast<T>(a);
  T const h = math::exp(high);
  T const half = h + h * static_cast<T>(a - static_cast<double>(high));
  return x < 0 ? x * half / (1 + half * half) * half : x / (1 + half * half);
#endif
}

namespace detail {

/// x · 2^n, where x is close to high + low.
template <class P>
struct tail_parts {
  P high, low, n;
};

/// g e^z h(v) / (a + c) with v = (a − c) / (a + c), z = high + low; c has few digits, and h(v) = h0 + v rest(v).
///
/// What the sum, the quotient, v, the last step of h and the products lose is kept: only rest(v) is plainly rounded. Of doubles, `rest` leaves its
/// last step, r -> r v + last, to be made here.
template <class T, int N, class Isa, class H>
SITU_INLINE tail_parts<pack<T, N, Isa>> gaussian_tail(pack<T, N, Isa> const& g, pack<T, N, Isa> const& a, std::type_identity_t<T> c,
                                                      two<pack<T, N, Isa>> const& z, two<std::type_identity_t<T>> const& h0, H const& rest) {
  using P = pack<T, N, Isa>;
  auto const [x, x_rest, n] = split_exp_twice(z.hi, z.lo);
  P const t = x + x_rest;
  P const centre(c);
  P const d = keep_order(a + centre);
  P const lost = a - keep_order(d - centre);
  P const u = near_reciprocal(d);
  P const w = residual(d, u) - lost * u;  // 1 / (a + c) = u (1 + w)
  auto const [v, v_low] = sum_of_product(P(T(1)), u, P(-2 * c));
  P const y = keep_order(multiply_add(u * (-2 * c), w, v_low));
  P const full = keep_order(v + y);
  P r = rest(full), r_low(T(0));
  if constexpr (sizeof(T) == 8) {  // the last step of rest, too
    auto const [high, low] = sum_of_product(P(H::last), r, full);
    r = high, r_low = low * full;
  }
  auto const [h, h_low] = sum_of_product(P(h0.hi), r, full);
  auto const [p, p_low] = two_prod(u, h);
  P const h_rest = multiply_add(keep_order(v - full) + y, r, h_low + (r_low + P(h0.lo)));
  auto const [q, q_low] = two_prod(g, p);
  P const low = multiply_add(g, multiply_add(u, h_rest, p_low), q_low);
  return {q, multiply_add(q, x + multiply_add(t, w, x_rest + w), low), n};
}

}  // namespace detail

/// Error function.
///
///     |x| < 0.92:  x + x p(x²),   otherwise ±(1 − exp(−q(|x|)))
///
/// Special   erf(±0) = ±0, erf(±inf) = ±1, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> erf(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const one(1.0f), a = detail::at_most(detail::magnitude(x), 4.0f);
  P const g = detail::horner(a, 6.62777097e-07f, 1.23303944e-05f, -0.000384787476f, 0.00401340146f, -0.0248128027f,
                             0.107905716f, 0.633627295f, 1.12939703f, -0.000153382425f);
  auto const [t, n] = detail::split_exp(-g);
  P const s = detail::power_of_two(n);
  P const large = one - multiply_add(s, t, s);
  P const u = a * a;
  P const p = detail::horner(u, 8.36957333e-05f, -0.000814258703f, 0.00520102307f, -0.0268593952f, 0.112836957f,
                             -0.376126349f, 0.128379166f);
  return detail::flip_sign(select(a < P(0.92f), multiply_add(a, p, a), large), x);
}

namespace detail {
// Named, because nvcc loses the attribute that inlines a lambda.
struct erfc_polynomial {
  static constexpr double last = -0.8477970066743262;
  template <class P>
  SITU_INLINE P operator()(P const& v) const {
    if constexpr (sizeof(typename P::value_type) == 4) {
      return horner(v, 7.83312717e-05f, 0.000191038387f, -0.000337805483f, -0.00147547433f, 0.00139119988f,
                    0.0099369511f, -0.0145328781f, -0.067796357f, 0.326650828f, -0.721257448f);
    } else {
      return horner(v, -1.2030831575923295e-09, -2.364541072366484e-09, 8.86335654540168e-09, 2.6158744429287856e-08,
                      -2.2235175934466236e-08, -1.5462819639454855e-07, -5.4557076717951096e-08, 6.849124065767465e-07,
                      9.253539363647918e-07, -2.6533879485977463e-06, -6.846691118365193e-06, 1.0360187223677892e-05,
                      4.3670135773741575e-05, -5.257354187857375e-05, -0.0002773468320040008, 0.0004496874082582501,
                      0.001714817898890138, -0.005681968682987736, -0.004626926116700199, 0.07062949079728457,
                      -0.24195642616691776, 0.5266003653823116);
    }
  }
};
struct gelu_polynomial {
  static constexpr double last = -0.6078966419718921;
  template <class P>
  SITU_INLINE P operator()(P const& v) const {
    if constexpr (sizeof(typename P::value_type) == 4) {
      return horner(v, 5.21401962e-05f, 0.000127202933f, -0.00024353445f, -0.00102806545f, 0.00102492748f,
                    0.00696759438f, -0.0104626361f, -0.0472624376f, 0.230017707f, -0.509332001f);
    } else {
      return horner(v, -7.613387321109209e-10, -2.5951957398647274e-09, 2.004472963897291e-09, 1.9874186501973333e-08,
                      1.3219365385229798e-08, -8.579035650554702e-08, -1.5498529116469434e-07, 2.7212754019321e-07,
                      1.0216125099640375e-06, -6.298657156423612e-07, -5.920213160470492e-06, 7.167230281350186e-07,
                      3.5144700055827056e-05, -1.908270620431365e-06, -0.00023109493793550757, 0.00013334431401427016,
                      0.0016308184578856782, -0.0034796923675149195, -0.007540188966741933, 0.06039657489094107,
                      -0.186521857959657, 0.3871374007422145);
    }
  }
};
/// rest(v) of doubles with its last step.
template <class H, class P>
SITU_INLINE P whole(H const& rest, P const& v) {
  return multiply_add(rest(v), v, P(H::last));
}
}  // namespace detail

/// 1 − erf(x), also where that is denormal.
///
///     x >= 0:  exp(−x²) h(v) / (x + 2.125),   v = (x − 2.125) / (x + 2.125)
///
/// Special   erfc(inf) = 0, erfc(−inf) = 2, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> erfc(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const a = detail::at_most(detail::magnitude(x), 11.0f);
  auto const square = detail::two_prod(a, a);
  auto const tail = detail::gaussian_tail(
      P(1.0f), a, 2.125f, {-square.hi, -square.lo}, {1.03134906f, -1.30585738e-08f},
      detail::erfc_polynomial{});
  P const y = detail::scale(keep_order(tail.high + tail.low), tail.n);
  return select(x < P(0.0f), P(2.0f) - y, y);
}

namespace detail {
/// gelu for every x.
///
///     x < 0:  x exp(−x²/2) h(v) / (|x| + 3),   v = (|x| − 3) / (|x| + 3);   x > 0:  x + gelu(−x)
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_anywhere(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const g = at_most(at_least(x, -15.8f), 15.8f);
  auto const square = two_prod(g, g);
  auto const tail = gaussian_tail(
      g, magnitude(g), 3.0f, {square.hi * -0.5f, square.lo * -0.5f}, {0.729083717f, -2.64977533e-08f},
      gelu_polynomial{});
  P const y = scale(keep_order(tail.high + tail.low), tail.n);
  return with_sign_of(x, select(x > P(0.0f), x - y, y));
}
}  // namespace detail

#if SITU_MATH_X86_ASM
namespace detail {
/// x f(x) = max(x, 0) − |x| f(−|x|), for f with f(x) + f(−x) = 1, from the table of f(−|x|).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_by_table(pack<float, N, Isa> const& x, pieces<6> const& table) {
  using P = pack<float, N, Isa>;
  P const a = at_most(magnitude(x), pieces_end);
  P const index = multiply_add(at_most(a, 15 * piece_width), P(1.0f / piece_width), P(round_magic<float>));
  P const f = look_up_value(bitcast<int32_t>(keep_order(index)), a, table);
  return fused<sign::minus>(a, f, at_least(x, -0.0f));
}
}  // namespace detail
#endif

namespace detail {
inline constexpr float normal_tail_end = 4.75f, normal_tail_clamp = 6.5f;  // from the latter on, 1 − Φ(−a) and the slope of gelu are 1, Φ the normal distribution

/// gelu(x) for x >= −normal_tail_end where products are fused: max(x, 0) − a Φ(−a), a = |x|.
///
///     Φ(−a) = 2^(n − 1) (1 + q(r)),   log2(2 Φ(−a)) = a u + g(a − 2.375) = n + r,   u = linear + quadratic a
///
/// g is less than 0.07, a polynomial that errs by 2^-26; at a = 0 it is computed as a little more than 0, so that −0 stays. What u loses in rounding is added
/// to r; linear has few digits, so that linear − u is exact.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_by_exp2(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const quadratic(-0.634765625f), linear(-0.95703125f), magic(round_magic<float> + 126.0f);
  P const a = at_most(magnitude(x), normal_tail_clamp);
  P const u = keep_order(multiply_add(a, quadratic, linear)), lost = fused(a, quadratic, keep_order(linear - u));
  P const shifted = keep_order(multiply_add(a, u, magic)), n = keep_order(shifted - magic);
  P const t = a - P(2.375f), square = t * t;
  P const even = horner(square, -2.95871239e-08f, 5.32930535e-08f, 3.35039476e-05f, 0.00179581449f, -0.0183762815f, 0.0209526233f);
  P const odd = horner(square, 4.04639433e-09f, 8.09121445e-08f, -3.08190147e-06f, -0.000265343115f, -0.0111678233f, 0.0636032969f);
  P const r = keep_order(fused<sign::plus, sign::minus>(a, u, n)) + multiply_add(a, lost, multiply_add(t, odd, even));
  P const p = horner(r, 0.00015298103f, 0.001340804f, 0.0096188001f, 0.055503257f, 0.24022643f, 0.69314718f);
  P const scaled = a * bitcast<float>(bitcast<int32_t>(shifted) << 23);  // of a power of two: exact where it is normal
  return fused<sign::minus>(scaled * r, p, keep_order(at_least(x, -0.0f) - scaled));
}
/// gelu_slope(x) for x >= −normal_tail_end where products are fused: s = Φ(−a) − a φ(a), φ the normal density, a = |x|, for x < 0, otherwise 1 − s.
///
///     Φ(−a) = 2^n r (1 + t + q),   r = exp(b²/2) Φ(−b) + (b − a) / √(2π),   2^n (1 + t + q) = exp(−b²/2),   b = (a + 3) − 3
///
/// b is a as far as it can be told from v = (b − 3) / (b + 3), in which the first term of r is a polynomial, erring by 2^-27.7. What b, b² and
/// the quotient lose in rounding is kept: the slope of Φ takes the first, the exponential the others. n is the integer next to −1.4411 b²/2, not −b²/2 log2(e):
/// one float halfway between two of them would err by 3 ULP.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_slope_by_tail(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const three(3.0f), one(1.0f), a = at_most(magnitude(x), normal_tail_clamp);
  P const d = keep_order(a + three), b = keep_order(d - three), lost = keep_order(b - a);
  P const upper = keep_order(d - P(6.0f)), v = divide(upper, d), remainder = fused<sign::minus>(v, d, upper);
  P const half = b * P(0.5f), square = keep_order(b * half), square_low = fused<sign::plus, sign::minus>(b, half, square);
  P const shifted = keep_order(multiply_add(square, P(-1.4411f), P(round_magic<float>))), n = keep_order(shifted - P(round_magic<float>));
  P const low = multiply_add(remainder, P(-0.36f), multiply_add(n, P(2.12194440e-4f), -square_low));
  P const t = fused(n, P(-0.693359375f), -square), q = exp_rest(keep_order(t + low), low);
  P const last = horner(v, 4.91530336e-05f, 0.000101725098f, -0.000353616255f, -0.000987985055f, 0.00290581677f, 0.00613264926f, -0.0462133959f,
                        0.123225003f);
  P const r = multiply_add(v, fused(last, v, P(-0.206402615f)), multiply_add(lost, P(0.398942280f), P(0.121513948f)));
  P const exact = multiply_add(square + square, lost, a);  // a exp(−a²/2) = exact exp(−b²/2)
  P const g = multiply_add(exact, P(-0.398942280f), r);
  P const power = bitcast<float>((bitcast<int32_t>(shifted) + pack<int32_t, N, Isa>(127)) << 23);
  P const s = multiply_add(g, t + q, g) * power;
  return select(x > P(0.0f), one - s, s);
}
}  // namespace detail

/// x Φ(x), Φ the normal distribution: gelu in its exact form; by a table with AVX-512.
///
/// Special   gelu(inf) = inf, gelu(−inf) = −0, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) {
    P const y = detail::gelu_by_table(x, detail::normal_pieces), bound(-detail::last_piece);
    if (SITU_UNLIKELY(detail::any_below(x, -detail::last_piece))) return select(x < bound, detail::gelu_anywhere(x), y);
    return y;
  }
#endif
  if constexpr (Isa::fma) {
    P const y = detail::gelu_by_exp2(x);
    if (SITU_UNLIKELY(detail::any_below(x, -detail::normal_tail_end))) return select(x < P(-detail::normal_tail_end), detail::gelu_anywhere(x), y);
    return y;
  }
  return detail::gelu_anywhere(x);
}

namespace detail {
/// gelu_tanh for every x.
///
///     x sigmoid(z),   z = 2 √(2/π) x (1 + 0.044715 x²)
///
/// z log2(e) is computed to twice the precision: where it is large, its absolute error is the result's relative one.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_tanh_anywhere(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const g = at_least(x, -12.5f);
  P const a = at_most(magnitude(g), 12.5f);
  // z = a (k + k_low + (c + c_low) a²)
  P const c(0.102943242f), c_low(-2.01619844e-09f), k(2.30218505859375f), k_low(2.31395497e-05f);
  auto const [square, square_low] = two_prod(a, a);
  P const correction = multiply_add(square_low, c, multiply_add(square, c_low, k_low));
  two<P> sum;
  if constexpr (Isa::fma) {  // k has few digits, k − sum is exact
    sum.hi = keep_order(multiply_add(square, c, k));
    sum.lo = fused(square, c, k - sum.hi);
  } else {
    auto const product = two_prod(square, c);
    sum = two_sum(k, product.hi);
    sum.lo = keep_order(sum.lo) + product.lo;
  }
  auto const z = two_prod(a, sum.hi);
  P const z_low = multiply_add(a, keep_order(sum.lo) + correction, z.lo);
  return with_sign_of(x, times_sigmoid(g, x < P(0.0f), split_exp2_negated(z.hi, z_low)));
}
/// gelu_tanh(x) for x >= −9 where products are fused.
///
///     x / (1 + 2^n (1 + q(r))),   −z log2(e) = x p = n + r,   p = k + c x²
///
/// What x², p and their constants lose is added to r; k has few digits, so that k − p is exact. Beyond 9 the result is x.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_tanh_by_exp2(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const c(-0.102943242f), c_low(2.01619844e-09f), k(-2.30218505859375f), k_low(-2.31395497e-05f), magic(round_magic<float> + 127.0f);
  P const g = at_most(x, 9.0f), square = keep_order(g * g), square_low = fused<sign::plus, sign::minus>(g, g, square);
  P const p = keep_order(multiply_add(square, c, k));
  P const p_low = fused(square, c, keep_order(k - p)) + multiply_add(square_low, c, multiply_add(square, c_low, k_low));
  P const shifted = keep_order(multiply_add(g, p, magic)), n = keep_order(shifted - magic);
  P const r = fused(g, p_low, fused<sign::plus, sign::minus>(g, p, n));
  P const q = horner(r, 0.00015327861f, 0.0013390998f, 0.009618503f, 0.055503596f, 0.24022648f, 0.6931472f) * r;
  P const power = bitcast<float>(bitcast<int32_t>(shifted) << 23);
  return divide(x, power + keep_order(multiply_add(power, q, P(1.0f))));
}
}  // namespace detail

/// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2: gelu as it is often approximated; by a table with AVX-512.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_tanh(pack<float, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) {
    pack<float, N, Isa> const y = detail::gelu_by_table(x, detail::gelu_tanh_pieces), bound(-detail::last_piece);
    if (SITU_UNLIKELY(detail::any_below(x, -detail::last_piece))) return select(x < bound, detail::gelu_tanh_anywhere(x), y);
    return y;
  }
#endif
  if constexpr (Isa::fma) {
    pack<float, N, Isa> const y = detail::gelu_tanh_by_exp2(x), bound(-9.0f);
    if (SITU_UNLIKELY(detail::any_below(x, -9.0f))) return select(x < bound, detail::gelu_tanh_anywhere(x), y);
    return y;
  }
  return detail::gelu_tanh_anywhere(x);
}

namespace detail {
/// gelu_slope for every x.
///
///     a = |x|:  s = exp(−a²/2) (h(v) / (a + 3) − a / √(2π)),   v = (a − 3) / (a + 3),   h that of gelu;   x > 0:  1 − s
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_slope_anywhere(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const a = at_most(magnitude(x), 15.8f), one(1.0f);
  auto const square = two_prod(a, a);
  auto const [t, rest, n] = split_exp_twice(square.hi * -0.5f, square.lo * -0.5f);
  P const d = a + P(3.0f), near = near_reciprocal(d), u = multiply_add(residual(d, near), near, near);
  P const v = multiply_add(u, P(-6.0f), one), h = multiply_add(gelu_polynomial{}(v), v, P(0.729083717f));
  P const g = multiply_add(a, P(-0.398942280f), h * u);
  P const s = scale(multiply_add(g, t + rest, g), n);
  return select(x > P(0.0f), one - s, s);
}
}  // namespace detail

/// The derivative of gelu: Φ(x) + x φ(x), φ the normal density; by a table with AVX-512.
///
/// Special   1 at inf, 0 at −inf, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_slope(pack<float, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) {
    using P = pack<float, N, Isa>;
    P const a = detail::at_most(detail::magnitude(x), detail::slope_pieces_end), bound(-detail::last_slope_piece);
    P const index = multiply_add(detail::at_most(a, 15 * detail::slope_piece_width), P(1.0f / detail::slope_piece_width), P(detail::round_magic<float>));
    P const s = detail::look_up_value(bitcast<int32_t>(keep_order(index)), a, detail::gelu_slope_pieces);
    P const y = select(x > P(0.0f), P(1.0f) - s, s);
    if (SITU_UNLIKELY(detail::any_below(x, -detail::last_slope_piece))) return select(x < bound, detail::gelu_slope_anywhere(x), y);
    return y;
  }
#endif
  if constexpr (Isa::fma) {
    using P = pack<float, N, Isa>;
    P const y = detail::gelu_slope_by_tail(x);
    if (SITU_UNLIKELY(detail::any_below(x, -detail::normal_tail_end))) return select(x < P(-detail::normal_tail_end), detail::gelu_slope_anywhere(x), y);
    return y;
  }
  return detail::gelu_slope_anywhere(x);
}
// The same for doubles, with longer polynomials and without tables.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> erfc(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const a = detail::at_most(detail::magnitude(x), 28.2);
  auto const square = detail::two_prod(a, a);
  auto const tail = detail::gaussian_tail(P(1.0), a, 2.75, {-square.hi, -square.lo}, {1.0651415295348778, -1.0772051935350882e-16}, detail::erfc_polynomial{});
  P const y = detail::scale(keep_order(tail.high + tail.low), tail.n);
  return select(x < P(0.0), P(2.0) - y, y);
}
///     |x| < 1:  x + x p(x²),   otherwise ±(1 − erfc(|x|))
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> erf(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const one(1.0), a = detail::at_most(detail::magnitude(x), 6.5);
  P const square = a * a, d = a + P(2.75), u = detail::divide(one, d), v = multiply_add(u, P(-5.5), one);
  P const h = multiply_add(detail::whole(detail::erfc_polynomial{}, v), v, P(1.0651415295348778)) * u;
  P const large = one - h * exp(-square);
  P const p = detail::horner(square, 5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08, -1.6350312701054695e-07,
                             1.6461000484121368e-06, -1.4925595266831182e-05, 0.0001205533111164271, -0.000854832698083379,
                             0.0052239776248180145, -0.026866170645076792, 0.11283791670954879, -0.3761263890318375,
                             0.1283791670955126);
  return detail::flip_sign(select(a < one, multiply_add(a, p, a), large), x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> gelu(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const g = detail::at_most(detail::at_least(x, -40.0), 40.0);
  auto const square = detail::two_prod(g, g);
  auto const tail = detail::gaussian_tail(g, detail::magnitude(g), 4.0, {square.hi * -0.5, square.lo * -0.5}, {0.7552851304157515, -2.2175033409973908e-17}, detail::gelu_polynomial{});
  P const y = detail::scale(keep_order(tail.high + tail.low), tail.n);
  return detail::with_sign_of(x, select(x > P(0.0), x - y, y));
}
/// z as in float, but for exp.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> gelu_tanh(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const g = detail::at_least(x, -22.5), a = detail::at_most(detail::magnitude(g), 22.5);
  // z = a (k + k_low + (c + c_low) a²)
  P const c(-0.07135481627260025), c_low(6.175149918155315e-19), k(-1.5957691216057308), k_low(9.96930880911092e-17);
  auto const [square, square_low] = detail::two_prod(a, a);
  P const correction = multiply_add(square_low, c, multiply_add(square, c_low, k_low));
  auto const product = detail::two_prod(square, c);
  auto const sum = detail::two_sum(k, product.hi);
  auto const z = detail::two_prod(a, sum.hi);
  P const z_low = multiply_add(a, (keep_order(sum.lo) + product.lo) + correction, z.lo);
  auto const [r, rest, n] = detail::split_exp_twice(z.hi, z_low);
  return detail::with_sign_of(x, detail::times_sigmoid(g, x < P(0.0), detail::exp_parts<P>{r + rest, n}));
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> gelu_slope(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const a = detail::at_most(detail::magnitude(x), 40.0), one(1.0);
  auto const square = detail::two_prod(a, a);
  auto const [t, rest, n] = detail::split_exp_twice(square.hi * -0.5, square.lo * -0.5);
  P const d = a + P(4.0), u = detail::divide(one, d), v = multiply_add(u, P(-8.0), one);
  P const h = multiply_add(detail::whole(detail::gelu_polynomial{}, v), v, P(0.7552851304157515));
  P const g = multiply_add(a, P(-0.3989422804014327), multiply_add(a, P(2.4923272022777433e-17), h * u));
  P const s = detail::scale(multiply_add(g, t + rest, g), n);
  return select(x > P(0.0), one - s, s);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI
