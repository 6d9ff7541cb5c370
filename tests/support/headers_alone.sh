#!/bin/sh
# Compiles each header of one group alone, included twice: headers_alone.sh ROOT GROUP host|nvcc COMPILER [ARGUMENTS...]
#
# GROUP is a folder of include/situ (without its cuda/ folders), `umbrellas` (the files beside the folders) or `cuda`
# (all cuda/ folders, and the umbrellas again).
set -u
root=$1 group=$2 kind=$3
shift 3
cd "$root/include" || exit 1
case $group in
  umbrellas) headers=$(find situ -maxdepth 1 -name '*.hpp' | sort) ;;
  cuda) headers=$(find situ \( -path '*/cuda/*' -o -path situ/situ.hpp \) -name '*.hpp' | sort) ;;
  *) headers=$(find "situ/$group" -name '*.hpp' ! -path '*/cuda/*' | sort) ;;
esac

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0
for header in $headers; do
  printf '#include <%s>\n#include <%s>\n' "$header" "$header" > "$scratch/alone.cpp"
  [ "$kind" = host ] || set -- "$@" -o "$scratch/alone.ii"
  if ! "$@" "$scratch/alone.cpp"; then
    echo "<$header> does not compile alone"
    failures=$((failures + 1))
  fi
done
exit $((failures > 0))
