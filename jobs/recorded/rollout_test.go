package recorded_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// vector returns the transcript and the result of a file of trajectory's rows.
func vector(t *testing.T, name string) ([]byte, schema.Result) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../trajectory/testdata/rows", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Lines  []json.RawMessage
		Result *schema.Result
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range v.Lines {
		if _, err := z.Write(append(l, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if v.Result == nil {
		v.Result = &schema.Result{V: schema.Version, ID: "alpha-01", Status: schema.StatusDone}
	}
	return out.Bytes(), *v.Result
}

// jobOf makes a job with a trial for each vector. The last trial has not ended.
func jobOf(t *testing.T, runs string, names ...string) *jobs.Job {
	t.Helper()
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Backend: "local", Attempts: len(names) + 1, Parallel: 1, Flags: map[string][]string{}, Args: []string{"."}}
	if err := p.AddTask("alpha", jobs.Task{Name: "hello", Dir: t.TempDir(), Digest: "x"}); err != nil {
		t.Fatal(err)
	}
	j, err := jobs.Create(filepath.Join(runs, "j"), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	for i, name := range names {
		data, r := vector(t, name)
		r.ID, r.Transcript = j.Plan.Trials[i].Rollout, "transcript.jsonl.zst"
		files := map[string][]byte{r.Transcript: data, "agent.stdout.log": []byte("said by " + name + "\n"), "out/a.txt": []byte("a")}
		for _, n := range []string{r.Transcript, "agent.stdout.log", "out/a.txt"} {
			r.Artifacts = append(r.Artifacts, schema.Artifact{Name: n, Size: int64(len(files[n])), SHA256: strings.Repeat("0", 64)})
		}
		fetch := func(_ context.Context, a schema.Artifact, to io.Writer) error {
			_, err := to.Write(files[a.Name])
			return err
		}
		if err := j.Put(t.Context(), r, fetch); err != nil {
			t.Fatal(err)
		}
	}
	return j
}

func TestRolloutsOfJobsAreFound(t *testing.T) {
	runs := t.TempDir()
	j := jobOf(t, runs, "tools", "compaction")
	first := j.Plan.Trials[0]
	dir := filepath.Join(j.Dir, first.Name)
	for name, want := range map[string]int{
		j.Dir: 3, dir: 1, string(first.Rollout): 1, first.Name: 1, filepath.Join(dir, "agent", "transcript.jsonl.zst"): 1,
	} {
		list, err := recorded.Find(runs, name)
		if err != nil || len(list) != want || list[0].ID != first.Rollout || list[0].Result == nil {
			t.Errorf("%s: got %+v, %v", name, list, err)
		}
	}
	var missing *recorded.NotFoundError
	if _, err := recorded.Find(runs, "none"); !errors.As(err, &missing) || !errors.Is(err, recorded.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	list, err := recorded.InJobs(runs)
	if err != nil || len(list) != 3 || list[2].Result != nil {
		t.Fatalf("got %+v, %v", list, err)
	}
	if _, err := list[2].Transcript(t.Context()); !errors.Is(err, recorded.ErrNoTranscript) {
		t.Errorf("got %v", err)
	}
	if log, err := list[0].Log(t.Context(), false); err != nil || string(log) != "said by tools\n" {
		t.Errorf("got %q, %v", log, err)
	}
	var out bytes.Buffer
	r, err := list[1].Read(t.Context(), trajectory.Options{Messages: true})
	if err != nil {
		t.Fatal(err)
	}
	recorded.Show(&out, list[1], r)
	for _, want := range []string{"reward 1", "5 calls, 2 rows of 15 tokens\n", "6 of 6 sampled tokens trained (100 %)", `assistant calls bash {"command": "ls"}`, "call 4, fork (compaction), 3 + 1 ids, tool_calls, v7, trained", "  < tool: x"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
	if got := regexp.MustCompile(`(?m)^ *< assistant.*`).FindAllString(out.String(), -1); got != nil {
		t.Errorf("answers that came back unchanged are written again: %q in\n%s", got, &out)
	}
	to := t.TempDir()
	if names, err := list[0].Copy(t.Context(), to, []string{"agent/*.zst", "artifacts"}); err != nil || !slices.Contains(names, "agent/transcript.jsonl.zst") || !slices.Contains(names, "artifacts/out/a.txt") {
		t.Errorf("got %q, %v", names, err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "artifacts/out/a.txt")); err != nil || string(data) != "a" {
		t.Errorf("got %q, %v", data, err)
	}
	if _, err := list[0].Copy(t.Context(), to, []string{"none"}); err == nil || !strings.Contains(err.Error(), "agent/agent.log") {
		t.Errorf("got %v", err)
	}
}

// TestOneBrokenRolloutIsLeftOutOfAnExport: its record or its transcript cannot be read, or the
// trial is a link. The others are exported.
func TestOneBrokenRolloutIsLeftOutOfAnExport(t *testing.T) {
	for kind, spoil := range map[string]func(trial string) error{
		"empty record":  func(trial string) error { return os.WriteFile(filepath.Join(trial, "turngate.json"), nil, 0o600) },
		"no transcript": func(trial string) error { return os.Remove(filepath.Join(trial, "agent", "transcript.jsonl.zst")) },
		"cut transcript": func(trial string) error {
			return os.Truncate(filepath.Join(trial, "agent", "transcript.jsonl.zst"), 10)
		},
		"FIFO": func(trial string) error {
			file := filepath.Join(trial, "agent", "transcript.jsonl.zst")
			return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600))
		},
		"folder": func(trial string) error {
			file := filepath.Join(trial, "agent", "transcript.jsonl.zst")
			return errors.Join(os.Remove(file), os.Mkdir(file, 0o700))
		},
		"linked trial": func(trial string) error {
			return errors.Join(os.Rename(trial, trial+".moved"), os.Symlink(filepath.Base(trial)+".moved", trial))
		},
	} {
		runs := t.TempDir()
		j := jobOf(t, runs, "tools", "compaction")
		bad := j.Plan.Trials[0].Name
		if err := spoil(filepath.Join(j.Dir, bad)); err != nil {
			t.Fatal(err)
		}
		list, err := recorded.InJobs(runs)
		if err != nil || len(list) != 3 {
			t.Fatalf("%s: got %+v, %v", kind, list, err)
		}
		if _, sum := export(t, "jsonl", list); sum.Rollouts != 1 || sum.Rows != 2 || len(sum.Skipped) != 2 || !strings.Contains(sum.Skipped[0].Error(), bad) {
			t.Errorf("%s: got %+v", kind, sum)
		}
	}
}

func all(t *testing.T) []*recorded.Rollout {
	t.Helper()
	j := jobOf(t, t.TempDir(), "tools", "compaction", "subagents", "drift_within", "discarded", "ids_missing", "logprob_positive", "versions_mixed", "branches", "edited_answer")
	list, err := recorded.InJob(j.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func export(t *testing.T, format string, list []*recorded.Rollout) (string, recorded.Summary) {
	t.Helper()
	var out bytes.Buffer
	sum, err := recorded.Export(t.Context(), &out, format, list, trajectory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), sum
}

func TestExportsHaveEveryRollout(t *testing.T) {
	list := all(t)
	rows := 0
	for _, format := range recorded.Formats() {
		out, sum := export(t, format, list)
		if sum.Rollouts != 10 || len(sum.Skipped) != 1 || !errors.Is(sum.Skipped[0], recorded.ErrNoTranscript) {
			t.Errorf("%s: got %+v", format, sum)
		}
		switch format {
		case "jsonl":
			rows = sum.Rows
			if rows < 10 || strings.Count(out, "\n") != rows || sum.Tokens.Trained == 0 || sum.Positions <= sum.Tokens.Trained {
				t.Errorf("got %+v\n%s", sum, out)
			}
		case "parquet", "arrow":
			if sum.Rows != rows || len(out) == 0 {
				t.Errorf("%s: got %+v", format, sum)
			}
		default:
			if strings.Count(out, "\n") != 10 || sum.Rows != 0 {
				t.Errorf("%s: got %+v\n%s", format, sum, out)
			}
		}
	}
	var bad *schema.InvalidError
	if _, err := recorded.Export(t.Context(), &bytes.Buffer{}, "csv", list, trajectory.Options{}); !errors.As(err, &bad) || bad.Field != "format" {
		t.Errorf("got %v", err)
	}
}

// read gives a program of Python the documents on stdin.
func read(t *testing.T, python, documents, program string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, "-c", program)
	cmd.Stdin = strings.NewReader(documents)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("it is refused: %v\n%s", err, said)
	}
}

func TestOpenEnvReadsItsResults(t *testing.T) {
	python := testenv.Python(t, "openenv.harbor.models")
	out, _ := export(t, "openenv", all(t))
	read(t, python, out, `
import json, sys
from openenv.harbor.models import HarborRolloutResult, HarborTurn
from openenv.core.harness.training import TrainingTrace, TrainingTurn
trained = 0
for line in sys.stdin:
    raw = json.loads(line)
    result = HarborRolloutResult.model_validate(raw)
    known = set(HarborRolloutResult.model_fields)
    assert set(raw) <= known, set(raw) - known
    for turn in raw["turns"]:
        assert set(turn) <= set(HarborTurn.model_fields), turn
    turns = [t for t in result.turns if t.trainable]
    assert result.trainable == bool(turns) and result.n_turns == len(result.turns), result
    assert result.n_trainable_tokens <= sum(sum(t.loss_mask) for t in turns), result
    trace = TrainingTrace(turns=[TrainingTurn(node_id=t.node_id, prompt_token_ids=t.prompt_token_ids, completion_token_ids=t.completion_token_ids, per_token_logps=t.per_token_logps, loss_mask=t.loss_mask) for t in turns])
    trained += len(trace.turns)
    for c in result.conversations:
        assert c.messages[-1]["role"] == "assistant", c
assert trained > 15, trained
`)
}

func TestVerifiersReadsItsTraces(t *testing.T) {
	python := testenv.Python(t, "verifiers.v1")
	list := all(t)
	out, _ := export(t, "verifiers", list)
	var want bytes.Buffer
	if _, err := recorded.Export(t.Context(), &want, "jsonl", list, trajectory.Options{Merge: trajectory.MergeClean}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rows := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(rows, want.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	read(t, python, out, `
import json, sys
from verifiers.v1 import WireTrace
rows = {}
for line in open("`+rows+`"):
    row = json.loads(line)
    rows.setdefault(row["rollout"], []).append(row["input_ids"])
branches = 0
for line in sys.stdin:
    trace = WireTrace.model_validate(json.loads(line))
    assert trace.reward in (0, 0.5, 1), trace.reward
    got = [[i for n in b.nodes for i in n.token_ids] for b in trace.branches]
    for row in rows.get(trace.info["rollout"], []):
        assert row in got, (row, got)
    for n in trace.nodes:
        assert len(n.mask) == len(n.token_ids) and len(n.logprobs) == sum(n.mask), n
    for c in trace.calls:
        assert c.node is None or trace.nodes[c.node].sampled
    branches += len(got)
assert branches >= 10, branches
`)
}
