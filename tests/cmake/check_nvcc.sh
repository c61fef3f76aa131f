#!/usr/bin/env bash
# The mask headers compile inside a .cu file. check_nvcc.sh <root> <nvcc or nothing>; 77: skipped, saying why.
set -uo pipefail
root=$1 nvcc=${2:-}
if [ ! -x "$nvcc" ]; then
  echo "[skip] masks inside a .cu file: no nvcc on this machine"
  exit 77
fi
release=$("$nvcc" --version | sed -nE 's/.*release ([0-9]+)\..*/\1/p')
if [ "${release:-0}" -lt 12 ]; then
  echo "[skip] masks inside a .cu file: nvcc $release has no C++20, 12 or newer does"
  exit 77
fi
object=$(mktemp)
trap 'rm -f "$object"' EXIT
"$nvcc" -std=c++20 -c -I "$root/include" "$root/tests/consumer/mask.cu" -o "$object"
