package main_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// showsTop looks at the current context's system, which has one worker and no rollouts
// that wait, without a terminal and on one.
func showsTop(t *testing.T, p person) {
	t.Helper()
	harness.Eventually(t, "a worker that announces no rollout", 2*time.Minute, func() bool {
		return strings.Contains(p.turngate(t, "top", "--once").out, "workers   1 (0 draining), 0 of ")
	})
	for want, args := range map[int][]string{1: {"--once"}, 0: {}, 2: {"-n", "2", "--interval", "100ms", "--sort", "age"}} {
		got := p.turngate(t, append([]string{"top"}, args...)...)
		if got.code != 0 || !strings.Contains(got.out, "workers   1 (0 draining), 0 of ") || !strings.Contains(got.out, "\nWORKER") || strings.Contains(got.out, "\x1b") {
			t.Errorf("%v: %+v", args, got)
		}
		if n := strings.Count(got.out, "turngate top"); n != max(1, want) {
			t.Errorf("%v: %d screens", args, n)
		}
	}
	var screen struct {
		Workers []struct {
			Worker string
			Slots  int
		}
		Lanes  []struct{ Lane string }
		Phases map[string]int
		Calls  map[string]any
	}
	harness.Must(t, json.Unmarshal([]byte(p.turngate(t, "top", "-o", "json").out), &screen))
	if len(screen.Workers) != 1 || screen.Workers[0].Slots == 0 || len(screen.Lanes) == 0 || screen.Phases == nil || screen.Calls["ended"] == nil {
		t.Errorf("%+v", screen)
	}
	if got := p.turngate(t, "top", "--interval", "1ms", "--sort", "size"); got.code != 2 || !strings.Contains(got.errOut, "--sort: \"size\" is not valid: want name, busy, free or age") || !strings.Contains(got.errOut, "--interval: 1ms") {
		t.Errorf("%+v", got)
	}
	for key, code := range map[string]string{"q": "ended 0 restored", "\x03": "ended 130 restored"} {
		onTerminal(t, p, key, code)
	}
}

// onTerminal changes the order, waits for the next screens and ends it with a key.
func onTerminal(t *testing.T, p person, key, end string) {
	t.Helper()
	script, err := exec.LookPath("script") // makes a terminal
	testenv.Need(t, "script", err)
	line := "stty rows 12 cols 60; before=$(stty -g); " + p.binary + ` top --interval 100ms; code=$?; test "$(stty -g)" = "$before" && echo "ended $code restored"`
	cmd := p.command(t)
	cmd.Path, cmd.Args = script, []string{script, "-qec", line, "/dev/null"}
	keys, err := cmd.StdinPipe()
	harness.Must(t, err)
	var out harness.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	harness.Must(t, cmd.Start())
	sees := func(text string) {
		t.Helper()
		harness.Eventually(t, text, 5*time.Minute, func() bool { return strings.Contains(out.String(), text) })
	}
	sees("sorted by name")
	_, err = keys.Write([]byte("s"))
	harness.Must(t, err)
	sees("sorted by busy")
	_, err = keys.Write([]byte(key))
	harness.Must(t, err)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	all := out.String()
	if !strings.Contains(all, end) || !strings.Contains(all, "\x1b[?1049h") || !strings.Contains(all, "\x1b[?25h\x1b[?1049l") {
		t.Errorf("no %q in %q", end, all)
	}
	for _, drawn := range strings.Split(all, "\x1b[H")[1:] {
		drawn, _, _ = strings.Cut(drawn, "\x1b[J")
		lines := strings.Split(drawn, "\x1b[K\r\n")
		if len(lines) > 12 || slices.ContainsFunc(lines, func(l string) bool { return len([]rune(l)) > 60 }) {
			t.Errorf("%d lines: %q", len(lines), lines)
		}
	}
}
