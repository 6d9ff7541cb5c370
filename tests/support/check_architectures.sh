#!/bin/sh
# The device code compiles, optimised, without a warning for GPUs from Turing to Blackwell:
#
#   check_architectures.sh NVCC ROOT [ARGUMENT...] [SOURCE...]
#
# Without sources all that the repository has for nvcc. Each is compiled for sm_75, sm_90 and sm_100 at once (ARCHITECTURES="75 100" chooses
# others), without its host code, as many at a time as there are processors.
set -u
architectures=${ARCHITECTURES:-75 90 100}
generate=
for architecture in $architectures; do
  generate="$generate -gencode arch=compute_$architecture,code=sm_$architecture"
done
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
"$nvcc" -std=c++20 -O2 --extended-lambda -Iinclude -Itests $arguments -Werror=all-warnings $generate \\
  -fatbin -o "$scratch/\$(basename "\$1").\$\$" "\$1" && exit
echo "\$1 does not compile for all of these GPUs: $architectures"
exit 1
EOF
chmod +x "$scratch/compile"
printf '%s\n' "$@" | xargs -n 1 -P "$(processors)" "$scratch/compile"
exit $(($? > 0))
