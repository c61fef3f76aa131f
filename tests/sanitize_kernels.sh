#!/usr/bin/env bash
# tests/sanitize_kernels.sh [FOLDER [SECONDS]]: runs small shapes of every kernel under compute-sanitizer's memcheck, racecheck and synccheck, on the
# test programs in FOLDER (build/release/tests). A check that takes longer than SECONDS (600) counts as failed. Needs a GPU and a CUDA toolkit. The last
# line is `N passed, N failed, N skipped`.
set -u
cd "$(dirname "$0")/.." || exit 1
folder=${1:-build/release/tests} limit=${2:-600} jobs=$(nproc)
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
if [ -z "$sanitizer" ]; then
  echo "compute-sanitizer is not on this machine: install a CUDA toolkit and put its bin folder on PATH" >&2
  echo "0 passed, 0 failed, 1 skipped"; exit 0
fi
# What is run: the program, and its tests.
checks=()
while read -r line; do checks+=("run_gpu_tests|$line"); done < <("$folder/run_gpu_tests" --list-test-cases | grep '^gpu small: ')
for pattern in 'H10:*,H2:*' 'H1:*,A13:*' 'gpu rows: numbers are read anew*' 'gpu rows: strided operands*' 'gpu sums: a long sum*' 'gpu embedding: rows*' 'gpu state:*' \
               'a map beyond its capacity*' 'gpu masks: rows without a visible key*'; do
  checks+=("run_gpu_tests|$pattern")
done
logs=$(mktemp -d) passed=0 failed=0
for tool in memcheck racecheck synccheck; do
  for i in "${!checks[@]}"; do
    program=${checks[$i]%%|*} tests=${checks[$i]#*|}
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do sleep 0.2; done
    export SAMITE_RACECHECK=$([ "$tool" = racecheck ] && echo 1 || echo 0)
    (begin=$SECONDS; timeout "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 "$folder/$program" "--test-case=${tests//, /*}" >"$logs/$tool.$i" 2>&1; echo "$? $((SECONDS - begin))" >"$logs/$tool.$i.rc") &
  done
done
wait
for tool in memcheck racecheck synccheck; do
  for i in "${!checks[@]}"; do
    read -r status seconds <"$logs/$tool.$i.rc"
    if [ "$status" = 0 ] && grep -qE 'test cases: +[1-9]' "$logs/$tool.$i"; then
      passed=$((passed + 1)); echo "$tool: ${checks[$i]#*|}: clean, $seconds s"
    else
      failed=$((failed + 1)); echo "FAILED: $tool: ${checks[$i]#*|}: status $status, $seconds s"; grep -E '=========|ERROR' "$logs/$tool.$i" | head -n 12
    fi
  done
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
