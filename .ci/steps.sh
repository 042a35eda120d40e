# Runs the scripts of .ci/steps that the array steps lists, or those that the arguments
# name, and reports all failures at the end. .ci/run and .ci/full source it. It ends only
# processes that it started.
source .ci/env.sh

# needs prints the steps that must come before the step $1.
needs() {
	case $1 in
	unit | user | fuzz | bench) echo build ;;
	console | docker) echo tools ;;
	core) echo tools docker build agents ;;
	e2e) echo tools docker build agents python ;;
	tasks) echo docker build ;;
	agents) echo tools build ;;
	judges) echo agents ;;
	matrix | chaos | race) echo docker agents python ;;
	esac
}

declare -A wanted=() failed=()
want() {
	[[ " ${steps[*]} " == *" $1 "* ]] || { echo "$0 has no step $1: its steps are ${steps[*]}" >&2; exit 2; }
	wanted[$1]=1
	for before in $(needs "$1"); do want "$before"; done
}
if [ "${1:-}" = --list ]; then printf '%s\n' "${steps[@]}" && exit; fi
for s in "${@:-${steps[@]}}"; do want "$s"; done

# The tests with a browser keep pictures of each page.
export TURNGATE_SCREENSHOTS=${TURNGATE_SCREENSHOTS:-$PWD/screenshots}
mkdir -p "$TURNGATE_SCREENSHOTS"
rm -rf "$LOGS"
mkdir -p "$LOGS"

# Each line of STARTED is the pid of a server that a step started, each of UNSURE a test
# that passed when it was run again, each of BEFORE a thing that was there before.
STARTED=$LOGS/started UNSURE=$LOGS/unsure BEFORE=$LOGS/before
TURNGATE_CI_RUN=$$.$(date +%s) # all processes of this run have it
export STARTED UNSURE BEFORE STEP TURNGATE_CI_RUN
touch "$STARTED" "$UNSURE"
.ci/steps/left before >"$BEFORE"
beside() { # reports whether another run is there
	[ "$({ cat /proc/[0-9]*/environ 2>/dev/null || true; } | tr '\0' '\n' | grep '^TURNGATE_CI_RUN=' | grep -cvx "TURNGATE_CI_RUN=$TURNGATE_CI_RUN")" != 0 ]
}
finish() {
	if [ -s "$STARTED" ] && beside; then
		echo "the Docker engine stays, for the run beside this one"
		return
	fi
	for pid in $(cat "$STARTED"); do
		kill "$pid" 2>/dev/null || true
		timeout 120 tail --pid="$pid" -f /dev/null || echo "process $pid does not end"
	done
}
trap finish EXIT

TIMEFORMAT='%0R s, with %0U s + %0S s of processors outside Docker'
times=()
for STEP in "${steps[@]}"; do
	test -n "${wanted[$STEP]:-}" || continue
	for before in $(needs "$STEP"); do
		if [ -n "${failed[$before]:-}" ]; then failed[$STEP]="not run: it needs $before"; fi
	done
	if [ -z "${failed[$STEP]:-}" ]; then
		printf '\n=== %s (%s)\n' "$STEP" "$(date +%H:%M:%S)"
		{ time .ci/steps/"$STEP" 2>&3 || failed[$STEP]="after"; } 3>&2 2>"$LOGS/took"
		if [ -n "${failed[$STEP]:-}" ]; then failed[$STEP]="after $(cat "$LOGS/took")"; fi
		times+=("$STEP: $(cat "$LOGS/took")")
	fi
done

echo
printf '%s\n' "${times[@]}"
if [ -s "$UNSURE" ]; then
	echo "unsure, since these passed only when they ran again:"
	cat "$UNSURE"
fi
for s in "${steps[@]}"; do
	if [ -n "${failed[$s]:-}" ]; then echo "failed: $s ${failed[$s]}"; fi
done
if [ "$(wc -l <"$UNSURE")" -gt 5 ]; then
	failed[unsure]=1
	echo "failed: more than five tests are unsure"
fi
test ${#failed[@]} = 0 || exit 1
echo "all is well"
