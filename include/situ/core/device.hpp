/// Devices as types, and what every device must offer.
///
/// A *device* is an empty tag type. `device_traits<D>` tells all the rest of situ what D can do; whoever specialises
/// it for a type of their own has added a device:
///
///     template <> struct device_traits<Mine> {
///       static constexpr bool host_memory = true;      // may the host dereference its pointers?
///       using kernels = cpu_kernels;                   // whose kernels run there
///       static std::string name();                     // "mine"; printed with tensors when it is not "cpu"
///       static void* allocate(std::size_t bytes);      // aligned to 64; throws OutOfMemory, DeviceUnavailable
///       static void deallocate(void* memory, std::size_t bytes) noexcept;
///       static void copy(void* to, void const* from, std::size_t bytes);                  // within the device, enqueued
///       static void copy_from_host(void* to, void const* from, std::size_t bytes);        // done when it returns
///       static void copy_to_host(void* to, void const* from, std::size_t bytes);          // done when it returns
///       template <class Kernel>
///       static void launch(Kernel const& kernel, std::int64_t items, std::int64_t grain); // see below
///       static void synchronize();
///     };
///
/// A kernel of the `cpu_kernels` family is trivially copyable and is called as `kernel(first, last)` on parts of
/// [0, items) that may run side by side; `grain` items are worth a thread of their own, or with 0 each one. `launch` may return before it has run.
/// Four traits are optional: `using result_device = Cpu;` for memory that mixes with that device; `static constexpr bool
/// immediate = true;` where the calling thread may do a little work itself, without a launch;
/// `template <class From> static void copy_from(void* to, void const* from, std::size_t bytes)` for copies that need not
/// pass through the host; and for devices whose `launch` returns before the kernel has run, `static detail::IndexFault* fault()`:
/// the record, in memory that kernels and the host reach, of the first index that a kernel found out of range. `synchronize`
/// and `copy_to_host` of such a device end by throwing it as IndexError and clearing it (device/fault.hpp).
/// A device whose work goes to streams offers `current_stream()` and the functions beside it (device/order.hpp): every storage of it then
/// notes who uses it, and uses on different streams are ordered. Asynchronous copies need `copy_from_pinned`, `copy_to_pinned`,
/// `copy_rows_from_pinned` and `copy_rows_to_pinned`.
#pragma once

#include <string>

#include <situ/config.hpp>

namespace situ::inline SITU_ABI {

/// Ordinary host memory; work runs on all host cores. The default device.
struct Cpu {
  friend constexpr bool operator==(Cpu, Cpu) { return true; }
};

/// Page-locked host memory (ordinary memory in a build without CUDA). Mixes with `Cpu`; the result is then `Cpu`.
struct Pinned {
  friend constexpr bool operator==(Pinned, Pinned) { return true; }
};

/// GPU N, as numbered after CUDA_VISIBLE_DEVICES.
template <int N = 0>
struct Cuda {
  static_assert(N >= 0, "situ::Cuda<N>: N is the number of a GPU, 0 or more");
  static constexpr int ordinal = N;
  friend constexpr bool operator==(Cuda, Cuda) { return true; }
};

/// A pretended accelerator with private memory and an asynchronous stream, for tests where there is no GPU.
template <int N = 0>
struct Emulated {
  static_assert(N >= 0, "situ::Emulated<N>: N is the number of an emulated device, 0 or more");
  static constexpr int ordinal = N;
  friend constexpr bool operator==(Emulated, Emulated) { return true; }
};

/// The families of kernels: a device runs one of them.
struct cpu_kernels {};
struct cuda_kernels {};

template <class D>
struct device_traits;

/// A type that `device_traits` describes.
template <class D>
concept device = requires { typename device_traits<D>::kernels; };

/// Whether small kernels may run on the calling thread, without a launch.
template <class D>
inline constexpr bool is_immediate = false;
template <class D>
  requires(device_traits<D>::immediate)
inline constexpr bool is_immediate<D> = true;

/// Whether host code may dereference the device's pointers.
template <class D>
concept host_device = device<D> && device_traits<D>::host_memory;

namespace detail {

template <class D>
struct result_device {
  using type = D;
};
template <class D>
  requires requires { typename device_traits<D>::result_device; }
struct result_device<D> {
  using type = typename device_traits<D>::result_device;
};

/// The device that results of D live on: D itself, or for Pinned, Cpu.
template <class D>
using result_device_t = typename result_device<D>::type;

}  // namespace detail

/// Whether tensors of two devices may stand in one expression.
template <class D1, class D2>
concept mixes_with = std::is_same_v<D1, D2> || std::is_same_v<detail::result_device_t<D1>, detail::result_device_t<D2>>;

/// What a user reads when a program is wrong about devices: each name is the message.
namespace error {
template <class Left, class Right>
struct operands_on_different_devices__move_one_with_to {};
template <class To, class From>
struct conversion_across_devices_is_explicit__use_to {};
template <class Device>
struct element_access_on_a_device__use_item_for_one_element_or_cpu_for_all {};
template <class From, class To>
struct conversion_would_lose_values__use_cast {};
template <class Number>
struct a_number_is_not_a_tensor__use_assign_to_write_it_or_full_to_make_one {};
template <class Index>
struct an_index_is_an_integer {};
template <class Index>
struct one_index_is_an_integer__masked_select_takes_a_mask_and_index_select_a_tensor_of_indices {};
template <class Written>
struct a_Variable_is_written_by_its_parts_as_in_y_of_1__or_as_a_value_in_a_no_grad {};
template <class X>
struct backward_takes_a_gradient__and_retain_graph {};
template <class X>
struct grad_takes_inputs_in_braces__then_a_gradient__and_retain_graph_or_create_graph {};
template <class Number>
struct a_shape_stands_in_braces__as_in_zeros_of_braces_2_3 {};
template <class Number>
struct axes_stand_in_braces__as_in_permute_of_braces_1_0 {};
template <class Flag>
struct keepdim_is_a_tag__as_in_sum_of_x_and_0_and_keepdim {};
template <class Input>
struct the_axis_is_to_be_given__as_in_softmax_of_x_and_1 {};
template <class Axis>
struct the_axis_stands_before_the_index__as_in_gather_of_x_and_1_and_index {};
template <class Axis>
struct the_axis_stands_first__as_in_concat_of_1_and_a_and_b__or_behind_parts_in_braces {};
template <class Order>
struct the_order_of_a_norm_is_named__as_in_norm_of_x_and_p_1_in_braces {};
template <class Operand>
struct operands_of_einsum_stand_one_by_one__without_braces {};
template <class Flag>
struct topk_takes_the_largest__or_the_tag_smallest_for_the_others {};
template <class Name>
struct a_device_is_a_type__as_in_x_to_Cuda_0_with_braces__or_try_gpu_and_visit_at_run_time {};
template <class Rate>
struct options_are_named__as_in_SGD_of_net_and_lr_in_braces {};
template <class Operand>
struct max_and_min_reduce_one_tensor__use_maximum_or_minimum_for_two_operands {};
template <class Value>
struct a_Tensor_is_made_of_values_in_braces__or_of_a_shape_by_zeros_or_empty {};
template <class Function>
struct map_takes_a_function_of_the_operands_elements_that_returns_an_element {};
template <class Value>
struct a_Pending_value_is_read_with_get {};
template <class T>
struct a_formula_has_no_elements__use_item_or_eval {};
template <class T>
struct a_tensor_is_no_range__read_rows_as_x_of_i_and_elements_by_to_vector {};
template <class T>
struct a_tensor_is_no_truth__use_item_of_one_element_or_any_or_all_or_equal {};
template <class Result>
struct a_formula_keeps_its_type__name_a_Tensor_or_Variable_to_write_results_to {};
template <class Written>
struct a_const_tensor_is_not_written_to__take_it_without_const {};
template <class First, class Other>
struct the_parts_of_a_list_have_one_type__give_the_axis_first_and_then_the_parts {};
template <class From, class To>
struct to_async_joins_Pinned_and_devices__pin_the_source_or_use_to {};
template <class T, class Device>
struct a_Tensor_would_lose_the_gradient__use_a_Variable_or_value_or_detach {};
}  // namespace error

/// Refuses lists of numbers without braces, as PyTorch takes them.
#define SITU_IN_BRACES(NAME, ERROR)                                                                  \
  template <std::integral Ix, std::integral J, std::integral... Is, class Error = error::ERROR<Ix>>  \
  void NAME(Ix, J, Is...) const = delete;
}  // namespace situ::inline SITU_ABI
