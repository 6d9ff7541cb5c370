#!/bin/sh
# Tests single_include/generate on small trees: generator_test.sh ROOT
set -eu
root=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# tree NAME: begins an empty tree.
tree() {
  name=$1
  mkdir -p "$scratch/$name/include/situ/a"
  cp "$root/LICENSE" "$scratch/$name/"
  cp "$root/include/situ/config.hpp" "$scratch/$name/include/situ/"
}
# header FILE: writes standard input after #pragma once.
header() {
  { echo '#pragma once'; cat; } > "$scratch/$name/include/situ/$1"
}
generate() {
  SITU_ROOT=$scratch/$name sh "$root/single_include/generate" "$scratch/$name/out.hpp" 2> "$scratch/$name/log"
}
check() {
  if ! "$@"; then
    echo "$name: failed: $*"
    cat "$scratch/$name/log"
    failures=$((failures + 1))
  fi
}

tree order
header situ.hpp << 'END'
#include <situ/a/two.hpp>
#include <situ/a/one.hpp>
END
header a/one.hpp << 'END'
#include <vector>
#define SITU_ONE \
  1
inline const char* semicolons = ";;[\\;";
END
header a/two.hpp << 'END'
/// #include <situ/a/three.hpp> in a comment is left alone
#include <situ/a/one.hpp>
#include <situ/config.hpp>
inline int two = SITU_ONE + 1;
END
check generate
cat > "$scratch/order/expected" << 'END'
#include <vector>
#define SITU_ONE \
  1
inline const char* semicolons = ";;[\\;";
END
sed -n '/^#include <vector>/,/semicolons/p' "$scratch/order/out.hpp" > "$scratch/order/got"
check cmp "$scratch/order/expected" "$scratch/order/got"
check test "$(grep -c '^// ---- ' "$scratch/order/out.hpp")" = 3
check test "$(grep -c '^#include <situ/' "$scratch/order/out.hpp")" = 0
check test "$(grep -c '^#pragma once' "$scratch/order/out.hpp")" = 1
check test "$(grep -n 'SITU_ONE + 1' "$scratch/order/out.hpp" | cut -d: -f1)" -gt \
  "$(grep -n 'define SITU_ONE' "$scratch/order/out.hpp" | cut -d: -f1)"

tree conditional
header situ.hpp << 'END'
#include <situ/a/one.hpp>
#if defined(SITU_WITH_CUDA)
#include <situ/a/two.hpp>
#endif
#include <situ/a/three.hpp>
END
echo 'inline int one;' | header a/one.hpp
printf '#include <situ/a/one.hpp>\n#include <situ/a/four.hpp>\ninline int two;\n' | header a/two.hpp
printf '#if defined(SITU_WITH_CUDA)\n#include <situ/a/four.hpp>\n#endif\n' | header a/three.hpp
echo 'inline int four;' | header a/four.hpp
check generate
check test "$(grep -E '^(#if defined.SITU_WITH_CUDA|#endif$|inline int)' "$scratch/conditional/out.hpp" | tail -n 7 | tr '\n' ' ')" = \
  "inline int one; #if defined(SITU_WITH_CUDA) inline int four; inline int two; #endif #if defined(SITU_WITH_CUDA) #endif "

tree hidden
printf '#if defined(SITU_WITH_CUDA)\n#include <situ/a/two.hpp>\n#endif\n#include <situ/a/one.hpp>\n' | header situ.hpp
echo 'inline int one;' | header a/one.hpp
echo '#include <situ/a/one.hpp>' | header a/two.hpp
check eval '! generate'
check grep -q 'situ/a/one.hpp is inlined inside "#if defined(SITU_WITH_CUDA)" but situ/situ.hpp' "$scratch/hidden/log"
check test ! -e "$scratch/hidden/out.hpp"

tree missing
echo '#include <situ/a/none.hpp>' | header situ.hpp
check eval '! generate'
check grep -q 'situ/a/none.hpp.*cannot be read' "$scratch/missing/log"

tree unguarded
echo '#include <situ/a/one.hpp>' | header situ.hpp
echo 'inline int one;' > "$scratch/unguarded/include/situ/a/one.hpp"
check eval '! generate'
check grep -q 'situ/a/one.hpp: #pragma once is missing' "$scratch/unguarded/log"

exit $((failures > 0))
