package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

type outcome struct {
	code        int
	out, errOut string
}

// turngate runs the built binary in the module's folder.
func turngate(t *testing.T, binary string, args ...string) outcome {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = testenv.Root(t)
	cmd.Env = append(os.Environ(), "TURNGATE_RUNS="+t.TempDir())
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

func task(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const done = "steps: [{text: Done.}]"

// TestBadInput: each mistake gets one line on stderr and the exit status of a
// usage error, before anything starts.
func TestBadInput(t *testing.T) {
	binary := testenv.Binary(t)
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"no path":             {[]string{"run"}, "task directories"},
		"no such path":        {[]string{"run", "/no/such/dir"}, "/no/such/dir"},
		"no instruction":      {[]string{"run", task(t, map[string]string{"task.toml": ""})}, "instruction.md"},
		"bad toml":            {[]string{"run", task(t, map[string]string{"instruction.md": "x", "task.toml": "["})}, "task.toml"},
		"no trainer":          {[]string{"run", task(t, map[string]string{"instruction.md": "x"})}, "--trainer"},
		"bad replay":          {[]string{"run", task(t, map[string]string{"instruction.md": "x", "replay.yaml": "steps: [{x: 1}]"})}, "replay"},
		"unknown agent":       {[]string{"run", "--agent", "nobody", good}, "agent.name"},
		"unknown sandbox":     {[]string{"run", "--sandbox", "moon", good}, "moon"},
		"unknown flag":        {[]string{"run", "--nope", good}, "--nope"},
		"typo of a flag":      {[]string{"run", "--agnet", "nop", good}, "unknown flag: --agnet: want --agent"},
		"no flag like it":     {[]string{"run", "--zzzzzz", good}, "unknown flag: --zzzzzz: `turngate run --help` lists the flags"},
		"no image":            {[]string{"run", "--sandbox", "docker", good}, "has no image, and the docker sandbox needs one: name it with --image,"},
		"no image of a pod":   {[]string{"run", "--sandbox", "kubernetes", "--kubernetes", "x", good}, "has no image, and the kubernetes sandbox needs one: name it with --image,"},
		"no image of agents":  {[]string{"agent", "ls", "--check", "--sandbox", "docker"}, "--image: the docker sandbox needs one, such as --image "},
		"unknown output":      {[]string{"run", "-o", "xml", good}, `-o, --output: "xml" is not valid: want table, json or jsonl`},
		"seed alone":          {[]string{"run", "--seed", "3", good}, "--limit"},
		"bad pattern":         {[]string{"run", "--filter", "[", good}, "--filter"},
		"nothing is left":     {[]string{"run", "--filter", "x*y", good}, "none of 1 task is"},
		"no such job":         {[]string{"run", "--resume", "/no/such/dir"}, "--resume"},
		"one argument":        {[]string{"job", "diff", "a"}, "two jobs"},
		"negative group":      {[]string{"run", "-n", "0", good}, "-n"},
		"bad trainer":         {[]string{"run", "--trainer", "magic:x", good}, "magic:x"},
		"bad trainer name":    {[]string{"run", "--name", "Not Good", good}, "trainer"},
		"bad limit":           {[]string{"run", "--agent-timeout", "-5s", good}, "--agent-timeout"},
		"no hub of a leaf":    {[]string{"nats", "config", "--keys", t.TempDir(), "--server", "paris", "--leaf-of", ""}, `--leaf-of: "" is not valid: want HOST or HOST:PORT of the other servers`},
		"no CA of a hub":      {[]string{"nats", "config", "--keys", t.TempDir(), "--server", "paris", "--leaf-of", "hub", "--tls-ca", filepath.Join(good, "replay.yaml")}, "TLS CA: "},
		"bad stream":          {[]string{"run", "--stream", "sideways", good}, "--stream: \"sideways\" is not valid: want buffer or pass"},
		"bad stream to serve": {[]string{"trainer", "serve", "--trainer", "upstream:http://127.0.0.1:1", "--stream", "sideways"}, "--stream"},
		"dockerfile in local": {[]string{"run", "--sandbox", "local", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done, "environment/Dockerfile": "FROM x"})}, "docker"},
		"bad rollout id":      {[]string{"tap", "a b"}, "id"},
	} {
		t.Run(name, func(t *testing.T) {
			got := turngate(t, binary, tt.args...)
			if got.code != 2 || got.out != "" || !strings.Contains(got.errOut, tt.says) || strings.Count(strings.TrimSpace(got.errOut), "\n") > 1 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestAllWrongFlagsAreNamed: the error of every command names all wrong flags:
// unknown ones, bad values, and values from the environment.
func TestAllWrongFlagsAreNamed(t *testing.T) {
	binary := testenv.Binary(t)
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	for name, tt := range map[string]struct {
		args []string
		says []string
	}{
		"values":         {[]string{"run", "-n", "x", "-o=xml", "--parallel", "0", good}, []string{"--group: \"x\"", "--output: \"xml\"", "--parallel: \"0\""}},
		"unknown":        {[]string{"run", "--nope", "--stream", "sideways", "--never=1", good}, []string{"--nope", "--stream: \"sideways\"", "--never"}},
		"of a worker":    {[]string{"worker", "--slots", "many", "--grace", "soon"}, []string{"--slots: \"many\"", "--grace: \"soon\""}},
		"of a check":     {[]string{"task", "check", "-j", "none", "--sandbox", "moon", good}, []string{"--parallel: \"none\"", "--sandbox: \"moon\""}},
		"of a run":       {[]string{"run", "--memory", "x", "--disk", "y", "--trainer", "z", good}, []string{"--memory: \"x\"", "--disk: \"y\"", "--trainer: \"z\""}},
		"both kinds":     {[]string{"run", "--sandbox", "foo", "-n", "0", "--cpus", "-1", "--limit", "-3", "/no/such/dir"}, []string{"--sandbox: \"foo\"", "--group: \"0\"", "--cpus: -1", "--limit: -3", "/no/such/dir"}},
		"of the agent":   {[]string{"run", "--mode", "x", "--max-turns", "-1", "--agent", "nobody", good}, []string{"--mode: \"x\"", "--max-turns: -1", "nobody"}},
		"variables":      {[]string{"run", "--agent-env", "NO_SUCH_VARIABLE", "--mcp", "zz", "--network", "far", good}, []string{"--agent-env", "NO_SUCH_VARIABLE", "--mcp: \"zz\"", "--network: \"far\""}},
		"of a resumed":   {[]string{"run", "--resume", "/no/such/job", "--limit", "-4"}, []string{"--resume: /no/such/job", "--limit: -4"}},
		"of an agent":    {[]string{"agent", "ls", "--check", "-j", "0", "--sandbox", "foo", "--agent-timeout", "-1s"}, []string{"--parallel: \"0\"", "--sandbox: \"foo\"", "--agent-timeout: -1s"}},
		"of a build":     {[]string{"image", "build", "-j", "0", "--build-network", "x", "/no/such/dir"}, []string{"--parallel: \"0\"", "--build-network: \"x\"", "/no/such/dir"}},
		"of check":       {[]string{"task", "check", "-j", "0", "--pass", "-1", "/no/such/dir"}, []string{"--parallel: \"0\"", "--pass: -1", "/no/such/dir"}},
		"of an import":   {[]string{"task", "import", "--format", "foo", "/no/such/file"}, []string{"--format: \"foo\"", "/no/such/file"}},
		"of up":          {[]string{"up", "--slots", "0", "--max-cpus", "-2", "--build-network", "k"}, []string{"--slots: \"0\"", "--max-cpus: -2", "--build-network: \"k\""}},
		"of metrics":     {[]string{"worker", "--metrics", "9464", "--slots", "0"}, []string{"--metrics: \"9464\"", "--slots: \"0\""}},
		"of a profile":   {[]string{"nats", "--metrics", "0.0.0.0:9464", "--pprof"}, []string{"--pprof", "loopback"}},
		"of no metrics":  {[]string{"up", "--pprof"}, []string{"--pprof: it needs --metrics"}},
		"of what to run": {[]string{"run", "--filter", "[", "--limit", "-2", "--seed", "1", good}, []string{"--filter", "--limit", "--seed"}},
		"several tasks":  {[]string{"run", task(t, map[string]string{"instruction.md": ""}), task(t, map[string]string{"instruction.md": "x", "task.toml": "["})}, []string{"it is empty", "task.toml"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := turngate(t, binary, tt.args...)
			for _, want := range tt.says {
				if got.code != 2 || !strings.Contains(got.errOut, want) {
					t.Errorf("no %q: %+v", want, got)
				}
			}
		})
	}
	t.Setenv("TURNGATE_SLOTS", "few")
	t.Setenv("TURNGATE_GRACE", "late")
	if got := turngate(t, binary, "worker"); got.code != 2 || !strings.Contains(got.errOut, "TURNGATE_SLOTS") || !strings.Contains(got.errOut, "TURNGATE_GRACE") {
		t.Errorf("%+v", got)
	}
}

// TestOnlyChosenTasksAreRead: a filter leaves a task out before its files are
// read, and text from a task's file reaches the terminal without control
// sequences.
func TestOnlyChosenTasksAreRead(t *testing.T) {
	binary := testenv.Binary(t)
	many := task(t, map[string]string{
		"good/instruction.md": "x", "good/replay.yaml": done, "good/task.toml": "\"\\u001b[31mkey\" = 1\n[task]\nname = \"org/named\"\n",
		"bad/instruction.md": "x", "bad/task.toml": "[",
	})
	for _, pattern := range []string{"good", "org/*"} {
		got := turngate(t, binary, "run", "--agent", "nop", "-o", "json", "--filter", pattern, many)
		if got.code != 0 || len(results(t, got)) != 1 || !strings.Contains(got.errOut, "[31mkey is an unknown key") || strings.Contains(got.errOut, "\x1b") {
			t.Errorf("%s: %+v", pattern, got)
		}
	}
}

// TestTheEnvironmentDoesNotChangeAJob that is resumed.
func TestTheEnvironmentDoesNotChangeAJob(t *testing.T) {
	binary := testenv.Binary(t)
	dir := filepath.Join(t.TempDir(), "job")
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	if got := turngate(t, binary, "run", "--agent", "nop", "--out", dir, good); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Setenv("TURNGATE_AGENT", "mini")
	t.Setenv("TURNGATE_LABEL", "a=b")
	if got := turngate(t, binary, "run", "--resume", dir, "-o", "json"); got.code != 0 || results(t, got)[0].Agent != "nop" {
		t.Errorf("%+v", got)
	}
}

func results(t *testing.T, o outcome) []schema.Result {
	t.Helper()
	var out []schema.Result
	if err := json.Unmarshal([]byte(o.out), &out); err != nil {
		t.Fatalf("%v: %+v", err, o)
	}
	return out
}

// TestFaultsAreResults: a fault in a rollout is data on stdout, with exit
// status 1.
func TestFaultsAreResults(t *testing.T) {
	testenv.Slow(t)
	binary := testenv.Binary(t)
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"replay runs out":    {[]string{task(t, map[string]string{"instruction.md": "x", "replay.yaml": "steps: [{run: 'true'}]"})}, "run out"},
		"agent fails":        {[]string{"--agent", "command", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done}), "--", "sh", "-c", "echo why >&2; exit 7"}, "exit status 7; stderr: why"},
		"no such program":    {[]string{"--agent", "command", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done}), "--", "no-such-program"}, "no-such-program"},
		"verifier is silent": {[]string{task(t, map[string]string{"instruction.md": "x", "replay.yaml": done, "tests/test.sh": "#!/bin/sh\necho hm\n"})}, "neither"},
		"no network here":    {[]string{"--network", "open", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})}, "sandbox.network"},
		"timeout":            {[]string{"--agent", "command", "--agent-timeout", "1s", task(t, map[string]string{"instruction.md": "x", "replay.yaml": done}), "--", "sleep", "60"}, "1000 ms"},
	} {
		t.Run(name, func(t *testing.T) {
			got := turngate(t, binary, append([]string{"run", "-o", "json"}, tt.args...)...)
			res := results(t, got)
			if got.code != 1 || len(res) != 1 || res[0].Fault == nil || !strings.Contains(res[0].Fault.Message, tt.says) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestAnAgentThatIsNotInstalled is refused before anything starts.
func TestAnAgentThatIsNotInstalled(t *testing.T) {
	got := turngate(t, testenv.Binary(t), "run", "--agent", "pi", "--agents", t.TempDir(), task(t, map[string]string{"instruction.md": "x", "replay.yaml": done}))
	if got.code != 2 || !strings.Contains(got.errOut, `agent.name: "pi" is not valid: want an agent of a worker that is there: command, mini, nop, oracle; turngate agent install`) {
		t.Errorf("%+v", got)
	}
}

// TestStrayRewardAndHostileNames: a reward file of the agent does not count, and
// names with special characters stay unchanged.
func TestStrayRewardAndHostileNames(t *testing.T) {
	binary := testenv.Binary(t)
	name := `"q" $(touch x) 'it' --help`
	dir := task(t, map[string]string{
		"instruction.md": "-n $(touch /tmp/pwned)\n`id`\n", "task.toml": "[task]\nname = '''" + name + "'''\n",
		"replay.yaml":   "steps:\n- run: echo 1 > /logs/verifier/reward.txt; echo '{\"reward\":1}' > /logs/verifier/reward.json; mkdir -p /tests; echo x > /tests/test.sh\n- text: Done.\n",
		"tests/test.sh": "#!/bin/sh\ntest -e /tmp/pwned && exit 1\nls /logs/verifier | grep . || echo 0.5 > /logs/verifier/reward.txt\n",
	})
	got := turngate(t, binary, "run", "-o", "json", "--label", "a=b c", dir)
	res := results(t, got)
	if got.code != 0 || *res[0].Reward != 0.5 || res[0].Task != name || res[0].Labels["a"] != "b c" {
		t.Errorf("%+v", got)
	}
}

func TestOutputForms(t *testing.T) {
	testenv.Slow(t)
	binary := testenv.Binary(t)
	table := turngate(t, binary, "run", "examples/tasks/hello")
	if table.code != 0 || !strings.HasPrefix(table.out, "TASK") || strings.Count(table.out, "\n") != 2 || !strings.Contains(table.errOut, "phase agent") {
		t.Errorf("%+v", table)
	}
	lines := turngate(t, binary, "run", "-o", "jsonl", "-n", "2", "examples/tasks/hello")
	if lines.code != 0 || strings.Count(lines.out, "\n") != 2 {
		t.Errorf("%+v", lines)
	}
	nop := turngate(t, binary, "run", "-o", "json", "--agent", "nop", task(t, map[string]string{"instruction.md": "x"}))
	if res := results(t, nop); nop.code != 0 || res[0].Reward != nil || res[0].Fault != nil {
		t.Errorf("no verifier: %+v", nop)
	}
}

func TestFlagsComeFromTheEnvironment(t *testing.T) {
	binary := testenv.Binary(t)
	t.Setenv("TURNGATE_OUTPUT", "jsonl")
	t.Setenv("TURNGATE_AGENT", "nop")
	if got := turngate(t, binary, "run", "examples/tasks/hello"); got.code != 0 || !strings.Contains(got.out, `"agent":"nop"`) {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "run", "--agent", "oracle", "examples/tasks/hello"); !strings.Contains(got.out, `"agent":"oracle"`) {
		t.Errorf("a flag does not win over the environment: %+v", got)
	}
	t.Setenv("TURNGATE_GROUP", "many")
	if got := turngate(t, binary, "run", "examples/tasks/hello"); got.code != 2 || !strings.Contains(got.errOut, "TURNGATE_GROUP") {
		t.Errorf("%+v", got)
	}
}

// TestTheDefaultSandbox is the same for all commands that run tasks.
func TestTheDefaultSandbox(t *testing.T) {
	binary := testenv.Binary(t)
	want := `--sandbox string +.*\(default "` + backends.Names()[0] + `"\)`
	for _, args := range [][]string{{"run"}, {"task", "check"}, {"sandbox", "run"}, {"agent", "ls"}} {
		got := turngate(t, binary, append(args, "--help")...)
		if !regexp.MustCompile(want).MatchString(got.out) {
			t.Errorf("%v: no %s in %s", args, want, got.out)
		}
	}
}

// TestATaskWithAnImageNeedsNoFlag: for tasks that all need an image, and for --image, the default
// sandbox is one with images. The engine is not there, which the error says.
func TestATaskWithAnImageNeedsNoFlag(t *testing.T) {
	binary := testenv.Binary(t)
	t.Setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
	built := task(t, map[string]string{"built/instruction.md": "x", "built/replay.yaml": done, "built/environment/Dockerfile": "FROM x", "named/instruction.md": "x", "named/replay.yaml": done, "named/task.toml": "[environment]\ndocker_image = \"x\"\n"})
	plain := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	for name, args := range map[string][]string{
		"run":           {"run", "--agent", "nop", built},
		"run --image":   {"run", "--agent", "nop", "--image", "x", plain},
		"task check":    {"task", "check", built},
		"sandbox run":   {"sandbox", "run", filepath.Join(built, "named"), "--", "true"},
		"of an image":   {"sandbox", "run", "debian", "--", "true"},
		"agent --check": {"agent", "ls", "--check", "--image", "x"},
	} {
		if got := turngate(t, binary, args...); got.code == 0 || !strings.Contains(got.errOut, "Docker") || strings.Contains(got.errOut, "cannot build") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := turngate(t, binary, "run", "--agent", "nop", plain); got.code != 0 {
		t.Errorf("a task without an image: %+v", got)
	}
	if got := turngate(t, binary, "run", "--sandbox", "local", "--agent", "nop", built); got.code == 0 || !strings.Contains(got.errOut, "local") {
		t.Errorf("--sandbox local: %+v", got)
	}
}

func TestSmallCommands(t *testing.T) {
	binary := testenv.Binary(t)
	for _, args := range [][]string{{"version"}, {"--help"}, {"completion", "bash"}, {"agent", "ls"}} {
		if got := turngate(t, binary, args...); got.code != 0 || got.out == "" {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := turngate(t, binary, "doctor", "--agents", t.TempDir()); got.code != 0 || !strings.Contains(got.out, "more can be installed: turngate agent install opencode|") || !strings.Contains(got.out, "local sandbox") || strings.Contains(got.out, "problem") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "box"); got.code != 90 || !strings.Contains(got.errOut, "first process of a sandbox") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "doctor", "--nats", "nats://127.0.0.1:1"); !strings.Contains(got.out, "problem  NATS") {
		t.Errorf("%+v", got)
	}
}
