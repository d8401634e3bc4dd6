#!/usr/bin/env bash
# Write both lock files from setup.py and constraints.txt; needs uv (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {
  uv pip compile setup.py --extra mpi --constraint constraints.txt --generate-hashes --universal --python-version 3.11 \
    --no-header --no-annotate --quiet --output-file "$@" >/dev/null
}
lock docker/requirements.txt
# torch's CPU build comes from PyTorch's own index, whose hashes PyPI does not have; it needs no CUDA.
gpu_only=(torch triton)
while read -r name; do gpu_only+=("$name"); done < <(grep -oE '^(nvidia|cuda)-[a-z0-9-]+' docker/requirements.txt)
lock docker/requirements-cpu.txt "${gpu_only[@]/#/--no-emit-package=}"
