package trainer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
)

// A process may die between the two halves of a rewrite, when the file itself is
// empty or has a part of its lines.
func TestAnInterruptedRewriteLosesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	l, _, err := openLedger(path, schema.DefaultShard, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	r := schema.Request{
		V: schema.Version, ID: "alpha-1", Trainer: "alpha", Task: schema.Task{Name: "t", Instruction: "i"},
		Agent: schema.AgentChoice{Name: "nop"}, Sandbox: schema.SandboxChoice{Backend: "local"},
	}
	if err := l.write(true, entry{Submit: &r, Lane: 1}, entry{ID: r.ID, Seq: 7}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l.close()
	for _, c := range []struct {
		name       string
		file, side []byte
	}{
		{"truncated", nil, whole},
		{"partly written", whole[:len(whole)/2], whole},
		{"written", whole, whole},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, data := range map[string][]byte{path: c.file, path + ".new": c.side} {
				if err := os.WriteFile(name, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			l, got, err := openLedger(path, schema.DefaultShard, zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			if s := got[r.ID]; len(got) != 1 || s == nil || s.seq != 7 || s.lane != 1 {
				t.Errorf("got %+v", got)
			}
			if _, err := os.Stat(path + ".new"); !os.IsNotExist(err) {
				t.Errorf("the copy is still there: %v", err)
			}
		})
	}
}
