#!/bin/sh
# The device code compiles without a warning for GPUs from Turing to Blackwell: check_architectures.sh NVCC ROOT [ARGUMENT...] [SOURCE...]
#
# Without sources all of tests/cuda. Each is compiled for sm_75, sm_90 and sm_100 at once, without its host code.
set -u
nvcc=$1 root=$2
shift 2
arguments=
while [ $# -gt 0 ]; do
  case $1 in -*) arguments="$arguments $1" ;; *) break ;; esac
  shift
done
cd "$root" || exit 2
[ $# -gt 0 ] || set -- tests/cuda/*.cu
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
failures=0
for source in "$@"; do
  # shellcheck disable=SC2086
  if ! "$nvcc" -std=c++20 -O2 --extended-lambda -Iinclude -Itests $arguments -Werror=all-warnings -gencode arch=compute_75,code=sm_75 \
    -gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=sm_100 -fatbin -o "$scratch/fatbin" "$source"; then
    echo "$source does not compile for all of sm_75, sm_90 and sm_100"
    failures=$((failures + 1))
  fi
done
exit $((failures > 0))
