package e2e_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestAgentsOfAUserWithoutAnEntry: all agents work in an image with a numeric user without an
// entry in /etc/passwd. Its HOME is /, as in Docker, which it cannot write.
func TestAgentsOfAUserWithoutAnEntry(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	const image = "turngate-test-number:1"
	b.need(t, "docker", "mini")
	build := exec.CommandContext(t.Context(), "docker", "build", "-q", "-t", image, "-")
	build.Env = append(build.Environ(), "DOCKER_BUILDKIT=0")
	build.Stdin = strings.NewReader("FROM " + testenv.Image(t) + "\nRUN mkdir /work && chown 1234 /work\nUSER 1234\nWORKDIR /work\n")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	b.worker(t, "", "--sandboxes", "docker", "--slots", "3")
	script := &replay.Script{Aux: "A title", Steps: []replay.Step{{Text: "I will look.", Run: "id -u > who; env | grep ^HOME= >> who"}, {Text: "Done."}}}
	defer serveWith(t, b, func(ctx context.Context, c *schema.Call) (*schema.Reply, error) { return script.Answer(ctx, c) })()
	var requests []schema.Request
	for _, s := range agents.All() {
		if s.Dialect == "" || s.AnyProgram {
			continue
		}
		b.need(t, "docker", s.Name)
		requests = append(requests, schema.Request{
			ID: schema.ID("local-" + s.Name), Trainer: "local", Task: schema.Task{Name: "look", Instruction: "Who are you?"}, MaxAttempts: 1,
			Agent: schema.AgentChoice{Name: s.Name}, Sandbox: schema.SandboxChoice{Backend: "docker", Image: image},
			Verify: &schema.Verify{Run: `test "$(tr '\n' ' ' < who)" = "1234 HOME=/ " && test ! -w / && echo 1 > /logs/verifier/reward.txt`},
		})
	}
	tr := newTrainer(t, b, "nobody")
	harness.Must(t, tr.Submit(t.Context(), inDefaultShard(requests)))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for range requests {
		r, err := tr.NextResult(ctx)
		harness.Must(t, err)
		if r.Status != schema.StatusDone || r.Reward == nil || *r.Reward != 1 {
			t.Errorf("%s: %s, fault %v\n%s", r.ID, r.Status, r.Fault, clip(artifact(t, tr, r, "agent.stdout.log")+artifact(t, tr, r, "agent.stderr.log")))
		}
	}
}
