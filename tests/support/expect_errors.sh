#!/bin/sh
# Compiles the misuses of several files as one source, and judges the compiler's answer to each: in a fifteenth of the time of one after the other.
#
#   expect_errors.sh g++|clang|nvcc SOURCE COMPILER [ARGUMENTS...]
#
# SOURCE includes the files, one to a line. Of each file there must be one error, which stands in it and has the message that the file names (see
# expect_error.sh), and there must be none elsewhere. A file of which this is not so, as it says what it must in another way, is compiled alone and judged by
# expect_error.sh; so are all of them where an error stands in none.
set -u
kind=$1 source=$2
shift 2
LC_ALL=C
export LC_ALL
here=$(dirname -- "$0")
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT

sed -n 's/^#include "\(.*\)"$/\1/p' "$source" > "$scratch/files"
[ -s "$scratch/files" ] || { echo "expect_errors: $source includes no files"; exit 1; }
all_errors=
[ "$kind" = clang ] && all_errors=-ferror-limit=0
[ "$kind" = nvcc ] && all_errors=-Xcudafe=--error_limit=1000
"$@" $all_errors -DSITU_EXPECT_ERROR "$source" > "$scratch/output" 2>&1 < /dev/null
# The errors, each with its notes behind it.
awk '/: (fatal )?error( #[0-9]+(-D)?)?: / { n++; print n "e " $0; next } n > 0 && /: note: / { print n "n " $0 }' "$scratch/output" > "$scratch/errors"

# The number of each error that stands in one of the files, and which; the others.
awk 'NR == FNR { files[$0]; next }
  $1 ~ /e$/ {
    text = substr($0, length($1) + 2)
    for (file in files) if (index(text, file ":") == 1 || index(text, file "(") == 1) { print $1 + 0, file; next }
    print text > "/dev/stderr"
  }' "$scratch/files" "$scratch/errors" > "$scratch/placed" 2> "$scratch/elsewhere"

judged=0 failed=0 alone=0
while IFS= read -r file <&3; do
  judged=$((judged + 1))
  header=$(sed '/^\/\//!q' "$file")
  expected=$(printf '%s\n' "$header" | sed -n "s|^// error($kind): *||p" | head -n 1)
  [ -n "$expected" ] || expected=$(printf '%s\n' "$header" | sed -n 's|^// error: *||p' | head -n 1)
  numbers=$(awk -v file="$file" '{ number = $1; sub(/^[0-9]+ /, "") } $0 == file { print number }' "$scratch/placed")
  if [ ! -s "$scratch/elsewhere" ] && [ -n "$expected" ] && [ "$(printf '%s\n' "$numbers" | grep -c '[0-9]')" -eq 1 ] &&
    grep -E "^$numbers[en] " "$scratch/errors" | grep -qE -- "$expected"; then
    continue
  fi
  alone=$((alone + 1))
  sh "$here/expect_error.sh" error "$kind" "$file" "$@" < /dev/null || failed=$((failed + 1))
done 3< "$scratch/files"
echo "$judged misuses, $alone of them compiled alone: $failed not rejected as they must be ($kind)"
[ "$failed" -eq 0 ] && [ "$judged" -eq "$(grep -c '' "$scratch/files")" ]
