#!/usr/bin/env bash
# Create .venv-tf with TensorFlow 2.12 and Horovod for this machine's MPI, separate from .venv.
#
# Usage: install-tensorflow.sh
#
#   PYTHON311  path of Python 3.11, the newest that TensorFlow 2.12 supports [python3.11]
#   MAKEFLAGS  for the build of Horovod, such as -j4
#
# An existing environment is kept if it was built from the same requirements, with the same MPI and Python.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
venv=.venv-tf
lock=requirements-tensorflow.lock
python=${PYTHON311:-python3.11}
# The same MPI and Python whether or not .venv is active.
PATH=:$PATH:
PATH=${PATH//":$PWD/.venv/bin:"/:}
PATH=${PATH#:} PATH=${PATH%:}

missing=()
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
  missing+=("Python 3.11 (set PYTHON311 to its path)")
"$python" -c 'import ensurepip, sysconfig, pathlib; pathlib.Path(sysconfig.get_path("include"), "Python.h").stat()' 2>/dev/null ||
  missing+=("its venv and headers (Debian: python3-venv python3-dev)")
command -v g++ >/dev/null || missing+=("g++ (Debian: g++)")
command -v make >/dev/null || missing+=("make (Debian: make)")
echo '#include <mpi.h>' | mpicxx -E -x c++ - >/dev/null 2>&1 || missing+=("MPI's headers (Debian: libmpich-dev)")
if ((${#missing[@]})); then
  printf -v list ', %s' "${missing[@]}"
  echo "install-tensorflow.sh: missing: ${list:2}" >&2
  exit 2
fi

# Without Gloo, ranks do not listen on ports.
horovod=(HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1)
# Identifies the MPI: its version, and the libraries that programs are linked with.
mpi() {
  printf '#include <mpi.h>\nMPICH_VERSION OMPI_MAJOR_VERSION OMPI_MINOR_VERSION\n' | mpicxx -E -x c++ - | tail -n 1
  mpicxx -show
}
digest=$({ cat "$lock"; echo "${horovod[@]}"; mpi; "$python" -VV; } | sha256sum)
if [[ -e $venv/.installed && $(<"$venv/.installed") == "$digest" ]]; then
  exit 0
fi
if [[ -e $venv/.installed ]]; then
  echo "$venv was built with other requirements, another MPI or another Python; building it again (about five minutes)"
else
  echo "building $venv (about five minutes)"
fi

"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --require-hashes --no-deps --only-binary :all: -r <(sed '/^horovod==/,$d' "$lock")
# The cmake from the requirements comes first in PATH: Horovod needs a version below 4.
PATH="$PWD/$venv/bin:$PATH" env "${horovod[@]}" "$venv/bin/python" -m pip install --quiet --require-hashes --no-deps \
  --no-build-isolation --no-cache-dir -r <(sed -n '/^horovod==/,$p' "$lock")
TF_CPP_MIN_LOG_LEVEL=2 "$venv/bin/python" -c 'import horovod.tensorflow as hvd; assert hvd.mpi_built() and not hvd.gloo_built()'
printf '%s\n' "$digest" >"$venv/.installed"
