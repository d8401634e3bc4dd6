#!/usr/bin/env bash
# Write the lock files from pyproject.toml and constraints.txt; needs uv, which the test extra has.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {
  uv pip compile --constraint constraints.txt --generate-hashes --universal --python-version 3.11 \
    --no-header --no-annotate --quiet "$@" >/dev/null
}
lock pyproject.toml --extra mpi --output-file docker/requirements.txt
# torch's CPU build comes from PyTorch's own index, for which PyPI has no hashes; it needs no CUDA packages.
gpu_only=(torch triton)
while read -r name; do gpu_only+=("$name"); done < <(grep -oE '^(nvidia|cuda)-[a-z0-9-]+' docker/requirements.txt)
lock pyproject.toml --extra mpi --output-file docker/requirements-cpu.txt "${gpu_only[@]/#/--no-emit-package=}"
# Build dependencies of the packages that are installed from source: deepspeed and megatape.
lock - --output-file docker/requirements-build.txt < <(printf 'setuptools\npackaging\n')
