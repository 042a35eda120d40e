package programs_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/programs"
)

func ps(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code := programs.PS("/proc", args, &out, &errOut)
	return out.String() + errOut.String(), code
}

// sleeper starts a child of this process that lives until the end of the test.
func sleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// TestPSAnswersAsAgentsAsk uses the command lines of the agents' own code, and
// compares the output with procps if that is installed.
func TestPSAnswersAsAgentsAsk(t *testing.T) {
	child, me := sleeper(t), os.Getpid()
	for _, c := range []struct {
		args string
		want string // a regular expression
	}{
		{fmt.Sprintf("-o pid --no-headers --ppid %d", me), fmt.Sprintf(`(?m)^\s*%d$`, child)},
		{fmt.Sprintf("-o ppid=,command= -p %d", child), fmt.Sprintf(`^\s*%d sleep 3600\n$`, me)},
		{fmt.Sprintf("-o comm= -p %d", child), `^sleep\n$`},
		{fmt.Sprintf("-p %d -o command=", child), `^sleep 3600\n$`},
		{fmt.Sprintf("-ww -o args= -p %d", child), `^sleep 3600\n$`},
		{fmt.Sprintf("-o stat= -p %d", child), `^[SR]\w*\n$`},
		{"-A -o pid=,ppid=", fmt.Sprintf(`(?m)^\s*%d\s+%d$`, child, me)},
		{"-axo pid=,ppid=,rss=", fmt.Sprintf(`(?m)^\s*%d\s+%d\s+\d+$`, child, me)},
		{"-A -o pid= -o ppid= -o pgid= -o stat= -o lstart=", fmt.Sprintf(`(?m)^\s*%d\s+%d\s+\d+ \S+\s+\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}$`, child, me)},
		{"auxww", fmt.Sprintf(`(?m)^USER +PID.*COMMAND\n[\s\S]*^\S+ +%d .*sleep 3600$`, child)},
		{"aux", `(?m)^USER +PID`},
		{"-ef", fmt.Sprintf(`(?m)^UID +PID +PPID.*CMD\n[\s\S]*^\S+ +%d +%d .*sleep 3600$`, child, me)},
	} {
		got, code := ps(t, strings.Fields(c.args)...)
		if !regexp.MustCompile(c.want).MatchString(got) || code != 0 {
			t.Errorf("ps %s: exit %d, got %q, want %s", c.args, code, got, c.want)
		}
		if real, err := exec.LookPath("ps"); err == nil {
			out, err := exec.Command(real, strings.Fields(c.args)...).Output()
			if err != nil || !regexp.MustCompile(c.want).Match(out) {
				t.Errorf("procps disagrees on ps %s: %v %q, want %s", c.args, err, out, c.want)
			}
		}
	}
}

func TestPSRefuses(t *testing.T) {
	for args, want := range map[string]string{"-o nonsense": `"nonsense"`, "--frobnicate": "--frobnicate", "-p x": `"x"`, "-Z": `"Z"`, "-p": "process ids"} {
		if got, code := ps(t, strings.Fields(args)...); code != 1 || !strings.Contains(got, want) {
			t.Errorf("ps %s: exit %d, %q", args, code, got)
		}
	}
	if got, code := ps(t, "-o", "pid=", "-p", "4194304"); code != 1 || got != "" {
		t.Errorf("a process that is not there: exit %d, %q", code, got)
	}
}

func TestLookNamesTheMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir()+":/usr/bin:/bin")
	r := programs.Look([]string{"sh", "no-such-program"})
	if !slices.Equal(r.Missing, []string{"no-such-program"}) || !strings.HasSuffix(r.Path, ":/usr/bin:/bin") {
		t.Errorf("got %+v", r)
	}
}

// TestAStubPassesItsArgumentsOn runs a stub with a helper that prints them.
func TestAStubPassesItsArgumentsOn(t *testing.T) {
	dir := t.TempDir()
	helper := filepath.Join(dir, "helper")
	if err := os.WriteFile(helper, []byte("#!/bin/sh\nprintf '<%s>' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ps")
	if err := os.WriteFile(path, programs.Stub(helper, "ps"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "-o", "pid=,ppid=", "$(id) '").Output()
	if err != nil || string(out) != "<ps><-o><pid=,ppid=><$(id) '>" {
		t.Errorf("got %q, %v", out, err)
	}
}
