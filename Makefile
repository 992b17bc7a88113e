# threadpool - build, test, measure, install. `make help` lists the targets.
#
# Each MODE has a build directory of its own, build/$(MODE), so that switching between the plain and
# the instrumented builds recompiles nothing:
#
#   release   -O2, what is installed          asan, ubsan, tsan   sanitizers
#   debug     -O1, checks thread roles        coverage            gcov
#   fuzz      clang: libFuzzer, address and undefined behaviour
#   rock      -O2, built by LuaRocks: never calls apt, and warnings stay warnings
#
# Set from outside: CC, CFLAGS, CPPFLAGS, LDFLAGS, WERROR= (warnings stay warnings), PREFIX, DESTDIR,
# V=1 (show the commands), ONLY=name (tests, benchmarks or fuzzers to run).

VERSION   := 0.1.0
SOVERSION := 0

MODE ?= release
B    := build/$(MODE)

PREFIX     ?= /usr/local
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR    ?= $(PREFIX)/share
# Where the Lua module goes; LuaRocks calls these two so.
INST_LIBDIR ?= $(LIBDIR)/lua/5.1
INST_LUADIR ?= $(DATADIR)/lua/5.1

# --- sources ------------------------------------------------------------------------------------
# The layers from bottom to top; includes point downwards (config/build/check-includes.sh).
LAYERS := base sync sched task io pool ops ipc api lua

LIB_SRCS    := $(sort $(wildcard $(LAYERS:%=csrc/%/*.c)))
PUBLIC_HDRS := $(sort $(wildcard csrc/threadpool*.h))
LUA_SRCS    := $(sort $(wildcard lua/threadpool/*.lua lua/threadpool/*/*.lua))
SPECS       := $(sort $(wildcard spec/*_spec.lua))
TEST_SRCS   := $(sort $(wildcard csrc/test/test_*.c))
FUZZ_SRCS   := $(sort $(wildcard csrc/fuzz/fuzz_*.c))
HELPER_SRCS := $(filter-out $(TEST_SRCS),$(sort $(wildcard csrc/test/*.c)))

objects      = $(patsubst csrc/%.c,$(B)/obj/%.o,$(1))
LIB_OBJS    := $(call objects,$(LIB_SRCS))
HELPER_OBJS := $(call objects,$(HELPER_SRCS))
TEST_OBJS   := $(call objects,$(TEST_SRCS))
TESTS       := $(TEST_SRCS:csrc/test/%.c=$(B)/test/%)
FUZZERS     := $(FUZZ_SRCS:csrc/fuzz/%.c=$(B)/fuzz/%)

# --- flags --------------------------------------------------------------------------------------
ifeq ($(origin CC),default)
CC := gcc
endif
PKG_CONFIG ?= pkg-config
FUZZ_CC ?= clang
FUZZ_SECONDS ?= 30

# pkg-config names of the libraries that the library itself links with.
REQUIRES := yyjson
# Their flags. LuaRocks has looked for yyjson itself, and says where it is.
ifdef YYJSON_INCDIR
YYJSON_RPATH     = $(if $(filter-out /usr/lib% /lib%,$(YYJSON_LIBDIR)),-Wl$(comma)-rpath$(comma)$(YYJSON_LIBDIR))
REQUIRES_CFLAGS  = -I$(YYJSON_INCDIR)
REQUIRES_LIBS    = $(if $(YYJSON_LIBDIR),-L$(YYJSON_LIBDIR)) $(YYJSON_RPATH) -lyyjson
else
REQUIRES_CFLAGS  = $(shell $(PKG_CONFIG) --cflags $(REQUIRES))
REQUIRES_LIBS    = $(or $(shell $(PKG_CONFIG) --libs $(REQUIRES)),$(REQUIRES:%=-l%))
endif
comma := ,

OPT_release  := -O2 -g
OPT_rock     := -O2
OPT_debug    := -O1 -g
OPT_asan     := -O1 -g
OPT_ubsan    := -O1 -g
OPT_tsan     := -O1 -g
OPT_coverage := -O0 -g
OPT_fuzz     := -O1 -g

INSTR_debug    := -DTP_DEBUG=1
INSTR_asan     := -fsanitize=address -fno-omit-frame-pointer
INSTR_ubsan    := -fsanitize=undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
INSTR_tsan     := -fsanitize=thread -fno-omit-frame-pointer
INSTR_coverage := --coverage
INSTR_fuzz     := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
                  -fno-omit-frame-pointer

ifeq ($(MODE),tsan)
# gcc says with every fence that ThreadSanitizer does not understand it. The code does not rely on
# fences to publish data (docs/MEMORY-ORDER.md); clang does not know the warning.
INSTR_tsan += $(if $(findstring clang,$(shell $(CC) --version 2>/dev/null)),,-Wno-tsan)
endif

CFLAGS ?= $(OPT_$(MODE))
WERROR ?= $(if $(filter rock,$(MODE)),,-Werror)
DEFINES   := -std=c11 -D_GNU_SOURCE -Icsrc
COMPILE    = $(CC) $(DEFINES) $(CPPFLAGS) -Wall -Wextra $(WERROR) $(CFLAGS) -pthread -fPIC \
             $(INSTR_$(MODE)) $(REQUIRES_CFLAGS)
LINK       = $(CC) $(CFLAGS) -pthread $(INSTR_$(MODE)) $(LDFLAGS)
LIBS       = $(REQUIRES_LIBS) -ldl -lm $(LDLIBS)
TEST_LIBS  = $(or $(shell $(PKG_CONFIG) --libs cmocka 2>/dev/null),-lcmocka)

# --- how make runs ------------------------------------------------------------------------------
# Compile on all cores unless told otherwise. What runs programs (tests, benchmarks) runs one after
# another: two of them side by side would disturb each other and mix their output.
ifeq ($(MAKELEVEL),0)
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
endif
ifneq ($(filter-out all tests fuzzers,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif
SUBMAKE = $(MAKE) --no-print-directory -Otarget

Q := $(if $(V),,@)
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:
.PHONY: all tests fuzzers test debug stress asan ubsan tsan valgrind coverage fuzz model bench lint fmt \
        check-generated install uninstall rock install-rock clean help FORCE

# --- build --------------------------------------------------------------------------------------
all: $(B)/libthreadpool.so $(B)/libthreadpool.so.$(SOVERSION) $(B)/libthreadpool.a $(B)/threadpool/core.so ## Build build/release/libthreadpool.so and .a (the default)

tests: $(TESTS)
	@:

# What the library is compiled with; the targets that need more have asked for it already. LuaRocks
# builds what it was asked for and installs nothing else.
needs:
ifeq ($(MODE),rock)
	@echo '#include <yyjson.h>' | $(CC) $(CPPFLAGS) $(CFLAGS) $(REQUIRES_CFLAGS) -E -x c - >/dev/null 2>&1 || { \
	  echo "threadpool: error: yyjson.h not found: install yyjson (Debian: libyyjson-dev), or say where it is:" \
	    "YYJSON_DIR=/path" >&2; exit 1; }
else
	@config/build/deps.sh build
endif

fuzzers: $(FUZZERS)
	@:

$(B)/obj/%.o: csrc/%.c $(B)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(COMPILE) -MMD -MP $(VISIBILITY) -c $< -o $@

$(LIB_OBJS): VISIBILITY := -fvisibility=hidden

# One set of objects for both: what a test links is what is shipped.
$(B)/libthreadpool.so: $(LIB_OBJS) $(B)/members
	@echo "  LINK  $@"
	$(Q)$(LINK) -shared -Wl,-soname,libthreadpool.so.$(SOVERSION) -Wl,--no-undefined \
	  -Wl,-z,relro -Wl,-z,nodelete -o $@ $(LIB_OBJS) $(LIBS)

# The name a program linked with build/release looks for when it starts.
$(B)/libthreadpool.so.$(SOVERSION): | $(B)/libthreadpool.so
	@ln -sf libthreadpool.so $@

# The name Lua looks for: the same library.
$(B)/threadpool/core.so: | $(B)/libthreadpool.so
	@mkdir -p $(@D)
	@ln -sf ../libthreadpool.so $@

$(B)/libthreadpool.a: $(LIB_OBJS) $(B)/members
	@echo "  AR    $@"
	@rm -f $@
	$(Q)$(AR) rcs $@ $(LIB_OBJS)

# A test sees the internal symbols, so it links the archive.
$(TESTS): $(B)/test/%: $(B)/obj/test/%.o $(HELPER_OBJS) $(B)/libthreadpool.a $(B)/members
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(LINK) -o $@ $(filter %.o %.a,$^) $(TEST_LIBS) $(LIBS)

# It looks for functions of its own by their names.
$(B)/test/test_plugin: LDFLAGS += -rdynamic

# MODE=fuzz only: libFuzzer brings main.
$(FUZZERS): $(B)/fuzz/%: $(B)/obj/fuzz/%.o $(B)/libthreadpool.a $(B)/members
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(LINK) -fsanitize=fuzzer -o $@ $(filter %.o %.a,$^) $(LIBS)

# Rewritten only when the text changes: another compiler or flag recompiles, and a source that is
# added or removed relinks.
$(B)/flags: TEXT = $(COMPILE)
$(B)/members: TEXT = $(LIB_OBJS) $(HELPER_OBJS) : $(LINK) $(LIBS)
$(B)/flags $(B)/members: FORCE | needs
	@mkdir -p $(@D)
	@echo '$(TEXT)' | cmp -s - $@ || echo '$(TEXT)' >$@

-include $(patsubst %.o,%.d,$(LIB_OBJS) $(HELPER_OBJS) $(TEST_OBJS) $(call objects,$(FUZZ_SRCS)))

# --- test ---------------------------------------------------------------------------------------
# $(call run,mode,options of run-tests.sh,specs): install what is missing, build, run every test program and these specs.
define run
	@config/build/deps.sh test
	@+$(SUBMAKE) MODE=$(1) all tests
	@CC="$(CC)" config/build/run-tests.sh --build build/$(1) $(2) \
	  $(filter $(if $(ONLY),$(ONLY:%=build/$(1)/test/test_%),%),$(TEST_SRCS:csrc/test/%.c=build/$(1)/test/%)) \
	  $(filter $(if $(ONLY),$(ONLY:%=spec/%.lua),%),$(3))
endef

# $(call unless_only,name,option): the option, if everything is to be run or this.
unless_only = $(if $(filter-out $(1),$(ONLY)),,$(2))

test: ## Install what is missing, build, and run every test suite (ONLY=name: one program, NAME_spec, readme, install, rock)
	$(call run,release,--suite test $(call unless_only,readme,--readme build/release) \
	  $(call unless_only,install,--install) $(call unless_only,rock,--rock),$(SPECS))

debug: ## Build with -DTP_DEBUG=1 (thread roles and invariants are checked) and run the tests
	$(call run,debug,--suite debug,$(SPECS))

stress: ## Run the tests in their long form (TP_STRESS=1), the specs also without the JIT and with a restless collector
	$(call run,release,--suite stress --stress,$(SPECS))

asan: ## Run the tests under AddressSanitizer, with leak detection
	$(call run,asan,--suite asan --preload asan,$(SPECS))

ubsan: ## Run the tests under UndefinedBehaviorSanitizer
	$(call run,ubsan,--suite ubsan,$(SPECS))

# ThreadSanitizer delivers a signal when the program next calls the C library, and a loop that is to be stopped never does;
# and programs that a spec starts would run with its library, but unprepared.
NOT_UNDER_TSAN := stop docs exit library memory pool share
tsan: ## Run the tests under ThreadSanitizer
	$(call run,tsan,--suite tsan --no-aslr --preload tsan,$(filter-out $(NOT_UNDER_TSAN:%=spec/%_spec.lua),$(SPECS)))

valgrind: ## Run the tests under valgrind's memcheck, in their short form
	@config/build/deps.sh valgrind
	$(call run,release,--suite valgrind --valgrind,)

coverage: ## Run the tests and show the line coverage of each source file
	@rm -rf build/coverage
	$(call run,coverage,--suite coverage,$(SPECS))
	@config/build/coverage.sh build/coverage

fuzz: ## Feed arbitrary input to the parsers, FUZZ_SECONDS=30 each (ONLY=config: one; needs clang)
	@config/build/deps.sh fuzz
	@+$(SUBMAKE) MODE=fuzz CC="$(FUZZ_CC)" fuzzers
	@FUZZ_SECONDS="$(FUZZ_SECONDS)" config/build/run-fuzz.sh \
	  $(filter $(if $(ONLY),$(ONLY:%=build/fuzz/fuzz/fuzz_%),%),$(FUZZ_SRCS:csrc/fuzz/%.c=build/fuzz/fuzz/%))

model: ## Check the model of the sleep protocol, and that its mutations are rejected
	@config/build/deps.sh model
	@config/build/run-model.sh

bench: ## Measure beside the peers, interleaved (ONLY=fib: one workload)
	@config/build/deps.sh bench
	@+$(SUBMAKE) all
	@$(MAKE) --no-print-directory -C bench run ONLY="$(ONLY)"

# --- source -------------------------------------------------------------------------------------
lint: ## Check formatting, include directions, exported symbols; static analysis
	@config/build/deps.sh lint
	@+$(SUBMAKE) all
	@config/build/lint.sh $(B)/libthreadpool.so "$(DEFINES)" "$(LAYERS)" $(VERSION)

fmt: ## Format the C sources in place
	@config/build/deps.sh lint
	@config/build/c-files.sh | xargs -0 -r clang-format -i

check-generated: ## Check that the tables of docs/BYTECODE.md, and what Lua's FFI is told, are what the sources say
	@config/build/generate-tables.sh --check
	@CC="$(CC)" config/build/generate-cdef.sh --check

# --- install ------------------------------------------------------------------------------------
SO      := libthreadpool.so
SO_FULL := $(SO).$(VERSION)

# Every file of the Lua module, below INST_LUADIR. What is not there any more is not installed, nor removed.
define install_lua
	install -d $(patsubst lua/%,"$(DESTDIR)$(INST_LUADIR)/%",$(sort $(dir $(LUA_SRCS)))) "$(DESTDIR)$(INST_LIBDIR)/threadpool"
	@set -e; for f in $(LUA_SRCS:lua/%=%); do install -m 644 "lua/$$f" "$(DESTDIR)$(INST_LUADIR)/$$f"; done
endef

install: ## Install the library, headers, threadpool.pc, config and the Lua module (PREFIX=/usr/local, DESTDIR=)
	@+$(SUBMAKE) MODE=release all
	install -d "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(INCLUDEDIR)" "$(DESTDIR)$(DATADIR)/threadpool"
	install -m 755 build/release/$(SO) "$(DESTDIR)$(LIBDIR)/$(SO_FULL)"
	ln -sf $(SO_FULL) "$(DESTDIR)$(LIBDIR)/$(SO).$(SOVERSION)"
	ln -sf $(SO).$(SOVERSION) "$(DESTDIR)$(LIBDIR)/$(SO)"
	install -m 644 build/release/libthreadpool.a "$(DESTDIR)$(LIBDIR)/libthreadpool.a"
	install -m 644 $(PUBLIC_HDRS) "$(DESTDIR)$(INCLUDEDIR)"
	install -m 644 config/config "$(DESTDIR)$(DATADIR)/threadpool/config"
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	  -e 's|@VERSION@|$(VERSION)|' -e 's|@REQUIRES@|$(REQUIRES)|' config/build/threadpool.pc.in \
	  >"$(DESTDIR)$(LIBDIR)/pkgconfig/threadpool.pc"
	$(install_lua)
	ln -srf "$(DESTDIR)$(LIBDIR)/$(SO_FULL)" "$(DESTDIR)$(INST_LIBDIR)/threadpool/core.so"
	@# So that programs find the library at once; a packager (DESTDIR) does this otherwise.
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then PATH="$$PATH:/sbin" ldconfig || true; fi

uninstall: ## Remove what install has put under PREFIX
	rm -f "$(DESTDIR)$(LIBDIR)/$(SO)" "$(DESTDIR)$(LIBDIR)/$(SO).$(SOVERSION)" \
	  "$(DESTDIR)$(LIBDIR)/$(SO_FULL)" "$(DESTDIR)$(LIBDIR)/libthreadpool.a" \
	  "$(DESTDIR)$(LIBDIR)/pkgconfig/threadpool.pc" "$(DESTDIR)$(DATADIR)/threadpool/config" \
	  $(PUBLIC_HDRS:csrc/%="$(DESTDIR)$(INCLUDEDIR)/%")
	rm -f "$(DESTDIR)$(INST_LIBDIR)/threadpool/core.so" $(LUA_SRCS:lua/%="$(DESTDIR)$(INST_LUADIR)/%")
	@rmdir "$(DESTDIR)$(DATADIR)/threadpool" "$(DESTDIR)$(INST_LIBDIR)/threadpool" \
	  $(patsubst lua/%,"$(DESTDIR)$(INST_LUADIR)/%",$(shell printf '%s\n' $(sort $(dir $(LUA_SRCS))) | sort -r)) \
	  2>/dev/null || true

# The two steps of `luarocks make`: rockspec/*.rockspec.
rock: ## Build the Lua module for LuaRocks (YYJSON_INCDIR=, YYJSON_LIBDIR=; installs no packages)
	@+$(SUBMAKE) MODE=rock build/rock/libthreadpool.so

install-rock:
	$(install_lua)
	install -m 755 build/rock/libthreadpool.so "$(DESTDIR)$(INST_LIBDIR)/threadpool/core.so"

clean: ## Remove everything that was built
	rm -rf build bench/target

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
