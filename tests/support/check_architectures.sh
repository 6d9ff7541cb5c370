#!/bin/sh
# The device code compiles without a warning for GPUs from Turing to Blackwell: check_architectures.sh NVCC ROOT [ARGUMENT...] [SOURCE...]
#
# Without sources all that the repository has for nvcc. Each is compiled for sm_75, sm_90 and sm_100 at once, without its host
# code, as many at a time as there are processors. A build for 75-real;90-real;100-real proves the same along the way.
set -u
nvcc=$1 root=$2
shift 2
arguments=
while [ $# -gt 0 ]; do
  case $1 in -*) arguments="$arguments $1" ;; *) break ;; esac
  shift
done
cd "$root" || exit 2
. tests/support/install.sh
[ $# -gt 0 ] || set -- tests/support/kernels_probe.cu tests/link/*.cu benchmarks/*.cu tests/cuda/*.cu
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
cat > "$scratch/compile" << EOF
#!/bin/sh
"$nvcc" -std=c++20 -O2 --extended-lambda -Iinclude -Itests $arguments -Werror=all-warnings -gencode arch=compute_75,code=sm_75 \\
  -gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=sm_100 -fatbin -o "$scratch/\$(basename "\$1").\$\$" "\$1" && exit
echo "\$1 does not compile for all of sm_75, sm_90 and sm_100"
exit 1
EOF
chmod +x "$scratch/compile"
printf '%s\n' "$@" | xargs -n 1 -P "$(processors)" "$scratch/compile"
exit $(($? > 0))
