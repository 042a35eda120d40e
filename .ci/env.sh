# Settings that the steps share; each of them sources this file.
# Most tests wait for servers and processes, so more of them run at once than there
# are processors. With -trimpath all folders and users share the compiled packages. The
# linter vets.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath -vet=off -p=4 -parallel=4"
export CGO_ENABLED=0 # as the binary that the tests build, so that both share the compiled packages
export TURNGATE_TEST_IMAGE=turngate-test-base:bookworm
export TURNGATE_HARBOR_PYTHON=${XDG_CACHE_HOME:-$HOME/.cache}/turngate/harbor/bin/python
export LOGS=${LOGS:-$PWD/ci-logs} # what tests that failed have printed

# Each package is tested once as root: in the step unit or race under the race
# detector, or plainly in the step e2e. The step user runs all of them.
unit='/jobs$|/(schema|subjects|internal/(crash|gate|harness|progress|rawjson|testenv|upstream))(/|$)'
plain='/(e2e|agents|clients|cmd|deploy|internal/(images|mini|programs|taskcheck|toolserver)|tasks)(/|$)|/backends(/docker)?$'

# Packages of PyPI whose adapters are tested; `make adapters` has more.
frameworks='openenv verifiers torch'

# race_test runs tests with the race detector, which needs cgo.
race_test() {
	CGO_ENABLED=1 GORACE="suppressions=$PWD/.ci/race-suppressions" .ci/tests -race "$@"
}

# again runs a command that downloads something, at most three times.
again() {
	"$@" || { sleep 10 && "$@"; } || { sleep 60 && "$@"; }
}

# need_parts makes a failure of each skip for a missing part, and runs the tests that take
# long. need_all adds the frameworks from PyPI.
need_parts() {
	export TURNGATE_SLOW=1 TURNGATE_REQUIRE=docker,agents,python,systemd,browser,promtool,prometheus,compose,ssh,script,curl,jq,openssl,xvfb,port-8000
}
need_all() {
	need_parts
	TURNGATE_PYTHONS=$(PYTHON=$TURNGATE_HARBOR_PYTHON e2e/adapters/install.sh $frameworks)
	export TURNGATE_PYTHONS
}
