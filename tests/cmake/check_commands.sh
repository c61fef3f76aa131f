#!/usr/bin/env bash
# What the example programs say to commands and files that can't work: the exit status of docs/errors.md, one message with its code,
# and nothing half-written. Also that text in no encoding at all trains and is printed.
# check_commands.sh <folder of the programs> <empty work folder>
set -uo pipefail
programs=$1 work=$2 passed=0 failed=0
rm -rf "$work"
mkdir -p "$work"
export CUDA_VISIBLE_DEVICES=-1  # the answer without a GPU, also where there is one
export SAMITE_CACHE_DIR=$work/cache
mkdir "$work/tmp"
export TMPDIR=$work/tmp  # where nothing may stay

fault() { printf 'FAILED: %s\n%s\n' "$1" "$(tail -n 5 "$work/err")" >&2; failed=$((failed + 1)); }

# refuses <status> <code> <program> <arguments>: the output folder is $work/out. A run that is watched says its id before its message.
# What the command line alone can't have leaves no status of a run either.
message='^(\[[^]]+\] )?samite: '
refuses() {
  local status=$1 code=$2 program=$3 found what
  shift 3
  what="$program $*"
  rm -rf "$work/out" "$work/out.status"
  (
    trap '' XFSZ  # with a limit on file sizes, writing fails as on a full disk
    [ -z "${file_blocks:-}" ] || ulimit -f "$file_blocks"
    exec "$programs/$program" "$@"
  ) >"$work/log" 2>"$work/err"
  found=$?
  if [ "$found" != "$status" ]; then fault "$what: status $found where $status is expected"
  elif [ "$(grep -cE "$message" "$work/err")" != 1 ]; then fault "$what: not exactly one message"
  elif ! grep -qE "$message.* \[$code\]\$" "$work/err"; then fault "$what: no message that ends with [$code]"
  elif [ "$status" = 2 ] && [ -e "$work/out.status" ]; then fault "$what: left behind: $work/out.status"
  elif [ -n "$(ls -A "$work/tmp")" ]; then fault "$what: left behind in TMPDIR: $(ls -A "$work/tmp" | tr '\n' ' ')"
  elif [ -d "$work/out" ] && [ -n "$(ls -A "$work/out")" ]; then fault "$what: left behind: $(ls -A "$work/out" | tr '\n' ' ')"
  else passed=$((passed + 1)); fi
}
# says <text>: the message of the last refusal holds it.
says() { if grep -qF -e "$1" "$work/err"; then passed=$((passed + 1)); else fault "the message does not say $1"; fi; }
works() {
  local program=$1
  shift
  if "$programs/$program" "$@" >"$work/log" 2>"$work/err"; then passed=$((passed + 1)); else fault "$program $*"; fi
}

out=(--output "$work/out")
tiny=(--hidden 16 --heads 2 --kv-heads 1 --head-dim 8 --intermediate 24 --batch 2 --window 16)
tiny_target=("${tiny[@]}" --layers 2 --steps 4)
small_drafter=(--layers 1 --block 4 --anchors 4 --windows 2 --window 32 --written 0)
tiny_drafter=("${small_drafter[@]}" --taps 1 --steps 3)
text=examples/data/austen.txt

# the command line
refuses 2 E-ARG train_target --bogus 1 "${out[@]}"
refuses 2 E-ARG train_target --steps 0 "${out[@]}"
refuses 2 E-ARG train_target --steps many "${out[@]}"
refuses 2 E-ARG train_target --steps "${out[@]}" stray
refuses 2 E-ARG train_drafter --loss none "${out[@]}"
refuses 2 E-ARG speculate --prompts -1
refuses 2 E-ARG-DEVICE train_target --device tpu "${out[@]}"
refuses 2 E-ARG-DEVICE train_target --device cuda:x "${out[@]}"
refuses 2 E-ARG-DEVICE train_target --device cuda: "${out[@]}"
refuses 2 E-ARG train_target --steps 0x10 "${out[@]}"
refuses 2 E-ARG-DTYPE train_drafter --dtype f8 "${out[@]}"
refuses 2 E-ARG-START train_drafter "${tiny_drafter[@]}" --start-layers 9 "${out[@]}"
refuses 2 E-ARG-TAPS train_drafter "${small_drafter[@]}" --steps 3 --taps 2 "${out[@]}"  # of a target of two layers
says '--taps 1 to 1'
refuses 3 E-MODEL-POSITIONS train_drafter --layers 1 --block 4 --anchors 4 --windows 1 --window 4097 --written 0 --steps 3 "${out[@]}"
SAMITE_TF32=yes refuses 2 E-ENV-VALUE train_target "${tiny_target[@]}" "${out[@]}"

for rate in nan -1 0 inf 1e9; do refuses 2 E-ARG train_target --rate "$rate" "${out[@]}"; done
for decay in nan -1; do refuses 2 E-ARG train_target --weight-decay "$decay" "${out[@]}"; done
for flag in rate gamma noise; do refuses 2 E-ARG train_drafter --$flag nan "${out[@]}"; done
refuses 2 E-ARG train_drafter --gamma 0 "${out[@]}"
refuses 2 E-ARG train_drafter --noise -1 "${out[@]}"
for program in train_target train_drafter speculate; do
  for seed in -1 18446744073709551616 1e3 0x1; do refuses 2 E-ARG $program --seed $seed; done
  says 'from 0 to 18446744073709551615'
done
refuses 2 E-ARG train_drafter --start-layers 0,99999999999999999999 "${out[@]}"
for program in train_target train_drafter quickstart; do refuses 2 E-ARG $program --output ''; done
if [ -e .status ]; then fault 'an empty --output: made .status here'; else passed=$((passed + 1)); fi
for flag in hidden layers heads kv-heads head-dim intermediate; do refuses 2 E-ARG train_target --$flag 0 "${out[@]}"; done
refuses 2 E-ARG-SIZES train_target --heads 4 --kv-heads 3 "${out[@]}"
refuses 2 E-ARG-SIZES train_target --heads 4 --kv-heads 3 --text nowhere.txt "${out[@]}"  # before files are looked for
refuses 2 E-ARG-SIZES train_target --head-dim 7 "${out[@]}"
refuses 2 E-ARG-DTYPE train_target --stored f16 "${out[@]}"
says --stored
refuses 2 E-ARG-WRITTEN train_drafter --window 64 --written-prompt 100 "${out[@]}"
refuses 2 E-ARG-WRITTEN train_drafter --window 64 --written-prompt 64 "${out[@]}"
for program in draw_a_mask your_own_mask; do refuses 2 E-ARG $program --bogus; done
refuses 2 E-ARG quickstart --kernels-for hopper --kernels "$work/kernels"
refuses 2 E-ARG quickstart --kernels-for sm_90a
says --kernels
refuses 2 E-ARG quickstart --kernels "$work/kernels" "${out[@]}"
says --kernels-for
refuses 2 E-ARG-TAPS quickstart --large "${out[@]}"
says 'add --train-target'
"$programs/quickstart" --kernels-for sm_999 --kernels "$work/kernels" >"$work/log" 2>"$work/err"  # no such arch, or no NVRTC
if [ $? = 4 ] && [ -z "$(ls -A "$work/tmp")" ]; then passed=$((passed + 1)); else fault "an arch that there isn't: another status than 4, or left behind in TMPDIR: $(ls -A "$work/tmp" | tr '\n' ' ')"; fi
refuses 2 E-ARG tune first
SAMITE_CACHE_DIR=$work/untouched refuses 4 E-GPU-NONE tune
if [ -e "$work/untouched" ]; then fault 'tune made a folder for a cache although there is no GPU'; else passed=$((passed + 1)); fi
SAMITE_NVTX=2 refuses 2 E-ENV-VALUE tune --self-test
SAMITE_CACHE=off refuses 4 E-JIT-CACHE tune
SAMITE_CACHE=ro works tune --self-test
if [ -z "$(ls -A "$work/tmp")" ] && [ -z "$(find "$work/cache" -type f 2>/dev/null)" ]; then passed=$((passed + 1)); else fault 'tune --self-test: wrote into the cache, or left a temporary folder'; fi
refuses 2 E-ARG ask_run

# the text
: >"$work/empty"
head -c 100 "$text" >"$work/short"
refuses_whole() {  # nor is there a status of a run
  refuses "$@"
  if [ -e "$work/out.status" ]; then fault "$*: left behind: $work/out.status"; else passed=$((passed + 1)); fi
}
refuses_whole 3 E-FILE-OPEN train_target --text "$work/missing" "${out[@]}"
refuses_whole 3 E-FILE-OPEN train_drafter --text "$work" "${out[@]}"
refuses_whole 3 E-DATA-TEXT train_target --text "$work/empty" "${out[@]}"
refuses_whole 3 E-DATA-TEXT train_drafter --text "$work/short" "${out[@]}"
refuses 3 E-DATA-TEXT speculate --text "$work/empty"
refuses 3 E-FILE-OPEN quickstart --text "$work/missing" "${out[@]}"
if [ -e "$work/out" ]; then fault "quickstart: made its output folder before it opened the text"; else passed=$((passed + 1)); fi

# the model
damaged() {  # damaged <name>: a copy of the example target to spoil
  rm -rf "${work:?}/$1"
  cp -r examples/data/target "$work/$1"
  printf '%s' "$work/$1"
}
folder=$(damaged truncated)
head -c 5000 examples/data/target/model.safetensors >"$folder/model.safetensors"
refuses 3 'E-SAFETENSORS-[A-Z]*' train_drafter --target "$folder" "${out[@]}"
: >"$folder/model.safetensors"
refuses 3 'E-SAFETENSORS-[A-Z]*' train_drafter --target "$folder" "${out[@]}"
rm "$folder/model.safetensors"
refuses 3 E-FILE-OPEN train_drafter --target "$folder" "${out[@]}"
folder=$(damaged disagrees)
sed -i 's/"intermediate_size": *[0-9]*/"intermediate_size": 320/' "$folder/config.json"
refuses 3 E-MODEL-TENSOR train_drafter --target "$folder" "${out[@]}"
sed -i 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": -2/' "$folder/config.json"
refuses 3 'E-MODEL-CONFIG' train_drafter --target "$folder" "${out[@]}"
printf '{"hidden_size": 128' >"$folder/config.json"
refuses 3 'E-JSON-[A-Z]*' train_drafter --target "$folder" "${out[@]}"
folder=$(damaged few_tokens)
sed -i 's/"vocab_size": *[0-9]*/"vocab_size": 256/' "$folder/config.json"
refuses 3 E-MODEL-CONFIG train_drafter --target "$folder" "${out[@]}"
says '257 tokens or more'
refuses 3 E-FILE-OPEN train_drafter --target "$work/missing" "${out[@]}"
refuses 3 E-FILE-OPEN speculate --drafter "$work/missing"
refuses 3 'E-MODEL-CONFIG' speculate --drafter examples/data/target  # a target is no drafter

# the machine
refuses_whole 4 E-GPU-NONE train_target "${tiny_target[@]}" --device cuda "${out[@]}"
refuses_whole 5 E-MEMORY-HOST train_target --hidden 65536 --layers 1024 --steps 1 "${out[@]}"
says 'lower --hidden'
refuses 8 E-FILE-WRITE train_target "${tiny_target[@]}" --output "$work/empty/under_a_file"
refuses 8 E-FILE-WRITE train_drafter "${tiny_drafter[@]}" --output /proc/samite/none
refuses 8 E-FILE-WRITE train_target "${tiny_target[@]}" "${out[@]}" --metrics "$work/empty/under_a_file"
refuses 8 E-FILE-WRITE quickstart --report "$work/nodir/report.json" "${out[@]}"
refuses 8 E-FILE-WRITE quickstart --report "$work" "${out[@]}"
refuses 8 E-FILE-WRITE quickstart --output "$work/empty/under_a_file"
if [ -w /dev/full ]; then
  # full <program> <arguments>: the status of a program whose output can't be written
  full() {
    "$programs/$1" "${@:2}" >/dev/full 2>"$work/err"
    local found=$?
    if [ "$found" = 8 ]; then passed=$((passed + 1)); else fault "$* >/dev/full: status $found where 8 is expected"; fi
  }
  for program in draw_a_mask your_own_mask; do full $program; done
  for program in draw_a_mask your_own_mask train_target train_drafter speculate quickstart; do full $program --help; done
fi
file_blocks=2
refuses 8 E-FILE-WRITE train_target "${tiny_target[@]}" "${out[@]}"
refuses 8 E-FILE-WRITE train_target "${tiny_target[@]}" --save-every 1 "${out[@]}"
file_blocks=

# a run that diverges leaves no state and no model
refuses 6 E-DIVERGED train_target "${tiny[@]}" --layers 2 --steps 60 --save-every 20 --rate 1000 --weight-decay 1000 "${out[@]}"
refuses 6 E-DIVERGED train_drafter "${small_drafter[@]}" --taps 1 --steps 60 --save-every 20 --rate 1000 --noise 1000 "${out[@]}"
if grep -q nan "$work/err"; then fault "a diverged run: its message prints a number that is none"; else passed=$((passed + 1)); fi

# bytes that are text in no encoding
head -c 60000 examples/data/target/model.safetensors | tail -c 40000 >"$work/bytes"
works train_target "${tiny_target[@]}" --text "$work/bytes" --output "$work/target"
works train_drafter "${tiny_drafter[@]}" --text "$work/bytes" --target "$work/target" --output "$work/drafter"
works speculate --text "$work/bytes" --target "$work/target" --drafter "$work/drafter" --prompts 1 --prompt-bytes 40 --new-tokens 24
if ! grep -q $'\xef\xbf\xbd' "$work/log"; then fault "speculate: no replacement character for bytes that are no text"
elif ! iconv -f UTF-8 -t UTF-8 "$work/log" >/dev/null 2>"$work/err"; then fault "speculate: what it prints is not UTF-8"
else passed=$((passed + 1)); fi

# a target of one layer
works train_target "${tiny[@]}" --layers 1 --steps 4 --output "$work/one_layer"
works train_drafter "${small_drafter[@]}" --steps 3 --target "$work/one_layer" --output "$work/one_layer_drafter"
works speculate --target "$work/one_layer" --drafter "$work/one_layer_drafter" --prompts 1 --prompt-bytes 40 --new-tokens 24

# a drafter of another target
refuses 3 E-MODEL-PAIR speculate --target "$work/one_layer" --drafter "$work/drafter"
says "$work/drafter"
says "$work/one_layer"
refuses 3 E-MODEL-PAIR speculate --drafter "$work/drafter"  # the example target is wider

# a state that is damaged, or of another run, in the way of a new one; it stays as it was
mkdir -p "$work/state"
printf 'not a state' >"$work/state/training_state.safetensors"
refuses 3 'E-SAFETENSORS-[A-Z]*' train_target "${tiny_target[@]}" --output "$work/state"
if [ "$(ls -A "$work/state")" = training_state.safetensors ]; then passed=$((passed + 1)); else fault "a damaged state: left behind $(ls -A "$work/state")"; fi

# the script, in a copy of the repository whose program is newer than its sources: the caller's paths are relative to the caller's folder
repository=$work/repository
mkdir -p "$repository/build/examples/examples" "$work/user"
cp -r include examples codegen CMakeLists.txt CMakePresets.json "$repository"
cp "$programs/quickstart" "$repository/build/examples/examples"
cp "$work/short" "$work/user/mine.txt"
# script <status> <text of the message> <arguments>
script() {
  local status=$1 message=$2 found
  (cd "$work/user" && "$repository/examples/quickstart.sh" "${@:3}") >"$work/log" 2>"$work/err"
  found=$?
  if [ "$found" = "$status" ] && grep -q "$message" "$work/err"; then passed=$((passed + 1)); else fault "quickstart.sh ${*:3}: status $found where $status and $message are expected"; fi
}
script 3 '^samite: mine.txt: .*E-DATA-TEXT' --text mine.txt
script 8 'nodir.*E-FILE-WRITE' --report nodir/report.json  # found its own text and target
rm -rf "$repository/build"
: >"$repository/build"
script 8 'build", which .*E-FILE-WRITE'

[ -z "${SAMITE_TEST_REPORT:-}" ] || printf 'count %d %d 0\n' "$passed" "$failed" >"$SAMITE_TEST_REPORT"
[ "$failed" = 0 ]
