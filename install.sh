#!/bin/sh
# Installs the program turngate of a release for this user:
#   sh install.sh
# It fetches the archive for this system, compares its SHA-256 with the one in the
# release's checksums.txt, and puts the program into ~/.local/bin. On macOS it does the
# same with the archive for Linux, whose program runs in sandboxes, as turngate-linux-arm64
# or turngate-linux-amd64. It runs nothing that it fetched, and changes nothing else.
# Variables:
#   TURNGATE_VERSION   such as v1.2.3; default: the newest release
#   TURNGATE_BIN       folder for the program; default: ~/.local/bin
#   TURNGATE_RELEASES  URL of the releases, for a mirror with the same paths
set -eu

releases=${TURNGATE_RELEASES:-https://github.com/turngate/turngate/releases}
bin=${TURNGATE_BIN:-${HOME:?}/.local/bin}

fail() {
	echo "install.sh: $*" >&2
	exit 1
}

case ${TURNGATE_VERSION:-} in
'') from=$releases/latest/download ;;
v[0-9]*) from=$releases/download/$TURNGATE_VERSION ;;
*) fail "TURNGATE_VERSION: $TURNGATE_VERSION is not valid: want one such as v1.2.3" ;;
esac

system=$(uname -s | tr '[:upper:]' '[:lower:]')
case $(uname -m) in
x86_64 | amd64) processor=amd64 ;;
aarch64 | arm64) processor=arm64 ;;
*) processor=$(uname -m) ;;
esac

if command -v curl >/dev/null; then
	fetch() { curl --fail --silent --show-error --location --proto-redir =https --output "$2" "$1"; }
elif command -v wget >/dev/null; then
	fetch() { wget --quiet --output-document="$2" "$1"; }
else
	fail "curl or wget is needed"
fi
if command -v sha256sum >/dev/null; then
	sum() { sha256sum "$1"; }
elif command -v shasum >/dev/null; then
	sum() { shasum -a 256 "$1"; }
else
	fail "sha256sum or shasum is needed"
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir" "$bin/.turngate.$$"' EXIT
trap 'exit 1' HUP INT TERM

fetch "$from/checksums.txt" "$dir/checksums.txt" || fail "$from/checksums.txt cannot be fetched"
# get fetches the program for the system $1, after a comparison of its archive.
get() {
	archive=$(sed -n "s/^[0-9a-f]\{64\}  \(turngate_[0-9A-Za-z.-]*_${1}_${processor}\.tar\.gz\)\$/\1/p" "$dir/checksums.txt")
	test -n "$archive" || fail "the release has no archive for $1 on $processor; from source: go install github.com/turngate/turngate/cmd/turngate@latest"
	test "$(printf '%s\n' "$archive" | wc -l)" -eq 1 || fail "$from/checksums.txt has several archives for $1 on $processor"
	want=$(sed -n "s/^\([0-9a-f]*\)  $archive\$/\1/p" "$dir/checksums.txt")

	fetch "$from/$archive" "$dir/$archive" || fail "$from/$archive cannot be fetched"
	got=$(sum "$dir/$archive" | cut -d ' ' -f 1)
	test "$got" = "$want" || fail "$archive has the SHA-256 $got, and checksums.txt has $want: nothing was installed"

	mkdir "$dir/$1"
	tar -xzf "$dir/$archive" -C "$dir/$1" turngate || fail "$archive has no program turngate"
}

# put installs the program for the system $1 as $2. It takes the place of an old one at
# once, also if that one runs.
put() {
	mkdir -p "$bin"
	cp "$dir/$1/turngate" "$bin/.turngate.$$"
	chmod 755 "$bin/.turngate.$$"
	mv "$bin/.turngate.$$" "$bin/$2"
}

test "$system" != darwin || get linux
get "$system"
test "$system" != darwin || put linux "turngate-linux-$processor"
put "$system" turngate

echo "${archive%_"$system"_*}: $bin/turngate"
case :$PATH: in
*:"$bin":*) ;;
*) echo "Add $bin to PATH." ;;
esac
