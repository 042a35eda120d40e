package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

// TestDocs runs every command of every sh block in the README and the docs, in a
// copy of the repository.
func TestDocs(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	root := testenv.Root(t)
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md"))
	b := newBench(t)
	dir := clone(t, root, b.binary)
	block := regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	ran := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllStringSubmatch(string(data), -1) {
			for command := range strings.Lines(m[1]) {
				command = strings.TrimSpace(command)
				t.Run(filepath.Base(file)+"/"+command, func(t *testing.T) { runCommand(t, b, dir, command) })
				ran++
			}
		}
	}
	if ran < 10 {
		t.Errorf("%d commands were found: the pattern is wrong", ran)
	}
}

func runCommand(t *testing.T, b *bench, dir, command string) {
	t.Helper()
	switch {
	case strings.HasPrefix(command, "go test"), command == "make build":
		return // "go test" would run this test again; the binary is built already
	case strings.Contains(command, "agent install"):
		b.need(t, "local", "opencode") // installed already: the command must report that
	case strings.Contains(command, "docker"):
		b.need(t, "docker", "opencode")
	case strings.Contains(command, "http://127.0.0.1:8000"), strings.Contains(command, "examples/upstreams.yaml"):
		engine(t)
	}
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TURNGATE_AGENTS="+b.cache)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// clone copies the files that git tracks, and the built binary.
func clone(t *testing.T, root, binary string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("bash", "-c", `cd "$1" && find . -name .git -prune -o -name bin -prune -o -type f -print0 | xargs -0 cp --parents -t "$2" && mkdir -p "$2/bin" && cp "$3" "$2/bin/turngate"`, "bash", root, dir, binary)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// engine is a model server on port 8000 that speaks as vLLM does and solves
// the hello task.
func engine(t *testing.T) {
	t.Helper()
	const address = "127.0.0.1:8000" // the docs name it
	tries, tick := 0, time.Tick(time.Second)
	if testenv.Required("port-8000") {
		tries = 60
	}
	l, err := net.Listen("tcp", address)
	for ; err != nil && tries > 0; tries-- { // another program may have it for a moment
		<-tick
		l, err = net.Listen("tcp", address)
	}
	testenv.Need(t, "port-8000", err)
	srv := &http.Server{Handler: helloEngine(t)}
	go srv.Serve(l) //nolint:errcheck // it ends with the test
	t.Cleanup(func() { srv.Close() })
}

// helloEngine answers as vLLM does and solves the hello task.
func helloEngine(t *testing.T) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
			return
		}
		var body struct{ Messages []struct{ Role string } }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		message, finish := `{"role":"assistant","content":"Done."}`, "stop"
		if body.Messages[len(body.Messages)-1].Role != "tool" {
			arguments, err := json.Marshal(`{"command":"echo 'Hello, world!' > hello.txt"}`)
			if err != nil {
				t.Error(err)
			}
			message = fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":%s}}]}`, arguments)
			finish = "tool_calls"
		}
		fmt.Fprintf(w, `{"choices":[{"message":%s,"finish_reason":%q,"token_ids":[1],"logprobs":{"content":[{"logprob":-1}]}}],"prompt_token_ids":[1,2],"usage":{"prompt_tokens":2,"completion_tokens":1}}`, message, finish)
	})
}

// TestExampleTrainer runs the example program against a worker.
func TestExampleTrainer(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.worker(t, "", "--sandboxes", "local")
	cmd := exec.Command("go", "run", "./examples/trainer", "-nats", b.nats.URL(), "-creds", b.nats.TrainerCreds("local"), "-n", "8", "-rounds", "2", "examples/tasks/hello")
	cmd.Dir = testenv.Root(t)
	out, err := cmd.CombinedOutput()
	right, wrong := strings.Count(string(out), "reward 1\n"), strings.Count(string(out), "reward 0\n")
	// A policy that got no better in two rounds had twice eight equal rewards.
	if err != nil || right+wrong != 16 || !strings.Contains(string(out), "policy 3 ") || strings.Contains(string(out), "policy 3 solves the task with probability 0.50") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestUp starts everything in one process and runs a task from another.
func TestUp(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	state := t.TempDir()
	up := start(t, binary, "up", "--state", state, "--port", "0", "--sandboxes", "local")
	harness.Eventually(t, "a server that is up", 5*time.Minute, func() bool {
		return strings.Contains(up.err.String(), "are ready") && strings.Contains(up.out.String(), "turngate trainer add") // stdout and stderr, in any order
	})
	url := regexp.MustCompile(`nats://[0-9.:]+`).FindString(up.out.String())
	run := start(t, binary, "run", "--nats", url, "--creds", filepath.Join(state, "creds", "trainer-local.nk"), "-o", "json", filepath.Join(testenv.Root(t), "examples/tasks/hello"))
	if code := run.wait(t, 5*time.Minute); code != 0 || *results(t, run)[0].Reward != 1 {
		t.Fatalf("exit status %d: %s", code, run.out)
	}
	tap := start(t, binary, "tap", "--nats", url, "--creds", filepath.Join(state, "creds", "ops.nk"), string(results(t, run)[0].ID))
	if code := tap.wait(t, 5*time.Minute); code != 0 || !strings.Contains(tap.out.String(), "result done, reward 1") || !strings.Contains(tap.out.String(), "phase verify ended") {
		t.Fatalf("exit status %d: %s", code, tap.out)
	}
	workers := start(t, binary, "worker", "ls", "--nats", url, "--creds", filepath.Join(state, "creds", "ops.nk"))
	if code := workers.wait(t, 5*time.Minute); code != 0 || !strings.Contains(workers.out.String(), "local") || !strings.Contains(workers.out.String(), "ready") {
		t.Fatalf("exit status %d: %s%s", code, workers.out, workers.err)
	}
	deadLetters(t, binary, url, state)
	second := start(t, binary, "worker", "--state", state, "--nats", url)
	if code := second.wait(t, 5*time.Minute); code == 0 || !strings.Contains(second.err.String(), "another worker uses") {
		t.Fatalf("a second worker took the same state: %d %s", code, second.err)
	}
}

// deadLetters puts an unreadable request on the queue and runs every command for
// dead letters.
func deadLetters(t *testing.T, binary, url, state string) {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(filepath.Join(state, "creds", "admin.nk"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url, key)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish(subjects.Request(1, "local"), []byte("junk")); err != nil {
		t.Fatal(err)
	}
	ask := func(creds string, args ...string) string {
		p := start(t, append(append([]string{binary, "dead"}, args...), "--nats", url, "--creds", filepath.Join(state, "creds", creds))...)
		if code := p.wait(t, 5*time.Minute); code != 0 {
			t.Fatalf("dead %v: exit status %d: %s", args, code, p.err)
		}
		return p.out.String()
	}
	harness.Eventually(t, "a dead letter", 5*time.Minute, func() bool { return strings.Contains(ask("ops.nk", "ls"), "unreadable") })
	if said := ask("ops.nk", "show", "1"); !strings.Contains(said, `"body": "anVuaw=="`) || !strings.Contains(said, "rollout.requests.p1.local") {
		t.Errorf("got %s", said)
	}
	ask("admin.nk", "requeue", "1")
	harness.Eventually(t, "the letter that came back", 5*time.Minute, func() bool { return strings.Contains(ask("ops.nk", "ls"), "\n2 ") })
	ask("admin.nk", "drop", "2")
	if said := ask("ops.nk", "ls"); strings.Contains(said, "unreadable") {
		t.Errorf("got %s", said)
	}
}
