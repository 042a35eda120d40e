package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
	"go.yaml.in/yaml/v4"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
)

type ruleFile struct {
	Groups []struct {
		Rules []struct{ Alert, Expr string }
	}
}

// alerts reads the alerts by name.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testenv.Root(t), "deploy", "prometheus", "rules.yml"))
	harness.Must(t, err)
	var f ruleFile
	harness.Must(t, yaml.Unmarshal(data, &f))
	out := map[string]string{}
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			if out[r.Alert] != "" || r.Alert == "" || r.Expr == "" {
				t.Errorf("the alert %q exists twice or is not complete", r.Alert)
			}
			out[r.Alert] = r.Expr
		}
	}
	if len(out) < 10 {
		t.Fatalf("%d alerts were found", len(out))
	}
	return out
}

// panels reads the queries of the dashboard by the titles of their panels.
func panels(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testenv.Root(t), "deploy", "prometheus", "dashboard.json"))
	harness.Must(t, err)
	var d struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr, LegendFormat string }
		}
	}
	harness.Must(t, json.Unmarshal(data, &d))
	out := map[string]string{}
	for _, p := range d.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("the panel %q asks for nothing", p.Title)
		}
		for i, x := range p.Targets {
			out[fmt.Sprintf("%s, %d", p.Title, i+1)] = strings.ReplaceAll(x.Expr, "$__rate_interval", "5m")
		}
	}
	if len(out) < 20 {
		t.Fatalf("%d queries were found", len(out))
	}
	return out
}

// series has the labels of every series of a process, by name, and the series up, which
// Prometheus has for each.
func series() map[string][]string {
	m := telemetry.New("test")
	m.Rollouts()
	m.Queue()
	m.HTTP()
	m.Answers()
	m.Lines(1)
	m.WatchWorker(func() telemetry.Worker { return telemetry.Worker{} })
	m.WatchBacklog(func(context.Context) (telemetry.Backlog, error) { return telemetry.Backlog{}, nil })
	m.WatchStore(func() (free, size int64) { return 0, 0 })
	all := map[string][]string{"process_resident_memory_bytes": nil, "up": nil}
	for _, x := range m.List() {
		if x.Type == "histogram" {
			all[x.Name+"_bucket"] = append([]string{"le"}, x.Labels...)
			all[x.Name+"_sum"], all[x.Name+"_count"] = x.Labels, x.Labels
		} else {
			all[x.Name] = x.Labels
		}
	}
	return all
}

// unknown lists the metrics and the labels of a query that no process has. Prometheus
// adds instance and job.
func unknown(query string, all map[string][]string) (names, wrong []string, err error) {
	e, err := metricsql.Parse(query)
	if err != nil {
		return nil, nil, err
	}
	labels, used := []string{"instance", "job"}, []string{}
	metricsql.VisitAll(e, func(e metricsql.Expr) {
		switch e := e.(type) {
		case *metricsql.MetricExpr:
			for _, filters := range e.LabelFilterss {
				for _, f := range filters {
					if f.Label != "__name__" {
						used = append(used, f.Label)
						continue
					}
					names = append(names, f.Value)
					of, ok := all[f.Value]
					if !ok {
						wrong = append(wrong, f.Value)
					}
					labels = append(labels, of...)
				}
			}
		case *metricsql.AggrFuncExpr:
			used = append(used, e.Modifier.Args...)
		case *metricsql.BinaryOpExpr:
			used = append(append(used, e.GroupModifier.Args...), e.JoinModifier.Args...)
		}
	})
	for _, l := range used {
		if !slices.Contains(labels, l) {
			wrong = append(wrong, "label "+l)
		}
	}
	return names, wrong, nil
}

// TestPrometheusAsksForMetricsThatExist checks every query of the alerts and of the
// dashboard, and that the dashboard shows every metric.
func TestPrometheusAsksForMetricsThatExist(t *testing.T) {
	all, shown := series(), map[string]bool{}
	for name, query := range alerts(t) {
		if _, wrong, err := unknown(query, all); err != nil || len(wrong) > 0 {
			t.Errorf("alert %s: %v does not exist (%v)", name, wrong, err)
		}
	}
	for name, query := range panels(t) {
		names, wrong, err := unknown(query, all)
		if err != nil || len(wrong) > 0 {
			t.Errorf("panel %s: %v does not exist (%v)", name, wrong, err)
		}
		for _, n := range names {
			shown[strings.TrimSuffix(n, "_bucket")] = true
		}
	}
	for _, name := range inPage(t, "turngate_[a-z_]+") {
		if _, ok := all[name]; !ok && len(all[name+"_bucket"]) == 0 {
			t.Errorf("no process here has %s", name)
		}
	}
	for name := range all {
		base := name
		for _, end := range []string{"_bucket", "_sum", "_count"} {
			base = strings.TrimSuffix(base, end)
		}
		if !shown[base] && name != "turngate_queue_up" && name != "up" { // they have an alert
			t.Errorf("no panel shows %s", name)
		}
	}
	for query, want := range map[string]string{
		"rate(turngate_gone_total[5m])": "turngate_gone_total", `turngate_sandboxes{rollout="x"}`: "label rollout", "sum by (rollout) (turngate_sandboxes)": "label rollout",
		"turngate_queue_up / on (lane) turngate_queue_up": "label lane", "turngate_phase_seconds": "turngate_phase_seconds",
	} {
		if _, wrong, err := unknown(query, all); err != nil || !slices.Contains(wrong, want) {
			t.Errorf("%s: the check finds %v (%v)", query, wrong, err)
		}
	}
}

// inPage returns the names at the beginning of rows of the tables of docs/metrics.md.
func inPage(t *testing.T, pattern string) (names []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs", "metrics.md"))
	harness.Must(t, err)
	for _, m := range regexp.MustCompile("(?m)^\\| `("+pattern+")` \\|").FindAllStringSubmatch(string(page), -1) {
		names = append(names, m[1])
	}
	if len(names) < 10 {
		t.Fatalf("docs/metrics.md has %d names like %s", len(names), pattern)
	}
	return names
}

// TestPrometheusAlertsHaveARemedy compares the alerts with the table of docs/metrics.md.
func TestPrometheusAlertsHaveARemedy(t *testing.T) {
	listed, all := inPage(t, "Turngate[A-Za-z]+"), alerts(t)
	for name := range all {
		if !slices.Contains(listed, name) {
			t.Errorf("docs/metrics.md has no remedy for %s", name)
		}
	}
	for _, name := range listed {
		if all[name] == "" {
			t.Errorf("docs/metrics.md has the alert %s, which does not exist", name)
		}
	}
}

// TestPrometheusReadsTheFiles lets promtool check the alerts, the example of a
// configuration and the queries of the dashboard, and run the tests of the alerts. Each
// alert has a test in which it fires.
func TestPrometheusReadsTheFiles(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	testenv.Need(t, "promtool", err)
	dir := filepath.Join(testenv.Root(t), "deploy", "prometheus")
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command(promtool, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run("check", "rules", "rules.yml")
	run("check", "config", "prometheus.yml")
	run("test", "rules", "rules_test.yml")
	var queries []map[string]string
	for _, query := range panels(t) {
		queries = append(queries, map[string]string{"record": fmt.Sprint("panel:", len(queries)), "expr": query})
	}
	data, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": queries}}}) // JSON is YAML
	harness.Must(t, err)
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	harness.Must(t, os.WriteFile(file, data, 0o600))
	run("check", "rules", file)
	tests, err := os.ReadFile(filepath.Join(dir, "rules_test.yml"))
	harness.Must(t, err)
	for name := range alerts(t) {
		if !regexp.MustCompile("alertname: " + name + "\n +exp_alerts:").Match(tests) {
			t.Errorf("no test lets %s fire", name)
		}
	}
}
