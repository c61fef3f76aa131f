#!/usr/bin/env bash
# Sets up what is missing, builds, and runs the main job: draw the training mask, load the frozen target, train a drafter
# against it, decode held-out prompts plainly and speculatively. Arguments go to the program; --help lists them. Paths among
# them are relative to the folder that the script is called from; text, target and output are the repository's otherwise.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/examples/setup.sh"
program=$root/build/examples/examples/quickstart
(
  cd "$root"
  # Nothing is installed or built while the program is newer than every source.
  if [ -x "$program" ] && [ -z "$(find include examples codegen CMakeLists.txt CMakePresets.json -newer "$program" -type f ! -path 'examples/data/*' -print -quit)" ]; then exit 0; fi
  if ! { mkdir -p build && : >build/examples.configure.log; } 2>/dev/null; then
    samite_say "samite: quickstart builds and keeps its models in \"$root/build\", which can't be written; copy the repository to a place that you can write to and run it there [E-FILE-WRITE]"
    exit 8
  fi
  samite_install_packages
  samite_say "quickstart: building (about four minutes on two cores)"
  cmake --preset release -B build/examples -DSAMITE_BUILD_TESTS=OFF >build/examples.configure.log 2>&1 || { cat build/examples.configure.log >&2; exit 4; }
  cmake --build build/examples --parallel "$(nproc)" --target example_quickstart >build/examples.build.log 2>&1 || { tail -n 60 build/examples.build.log >&2; exit 4; }
  touch "$program"
)
# The toolkit's NVRTC is found by name; one in build/nvrtc was fetched by tests/run.sh.
if [ -z "${SAMITE_NVRTC_PATH:-}" ]; then
  found=$(cd "$root" && samite_find_nvrtc)
  [ -z "$found" ] || export SAMITE_NVRTC_PATH="$(cd "$root" && realpath "$found")"
fi
defaults=()
[ "$PWD" -ef "$root" ] || defaults=(--text "$root/examples/data/austen.txt" --target "$root/examples/data/target" --output "$root/build/quickstart")
exec "$program" ${defaults[@]+"${defaults[@]}"} "$@"
