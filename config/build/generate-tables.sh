#!/bin/sh
# generate-tables.sh - writes the tables of docs/BYTECODE.md that are made of the source.
#
#   generate-tables.sh           rewrite the document
#   generate-tables.sh --check   change nothing; if it would change, show how and end with 1
#
# A table stands between `<!-- generated: NAME -->` and `<!-- end -->`. NAME is one of
#   errors       csrc/threadpool_errors.h, X(name, code, "text")
#   operations   csrc/ops/builtin_list.h, X(opcode, name, how, "arguments", "result")
#   keys         csrc/pool/config_keys.c, NUMBER(...), WORD(...) and entries that are written out
# Texts hold no double quotes and no vertical bars.
# Depends on: awk, diff.   Used by: Makefile, lint.sh.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
document=docs/BYTECODE.md

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

fail() {
  echo "generate-tables: error: $1" >&2
  exit 1
}

# joined FILE: without comments, as one line, with adjacent strings made one.
joined() {
  sed -e 's|/\*.*\*/||' -e '/^ *\/\*/,/\*\//d' -e 's/\\$//' "$1" | tr '\n' ' ' | sed 's/" *"\([^,)]\)/\1/g'
}

errors() {
  echo '| code | name | |'
  echo '|---|---|---|'
  joined csrc/threadpool_errors.h | awk -v RS=' X[(]' 'NR > 1 {
    split($0, field, /, */)
    match($0, /"[^"]*"/)
    if (field[2] != 0) printf "| %d | `%s` | %s |\n", field[2], field[1], substr($0, RSTART + 1, RLENGTH - 2)
  }'
}

operations() {
  echo '| opcode | name | runs | arguments | result |'
  echo '|---|---|---|---|---|'
  joined csrc/ops/builtin_list.h | awk -v RS=' X[(]' '
    BEGIN { where["RUN"] = "on a worker"; where["POLL"] = "polled, holds no thread"; where["BLOCKING"] = "on a thread of its own" }
    # The next string of the entry.
    function text(   s) {
      if (!match(rest, /"[^"]*"/)) return ""
      s = substr(rest, RSTART + 1, RLENGTH - 2)
      rest = substr(rest, RSTART + RLENGTH)
      return s
    }
    NR > 1 {
      split($0, field, /, */)
      how = field[3]
      sub(/[(].*/, "", how)
      rest = $0
      if (how == "MISSING") { printf "| %d | `%s` | | | not to be had: %s |\n", field[1], field[2], text(); next }
      arguments = text()
      printf "| %d | `%s` | %s | %s | %s |\n", field[1], field[2], where[how], arguments, text()
    }'
}

# The numbers that ranges are written with: `NAME = 1024` of an enum.
constants() {
  # shellcheck disable=SC2016
  sed -n 's/^enum { *\(.*\) };.*/\1/p' csrc/threadpool.h csrc/pool/config_keys.c | tr ',' '\n' |
    sed -n 's/^ *\([A-Z_]*\) = \([0-9 *]*\)$/\1=$((\2))/p'
}

keys() {
  echo '| key | value | default | |'
  echo '|---|---|---|---|'
  eval "$(constants)"
  joined csrc/pool/config_keys.c | awk '
    # The entries of the table alone; each on a line of its own.
    { sub(/.*tp_config_keys\[TP_CONFIG_KEYS\] = [{]/, ""); sub(/ [}];.*/, "")
      gsub(/ (NUMBER|WORD)[(]/, "\n&"); gsub(/ [{]\.name/, "\n&"); print }' |
    awk '
    function text(   s) {
      if (!match(rest, /"[^"]*"/)) return ""
      s = substr(rest, RSTART + 1, RLENGTH - 2)
      rest = substr(rest, RSTART + RLENGTH)
      return s
    }
    # What follows .member = up to the comma.
    function member(name) {
      if (!match($0, "[.]" name " = [^,]*")) return ""
      return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4)
    }
    { sub(/^ +/, ""); rest = $0 }
    /^NUMBER/ {
      sub(/^NUMBER[(]/, ""); split($0, field, /, */)
      preset = text()
      print field[1] "|" field[4] "|" field[5] "|" preset "|" text()
    }
    /^WORD/ {
      sub(/^WORD[(]/, ""); split($0, field, /, */)
      no = text(); yes = text()
      print field[1] "|" no "|" yes "|" no "|" text()
    }
    /^[{]/ {
      name = text()
      sub(/.*[.]help = /, "", rest); help = text()
      preset = member("preset"); gsub(/"/, "", preset)
      most = member("most")
      print name "|" (most == "" ? "a path" : 0) "|" most "|" preset "|" help
    }' |
    while IFS='|' read -r name low high preset help; do
      # A range is an expression, hence the $ in $(( )).
      # shellcheck disable=SC2004
      case "$low" in
        "a path") value=$low ;;
        [a-z]*) value="\`$low\` or \`$high\`" ;;
        *) value="$(($low)) to $(($high))" ;;
      esac
      echo "| \`$name\` | $value |${preset:+ $preset} | $help |"
    done
}

for name in errors operations keys; do
  $name >"$tmp/$name" || fail "cannot make the table of $name"
  [ "$(wc -l <"$tmp/$name")" -gt 3 ] || fail "the table of $name is empty: is its source written otherwise?"
  grep -q -x -F "<!-- generated: $name -->" $document || fail "$document has no place for $name"
done

awk -v tmp="$tmp" '
  /^<!-- end -->$/ { inside = 0 }
  !inside
  /^<!-- generated: [a-z]+ -->$/ {
    inside = 1
    file = tmp "/" $3
    while ((status = (getline line <file)) > 0) print line
    if (status < 0) { print "no such table: " $3 >"/dev/stderr"; exit failed = 1 }
  }
  END { if (inside) print "a table has no end" >"/dev/stderr"; exit failed || inside }
' $document >"$tmp/document" || fail "$document was not written"

if [ "${1:-}" = --check ]; then
  diff -u $document "$tmp/document" && exit 0
  fail "$document is not what its sources say: run config/build/generate-tables.sh"
fi
cmp -s "$tmp/document" $document || cat "$tmp/document" >$document
