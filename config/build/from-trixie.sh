#!/usr/bin/env bash
# from-trixie.sh - installs packages of Debian 13 on a Debian 12 that does not have them.
#
#   from-trixie.sh PACKAGE...
#
# One-off: the source list, the package lists and the cache live in a temporary directory, and the
# system's apt configuration stays as it is. The mirror and its keyring are those the machine uses
# for its own release; signatures are checked. TP_DEBIAN_MIRROR=URL names another mirror.
# Depends on: common.sh, Debian's apt.   Used by: deps.sh.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh

SUITE=trixie
COMPONENT=main
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg # package debian-archive-keyring

# Prints the files that apt reads its sources from.
source_files() {
  local list="" parts=""
  eval "$(apt-config shell list Dir::Etc::sourcelist/f parts Dir::Etc::sourceparts/d)"
  ls "$list" "${parts%/}"/*.list "${parts%/}"/*.sources 2>/dev/null
}

# Reads sources in both of apt's formats and prints, for the first entry that has binary packages of
# the release $1 in component main, two or more lines: the URI, then the value of Signed-By as
# deb822 writes it (a path, or a key in the lines that follow, or nothing).
find_mirror() {
  local file
  source_files | while read -r file; do
    case "$file" in
      *.list) one_line "$1" <"$file" ;;
      *.sources) deb822 "$1" <"$file" ;;
    esac
  done | awk '/^%%/ { if (++n > 1) exit; next } { print }'
}

# deb [signed-by=/path,... arch=...] URI SUITE COMPONENT...
one_line() {
  sed -e 's/#.*//' -e 's/\[ */[/' -e 's/ *\]/]/' | awk -v release="$1" '
    $1 == "deb" {
      signed = ""; i = 2
      if ($2 ~ /^\[/) {
        for (;; i++) {
          option = $i; gsub(/[][]/, "", option)
          if (option ~ /^signed-by=/) signed = substr(option, 11)
          if ($i ~ /\]$/ || i >= NF) break
        }
        i++
      }
      uri = $i; suite = $(i + 1); has_main = 0
      for (j = i + 2; j <= NF; j++) if ($j == "main") has_main = 1
      if (suite == release && has_main && uri !~ /^cdrom:/) {
        gsub(/,/, " ", signed)
        print "%%"; print uri; print signed
      }
    }'
}

# Types: deb / URIs: ... / Suites: ... / Components: ... / Signed-By: ..., one paragraph each entry
deb822() {
  sed -e '/^#/d' | awk -v release="$1" '
    function has(list, word,   n, w, k) {
      n = split(list, w)
      for (k = 1; k <= n; k++) if (w[k] == word) return 1
      return 0
    }
    function flush(   n, u, k) {
      if (has(f["types"], "deb") && has(f["suites"], release) && has(f["components"], "main") &&
          tolower(f["enabled"]) !~ /^ *(no|false|0) *$/) {
        n = split(f["uris"], u)
        for (k = 1; k <= n; k++) if (u[k] !~ /^cdrom:/) {
          sub(/^ +/, "", f["signed-by"])
          print "%%"; print u[k]; print f["signed-by"]
          break
        }
      }
      delete f
    }
    /^[ \t]*$/ { flush(); next }
    /^[ \t]/ { f[key] = f[key] "\n" $0; next }
    { key = tolower($0); sub(/:.*/, "", key); value = $0; sub(/^[^:]*:/, "", value); f[key] = value }
    END { flush() }'
}

# one_off COMMAND...: apt-get that sees nothing but the temporary source.
one_off() {
  LC_ALL=C apt-get -q -o Dir::Etc::SourceList="$tmp/once.sources" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
    -o Dir::State::Lists="$tmp/lists" -o Dir::Cache="$tmp/cache" -o APT::Default-Release= \
    -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Update::Error-Mode=any \
    -o Acquire::AllowInsecureRepositories=false -o APT::Get::AllowUnauthenticated=false \
    "$@" </dev/null
}

# update_with SIGNED_BY: fetch the package lists, trusting that keyring.
update_with() {
  {
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\n' "$mirror" "$SUITE" "$COMPONENT"
    [ -z "$1" ] || printf 'Signed-By: %s\n' "$1"
  } >"$tmp/once.sources"
  one_off update >"$tmp/log" 2>&1
}

# The keyring of the machine's own entry; Debian's keyring package; that package's newest version,
# for an installation from before the key was made.
update_lists() {
  update_with "$signed_by" && return
  [ -e "$KEYRING" ] && update_with "$KEYRING" && return
  grep -q NO_PUBKEY "$tmp/log" || return 1
  say "the key of $SUITE is not in the keyring yet: upgrading debian-archive-keyring"
  apt_get install debian-archive-keyring && update_with "$KEYRING"
}

by_hand="Or build yyjson from its source and install it; pkg-config must find it."

[ $# -gt 0 ] || die "no package named" "usage: from-trixie.sh PACKAGE..."
# shellcheck source=/dev/null
. /etc/os-release
[ "${ID:-}" = debian ] ||
  die "this release has no $*, and it is not Debian, so that Debian's packages do not fit" "$by_hand"

tmp=$(mktemp -d) || die "cannot make a temporary directory" "Is TMPDIR writable?"
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/lists/partial" "$tmp/cache/archives/partial" "$tmp/debs"
chmod -R a+rX "$tmp" # apt drops its rights while it downloads
[ "$(id -u)" != 0 ] || chown _apt "$tmp/debs" 2>/dev/null

for release in "${VERSION_CODENAME:-bookworm}" stable oldstable; do
  found=$(find_mirror "$release")
  [ -z "$found" ] || break
done
mirror=${TP_DEBIAN_MIRROR:-$(head -n 1 <<<"$found")}
signed_by=$(tail -n +2 <<<"$found")
[ -n "$mirror" ] ||
  die "no mirror of Debian ${VERSION_CODENAME:-} in the apt sources to take $* from" \
    "Name one: TP_DEBIAN_MIRROR=<address of a Debian mirror> make test" "$by_hand"

say "$* from $SUITE, by a one-off source list"
update_lists || {
  cat "$tmp/log" >&2
  die "cannot read the package lists of $SUITE at $mirror" \
    "Is there network, and does this mirror carry $SUITE?" \
    "Another mirror: TP_DEBIAN_MIRROR=<address of a Debian mirror> make test" "$by_hand"
}
(cd "$tmp/debs" && one_off download "$@") >"$tmp/log" 2>&1 || {
  cat "$tmp/log" >&2
  die "cannot download $* from $mirror" "Try again, or with TP_DEBIAN_MIRROR." "$by_hand"
}
apt_get install --no-install-recommends --no-remove "$tmp"/debs/*.deb ||
  die "cannot install $* of $SUITE" "apt-get says above what they conflict with." "$by_hand"
