#!/bin/sh
# Installs frameworks of trainers and the parts that the tests of the Python client
# need: a virtual environment each in the cache folder, since they exclude each
# other. Prints the Pythons, separated by colons. Arguments: their names; default: all.
set -eu
cache="${XDG_CACHE_HOME:-$HOME/.cache}/turngate/readers"
here=$(cd "$(dirname "$0")" && pwd)
client=$here/../../clients/python
python="${PYTHON:-}"
for name in python3.12 python3.13 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python3 python3; do
	[ -n "$python" ] || ! "$name" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || python=$name
done
[ -n "$python" ] || { echo "no Python of 3.12 or later was found: set PYTHON" >&2; exit 1; }

[ $# -gt 0 ] || set -- openenv verifiers torch trl
list=
for name; do
	bare=
	case $name in
	openenv) # of SGLang only the source is read: it does not run without a GPU
		packages="openenv==0.10.0 pyarrow==26.0.1"
		bare="sglang==0.5.23" ;;
	verifiers) packages="verifiers==0.4.0 prime-sandboxes==0.5.1" ;;
	torch) packages="torch==2.15.0" ;; # 5.4 GB: it has no wheel without the libraries for GPUs
	trl) # 6 GB with torch. verl and skyrl have parts for GPUs, so they come without most of their dependencies
		packages="trl==1.16.0 openenv==0.10.0 aiohttp ray hydra-core tensordict codetiming cloudpathlib loguru skyrl-gym pybase64 tenacity"
		bare="verl==0.9.1 skyrl==0.4.0" ;;
	*) echo "no framework $name: want openenv, verifiers, torch or trl" >&2; exit 1 ;;
	esac
	dir=$cache/$name
	pins=$here/constraints/$name.txt # what `pip freeze` printed, so that no day differs from another
	[ -e "$pins" ] || pins=/dev/null
	want="$packages $bare $(cat "$client/pyproject.toml" "$pins" | cksum)"
	if [ "$(cat "$dir/complete" 2>/dev/null)" != "$want" ]; then
		[ -x "$dir/bin/pip" ] || "$python" -m venv "$dir"
		# shellcheck disable=SC2086 # packages is a list
		"$dir/bin/pip" install -q --disable-pip-version-check -c "$pins" $packages "$client[test]" >&2
		# shellcheck disable=SC2086
		[ -z "$bare" ] || "$dir/bin/pip" install -q --disable-pip-version-check --no-deps $bare >&2
		echo "$want" >"$dir/complete"
	fi
	list=${list:+$list:}$dir/bin/python
done
echo "$list"
