#!/bin/sh
# Compiles a misuse file in one of its two forms, and judges the compiler's answer.
#
#   expect_error.sh error g++|clang|nvcc FILE COMPILER [ARGUMENTS...]    must fail, with the message that FILE names
#   expect_error.sh legal g++|clang|nvcc FILE COMPILER [ARGUMENTS...]    must compile
#
# FILE begins with comment lines:
#   // error: REGEX           what the compiler must print (grep -E)
#   // error(clang): REGEX    the same for one compiler (g++, clang or nvcc), in place of the line above
#   // in-header              the error may stand inside include/situ; otherwise it must stand in FILE
# There must be exactly one error.
set -u
mode=$1 kind=$2 file=$3
shift 3
LC_ALL=C
export LC_ALL

header=$(sed '/^\/\//!q' "$file")
if [ "$mode" = legal ]; then
  output=$("$@" "$file" 2>&1) && exit 0
  printf '%s\n' "$output"
  echo "expect_error: the legal form of $file does not compile ($kind)"
  exit 1
fi

expected=$(printf '%s\n' "$header" | sed -n "s|^// error($kind): *||p" | head -n 1)
[ -n "$expected" ] || expected=$(printf '%s\n' "$header" | sed -n 's|^// error: *||p' | head -n 1)
if [ -z "$expected" ]; then
  echo "expect_error: $file has no line // error: REGEX"
  exit 1
fi

output=$("$@" -DSITU_EXPECT_ERROR "$file" 2>&1)
status=$?
reject() {
  printf '%s\n' "$output"
  echo "expect_error: $file ($kind): $1"
  exit 1
}
[ $status -ne 0 ] || reject "compiles, although it must not"

errors=$(printf '%s\n' "$output" | grep -E ': (fatal )?error( #[0-9]+(-D)?)?: ')
# A call of a deleted operator() is the one misuse that clang reports twice, on the same line: the second report is left out.
line=$(printf '%s\n' "$errors" | sed -n 's/^\([^:]*:[0-9]*:\)[0-9]*: error: call to deleted function call operator.*/\1/p' | head -n 1)
if [ -n "$line" ]; then
  errors=$(printf '%s\n' "$errors" | awk -v line="$line" '!(index($0, line) == 1 && /error: attempt to use a deleted function$/)')
fi
count=$(printf '%s' "$errors" | grep -c '')
printf '%s\n' "$output" | grep -qE -- "$expected" || reject "the message lacks: $expected"
[ "$count" -eq 1 ] || reject "$count errors instead of one"
if ! printf '%s\n' "$header" | grep -q '^// in-header'; then
  case $errors in
    "$file":* | "$file"\(*) ;;
    *) reject "the error does not stand in this file" ;;
  esac
fi
exit 0
