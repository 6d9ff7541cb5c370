#!/bin/sh
# Compiles the headers of one group, each alone or all together: headers_alone.sh ROOT GROUP alone|behind_base|together COMPILER [ARGUMENTS...]
#
# GROUP is a folder of include/situ (without its cuda/ folders), `umbrellas` (the files beside the folders), `host` (all of them) or `cuda`
# (all cuda/ folders, and situ.hpp again). Each header is included twice.
# behind_base, for g++: as alone, but what a header includes anyway, directly or through others, is precompiled: the first of a few headers that
# stand at the base of layers and that it includes. A header can take from its base only what it includes.
set -u
root=$1 group=$2 mode=$3
shift 3
cd "$root/include" || exit 1
case $group in
  umbrellas) headers=$(find situ -maxdepth 1 -name '*.hpp' | sort) ;;
  host) headers=$(find situ -name '*.hpp' ! -path '*/cuda/*' | sort) ;;
  cuda) headers=$(find situ \( -path '*/cuda/*' -o -path situ/situ.hpp \) -name '*.hpp' | sort) ;;
  *) headers=$(find "situ/$group" -name '*.hpp' ! -path '*/cuda/*' | sort) ;;
esac
[ -n "$headers" ] || { echo "there are no headers in $group"; exit 1; }

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
if [ "$mode" = together ]; then
  # shellcheck disable=SC2086
  printf '#include <%s>\n' $headers $headers > "$scratch/together.cpp"
  "$@" "$scratch/together.cpp"
  exit
fi

# Each header of the group with its base, or with `-`: the includes of situ's headers outside of cuda/ folders are followed.
bases="situ/nn/module.hpp situ/autograd/variable.hpp situ/tensor/tensor.hpp situ/core/storage.hpp situ/core/shape.hpp"
with_bases() {
  # shellcheck disable=SC2046,SC2086
  awk -v bases="$bases" -v wanted="$(printf '%s ' $headers)" '
    /^# *include <situ\// {
      name = $0
      sub(/^[^<]*</, "", name); sub(/>.*/, "", name)
      if (name !~ /\/cuda\//) included[FILENAME] = included[FILENAME] " " name
    }
    function follow(header,   names, count, k) {
      if (header in reached) return
      reached[header] = 1
      count = split(included[header], names, " ")
      for (k = 1; k <= count; ++k) follow(names[k])
    }
    END {
      number_of_bases = split(bases, base, " ")
      number = split(wanted, header, " ")
      for (k = 1; k <= number; ++k) {
        split("", reached)
        follow(header[k])
        found[k] = "-"
        for (b = number_of_bases; b >= 1; --b) if (base[b] in reached && base[b] != header[k]) found[k] = base[b]
        ++uses[found[k]]
      }
      for (k = 1; k <= number; ++k) print header[k], uses[found[k]] < 4 ? "-" : found[k]  # for fewer it is not worth its time
    }' $(find situ -name '*.hpp' ! -path '*/cuda/*')
}
if [ "$mode" = behind_base ]; then
  with_bases > "$scratch/list"
else
  printf '%s -\n' $headers > "$scratch/list"
fi
if [ "$(wc -l < "$scratch/list")" -ne "$(printf '%s\n' $headers | wc -l)" ]; then
  echo "the list of headers is not whole" >&2
  exit 1
fi

# precompile BASE COMPILER ARGUMENTS...
precompile() {
  base=$1 count=$#
  shift
  while [ $((count -= 1)) -gt 0 ]; do
    [ "$1" = -fsyntax-only ] || set -- "$@" "$1"
    shift
  done
  mkdir -p "$scratch/$(dirname "$base")"
  printf '#include <%s>\n' "$base" > "$scratch/$base"
  "$@" -x c++-header "$scratch/$base" -o "$scratch/$base.gch"
}
failures=0
while read -r header base; do
  printf '#include <%s>\n#include <%s>\n' "$header" "$header" > "$scratch/alone.cpp"
  if [ "$base" = - ]; then
    "$@" "$scratch/alone.cpp"
  else
    { [ -e "$scratch/$base.gch" ] || precompile "$base" "$@"; } && "$@" -include "$scratch/$base" "$scratch/alone.cpp"
  fi || {
    echo "<$header> does not compile alone"
    failures=$((failures + 1))
  }
done < "$scratch/list"
exit $((failures > 0))
