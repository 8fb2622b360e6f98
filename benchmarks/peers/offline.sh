#!/bin/sh
# Packages for a machine that has torch and numpy but can fetch nothing; carry .gpu-deps there.
#
#     benchmarks/peers/offline.sh 3.12 [peers]
#     PYTHONPATH=src:.gpu-deps python3 -m pytest -o addopts= tests/gpu
#     PYTHONPATH=src:.gpu-deps python3 -m benchmarks.peers.compare --device cuda
#
# The first argument is that machine's Python; `peers` adds the libraries of the comparison.
set -eu
version=${1:?"which Python is there? For example: benchmarks/peers/offline.sh 3.12"}
names='attrs|beartype|cloudpickle|docstring_parser|Farama-Notifications|gymnasium|hypothesis'
names="$names|iniconfig|jaxtyping|markdown-it-py|mdurl|packaging|pluggy|psutil|Pygments|pytest"
names="$names|rich|sortedcontainers|typeguard|typing_extensions|tyro|wadler_lindig"
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
if [ "${2:-}" = peers ]; then
    names="$names|absl-py|protobuf|tensorboard" # skrl imports it
    cat "$(dirname "$0")/requirements.txt" >"$pins"
fi
grep -E "^($names)==" constraints.txt >>"$pins"
rm -rf .gpu-deps
.venv/bin/python -m pip install --quiet --no-compile --no-deps --target .gpu-deps \
    --only-binary=:all: --python-version "$version" --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -r "$pins"
# What belongs to no library: commands, and examples that lie beside it under names of ours.
rm -rf .gpu-deps/bin .gpu-deps/tensorboard/webfiles.zip .gpu-deps/benchmarks .gpu-deps/scripts \
    .gpu-deps/sota-*
