package e2e_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestPublicTasks runs the unchanged tasks of the folder TURNGATE_TASKS with an
// agent that does nothing: each ends with reward 0 and exit status 0.
// TURNGATE_TASKS_SAMPLE is the number of tasks to draw at random, with the seed
// TURNGATE_TASKS_SEED.
func TestPublicTasks(t *testing.T) {
	t.Parallel()
	folder := os.Getenv("TURNGATE_TASKS")
	if folder == "" {
		t.Skip("SKIPPED: TURNGATE_TASKS names no folder of tasks")
	}
	testenv.Image(t) // skips without Docker
	found, err := filepath.Glob(filepath.Join(folder, "*", "instruction.md"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s has no tasks: %v", folder, err)
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("TURNGATE_TASKS_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("TURNGATE_TASKS_SEED: %v", err)
		}
	}
	if text := os.Getenv("TURNGATE_TASKS_SAMPLE"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("TURNGATE_TASKS_SAMPLE: %q is not valid: want 1 or more", text)
		}
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
		found = found[:min(n, len(found))]
		slices.Sort(found)
	}
	t.Logf("%d tasks, TURNGATE_TASKS_SEED=%d", len(found), seed)
	binary := testenv.Binary(t)
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, path := range found {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			began := time.Now()
			p := start(t, binary, "run", dir, "--agent", "nop", "--sandbox", "docker", "-o", "json", "--out", filepath.Join(t.TempDir(), "job"))
			code := p.wait(t, 30*time.Minute)
			var got []schema.Result
			if err := json.Unmarshal([]byte(p.out.String()), &got); err != nil || len(got) != 1 {
				t.Fatalf("exit status %d: %v\n%s", code, err, clip(p.out.String()))
			}
			r := got[0]
			reward := "null"
			if r.Reward != nil {
				reward = fmt.Sprint(*r.Reward)
			}
			fmt.Fprintf(w, "%s\t%.1f s\t%s\n", r.Task, time.Since(began).Seconds(), reward)
			if code != 0 || r.Reward == nil || *r.Reward != 0 || r.Fault != nil {
				t.Errorf("exit status %d, reward %s, fault %v", code, reward, r.Fault)
			}
		})
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", table.String())
}
