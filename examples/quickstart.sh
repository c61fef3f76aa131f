#!/usr/bin/env bash
# Sets up what is missing, builds, and runs the main job: draw the training mask, load the frozen target, train a drafter
# against it, decode held-out prompts plainly and speculatively. Arguments go to the program; --help lists them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. examples/setup.sh
program=build/examples/examples/quickstart
# Nothing is installed or built while the program is newer than every source.
if [ ! -x "$program" ] || [ -n "$(find include examples codegen CMakeLists.txt CMakePresets.json -newer "$program" -type f ! -path 'examples/data/*' -print -quit)" ]; then
  mkdir -p build
  samite_install_packages
  samite_say "quickstart: building (a minute or two on two cores)"
  cmake --preset release -B build/examples -DSAMITE_BUILD_TESTS=OFF >build/examples.configure.log 2>&1 || { cat build/examples.configure.log >&2; exit 4; }
  cmake --build build/examples --parallel "$(nproc)" --target example_quickstart >build/examples.build.log 2>&1 || { tail -n 60 build/examples.build.log >&2; exit 4; }
  touch "$program"
fi
# The toolkit's NVRTC is found by name; one in build/nvrtc was fetched by tests/run.sh.
found=$(samite_find_nvrtc)
[ -n "${SAMITE_NVRTC_PATH:-}" ] || [ -z "$found" ] || export SAMITE_NVRTC_PATH="$(realpath "$found")"
exec "$program" "$@"
