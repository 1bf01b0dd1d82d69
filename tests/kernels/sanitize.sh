#!/usr/bin/env bash
# Every CUDA kernel on small shapes under compute-sanitizer; needs a GPU. Exit status 1 if it finds anything.
#   tests/kernels/sanitize.sh [TOOL] [PIECE...]    tools: memcheck racecheck initcheck synccheck (default: all);
#                                                  pieces: those of every_kernel.py (default: all)
#   tests/kernels/sanitize.sh --smallest [TOOL] [PIECE...]    the newest families on the smallest shapes, of
#                                                  smallest_kernels.py, by memcheck and racecheck: four minutes at most
# Torch's allocator would hide what is out of bounds or unwritten, so every tensor is an allocation of its own.
set -uo pipefail
cd "$(dirname "$0")/../.."
program=every_kernel.py tools="memcheck racecheck initcheck synccheck" limit=0
if [ "${1:-}" = --smallest ]; then
    shift
    program=smallest_kernels.py tools="memcheck racecheck" limit=115
fi
tools=${1:-$tools}
shift $(($# ? 1 : 0))
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
status=0
for tool in $tools; do
    echo "== $tool"
    timeout "$limit" compute-sanitizer --tool "$tool" --error-exitcode 1 --print-limit 20 "${PYTHON:-python3}" \
        "tests/kernels/$program" "$@" || status=1
done
exit $status
