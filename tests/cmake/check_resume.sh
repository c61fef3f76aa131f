#!/usr/bin/env bash
# A training run that is killed with SIGKILL twice, each time after a saved state appeared, and started again with the same command,
# ends with the same bytes as an undisturbed one, whatever the number of threads.
# check_resume.sh <train_drafter> <empty work folder>
set -uo pipefail
program=$1 work=$2
rm -rf "$work"
mkdir -p "$work"
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

settings=(--layers 1 --block 4 --taps 1 --anchors 16 --windows 2 --window 48 --written 0 --steps 80 --seed 11)
state=$work/killed/training_state.safetensors
# The step is in the state's header as text; the file appears whole or not at all, so it can be read at any moment.
step_of_state() { grep -a -o -m 1 '"step":"[0-9]*"' "$state" 2>/dev/null | head -n 1 | tr -dc '0-9'; }

SAMITE_THREADS=2 "$program" "${settings[@]}" --output "$work/whole" >"$work/whole.log" 2>&1 || fail "the undisturbed run: $(tail -n 3 "$work/whole.log")"

last=0
for threads in 1 3; do
  SAMITE_THREADS=$threads "$program" "${settings[@]}" --save-every 3 --output "$work/killed" >"$work/killed_$threads.log" 2>&1 &
  child=$!
  while step=$(step_of_state); [ "${step:-0}" -le "$last" ]; do
    kill -0 "$child" 2>/dev/null || fail "the run with $threads threads ended before it could be killed: $(tail -n 3 "$work/killed_$threads.log")"
    sleep 0.01
  done
  kill -9 "$child"
  wait "$child" 2>/dev/null
  [ $? = 137 ] || fail "the run with $threads threads ended by itself; give it more steps"
  [ ! -e "$work/killed/model.safetensors" ] || fail "a killed run left a model that looks finished"
  last=$(step_of_state)
  printf 'killed with %s threads, saved at step %s\n' "$threads" "$last"
done

# Asked to stop, it saves the step that it is at, says so and leaves with 75: within a save interval nothing is lost.
for signal in TERM INT; do
  (trap - INT; SAMITE_THREADS=2 exec "$program" "${settings[@]}" --save-every 70 --output "$work/asked") >"$work/asked.log" 2>&1 &
  child=$!
  while ! grep -q 'drafter step' "$work/asked.log" 2>/dev/null; do
    kill -0 "$child" 2>/dev/null || fail "the run ended before it could be asked: $(tail -n 3 "$work/asked.log")"
    sleep 0.01
  done
  kill -$signal "$child"
  wait "$child" 2>/dev/null
  [ $? = 75 ] && grep -q 'E-PREEMPTED' "$work/asked.log" || fail "SIG$signal did not end the run with status 75: $(tail -n 3 "$work/asked.log")"
done
"$program" "${settings[@]}" --output "$work/asked" >"$work/asked.log" 2>&1 || fail "the run that was asked to stop did not resume: $(tail -n 3 "$work/asked.log")"
cmp "$work/whole/model.safetensors" "$work/asked/model.safetensors" || fail "the run that was asked to stop ends with other weights"

# Against a target that differs in one bit the state is refused, and stays.
cp -r examples/data/target "$work/other_target"
weights=$work/other_target/model.safetensors at=$(($(stat -c %s "$work/other_target/model.safetensors") - 4))
byte=$(od -An -tu1 -j "$at" -N 1 "$weights" | tr -d ' ')
printf "\\x$(printf %x $((byte ^ 1)))" | dd of="$weights" bs=1 seek="$at" conv=notrunc status=none
cp "$state" "$work/state_before"
"$program" "${settings[@]}" --target "$work/other_target" --output "$work/killed" >"$work/refused.log" 2>&1
[ $? = 3 ] && grep -q 'E-CHECKPOINT-CONTRACT' "$work/refused.log" || fail "a state was continued against another target: $(tail -n 3 "$work/refused.log")"
cmp "$state" "$work/state_before" || fail "the refused run changed the state"

SAMITE_THREADS=4 "$program" "${settings[@]}" --output "$work/killed" >"$work/resumed.log" 2>&1 || fail "the resumed run: $(tail -n 3 "$work/resumed.log")"
for name in model.safetensors config.json; do
  cmp "$work/whole/$name" "$work/killed/$name" || fail "$name of the resumed run differs from the undisturbed one"
done
[ ! -e "$state" ] || fail "the finished run left its training state"
[ "$(grep -h '^held-out' "$work/whole.log")" = "$(grep -h '^held-out' "$work/resumed.log")" ] || fail "the two runs report other numbers"
