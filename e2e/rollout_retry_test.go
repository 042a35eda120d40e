package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// An ended rollout is submitted again with the trainer's credential: the same request
// under a new id, with a label that names the first rollout. An operator has no right to.
func TestARolloutIsSubmittedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.worker(t, "", "--sandboxes", "local")
	dir := writeTask(t, map[string]string{"instruction.md": "Do it.\n", "tests/test.sh": leaves("", `{"reward": 0.5}`)})
	run := b.run(t, "--agent", "nop", "--sandbox", "local", "--label", "kind=first", "--out", t.TempDir()+"/job", dir)
	if code := run.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, run.err)
	}
	first := results(t, run)[0]
	out, _ := b.rollout(t, 0, "retry", string(first.ID))
	id := strings.TrimSpace(out)
	if _, err := schema.ParseID(id); err != nil || id == string(first.ID) {
		t.Fatalf("got %q, %v", out, err)
	}
	var again schema.Result
	harness.Eventually(t, "the result of the new rollout", 5*time.Minute, func() bool {
		p := start(t, b.binary, "rollout", "get", "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds("local"), id)
		return p.wait(t, 10*time.Minute) == 0 && json.Unmarshal([]byte(p.out.String()), &again) == nil && again.Status.Terminal()
	})
	if again.Reward == nil || *again.Reward != 0.5 || again.Group != first.Group || again.Labels["retry_of"] != string(first.ID) || again.Labels["kind"] != "first" {
		t.Errorf("got %+v", again)
	}
	third, _ := b.rollout(t, 0, "retry", id)
	var q schema.Result
	harness.Eventually(t, "the result of the third rollout", 5*time.Minute, func() bool {
		p := start(t, b.binary, "rollout", "get", "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds("local"), strings.TrimSpace(third))
		return p.wait(t, 10*time.Minute) == 0 && json.Unmarshal([]byte(p.out.String()), &q) == nil && q.Status.Terminal()
	})
	if q.Labels["retry_of"] != string(first.ID) {
		t.Errorf("got %+v", q.Labels)
	}
	p := start(t, b.binary, "rollout", "retry", "--nats", b.nats.URL(), "--creds", b.nats.OpsCreds(), string(first.ID))
	if code := p.wait(t, 10*time.Minute); code != 2 || !strings.Contains(p.err.String(), "an operator has no right to submit a rollout") {
		t.Errorf("as an operator: exit status %d: %s", code, p.err)
	}
	if _, stderr := b.rollout(t, 1, "retry", "local-none"); !strings.Contains(stderr, "no worker has taken a rollout of that id") {
		t.Errorf("an unknown one: %s", stderr)
	}
}
