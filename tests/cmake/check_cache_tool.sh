#!/usr/bin/env bash
# examples/cache_tool as a user meets it: on no cache, on one with the entries of tests/fuzz/cache_seeds, and on what can't work.
# check_cache_tool.sh <cache_tool> <empty work folder>
set -uo pipefail
tool=$1 work=$2 passed=0 failed=0
rm -rf "$work"
mkdir -p "$work"
work=$(cd "$work" && pwd)
unset SAMITE_CACHE
export SAMITE_CACHE_DIR=$work/cache HOME=$work

fault() { printf 'FAILED: %s\n%s\n' "$1" "$(tail -n 5 "$work/err" "$work/log")" >&2; failed=$((failed + 1)); }
# gives <status> <text in the output or the message> <arguments>
gives() {
  local status=$1 text=$2 found
  shift 2
  "$tool" "$@" >"$work/log" 2>"$work/err"
  found=$?
  if [ "$found" != "$status" ]; then fault "cache_tool $*: status $found where $status is expected"
  elif ! grep -qF -e "$text" "$work/log" "$work/err"; then fault "cache_tool $*: it does not say $text"
  else passed=$((passed + 1)); fi
}

# an empty cache, and one that is not there: nothing is made
gives 0 '0 kernels, 0 bytes'
gives 0 'all good' verify
if [ -e "$work/cache" ]; then fault 'listing made the folder'; else passed=$((passed + 1)); fi

# two good entries, as programs leave them
mkdir -p "$work/cache"
chmod 755 "$work/cache"
for seed in tests/fuzz/cache_seeds/????????????????????????????????; do  # named by the hash of their keys
  hash=${seed##*/}
  mkdir -p "$work/cache/${hash:0:2}"
  chmod 755 "$work/cache/${hash:0:2}"
  tail -c +2 "$seed" >"$work/cache/${hash:0:2}/${hash:2}.kernel"  # a seed begins with the length of its key
  chmod 644 "$work/cache/${hash:0:2}/${hash:2}.kernel"
done
gives 0 '2 kernels'
gives 0 'attn_fwd.causal_d128  samite 0.' list
gives 0 'all good' verify
gives 0 'copied 2 kernels' export "$work/shipped"
SAMITE_CACHE_DIR=$work/shipped SAMITE_CACHE=ro gives 0 '2 kernels'
SAMITE_CACHE_DIR=$work/node gives 0 'copied 2 kernels' import "$work/shipped"
SAMITE_CACHE_DIR=$work/node gives 0 'all good' verify

# one damaged entry
entry=$(ls "$work"/cache/*/*.kernel | head -n 1)
printf 'x' >>"$entry"
gives 4 'E-JIT-CACHE' verify
gives 4 "$entry" verify
gives 0 'damaged: its lengths' list
gives 0 '1 were damaged' export "$work/second"
gives 0 '0 bytes are left' prune 0
gives 0 '0 kernels'

# what can't work
gives 2 E-ARG bogus
gives 2 'megabytes that may stay' prune
gives 2 'lacks its argument, a folder' export
gives 2 E-ARG prune many
gives 2 E-ARG list too much
gives 2 E-ARG export relative
gives 3 E-FILE-OPEN import "$work/missing"
SAMITE_CACHE_DIR=$work/missing gives 3 'nothing to copy' export "$work/third"
gives 4 'holds no kernel' import /etc
SAMITE_CACHE_DIR=/ gives 4 'the root of the file system' list
SAMITE_CACHE_DIR=$work/node gives 8 E-FILE-WRITE export /proc/samite
SAMITE_CACHE=off gives 4 E-JIT-CACHE list
SAMITE_CACHE=bogus gives 2 'expected off, ro or rw' list
chmod 777 "$work/node"
SAMITE_CACHE=ro gives 4 'can be written by other users' import "$work/node"
gives 0 'cache_tool prune' --help

# what a run would pass over in silence is said
SAMITE_CACHE_DIR=$work/node gives 4 'for the reason above' verify
SAMITE_CACHE_DIR=$work/err gives 4 E-JIT-CACHE verify
SAMITE_CACHE_DIR=$work/nowhere gives 0 'there is no such folder' verify
chmod 775 "$work"/shipped/??
SAMITE_CACHE_DIR=$work/shipped gives 4 'were left out' verify
SAMITE_CACHE_DIR=$work/shipped gives 4 'were left out' export "$work/third"
SAMITE_CACHE_DIR=$work/second SAMITE_CACHE=ro gives 4 'nothing is removed' prune 0
SAMITE_CACHE=ro gives 4 'nothing is stored' import "$work/second"

# what can't be read is not called good: too few descriptors stand for every cause, also for root
chmod 755 "$work"/shipped/??
export SAMITE_CACHE_DIR=$work/shipped
least=4  # with which the program starts: this shell may have inherited some
while [ "$least" -lt 64 ] && ! (ulimit -n "$least" && exec "$tool" --help) >/dev/null 2>&1; do least=$((least + 1)); done
for limit in "$least" $((least + 1)); do
  (ulimit -n "$limit" && exec "$tool" verify) >"$work/log" 2>"$work/err"
  if [ $? != 4 ]; then fault "verify with $limit descriptors"; else passed=$((passed + 1)); fi
  (ulimit -n "$limit" && exec "$tool" export "$work/few") >"$work/log" 2>"$work/err"
  if [ $? -lt 3 ]; then fault "export with $limit descriptors"; else passed=$((passed + 1)); fi
done
if [ "$(id -u)" != 0 ]; then
  chmod 000 "$work"/shipped/*/*.kernel
  gives 4 "can't be read" verify
  gives 4 'were not copied' export "$work/unread"
  chmod 644 "$work"/shipped/*/*.kernel
fi

[ -z "${SAMITE_TEST_REPORT:-}" ] || printf 'count %d %d 0\n' "$passed" "$failed" >"$SAMITE_TEST_REPORT"
[ "$failed" = 0 ]
