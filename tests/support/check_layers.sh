#!/bin/sh
# Checks the order of the layers: check_layers.sh ROOT
#
# - a folder includes only itself and the folders above it in the list; core includes nothing else but config.hpp
# - only umbrella headers include umbrella headers, and situ.hpp includes nothing else
# - every #include of our own is written <situ/...>, names a file that exists, and every header has #pragma once
# - every header outside of interop/ is reached from situ.hpp, and every folder has its umbrella
set -eu
LC_ALL=C
export LC_ALL
cd "$1/include/situ"
find . -name '*.hpp' | sed 's|^\./||' | sort | awk '
  function complain(message) { print "include/situ/" file ": " message; ++complaints }
  function top(path) { sub(/\/.*$/, "", path); return path }
  BEGIN {
    count = split("core device expr tensor ops autograd nn optim data parallel io train interop", layers, " ")
    for (i = 1; i <= count; ++i) rank[layers[i]] = i
  }
  { files[++n] = $0; exists[$0] = 1 }
  END {
    for (f = 1; f <= n; ++f) {
      file = files[f]
      umbrella = file !~ /\//
      layer = top(file)
      sub(/[.]hpp$/, "", layer)
      if (umbrella && layer != "situ" && layer != "config" && !(layer in rank)) complain("is no layer")
      if (!umbrella && !(layer in rank)) complain("stands in a folder that is no layer")
      if (!umbrella && !((layer ".hpp") in exists)) missing[layer ".hpp"] = 1
      once = 0
      while ((getline line < file) > 0) {
        if (line ~ /^[ \t]*#[ \t]*pragma[ \t]+once/) once = 1
        if (line ~ /^[ \t]*#[ \t]*include[ \t]*"/) complain("write <situ/...>, not " line)
        if (line !~ /^[ \t]*#[ \t]*include[ \t]*<situ\//) continue
        target = line
        sub(/^[^<]*<situ\//, "", target)
        sub(/>.*$/, "", target)
        if (!(target in exists)) { complain("includes <situ/" target ">, which does not exist"); continue }
        edges[file] = edges[file] " " target
        if (target == "config.hpp") continue
        other = top(target)
        sub(/[.]hpp$/, "", other)
        if (target !~ /\// && !umbrella) complain("includes the umbrella <situ/" target ">; name the header that is used")
        if (layer == "situ") {
          if (target ~ /\//) complain("includes <situ/" target ">; the umbrella includes umbrellas")
        } else if (layer == "config") {
          complain("includes <situ/" target ">; config.hpp includes nothing")
        } else if (other == "situ" || rank[other] > rank[layer]) {
          complain("includes <situ/" target ">, which is a layer below " layer)
        }
      }
      close(file)
      if (!once) complain("lacks #pragma once")
    }
    for (file in missing) complain("this umbrella is missing")
    reached["situ.hpp"] = 1
    do {
      changed = 0
      for (file in edges) if (file in reached) {
        m = split(edges[file], targets, " ")
        for (i = 1; i <= m; ++i) if (!(targets[i] in reached)) { reached[targets[i]] = 1; changed = 1 }
      }
    } while (changed)
    for (f = 1; f <= n; ++f) {
      file = files[f]
      if (file !~ /^interop/ && !(file in reached)) complain("is not reached from <situ/situ.hpp>")
    }
    if (n == 0) { print "no headers found"; ++complaints }
    print n + 0 " headers, " complaints + 0 " complaints"
    exit complaints > 0
  }'
