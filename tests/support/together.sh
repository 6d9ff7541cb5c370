#!/bin/sh
# Makes one source of several tests, for a compiler to read their headers once: together.sh RESULT FILE...
#
# What the tests include comes first, then the text of each in a namespace of its own, in which its macros end as well. Messages, and the names by
# which ctest asks for the tests of one file, are those of the files.
set -eu
LC_ALL=C
export LC_ALL
result=$1
shift
{
  cat "$@" | grep '^#include ' | awk '!seen[$0]++'
  awk '
    function finish() { if (file != "") { print "}"; for (name in macros) print "#undef " name; split("", macros) } }
    FNR == 1 { finish(); file = FILENAME; printf "namespace test_%d {\n#line 1 \"%s\"\n", ++count, file }
    /^#define / { name = $2; sub(/\(.*/, "", name); macros[name] = 1 }
    /^#include / { print ""; next }
    { print }
    END { finish() }' "$@"
} > "$result.new"
mv "$result.new" "$result"
