package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestAgentsAndModelsAreChecked before a job begins.
func TestAgentsAndModelsAreChecked(t *testing.T) {
	t.Parallel()
	binary, dir := testenv.Binary(t), t.TempDir()
	file, replay := filepath.Join(dir, "upstreams.yaml"), filepath.Join(dir, "replay.yaml")
	writeFile(t, file, "lab:\n  url: http://127.0.0.1:1\n")
	wrong := filepath.Join(dir, "wrong.yaml")
	writeFile(t, wrong, "lab:\n  url: http://127.0.0.1:1\n  price: {input: -1}\n")
	writeFile(t, replay, "steps:\n- text: Done.\n")
	writeFile(t, filepath.Join(dir, "task/instruction.md"), "Do it.")
	for want, args := range map[string][]string{
		`--agent: "mini" is given twice`:                                   {"-a", "mini", "-a", "mini"},
		`--model: "lab" is given twice`:                                    {"-m", "lab", "-m", "lab", "--upstreams", file},
		`--model: "lab" is not valid: want it with --trainer upstream:URL`: {"-m", "lab"},
		`--model: "x" is not valid: want it with --trainer upstream:URL`:   {"-m", "x", "--trainer", "replay:" + replay},
		`--model: "other" is not valid: want an upstream in ` + file:       {"-m", "other", "--upstreams", file},
		`--mode: transparent_proxy needs --model, the name of an upstream`: {"--mode", "transparent_proxy", "--upstreams", file},
		"--max-cost: want --upstreams, a file with the prices":             {"--max-cost", "1"},
		"--max-cost: the upstream lab has no price in " + file:             {"--max-cost", "1", "-m", "lab", "--upstreams", file},
		"--max-cost: -1 is not valid: want 0 or more":                      {"--max-cost", "-1"},
		"--max-cost: NaN is not valid":                                     {"--max-cost", "NaN"},
		"--max-tokens-total: -1 is not valid":                              {"--max-tokens-total", "-1"},
		"the calls of --mode black_box are not counted":                    {"--max-tokens-total", "1", "--mode", "black_box", "-m", "lab"},
		`price.input: "-1" is not valid: want USD per million`:             {"-m", "lab", "--upstreams", wrong},
		`agent.name: "unknown" is not valid`:                               {"-a", "mini", "-a", "unknown"},
	} {
		got := turngate(t, binary, append(append([]string{"run", "--sandbox", "local", "--out", filepath.Join(dir, "job")}, args...), filepath.Join(dir, "task"))...)
		if got.code != 2 || !strings.Contains(got.errOut, want) {
			t.Errorf("%v: want %s: %+v", args, want, got)
		}
	}
}

// TestOneAgentOfTwoCannotRun: its trials end with a fault, and the other agent runs.
func TestOneAgentOfTwoCannotRun(t *testing.T) {
	t.Parallel()
	binary, dir := testenv.Binary(t), t.TempDir()
	job := filepath.Join(dir, "job")
	writeFile(t, filepath.Join(dir, "tasks/one/instruction.md"), "Do it.")
	writeFile(t, filepath.Join(dir, "tasks/one/tests/test.sh"), "echo 1 > /logs/verifier/reward.txt\n")
	got := turngate(t, binary, "run", "-a", "nop", "-a", "mini", "--sandbox", "local", "-o", "json", "--out", job, filepath.Join(dir, "tasks")) // mini has no answerer
	all := results(t, got)
	if got.code != 1 || len(all) != 2 || all[0].Agent != "nop" || all[0].Fault != nil || all[1].Agent != "mini" || all[1].Fault == nil || all[1].Fault.Who != schema.WhoUser || !strings.Contains(all[1].Fault.Message, "name an answerer") {
		t.Errorf("%+v", got)
	}
	for _, format := range []string{"json", "table"} {
		shown := turngate(t, binary, "job", "report", "-o", format, job)
		if format == "table" {
			if shown.code != 0 || !row("nop", "-", "1 of 1", "1", `0\.207 to 1`, "pass@1 1", "0", `0 \+ 0`, "-", "-", `\d+\.\d`, "0").MatchString(shown.out) || !row("one", "1", `- \(1 error\)`).MatchString(shown.out) {
				t.Errorf("%+v", shown)
			}
			continue
		}
		var r compare.Report
		if err := json.Unmarshal([]byte(shown.out), &r); err != nil || len(r.Variants) != 2 || r.Variants[1].Mean != nil || r.Variants[1].Interval != nil || r.Variants[1].Faults() != 1 || len(r.Tasks) != 1 {
			t.Errorf("%v: %+v", err, shown)
		}
	}
	shared := filepath.Join(dir, "job.html")
	if o := turngate(t, binary, "job", "share", "-o", shared, job); o.code != 0 || !strings.HasPrefix(o.out, shared+": 2 rollouts, ") {
		t.Errorf("%+v", o)
	}
	data, err := os.ReadFile(shared)
	if info, serr := os.Stat(shared); err != nil || serr != nil || info.Mode().Perm() != 0o600 || !strings.HasPrefix(string(data), "<!doctype html>") {
		t.Errorf("%v, %v: %.100s", err, serr, data)
	}
	for want, args := range map[string][]string{"file exists": {"-o", shared, job}, "--max-mb: 0 is not valid": {"--max-mb", "0", job}} {
		if o := turngate(t, binary, append([]string{"job", "share"}, args...)...); o.code != 2 || !strings.Contains(o.errOut, want) {
			t.Errorf("%+v", o)
		}
	}
	missing := filepath.Join(dir, "none.html")
	if o := turngate(t, binary, "job", "share", "-o", missing, dir); o.code != 1 || !strings.Contains(o.errOut, "not the folder of a job") {
		t.Errorf("%+v", o)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("a file of no job was left")
	}
}
