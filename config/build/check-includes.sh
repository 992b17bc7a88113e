#!/bin/sh
# check-includes.sh - checks that includes point downwards only.
#
#   check-includes.sh "base sync ... api"      the layers from bottom to top
#
#   I1  A file of a layer includes project headers as "layer/x.h", of its own or a lower layer.
#   I2  It may include the public headers, "threadpool*.h".
#   I3  A public header includes other public headers and system headers only.
#
# csrc/test, csrc/fuzz and csrc/model may include what they like. Used by: lint.sh.
cd "$(dirname "$0")/../.." || exit 1
layers=$1

set --
for layer in $layers; do
  [ ! -d "csrc/$layer" ] || set -- "$@" "csrc/$layer"
done

# shellcheck disable=SC2016
{
  [ $# -eq 0 ] || find "$@" -name '*.[ch]'
  find csrc -maxdepth 1 -name '*.[ch]'
} | sort | xargs -r awk -v layers="$layers" '
  BEGIN { n = split(layers, name); for (i = 1; i <= n; i++) level[name[i]] = i }

  function wrong(rule) {
    printf "%s:%d: #include %s: %s\n", FILENAME, FNR, spelled, rule
    errors++
  }

  FNR == 1 {
    split(FILENAME, part, "/")
    own = part[2]            # the layer, or the file itself if it lies in csrc
    public = own ~ /\.[ch]$/
  }

  /^[ \t]*#[ \t]*include[ \t]*["<]/ {
    spelled = $0
    sub(/^[ \t]*#[ \t]*include[ \t]*/, "", spelled)
    quoted = spelled ~ /^"/
    match(spelled, /^["<][^">]*[">]/)
    spelled = substr(spelled, 1, RLENGTH)
    target = substr(spelled, 2, RLENGTH - 2)
    folder = target
    if (!sub(/\/.*/, "", folder)) folder = ""

    if (target ~ /^threadpool[^\/]*\.h$/) next
    if (!quoted && !(folder in level)) next       # a system header
    if (public) wrong("a public header includes only public and system headers (I3)")
    else if (folder == "") wrong("write it as \"" own "/" target "\" (I1)")
    else if (!(folder in level)) wrong("\"" folder "\" is not a layer (I1)")
    else if (level[folder] > level[own]) wrong("layer " own " lies below layer " folder " (I1)")
  }

  END { exit errors > 0 }'
