package e2e_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/internal/backends/e2b/e2btest"
	"github.com/turngate/turngate/internal/backends/modal/modaltest"
	"github.com/turngate/turngate/internal/backends/prime/primetest"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/kubetest"
	"github.com/turngate/turngate/internal/testenv/sshd"
	"github.com/turngate/turngate/schema"
)

// keyForm matches the gate's keys; see gate.Open.
const keyForm = `tg-[A-Za-z0-9_-]{32}`

// TestRealAgents runs each agent in each sandbox, with NATS, trainer, worker
// and tap each in a process of its own.
func TestRealAgents(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	script := "steps:\n- text: I will look around.\n  run: env; pwd\n- run: \"echo 'Hello, world!' > hello.txt\"\n- text: Done.\n"
	// In Docker these run in TestEveryAgentThroughBadTimes, which takes less time.
	notHere := map[string][]string{"docker": {"kilo", "copilot", "droid", "cline", "kimi", "continue", "grok", "grok-cli"}}
	for _, sandbox := range backends.Names() {
		for _, spec := range agents.All() {
			agent := spec.Name
			if spec.Dialect == "" || spec.AnyProgram || slices.Contains(notHere[sandbox], agent) {
				continue
			}
			if (sandbox == "ssh" || sandbox == "machine" || sandbox == "e2b" || sandbox == "prime" || sandbox == "modal" || sandbox == "kubernetes") && agent != "mini" && agent != "opencode" { // the files of each agent travel in the same way
				continue
			}
			t.Run(sandbox+"/"+agent, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				b.need(t, sandbox, agent)
				mark := "touch /tmp/pwned-" + sandbox + "-" + agent + ")" // other agents run beside this one
				instruction := "-- Write 'Hello, world!' to hello.txt $(" + mark + " \"now\"\nand `nothing` else.\n"
				task := copyTask(t, "examples/tasks/hello", map[string]string{"instruction.md": instruction, "replay.yaml": script})
				flags := []string{"--sandboxes", sandbox}
				switch sandbox {
				case "ssh":
					flags = append(flags, sshd.Start(t).Flags()...)
				case "e2b":
					s := e2btest.Start(t)
					b.binary = accountOf(t, s.Env(), b.binary)
					flags = append(flags, "--e2b", e2btest.Template)
				case "prime":
					s := primetest.Start(t)
					b.binary = accountOf(t, s.Env(), b.binary)
					flags = append(flags, "--prime", primetest.Image)
				case "modal":
					b.binary = accountOf(t, modaltest.Start(t).Env(), b.binary)
					flags = append(flags, "--modal", modaltest.Image)
				case "kubernetes":
					flags = append(flags, kubetest.Start(t).Flags()...)
				case "machine":
					b.machine(t, "build1", t.TempDir())
				}
				worker := b.worker(t, filepath.Dir(task), flags...)
				tap := b.tap(t)
				secrets := regexp.QuoteMeta(mark) + "|" + keyForm
				if spec.TaskAsArgument {
					secrets = keyForm
				}
				argv := watchArgv(t, regexp.MustCompile(secrets))
				args := []string{"--agent", agent, "--sandbox", sandbox, task}
				if slices.Contains(backends.WithImages(), sandbox) {
					args = append(args, "--image", testenv.Image(t))
				}
				trainer := b.run(t, args...)
				if code := trainer.wait(t, 10*time.Minute); code != 0 {
					t.Fatalf("exit status %d", code)
				}
				if seen := argv(); len(seen) > 0 {
					t.Errorf("secrets in an argv: %q", seen)
				}
				res := results(t, trainer)
				if len(res) != 1 || res[0].Reward == nil || *res[0].Reward != 1 || res[0].Fault != nil || res[0].Calls[schema.TagAgent].Count != 3 || len(res[0].Committed) != 3 {
					t.Fatalf("got %+v", res)
				}
				harness.Eventually(t, "the result in the tap", 5*time.Minute, func() bool { return strings.Contains(tap.out.String(), `"type":"result"`) })
				checkTap(t, tap.out.String(), agent != "continue") // it prints only its last message
				key := regexp.MustCompile(keyForm)
				for name, text := range map[string]string{
					"result": trainer.out.String(), "trainer's log": trainer.err.String(), "events": tap.out.String(), "worker's log": worker.err.String() + worker.out.String(),
				} {
					if found := key.FindString(text); found != "" {
						t.Errorf("the key %s is in the %s", found, name)
					}
				}
				tr := b.nats.Trainer(t, "local")
				for _, a := range res[0].Artifacts {
					data, err := tr.Objects.Artifact(t.Context(), "local", a.SHA256)
					if err != nil || key.Match(data) {
						t.Errorf("artifact %s: %v, or it has the key", a.Name, err)
					}
				}
				checkSessions(t, tr, agent, res[0])
				worker.stop(t)
				nothingLeft(t, sandbox, res[0].ID)
			})
		}
	}
}

// checkSessions reads the session files that the agent itself wrote.
func checkSessions(t *testing.T, b *broker.Broker, agent string, res schema.Result) {
	t.Helper()
	spec, err := agents.Find(agents.All(), agent)
	if err != nil {
		t.Fatal(err)
	}
	if spec.Sessions == "" {
		return
	}
	i := slices.IndexFunc(res.Artifacts, func(a schema.Artifact) bool { return a.Name == "agent-sessions.tar" })
	if i < 0 {
		t.Fatalf("its sessions are not among %v", res.Artifacts)
	}
	data, err := b.Objects.Artifact(t.Context(), res.Trainer, res.Artifacts[i].SHA256)
	if err != nil {
		t.Fatal(err)
	}
	said := false
	for archive := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
		said = said || bytes.Contains(content, []byte("hello.txt"))
	}
	if !said {
		t.Error("its sessions say nothing of what it did")
	}
}

// checkTap checks that a tap shows everything a user should see. tools means that
// the agent's output has events for its tools.
func checkTap(t *testing.T, jsonl string, tools bool) {
	t.Helper()
	var phases []string
	var calls, replies, steps, logs int
	var last schema.Event
	for line := range strings.Lines(jsonl) {
		var e schema.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		last = e
		switch {
		case e.Phase != nil && e.Phase.Ended:
			phases = append(phases, e.Phase.Name)
		case e.LLM != nil && e.LLM.Call != nil && len(e.LLM.Call.Messages) > 0:
			calls++
		case e.LLM != nil && e.LLM.Reply != nil:
			replies++
		case len(e.Step) > 0 && strings.Contains(string(e.Step), "tool_"):
			steps++
		case e.Log != nil:
			logs++
		}
	}
	if strings.Join(phases, " ") != "create upload agent artifacts verify transcript" || calls != 3 || replies != 3 || tools == (steps == 0) || last.Result == nil {
		t.Errorf("phases %v, %d calls, %d replies, %d tool events, %d lines of output, last %s", phases, calls, replies, steps, logs, last.Type)
	}
}

func nothingLeft(t *testing.T, sandbox string, id schema.ID) {
	t.Helper()
	if sandbox == "docker" {
		out, err := exec.Command("docker", "ps", "-aq", "--filter", "label=turngate.rollout="+string(id)).Output()
		if err != nil || strings.TrimSpace(string(out)) != "" {
			t.Errorf("containers are left: %s %v", out, err)
		}
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/turngate-*" + string(id) + "*")
	if err != nil || len(groups) > 0 {
		t.Errorf("cgroups are left: %v %v", groups, err)
	}
}

// TestOracleAndNop validates a task with a Dockerfile: the solution gets the
// reward, and an agent that does nothing does not.
func TestOracleAndNop(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "oracle")
	b.worker(t, "", "--sandboxes", "docker")
	task := filepath.Join(testenv.Root(t), "e2e/testdata/built")
	for agent, want := range map[string]float64{"oracle": 1, "nop": 0} {
		p := b.run(t, "--agent", agent, "--sandbox", "docker", task)
		if code := p.wait(t, 10*time.Minute); code != 0 {
			t.Fatalf("%s: exit status %d", agent, code)
		}
		r := results(t, p)[0]
		if r.Reward == nil || *r.Reward != want || r.Rewards["lines"] != want || len(r.Calls) != 0 {
			t.Errorf("%s: got %+v", agent, r)
		}
	}
}

// TestGroupsRunInParallel runs several rollouts of several tasks at once.
func TestGroupsRunInParallel(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.worker(t, "", "--sandboxes", "local", "--slots", "4")
	p := b.run(t, "-n", "4", filepath.Join(testenv.Root(t), "examples/tasks"))
	if code := p.wait(t, 10*time.Minute); code != 1 { // broken-setup has a fault
		t.Fatalf("exit status %d", code)
	}
	var got []string
	for _, r := range results(t, p) {
		reward := "null"
		if r.Reward != nil {
			reward = map[float64]string{0: "0", 1: "1"}[*r.Reward]
		}
		got = append(got, r.Task+" "+string(r.Status)+" "+reward)
	}
	slices.Sort(got)
	want := slices.Concat(slices.Repeat([]string{"broken-setup failed null"}, 4), slices.Repeat([]string{"hello done 1"}, 4), slices.Repeat([]string{"wrong done 0"}, 4))
	if !slices.Equal(got, want) {
		t.Fatalf("got %q", got)
	}
}

// TestAgentsAreChecked runs `agent ls --check` with each published agent.
func TestAgentsAreChecked(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	cache := agentCache()
	var names []string
	for _, s := range agents.All() {
		if len(s.Packages) == 0 {
			continue
		}
		if !(agents.Cache{Dir: cache}).Installed(s) {
			testenv.Need(t, "agents", fmt.Errorf("%s: %w", s.Name, agents.ErrNotInstalled))
		}
		names = append(names, s.Name)
	}
	p := start(t, testenv.Binary(t), "agent", "ls", "--check", "--agents", cache, "--agent-timeout", "5m")
	code := p.wait(t, 15*time.Minute)
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^` + name + ` .* ok$`).MatchString(p.out.String()) {
			t.Errorf("%s is not among those that work", name)
		}
	}
	if code != 0 || len(names) == 0 {
		t.Errorf("exit status %d, %d agents:\n%s", code, len(names), p.out.String())
	}
}
