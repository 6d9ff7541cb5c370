#!/bin/sh
# Compiles the headers of one group, each alone or all together: headers_alone.sh ROOT GROUP alone|together COMPILER [ARGUMENTS...]
#
# GROUP is a folder of include/situ (without its cuda/ folders), `umbrellas` (the files beside the folders), `host` (all of them) or `cuda`
# (all cuda/ folders, and situ.hpp again). Each header is included twice.
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
failures=0
for header in $headers; do
  printf '#include <%s>\n#include <%s>\n' "$header" "$header" > "$scratch/alone.cpp"
  if ! "$@" "$scratch/alone.cpp"; then
    echo "<$header> does not compile alone"
    failures=$((failures + 1))
  fi
done
exit $((failures > 0))
