#!/bin/sh
# Builds and runs tests/embedding/main.cpp as an outside project does:
#
#   embedding.sh ROOT BUILD CMAKE CXX GENERATOR VERSION find_package | find_package_cuda | add_subdirectory |
#                                                      add_subdirectory_cuda | pkg_config PKG_CONFIG
set -eu
root=$1 build=$2 cmake=$3 cxx=$4 generator=$5 version=$6 form=$7
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/user"
cp "$root/tests/embedding/main.cpp" "$scratch/user/"

# Installs, and moves the copy: nothing in it may remember where it was.
install_copy() {
  "$cmake" --install "$build" --prefix "$scratch/first" > "$scratch/log" || { cat "$scratch/log"; exit 1; }
  mv "$scratch/first" "$scratch/situ"
  if grep -rlF -e "$root" -e "$scratch" "$scratch/situ"; then
    echo "embedding: the installed files above name folders of the machine that built them"
    exit 1
  fi
}

# project FORM LINES...: writes a project of FORM (cpp or cu) whose situ comes from LINES, builds it and runs it.
project() {
  source=main.$1
  language=CXX
  target=situ::situ
  if [ "$1" = cu ]; then
    mv "$scratch/user/main.cpp" "$scratch/user/main.cu"
    printf '#include <situ/situ.hpp>\nint in_cpp() { return situ::gpu::device_count(); }\n' > "$scratch/user/other.cpp"
    source="main.cu other.cpp"
    language="CXX CUDA"
    target=situ::cuda
  fi
  shift
  {
    echo 'cmake_minimum_required(VERSION 3.25)'
    echo "project(user LANGUAGES $language)"
    printf '%s\n' "$@"
    # The user's project stays the user's: none of situ's own targets and settings.
    echo 'foreach(target IN ITEMS situ_test_support situ_core_tests tour digits_centroids)'
    echo '  if(TARGET ${target})'
    echo '    message(FATAL_ERROR "${target} is built in the project of a user")'
    echo '  endif()'
    echo 'endforeach()'
    echo 'if(CMAKE_BUILD_TYPE)'
    echo '  message(FATAL_ERROR "situ chose a build type for its user")'
    echo 'endif()'
    echo 'add_subdirectory(program)'
  } > "$scratch/user/CMakeLists.txt"
  mkdir "$scratch/user/program"
  {
    case $form in find_package*) echo 'find_package(situ REQUIRED)' ;; esac  # again, as what another dependency asks for
    echo "add_executable(program $(printf ' ../%s' $source))"
    echo "target_link_libraries(program PRIVATE $target)"
    if [ $source = main.cpp ]; then  # what the user's compiler is to warn of is in the user's code alone
      echo 'target_compile_options(program PRIVATE -Wall -Wextra -Wconversion -Wsign-conversion -Wold-style-cast -Werror)'
    fi
  } > "$scratch/user/program/CMakeLists.txt"
  "$cmake" -S "$scratch/user" -B "$scratch/build" -G "$generator" "-DCMAKE_CXX_COMPILER=$cxx" \
    "-DCMAKE_PREFIX_PATH=$scratch/situ"
  "$cmake" --build "$scratch/build" --verbose
  "$scratch/build/program/program"
}

case $form in
  find_package)
    install_copy
    major_minor=${version%.*}
    project cpp "find_package(situ 99.0 QUIET)" \
      'if(situ_FOUND)' '  message(FATAL_ERROR "version 99 was found")' 'endif()' \
      'find_package(situ COMPONENTS cuda_and_more QUIET)' \
      'if(situ_FOUND)' '  message(FATAL_ERROR "a component that does not exist was found")' 'endif()' \
      "find_package(situ $major_minor REQUIRED)" \
      'if(TARGET situ::cuda)' '  message(FATAL_ERROR "situ::cuda was not asked for")' 'endif()'
    ;;
  find_package_cuda)
    install_copy
    project cu 'find_package(situ REQUIRED COMPONENTS cuda)'
    ;;
  add_subdirectory)
    project cpp "add_subdirectory(\"$root\" situ)" \
      'if(TARGET situ::cuda)' '  message(FATAL_ERROR "situ::cuda was not asked for")' 'endif()'
    ;;
  add_subdirectory_cuda)
    project cu 'set(SITU_CUDA ON)' "add_subdirectory(\"$root\" situ)"
    ;;
  pkg_config)
    install_copy
    PKG_CONFIG_PATH=$scratch/situ/share/pkgconfig
    export PKG_CONFIG_PATH
    found=$("$8" --modversion situ)
    if [ "$found" != "$version" ]; then
      echo "embedding: situ.pc says version $found instead of $version"
      exit 1
    fi
    # shellcheck disable=SC2046
    "$cxx" -std=c++20 -O1 $("$8" --cflags situ) "$scratch/user/main.cpp" -o "$scratch/program" $("$8" --libs situ)
    "$scratch/program"
    ;;
  *)
    echo "embedding: unknown form $form"
    exit 2
    ;;
esac
