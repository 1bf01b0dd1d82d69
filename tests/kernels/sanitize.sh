#!/usr/bin/env bash
# Every CUDA kernel on small shapes under compute-sanitizer; needs a GPU. Exit status 1 if it finds anything.
#   tests/kernels/sanitize.sh [TOOL] [PIECE...]    tools: memcheck racecheck initcheck synccheck (default: all);
#                                                  pieces: those of every_kernel.py (default: all)
# Torch's allocator would hide what is out of bounds or unwritten, so every tensor is an allocation of its own.
set -uo pipefail
cd "$(dirname "$0")/../.."
tools=${1:-memcheck racecheck initcheck synccheck}
shift $(($# ? 1 : 0))
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
status=0
for tool in $tools; do
    echo "== $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 1 --print-limit 20 "${PYTHON:-python3}" tests/kernels/every_kernel.py "$@" ||
        status=1
done
exit $status
