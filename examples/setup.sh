# examples/setup.sh: sourced by tests/run.sh and examples/quickstart.sh from the repository's root. Brings what is missing:
# compiler and headers by apt, NVRTC as a wheel. Does nothing, and touches no network, when everything is there.

samite_say() { printf '%s\n' "$*" >&2; }

# Paths of a library that the loader knows. Not `ldconfig | grep -q`: under pipefail an early end of grep would read as a miss.
samite_library_paths() {
  { ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null; } | sed -nE "s|.* => (/.*/$1)\$|\1|p"
}

samite_has_header() { printf '#include <%s>\n' "$1" | "${CXX:-c++}" -std=c++20 -E -x c++ - >/dev/null 2>&1; }

# Prints the packages that are missing; "$@" adds names as program:package.
samite_missing_packages() {
  local pair
  for pair in g++:g++ cmake:cmake ninja:ninja-build ccache:ccache "$@"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || printf '%s ' "${pair#*:}"
  done
  if command -v "${CXX:-c++}" >/dev/null 2>&1; then
    for pair in doctest/doctest.h:doctest-dev nlohmann/json.hpp:nlohmann-json3-dev xxhash.h:libxxhash-dev fmt/format.h:libfmt-dev \
                range/v3/version.hpp:librange-v3-dev CLI/CLI.hpp:libcli11-dev; do
      samite_has_header "${pair%%:*}" || printf '%s ' "${pair#*:}"
    done
  else
    printf 'doctest-dev nlohmann-json3-dev libxxhash-dev libfmt-dev librange-v3-dev libcli11-dev '
  fi
  # A BLAS is optional; the built-in kernel serves without one.
  [ -n "$(samite_library_paths 'libopenblas\.so\.0')" ] || printf 'libopenblas0-pthread '
}

# Installs what is missing; "$@" adds names as program:package.
samite_install_packages() { samite_apt_install "$(samite_missing_packages "$@")"; }

# Whether clang++ is there with the libraries that sanitizers and fuzzers link.
samite_clang_sanitizes() {
  [ -e build/clang_sanitizes ] && return 0
  command -v clang++ >/dev/null 2>&1 || return 1
  mkdir -p build
  printf 'int main() {}\n' | clang++ -x c++ -fsanitize=address,undefined - -o build/clang_sanitizes >/dev/null 2>&1
}

# samite_apt_install <packages in one word>: never fails by itself; the build that follows says what it lacks.
samite_apt_install() {
  local packages=$1 sudo=
  [ -n "$packages" ] || return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    samite_say "setup: missing (apt names): $packages; there is no apt-get here, going on without"
    return 0
  fi
  if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true >/dev/null 2>&1; then
      samite_say "setup: missing: $packages; not root and no password-less sudo. Install them with: sudo apt install $packages"
      return 0
    fi
    sudo=sudo
  fi
  samite_say "setup: installing $packages"
  # shellcheck disable=SC2086  # a list of names
  { $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages >/dev/null 2>&1 ||
    { $sudo apt-get update >/dev/null 2>&1 &&
      $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages >/dev/null; }; } ||
    samite_say "setup: apt-get failed for: $packages; going on without"
}

samite_find_nvrtc() {
  local found
  found=$(samite_library_paths 'libnvrtc\.so\.1[23]' | head -n 1)
  [ -n "$found" ] || found=$(ls /usr/local/cuda*/lib64/libnvrtc.so.1[23] /usr/local/cuda*/lib/libnvrtc.so.1[23] 2>/dev/null | head -n 1)
  [ -n "$found" ] || found=$(find build/nvrtc -name 'libnvrtc.so.1[23]' 2>/dev/null | head -n 1)
  printf '%s' "$found"
}

# Exports SAMITE_NVRTC_PATH, fetching NVIDIA's wheel into build/nvrtc if no library is on the machine.
samite_setup_nvrtc() {
  [ -z "${SAMITE_NVRTC_PATH:-}" ] || return 0
  local found wheel name
  found=$(samite_find_nvrtc)
  if [ -z "$found" ] && [ ! -e build/nvrtc/tried ]; then
    command -v python3 >/dev/null 2>&1 && python3 -m pip --version >/dev/null 2>&1 ||
      samite_install_packages python3:python3 pip3:python3-pip
    mkdir -p build/nvrtc
    for name in nvidia-cuda-nvrtc nvidia-cuda-nvrtc-cu12; do
      samite_say "setup: NVRTC not found; fetching the wheel $name into build/nvrtc"
      python3 -m pip download --quiet --no-deps --only-binary=:all: --dest build/nvrtc "$name" >/dev/null 2>&1 || continue
      wheel=$(ls build/nvrtc/*.whl 2>/dev/null | head -n 1)
      [ -n "$wheel" ] && python3 -m zipfile -e "$wheel" build/nvrtc && rm -f "$wheel" && break
    done
    found=$(samite_find_nvrtc)
    [ -n "$found" ] || { touch build/nvrtc/tried; samite_say "setup: no NVRTC wheel could be fetched; tests that compile kernels are skipped (remove build/nvrtc to try again)"; }
  fi
  if [ -n "$found" ]; then
    SAMITE_NVRTC_PATH=$(realpath "$found")
    export SAMITE_NVRTC_PATH
  fi
}
