#!/bin/sh
# What the compiler makes of the benchmarks' kernels: check_kernels.sh NVCC ROOT ARCHITECTURE SOURCE...
#
# - each elementwise formula has two kernels of its own, the contiguous and the strided one
# - a contiguous kernel moves 16 bytes at a time: what it reads most of, or writes
# - a strided kernel divides by multiplication, and can move 16 bytes at a time
# - no kernel uses local memory or spills, and each stays within the registers that its kind may use
set -eu
nvcc=$1 root=$2 architecture=$3
shift 3
LC_ALL=C
export LC_ALL
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
status=0

for source in "$@"; do
  rm -rf "$folder"/*
  "$nvcc" -std=c++20 -O2 "-arch=sm_$architecture" --extended-lambda "-I$root/include" -Xptxas -v --keep --keep-dir "$folder" \
    -cubin -o "$folder/kernels.cubin" "$root/$source" > "$folder/report" 2>&1 || { cat "$folder/report"; exit 1; }
  ptx=$(find "$folder" -name '*.ptx')
  [ -n "$ptx" ] || { echo "nvcc kept no PTX"; exit 1; }

  # shellcheck disable=SC2086
  awk -v source="$source" '
    function complain(message) { print source ": " message; bad = 1 }
    function kind_of(name) {
      for (k in most) if (index(name, k)) return k
      return ""
    }
    # The formula that a kernel is for: what stands behind the kernel in its mangled name.
    function formula_of(name) { sub(/^.*_kernelI/, "", name); sub(/EEvNS.*$|EEv.*Arguments.*$/, "", name); return name }
    BEGIN {
      # The registers that a kernel may use: 64 let 1024 threads, 128 let 512 of a multiprocessor run at once.
      most["contiguous_kernel"] = 64; most["strided_kernel"] = 40; most["reduce_kernel"] = 64; most["join_kernel"] = 64; most["rows_kernel"] = 128
      most["row_gradient_kernel"] = 64
      most["reduce_columns_kernel"] = 80  # eight sums of 16-bit floats, each a float and a double: 768 threads
    }
    FNR == 1 { ++file }

    # The report of ptxas.
    file == 1 && /Compiling entry function/ { name = $0; sub(/^[^\047]*\047/, "", name); sub(/\047.*/, "", name); ++kernels }
    file == 1 && /bytes stack frame/ {
      frame = $0
      sub(/ bytes stack frame.*/, "", frame); sub(/^.*[^0-9]/, "", frame)
      if (frame + 0 > 0) complain(name ": a stack frame of " frame " bytes")
      if ($0 !~ /[^0-9]0 bytes spill stores/ || $0 !~ /[^0-9]0 bytes spill loads/) complain(name ": registers are spilled:" $0)
    }
    file == 1 && /Used [0-9]+ registers/ {
      used = $0
      sub(/^.*Used /, "", used); sub(/ registers.*/, "", used)
      kind = kind_of(name)
      if (kind == "") next
      bound = most[kind]
      # Programs carry the number of their inputs: each has strides and a place of its own.
      if (kind == "strided_kernel" && match(name, /Li[0-9]+EEEEEvNS/) && substr(name, RSTART + 2, RLENGTH - 10) + 0 > 4) bound = 64
      if (used + 0 > bound) complain(name ": " used " registers; a " kind " may use " bound)
      ++count[kind]
      if (used + 0 > largest[kind]) largest[kind] = used + 0
      if (kind == "contiguous_kernel") contiguous[formula_of(name)] += 1
      if (kind == "strided_kernel") strided[formula_of(name)] += 1
    }

    # PTX.
    file == 2 && /^[^\/]*\.entry/ { entry = $0; sub(/^.*\.entry[ \t]*/, "", entry); sub(/\(.*/, "", entry); kind = kind_of(entry); if (kind != "") seen[entry] = kind }
    file == 2 && /(ld|st)\.global[a-z.]*\.(v4\.[a-z]32|v2\.[a-z]64)/ { ++wide[entry] }
    file == 2 && /(div|rem)\.[su](32|64)/ && kind == "strided_kernel" && !complained[entry]++ { complain(entry ": it divides: " $0) }
    END {
      for (e in seen) if ((seen[e] == "contiguous_kernel" || seen[e] == "strided_kernel") && !wide[e]) complain(e ": no access of 16 bytes")
      for (f in contiguous) if (contiguous[f] != 1 || strided[f] != 1) complain(f ": " contiguous[f] " contiguous and " strided[f] + 0 " strided kernels; one of each is expected")
      for (f in strided) if (!(f in contiguous)) complain(f ": a strided kernel without a contiguous one")
      if (count["contiguous_kernel"] + count["reduce_kernel"] == 0) complain("no kernel of situ was found")
      for (k in count) if (count[k] > 0) print source ": " count[k] " x " k ", at most " largest[k] " registers"
      exit bad
    }' "$folder/report" $ptx || status=1
done
exit $status
