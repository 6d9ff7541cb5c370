# Sourced by the run scripts: installs what is missing, with apt-get alone.
#
#   install_missing g++:g++ cmake:cmake ...     command:package, or /path/to/file:package
#   require_cmake                               fails with a sentence when cmake is older than 3.25

install_missing() {
  missing=
  for pair in "$@"; do
    what=${pair%:*}
    case $what in
      /*) [ -e "$what" ] || missing="$missing ${pair##*:}" ;;
      *) command -v "$what" > /dev/null 2>&1 || missing="$missing ${pair##*:}" ;;
    esac
  done
  [ -n "$missing" ] || return 0

  if ! command -v apt-get > /dev/null 2>&1; then
    echo "$0: please install (named as in Debian):$missing" >&2
    exit 1
  fi
  as_root=
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo > /dev/null 2>&1; then
      echo "$0: please install, as root:$missing" >&2
      exit 1
    fi
    as_root=sudo
  fi
  echo "installing:$missing"
  $as_root apt-get update -qq || echo "$0: apt-get update failed; trying with the package lists at hand" >&2
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}

require_cmake() {
  version=$(cmake --version | sed -n '1s/^[^0-9]*\([0-9]*\)[.]\([0-9]*\).*/\1 \2/p')
  # shellcheck disable=SC2086
  set -- $version
  if [ "$1" -lt 3 ] || { [ "$1" -eq 3 ] && [ "$2" -lt 25 ]; }; then
    echo "$0: cmake $1.$2 is too old: 3.25 is needed (Debian 12, Ubuntu 23.04 and later have it)" >&2
    exit 1
  fi
}

# Prints the path of nvcc, or nothing.
find_nvcc() {
  if command -v nvcc > /dev/null 2>&1; then
    command -v nvcc
  elif [ -x "${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}/bin/nvcc" ]; then
    echo "${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}/bin/nvcc"
  fi
}

has_gpu() {
  command -v nvidia-smi > /dev/null 2>&1 && nvidia-smi -L 2> /dev/null | grep -q '^GPU'
}

processors() {
  getconf _NPROCESSORS_ONLN 2> /dev/null || echo 2
}
