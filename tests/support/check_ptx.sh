#!/bin/sh
# What the compiled kernels must look like: check_ptx.sh NVCC ROOT ARCHITECTURE
#
# - the contiguous kernel loads and stores 16 bytes at a time
# - no kernel uses local memory
# - the kernels of an expression with three float inputs take at most 40 registers
# - the strided kernel divides by multiplication
set -eu
nvcc=$1 root=$2 architecture=$3
LC_ALL=C
export LC_ALL
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$nvcc" -std=c++20 -O2 "-arch=sm_$architecture" "-I$root/include" -Xptxas -v --keep --keep-dir "$folder" \
  -cubin -o "$folder/probe.cubin" "$root/tests/support/kernels_probe.cu" 2> "$folder/report" || { cat "$folder/report"; exit 1; }
ptx=$(find "$folder" -name '*.ptx')
[ -n "$ptx" ] || { echo "nvcc kept no PTX"; exit 1; }

status=0
complain() { echo "$*"; status=1; }

# The body of the kernel whose mangled name holds $1.
body() { awk -v name="$1" '/^[^\/]*\.entry/ { inside = index($0, name) > 0 } inside' $ptx; }

contiguous=$(body contiguous_kernel) strided=$(body strided_kernel) reduction=$(body reduce_kernel)
for kernel in contiguous strided reduction; do
  eval "text=\$$kernel"
  [ -n "$text" ] || complain "$kernel: there is no such kernel"
done

loads=$(printf '%s\n' "$contiguous" | grep -c 'ld\.global\.v4\.[a-z]32' || true)
stores=$(printf '%s\n' "$contiguous" | grep -c 'st\.global\.v4\.[a-z]32' || true)
[ "$loads" -ge 3 ] || complain "contiguous: $loads loads of 16 bytes; each of the three inputs needs one"
[ "$stores" -ge 1 ] || complain "contiguous: no store of 16 bytes"
printf '%s\n' "$reduction" | grep -q 'ld\.global\.v4\.[a-z]32' || complain "reduction: no load of 16 bytes"
if printf '%s\n' "$strided" | grep -qE '(div|rem)\.[su](32|64)'; then complain "strided: it divides"; fi

# ptxas: "Compiling entry function 'NAME'", then the stack frame and spills, then the registers.
awk '
  function complain(message) { print message; bad = 1 }
  /Compiling entry function/ { name = $0; sub(/^[^\047]*\047/, "", name); sub(/\047.*/, "", name); ++kernels }
  /bytes stack frame/ {
    frame = spills = $0
    sub(/ bytes stack frame.*/, "", frame); sub(/^.*[^0-9]/, "", frame)
    if (frame + 0 > 0) complain(name ": a stack frame of " frame " bytes")
    if ($0 !~ /[^0-9]0 bytes spill stores/ || $0 !~ /[^0-9]0 bytes spill loads/) complain(name ": registers are spilled:" spills)
  }
  /Used [0-9]+ registers/ {
    used = $0
    sub(/^.*Used /, "", used); sub(/ registers.*/, "", used)
    if (name ~ /contiguous_kernel|strided_kernel/ && used + 0 > 40) complain(name ": " used " registers; at most 40 are wanted")
    short = name ~ /contiguous/ ? "contiguous" : name ~ /strided/ ? "strided" : name ~ /reduce_kernel/ ? "reduction" : "join"
    print short ": " used " registers"
  }
  END {
    if (kernels < 4) complain(kernels + 0 " kernels were found; 4 are expected")
    exit bad
  }' "$folder/report" || status=1
exit $status
