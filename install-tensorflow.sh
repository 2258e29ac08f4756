#!/usr/bin/env bash
# Build .venv-tf: TensorFlow 2.12 and Horovod over this machine's MPI, apart from .venv.
#
# Usage: install-tensorflow.sh
#
#   PYTHON311  Python 3.11, the newest that TensorFlow 2.12 knows [python3.11]
#   MAKEFLAGS  of Horovod's build, such as -j4
#
# The environment that is there is kept when it was built from these requirements, with this MPI and this Python.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
venv=.venv-tf
lock=requirements-tensorflow.lock
python=${PYTHON311:-python3.11}

missing=()
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
  missing+=("Python 3.11 (name it with PYTHON311=...)")
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

# Without Gloo no rank listens on a port of its own.
horovod=(HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1)
# Which MPI: its version, and the libraries that a program is linked with.
mpi() {
  printf '#include <mpi.h>\nMPICH_VERSION OMPI_MAJOR_VERSION OMPI_MINOR_VERSION\n' | mpicxx -E -x c++ - | tail -n 1
  mpicxx -show
}
digest=$({ cat "$lock"; echo "${horovod[@]}"; mpi; "$python" -VV; } | sha256sum)
if [[ -e $venv/.installed && $(<"$venv/.installed") == "$digest" ]]; then
  exit 0
fi

"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --require-hashes --no-deps --only-binary :all: -r <(sed '/^horovod==/,$d' "$lock")
# The cmake of the requirements comes first in PATH: Horovod needs one below 4.
PATH="$PWD/$venv/bin:$PATH" env "${horovod[@]}" "$venv/bin/python" -m pip install --quiet --require-hashes --no-deps \
  --no-build-isolation --no-cache-dir -r <(sed -n '/^horovod==/,$p' "$lock")
TF_CPP_MIN_LOG_LEVEL=2 "$venv/bin/python" -c 'import horovod.tensorflow as hvd; assert hvd.mpi_built() and not hvd.gloo_built()'
printf '%s\n' "$digest" >"$venv/.installed"
