#!/usr/bin/env bash
# deps.sh - finds what a purpose needs and installs what is missing.
#
#   deps.sh build|test|lint|model|bench|valgrind|fuzz
#
# The check looks for the thing itself (command, pkg-config module, header, Lua module, file), never asks apt,
# and works without network. With TP_NO_INSTALL=1 nothing is installed, only named.
# Depends on: common.sh, from-trixie.sh.   Used by: Makefile.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=config/build/common.sh
. config/build/common.sh

# kind      check               apt                   dnf                  pacman    brew
TABLE='
base        cmd:gcc             gcc                   gcc                  gcc       gcc
base        hdr:stdio.h         libc6-dev             glibc-devel          glibc     -
base        cmd:make            make                  make                 make      make
base        cmd:pkg-config      pkg-config            pkgconf-pkg-config   pkgconf   pkgconf
lib         pc:yyjson           libyyjson-dev         yyjson-devel         yyjson    yyjson
lib         pc:libcurl          libcurl4-openssl-dev  libcurl-devel        curl      curl
test        pc:cmocka           libcmocka-dev         libcmocka-devel      cmocka    cmocka
test        cmd:luajit          luajit                luajit               luajit    luajit
test        pc:luajit           libluajit-5.1-dev     luajit-devel         luajit    luajit
test        cmd:luarocks        luarocks              luarocks             luarocks  luarocks
test        cmd:busted          lua-busted            rock:busted          rock:busted   rock:busted
test        cmd:luacheck        lua-check             rock:luacheck        rock:luacheck rock:luacheck
test        cmd:lua5.1          lua5.1                compat-lua           lua51     -
test        lua.h:lua*5*1       liblua5.1-0-dev       compat-lua-devel     lua51     -
test        lua:luv             lua-luv               rock:luv             rock:luv  rock:luv
test        lua:copas           lua-copas             rock:copas           rock:copas    rock:copas
test        lua:cqueues         lua-cqueues           rock:cqueues         rock:cqueues  rock:cqueues
test        lua:socket          lua-socket            rock:luasocket       rock:luasocket  rock:luasocket
test        cmd:strace          strace                strace               strace    strace
lint        cmd:clang-format    clang-format          clang-tools-extra    clang     clang-format
lint        cmd:clang-tidy      clang-tidy            clang-tools-extra    clang     llvm
lint        cmd:cppcheck        cppcheck              cppcheck             cppcheck  cppcheck
model       cmd:spin            spin                  src:spin             src:spin  spin
valgrind    cmd:valgrind        valgrind              valgrind             valgrind  valgrind
fuzz        cmd:clang           clang                 clang                clang     llvm
fuzz        rt:fuzzer           libclang-rt-14-dev    compiler-rt          compiler-rt   llvm
bench       cmd:g++             g++                   gcc-c++              gcc       gcc
bench       cmd:luajit          luajit                luajit               luajit    luajit
bench       lua:luv             lua-luv               rock:luv             rock:luv  rock:luv
bench       pc:tbb              libtbb-dev            tbb-devel            onetbb    tbb
bench       pc:libuv            libuv1-dev            libuv-devel          libuv     libuv
bench       pc:glib-2.0         libglib2.0-dev        glib2-devel          glib2     glib
bench       cmd:cargo           cargo                 cargo                rust      rust
bench       crate:rayon         librust-rayon-dev     rust-rayon-devel     -         -
bench       crate:tokio         librust-tokio-dev     rust-tokio-devel     -         -
'

# The kinds of the table that each purpose needs.
case "${1:-}" in
  build) kinds="base lib" ;;
  test) kinds="base lib test" ;;
  lint) kinds="base lib lint" ;;
  model) kinds="base model" ;;
  bench) kinds="base lib bench" ;;
  valgrind) kinds="valgrind" ;;
  fuzz) kinds="base lib fuzz" ;;
  *) die "unknown purpose '${1:-}'" "Say one of: build test lint model bench valgrind fuzz." ;;
esac
purpose=$1

# The peers of a benchmark are optional: without one, its column says so.
optional() { [ "$1" = bench ]; }

# Where clang has its libraries for sanitizers and the fuzzer.
runtime_directory() {
  dirname "$(clang --rtlib=compiler-rt -print-libgcc-file-name 2>/dev/null)"
}

present() {
  local what=${1#*:}
  case "$1" in
    cmd:*) command -v "$what" >/dev/null ;;
    pc:*) pkg-config --exists "$what" 2>/dev/null ;;
    lua:*) luajit -e "require '$what'" >/dev/null 2>&1 ;;
    lua.h:*) compgen -G "/usr/include/$what/lua.h" >/dev/null ;; # LuaRocks wants it, whatever it builds
    hdr:*) echo "#include <$what>" | "${CC:-gcc}" -E -x c - >/dev/null 2>&1 ;;
    rt:*) compgen -G "$(runtime_directory)/libclang_rt.$what*.a" >/dev/null ;;
    crate:*) compgen -G "/usr/share/cargo/registry/$what-[0-9]*" >/dev/null ;;
  esac
}

# find_missing: fills `rows` with the lines of the table that are missing, `names` with their apt
# names, `required` with those that are not optional.
find_missing() {
  local kind check apt rest
  rows="" names="" required=""
  while read -r kind check apt rest; do
    case " $kinds " in *" ${kind:--} "*) ;; *) continue ;; esac
    present "$check" && continue
    rows+="$kind $check $apt $rest"$'\n'
    names+=" $apt"
    optional "$kind" || required+=" $apt"
  done <<<"$TABLE"
}

# column N: that column of the missing rows, each name once; without those marked as not packaged.
column() {
  awk -v n="$1" 'NF && $n != "-" && $n !~ /:/ && !seen[$n]++ { printf " %s", $n }' <<<"$rows"
}

# marked TAG: the names that some column marks with TAG, each once.
marked() {
  awk -v tag="$1:" '{ for (i = 4; i <= NF; i++) if (index($i, tag) == 1 && !seen[$i]++)
    printf " %s", substr($i, length(tag) + 1) }' <<<"$rows"
}

# Another system than Debian: say what is missing in its words.
print_names() {
  say "missing for 'make $purpose':"
  {
    echo "    dnf:       dnf install$(column 4)"
    echo "    pacman:    pacman -S$(column 5)"
    echo "    brew:      brew install$(column 6)"
    [ -z "$(marked rock)" ] || echo "    luarocks:  luarocks --lua-version 5.1 install$(marked rock)"
    [ -z "$(marked src)" ] || echo "    where it is not packaged, from source:$(marked src)"
  } >&2
}

available() {
  LC_ALL=C apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'
}

# install_apt NAME...: those the release has from its own archive, libyyjson-dev else from trixie.
install_apt() {
  local name here=() trixie=() unknown=()
  for name in "$@"; do
    if available "$name"; then
      here+=("$name")
    elif [ "$name" = libyyjson-dev ]; then
      trixie=(libyyjson0 libyyjson-dev)
    else
      unknown+=("$name")
    fi
  done
  [ ${#unknown[@]} -eq 0 ] || say "warning: apt knows no package of this name: ${unknown[*]}"
  if [ ${#here[@]} -gt 0 ]; then
    apt_get install --no-install-recommends --no-remove "${here[@]}" ||
      say "warning: apt-get could not install: ${here[*]}"
  fi
  if [ ${#trixie[@]} -gt 0 ]; then
    config/build/from-trixie.sh "${trixie[@]}"
  fi
}

find_missing
[ -n "$names" ] || exit 0

if ! command -v apt-get >/dev/null; then
  print_names
  [ -n "$required" ] || exit 0
  die "only Debian's packages are installed by themselves" \
    "Install the packages above, then call make again."
fi

if [ -n "${TP_NO_INSTALL:-}" ]; then
  say "missing for 'make $purpose':$names"
  [ -n "$required" ] || exit 0
  die "nothing is installed, because TP_NO_INSTALL is set" "apt-get install$required"
fi

if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
  say "missing for 'make $purpose':$names"
  [ -n "$required" ] || exit 0
  die "neither root nor sudo to install it with" "As root: config/build/deps.sh $purpose"
fi

say "installing for 'make $purpose':$names"
apt_get update -o APT::Update::Error-Mode=any ||
  say "warning: apt-get update failed; going on with the package lists at hand"
# shellcheck disable=SC2086
install_apt $names

find_missing
[ -n "$names" ] || exit 0
if [ -z "$required" ]; then
  say "warning: not installed:$names (what needs them is left out and named)"
  exit 0
fi
die "still missing for 'make $purpose':$required" \
  "The messages above say why. Without network: install the packages by hand, then call make again."
