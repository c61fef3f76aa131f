#!/usr/bin/env bash
# tests/run.sh [--full] [--sanitize] [--gpu] [--bench]: sets up, builds and runs the tests. The last line is `N passed, N failed, N skipped`;
# the exit status is nonzero if a test failed. Plain: the host tier. --full: also header, consumer and compile-fail checks, and all of
# --sanitize. --sanitize: also clang++ with ASan+UBSan, TSan and fuzzing. --gpu: also the GPU tests. --bench: also the benchmarks (JSON
# lines on standard output).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. examples/setup.sh

full=0 sanitize=0 gpu=0 bench=0
for argument in "$@"; do
  case "$argument" in
    --full) full=1 sanitize=1 ;;
    --sanitize) sanitize=1 ;;
    --gpu) gpu=1 ;;
    --bench) bench=1 ;;
    *) samite_say "usage: tests/run.sh [--full] [--sanitize] [--gpu] [--bench]"; exit 2 ;;
  esac
done

passed=0 failed=0 skipped=0
jobs=$(nproc 2>/dev/null || echo 2)
if [ "$sanitize" = 1 ]; then samite_install_packages clang++:clang; else samite_install_packages; fi
if [ "$sanitize" = 1 ] && ! samite_clang_sanitizes; then samite_apt_install libclang-rt-dev; fi
samite_setup_nvrtc

# build <preset> <cmake arguments>: configures once and after a change of the presets; ninja itself does nothing when the build is current. A failed build is one failed
# test, and so is each program that is missing then; the others still run.
build() {
  local begin=$SECONDS configured=0
  samite_say "== build $1"
  if [ ! -f "build/$1/build.ninja" ] || [ CMakePresets.json -nt "build/$1/build.ninja" ]; then
    cmake --fresh --preset "$@" >"build/$1.configure.log" 2>&1 || configured=$?
  fi
  if [ "$configured" != 0 ]; then
    cat "build/$1.configure.log" >&2
    failed=$((failed + 1)); samite_say "FAILED: configure $1"; return 1
  fi
  if ! cmake --build --preset "$1" -j "$jobs" -- -k 0 >"build/$1.build.log" 2>&1; then
    grep -E 'error|FAILED|warning' -A 6 "build/$1.build.log" | head -n 120 >&2
    failed=$((failed + 1)); samite_say "FAILED: build $1 (build/$1.build.log)"
  fi
  samite_say "== built $1 in $((SECONDS - begin)) s"
}

# run <preset> <ctest arguments>: runs the selected tests and adds up the test cases in their reports.
run() {
  local preset=$1 log="build/$1.test.log" name status report p f s begin=$SECONDS
  shift
  samite_say "== test $preset $*"
  (cd "build/$preset" && ctest --output-on-failure --no-tests=ignore -j "$jobs" "$@") 2>&1 | tee "$log" >&2
  while read -r name status; do
    report="build/$preset/report/$name"
    p=0 f=0 s=0
    if [ -f "$report" ]; then
      read -r _ p f s < <(grep '^count ' "$report")
      sed -n "s/^skip /SKIPPED: $name: /p" "$report" >&2
      [ "$status" = Passed ] || [ "$f" -gt 0 ] || f=1  # a leak or a race found at exit fails no single case
      rm -f "$report"
    else
      case "$status" in
        Passed) p=1 ;;
        *Skipped*) s=1; samite_say "SKIPPED: $name: it said: $(grep -hE '^\[skip\]' "build/$preset/Testing/Temporary/LastTest.log" | head -n 3 | tr '\n' ' ')" ;;
        *) f=1 ;;
      esac
    fi
    [ "$f" = 0 ] || samite_say "FAILED: $preset: $name ($f)"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  done < <(sed -nE 's/^ *[0-9]+\/[0-9]+ +Test +#[0-9]+: +([^ ]+) \.*(.*[^ ]) +[0-9.]+ sec.*$/\1 \2/p' "$log" | tr -d '*')
  samite_say "== tested $preset in $((SECONDS - begin)) s"
}

mkdir -p build
if build release; then
  run release -LE 'gpu|bench|compile'
  if [ "$gpu" = 1 ]; then run release -L gpu; fi
  if [ "$bench" = 1 ]; then
    run release -L bench -V
    grep -hoE '\{"bench".*\}' build/release.test.log
  fi
fi

if [ "$full" = 1 ]; then
  [ -f build/release/build.ninja ] && run release -L compile
fi

if [ "$sanitize" = 1 ]; then
  # One build is clang++'s host tier, the one with ASan and UBSan, and the fuzzers'. Texts and mistakes that must not compile are
  # checked with both compilers; what only reads text is not run twice.
  if samite_clang_sanitizes; then
    build asan && { run asan -LE 'gpu|bench|compile|example' -E '^(ranks|error_codes)$'; run asan -L compile -R '^compile_fail|fuzz'; }
  else
    skipped=$((skipped + 1))
    samite_say "SKIPPED: clang++ and fuzzing: no clang++ with sanitizers on this machine; ASan and UBSan run with the default compiler"
    build asan -D "CMAKE_CXX_COMPILER=${CXX:-c++}" && run asan -LE 'gpu|bench|compile|example' -E '^(ranks|error_codes)$'
  fi
  build tsan && run tsan -LE 'gpu|bench|compile|example' -E '^(ranks|error_codes)$'
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
