#!/usr/bin/env bash
# A trainer killed in each phase, and what its folder says then: alive before, died in that phase after. Also the status of runs that end
# by themselves, and the run's id in the log.
# check_status.sh <folder of the programs> <empty work folder>
set -uo pipefail
programs=$1 work=$2 failed=0
rm -rf "$work"
mkdir -p "$work"
small=(--heads 2 --kv-heads 1 --head-dim 8 --intermediate 24 --batch 2 --window 16 --layers 1)
tiny=(--hidden 16 "${small[@]}")
text=examples/data/austen.txt

fault() { printf 'FAILED: %s\n' "$1" >&2; failed=1; }
ask() { "$programs/ask_run" "$work/$1.status" 2>&1; }
phase_of() { sed -n 's/^phase //p' "$work/$1.status/heartbeat" 2>/dev/null; }

# killed_in <phase> <run> <command>: waits until the run says it is in the phase, and kills it there.
killed_in() {
  local phase=$1 run=$2 said
  shift 2
  "$@" --output "$work/$run" >"$work/$run.log" 2>&1 &
  local process=$!
  for ((i = 0; i < 20000; i++)); do
    [ "$(phase_of "$run")" = "$phase" ] && break
    kill -0 $process 2>/dev/null || break
    sleep 0.002
  done
  said=$(ask "$run")
  kill -9 $process 2>/dev/null
  wait $process 2>/dev/null
  case $said in *", alive") ;; *) fault "$run: before the kill it says: $said" ;; esac
  said=$(ask "$run")
  [ $? = 1 ] || fault "$run: a run that died gives another status than 1"
  case $said in "run "*"phase $phase,"*", died there") return 0 ;; esac
  printf '%s' "$said" >"$work/last"
  return 1
}

truncate -s 400M "$work/long"  # takes a while to read and to hash
killed_in load load "$programs/train_target" "${tiny[@]}" --text "$work/long" || fault "load: $(cat "$work/last")"
killed_in step step "$programs/train_target" "${tiny[@]}" --text $text --steps 1000000 --save-every 1000000 || fault "step: $(cat "$work/last")"
# A save is short, and the run may leave it between the look and the kill: then it says so, and is tried again.
saved=no
for ((try = 0; try < 20; try++)); do
  rm -rf "$work"/save*
  killed_in save save "$programs/train_target" --hidden 512 "${small[@]}" --text $text --steps 100000 --save-every 1 && { saved=yes; break; }
  case $(cat "$work/last") in *"phase step,"*", died there") ;; *) fault "save: $(cat "$work/last")" ;; esac
done
[ $saved = yes ] || fault "20 runs, none of which was killed in a save: $(cat "$work/last")"
if [ -n "${SAMITE_NVRTC_PATH:-}" ] || ldconfig -p 2>/dev/null | grep -q libnvrtc || [ -e /usr/local/cuda/lib64/libnvrtc.so ]; then
  SAMITE_COMPILE_FOR=sm_90a SAMITE_CACHE_DIR="$work/kernels" killed_in compile compile "$programs/train_target" "${tiny[@]}" --text $text || fault "compile: $(cat "$work/last")"
fi

mkdir -p "$work/whole"  # with what killed writers leave
for name in config.json model.safetensors training_state.safetensors; do : >"$work/whole/$name.tmp-2-0"; done
"$programs/train_target" "${tiny[@]}" --text $text --steps 2 --output "$work/whole" >"$work/whole.log" 2>&1 || fault "a whole run"
[ "$(ls -A "$work/whole" | tr '\n' ' ')" = 'config.json model.safetensors ' ] || fault "left over in a whole run's folder: $(ls -A "$work/whole" | tr '\n' ' ')"
grep -q '^\[.*\] target step 2/2 ' "$work/whole.log" || fault "the log's lines have no run id"
case $(ask whole) in "run "*"phase save, step 2,"*", ended with status 0") ;; *) fault "a whole run says: $(ask whole)" ;; esac
ask whole >"$work/said" || fault "a run that ended well gives another status than 0"
mkdir -p "$work/refused"
printf 'not a state' >"$work/refused/training_state.safetensors"
"$programs/train_target" "${tiny[@]}" --text $text --output "$work/refused" >"$work/refused.log" 2>&1
expected=$?
case $(ask refused) in *", ended with status $expected") ;; *) fault "a refused run says: $(ask refused)" ;; esac
ask nothing >"$work/said"
[ $? = 2 ] || fault "a folder without a run gives another status than 2"
exit $failed
