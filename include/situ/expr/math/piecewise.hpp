/// Polynomials in short chains; functions as tables of them, one for each of 16 intervals, for kernels that can look numbers up in registers.
#pragma once

#include <situ/expr/math/detail.hpp>

namespace situ::inline SITU_ABI {
namespace math {
namespace detail {

/// The polynomial of seven coefficients, given from the highest power down, in pairs; u = x². Horner's scheme takes one multiplication less but has
/// every step wait for the last one, and processors hold few elements that wait.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> by_pairs(pack<T, N, Isa> const& x, pack<T, N, Isa> const& u, T c6, T c5, T c4, T c3, T c2, T c1, T c0) {
  using P = pack<T, N, Isa>;
  P const high = multiply_add(u, P(c6), multiply_add(x, P(c5), P(c4)));
  P const low = multiply_add(u, multiply_add(x, P(c3), P(c2)), multiply_add(x, P(c1), P(c0)));
  return multiply_add(u * u, high, low);
}

/// Polynomials in x − centre; coefficient[0] belongs to the constant. A centre lies where the value is close to a float, so
/// that the last addition makes most of the error.
template <int Degree>
struct pieces {
  alignas(64) float centre[16];
  alignas(64) float coefficient[Degree + 1][16];
};

#if SITU_MATH_X86_ASM
/// table[index mod 16]. Only where has_avx512.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> look_up(pack<int32_t, N, Isa> const& index, float const (&table)[16]) {
  constexpr int lanes = Isa::bytes / 4;
  using register_of = typename situ::detail::vector_of<float, lanes>::type;
  register_of r, from, values;
  __builtin_memcpy(&values, table, sizeof values);
  if constexpr (N == lanes) {
    from = bitcast<float>(index).v;
  } else {
    from = values;
    __builtin_memcpy(&from, &index.v, sizeof(index.v));
  }
  __asm__("vpermps {%2, %1, %0|%0, %1, %2}" : "=v"(r) : "v"(from), "vm"(values));
  if constexpr (N == lanes) {
    return pack<float, N, Isa>(r);
  } else {
    pack<float, N, Isa> result(0.0f);
    __builtin_memcpy(&result.v, &r, sizeof(result.v));
    return result;
  }
}

/// c[K] + d (c[K + 1] + d (… + d c[Degree])), the coefficients looked up. Not a loop: g++ -O2 would keep it, and read memory.
template <int K, int Degree, int N, class Isa>
SITU_INLINE pack<float, N, Isa> looked_up_horner(pack<int32_t, N, Isa> const& index, pack<float, N, Isa> const& d,
                                                 float const (&c)[Degree + 1][16]) {
  if constexpr (K == Degree) return look_up(index, c[K]);
  else return fused(looked_up_horner<K + 1, Degree>(index, d, c), d, look_up(index, c[K]));
}
/// The polynomial of the index at x.
template <int Degree, int N, class Isa>
SITU_INLINE pack<float, N, Isa> look_up_value(pack<int32_t, N, Isa> const& index, pack<float, N, Isa> const& x,
                                              pieces<Degree> const& table) {
  return looked_up_horner<0, Degree>(index, x - look_up(index, table.centre), table.coefficient);
}

#endif

/// tanh(x), 0 <= x <= 9.1. An interval's number is in bits 21 to 24 of x + 5/8: intervals grow with x. A polynomial errs by less
/// than 2^-24.3 of the value.
inline constexpr pieces<5> tanh_pieces{
    {1.6249857f, 2.1249893f, 2.624981f, 3.1251433f, 3.8750033f, 4.8749824f, 5.8744745f, 6.87357f, 8.317766f, 0.0f,
     0.18750109f, 0.3124974f, 0.4999994f, 0.7500064f, 1.0000303f, 1.2500032f},
    {{0.92534417f, 0.97187215f, 0.98955935f, 0.99614763f, 0.9991389f, 0.9998834f, 0.9999842f, 0.99999785f, 0.9999999f,
      0.0f, 0.18533425f, 0.30270737f, 0.4621167f, 0.63515276f, 0.7616069f, 0.84828454f},
     {0.14373805f, 0.055464514f, 0.020772291f, 0.0076898965f, 0.0017215232f, 0.0002331665f, 3.1590913e-05f,
      4.2830393e-06f, 2.3905554e-07f, 1.0f, 0.9656512f, 0.90836823f, 0.78644824f, 0.596581f, 0.41995496f, 0.28041333f},
     {-0.13301432f, -0.05390352f, -0.02055434f, -0.007659752f, -0.0017179395f, -0.00023284626f, -3.154865e-05f,
      -4.143378e-06f, -2.3548888e-07f, 3.1204848e-07f, -0.17896792f, -0.27496952f, -0.3634256f, -0.37891993f,
      -0.31984246f, -0.2378719f},
     {0.07517848f, 0.033901237f, 0.013416284f, 0.0050671375f, 0.0011432648f, 0.00015518343f, 2.1032023e-05f,
      2.8522486e-06f, 1.5357887e-07f, -0.33335564f, -0.2887152f, -0.21954516f, -0.094224796f, 0.041807167f, 0.10361073f,
      0.1083126f},
     {-0.024855528f, -0.015026007f, -0.006480259f, -0.0025209505f, -0.0005967692f, -8.132529e-05f, -1.1033926e-05f,
      -2.0328926e-06f, -9.1415394e-08f, 0.00047275607f, 0.11286145f, 0.15779272f, 0.16358799f, 0.09972554f, 0.028106602f,
      -0.012257683f},
     {0.0011028729f, 0.004452962f, 0.0023593619f, 0.0009758607f, 0.00023672442f, 3.2477335e-05f, 4.404602e-06f,
      6.0299226e-07f, 4.099971e-08f, 0.12998629f, 0.0968763f, 0.044330552f, -0.025565464f, -0.06343082f, -0.04639145f,
      -0.019376699f}}};

/// Φ(−x), Φ the normal distribution, and gelu_tanh(−x) / −x, in intervals around k · 0.28125, of which the last reaches from
/// 4.078125 to 5.5. There the polynomials err by 2^-26.8, before by less than 2^-25.3 of the value.
inline constexpr float piece_width = 0.28125f, last_piece = 14.5f * piece_width, pieces_end = 5.5f;
inline constexpr pieces<6> normal_pieces{
    {0.0f, 0.28125456f, 0.56250226f, 0.84374976f, 1.1250817f, 1.4062324f, 1.6875051f, 1.9687288f, 2.2499273f, 2.531304f,
     2.8124833f, 3.093755f, 3.3750918f, 3.656303f, 3.937497f, 4.789139f},
    {{0.5f, 0.38925758f, 0.28688693f, 0.19940463f, 0.13027722f, 0.07982757f, 0.045753133f, 0.024492122f, 0.012226781f,
      0.0056819674f, 0.0024580287f, 0.0009882031f, 0.00036895537f, 0.00012793948f, 4.1167998e-05f, 8.37493e-07f},
     {-0.3989423f, -0.38347125f, -0.34056717f, -0.27946022f, -0.21185718f, -0.14842385f, -0.09606067f, -0.05744743f,
      -0.031744845f, -0.016200904f, -0.0076429644f, -0.0033306142f, -0.0013407035f, -0.00049884553f, -0.00017150822f,
      -4.2336596e-06f},
     {1.1319688e-06f, 0.05392653f, 0.095784895f, 0.11789727f, 0.11917832f, 0.10435922f, 0.08105144f, 0.056549206f,
      0.0357118f, 0.020504704f, 0.010747855f, 0.0051520523f, 0.0022624985f, 0.000911965f, 0.00033765633f,
      1.0061065e-05f},
     {0.06645352f, 0.058853652f, 0.038803678f, 0.013420874f, -0.009384796f, -0.024179984f, -0.029581208f, -0.027535168f,
      -0.02149223f, -0.014601256f, -0.008802296f, -0.0047579687f, -0.002321929f, -0.001028325f, -0.00041458147f,
      -1.4247808e-05f},
     {0.00052627415f, -0.013126296f, -0.021421291f, -0.022484854f, -0.017223883f, -0.008893644f, -0.0010293631f,
      0.0041267965f, 0.006136671f, 0.0058229594f, 0.0043978496f, 0.0028212925f, 0.0015821236f, 0.00078801234f,
      0.00035186423f, 1.5944626e-05f},
     {-0.013410327f, -0.007968511f, -0.003497195f, 0.0016570874f, 0.005233319f, 0.0060940236f, 0.0047681914f,
      0.0024957478f, 0.00047002145f, -0.0007441675f, -0.0011472693f, -0.001030506f, -0.00071984105f, -0.00042289458f,
      -0.00021576145f, -1.7619277e-05f},
     {0.008564858f, 0.0021026868f, 0.0032171938f, 0.002926075f, 0.001336168f, -0.00020065888f, -0.0011846684f,
      -0.0013375519f, -0.0009797064f, -0.0004761225f, -5.2454012e-05f, 0.0001561649f, 0.00019257062f, 0.00015082066f,
      9.311137e-05f, 1.0532771e-05f}}};
inline constexpr pieces<6> gelu_tanh_pieces{
    {0.0f, 0.28125226f, 0.56249213f, 0.84374386f, 1.1249913f, 1.4062442f, 1.6874706f, 1.9687485f, 2.2499287f,
     2.5312526f, 2.8125439f, 3.093741f, 3.3750584f, 3.6562293f, 3.9374864f, 4.7890906f},
    {{0.5f, 0.3892654f, 0.2869371f, 0.19952261f, 0.1304687f, 0.07999094f, 0.04583952f, 0.024454964f, 0.012091761f,
      0.005505146f, 0.0022927728f, 0.00086684973f, 0.00029475382f, 8.942036e-05f, 2.395654e-05f, 1.8931156e-07f},
     {-0.3989423f, -0.38340035f, -0.3403588f, -0.27920485f, -0.21176969f, -0.14858939f, -0.09645728f, -0.057864398f,
      -0.03200693f, -0.016245663f, -0.0075238803f, -0.0031566077f, -0.0011887399f, -0.00039854538f, -0.00011773356f,
      -1.2988528e-06f},
     {1.1321645e-06f, 0.054155096f, 0.09599702f, 0.11781491f, 0.118758544f, 0.10385565f, 0.08080961f, 0.05668791f,
      0.036089398f, 0.020871203f, 0.0109394435f, 0.005168779f, 0.0021834918f, 0.00081809587f, 0.00026909955f,
      3.896477e-06f},
     {0.066782594f, 0.05901645f, 0.03859765f, 0.012973925f, -0.009676933f, -0.024058515f, -0.029140536f, -0.027123228f,
      -0.021361904f, -0.014742307f, -0.009033832f, -0.0049269977f, -0.002381367f, -0.0010135281f, -0.00037634186f,
      -6.312184e-06f},
     {0.00052680814f, -0.013401554f, -0.021744767f, -0.022532336f, -0.016927045f, -0.0085045295f, -0.0008890146f,
      0.0039542927f, 0.005852747f, 0.0056515746f, 0.0043987106f, 0.0029150334f, 0.0016708294f, 0.00082982314f,
      0.0003552396f, 9.3930685e-06f},
     {-0.013644327f, -0.008180336f, -0.003401485f, 0.0021153602f, 0.0054937294f, 0.006064234f, 0.0045525585f,
      0.0023487534f, 0.0004735226f, -0.00063148735f, -0.001043962f, -0.0010036076f, -0.000746043f, -0.00045696975f,
      -0.00023452268f, -1.4862614e-05f},
     {0.008595f, 0.0021474778f, 0.003403071f, 0.002667815f, 0.0011167631f, -0.00046291054f, -0.0012677422f,
      -0.0012924247f, -0.0008643935f, -0.00041907202f, -8.855103e-05f, 0.000114415074f, 0.00017747408f, 0.0001560204f,
      0.00010349356f, 1.0393772e-05f}}};

/// The slope of gelu at −x: Φ(−x) − x φ(x), φ the normal density, in intervals around k · 0.3125, of which the last reaches from
/// 4.53125 to 6.125. There the polynomials err by 2^-24.9, around 0.75, where the slope is 0, by 2^-28, elsewhere by less than 2^-24.9 of the value.
inline constexpr float slope_piece_width = 0.3125f, last_slope_piece = 14.5f * slope_piece_width, slope_pieces_end = 6.125f;
inline constexpr pieces<6> gelu_slope_pieces{
    {0.0f, 0.3124974f, 0.62502056f, 0.93750334f, 1.250021f, 1.5624659f, 1.8749564f, 2.187442f, 2.5000544f, 2.8124402f,
     3.1250782f, 3.4375937f, 3.749932f, 4.0626802f, 4.3750963f, 5.3282313f},
    {{0.5f, 0.25860384f, 0.060874064f, -0.06675704f, -0.12266326f, -0.12481823f, -0.098582454f, -0.065410934f,
      -0.037607037f, -0.01903963f, -0.008553696f, -0.0034315328f, -0.0012341056f, -0.0003980495f, -0.00011565633f,
      -1.3968745e-06f},
     {-0.7978846f, -0.7227598f, -0.52811885f, -0.28820145f, -0.07989731f, 0.051942423f, 0.104251474f, 0.10155275f,
      0.07448992f, 0.045174025f, 0.023465464f, 0.010637783f, 0.004254089f, 0.001507798f, 0.00047691521f, 7.461817e-06f},
     {1.7741851e-07f, 0.23165776f, 0.37014726f, 0.37610197f, 0.27824587f, 0.14332823f, 0.03124835f, -0.03130429f,
      -0.049298663f, -0.04202663f, -0.027223228f, -0.014559209f, -0.0066537294f, -0.0026405454f, -0.0009215492f,
      -1.8055965e-05f},
     {0.26595482f, 0.21060252f, 0.07755825f, -0.059119143f, -0.13686742f, -0.13985339f, -0.094587244f, -0.04010754f,
      -0.0020046155f, 0.014264084f, 0.015618589f, 0.011003031f, 0.006072522f, 0.002787374f, 0.0010962128f, 2.4581594e-05f},
     {0.00012073733f, -0.08378341f, -0.11840628f, -0.091443576f, -0.030953305f, 0.02217734f, 0.04466671f, 0.039012607f,
      0.021335883f, 0.005771391f, -0.0023401214f, -0.004291702f, -0.003364376f, -0.0019156197f, -0.0008817513f,
      -2.891185e-05f},
     {-0.060962826f, -0.041457098f, -0.0013349173f, 0.032156035f, 0.03999207f, 0.025144562f, 0.0041039456f, -0.00922123f,
      -0.0116348555f, -0.007687059f, -0.0029050019f, -1.5887532e-05f, 0.0009183766f, 0.00083069946f, 0.00049004995f,
      3.592349e-05f},
     {0.0051885517f, 0.018022306f, 0.022166038f, 0.012237527f, -0.0029789973f, -0.011190593f, -0.009926613f, -0.0039600614f,
      0.0010053325f, 0.0027245856f, 0.0021248013f, 0.0009331524f, 0.00012845465f, -0.00016437349f, -0.00017288626f,
      -2.1304963e-05f}}};

}  // namespace detail
}  // namespace math
}  // namespace situ::inline SITU_ABI
