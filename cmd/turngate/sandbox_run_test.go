package main_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

func TestAPersonDoesATask(t *testing.T) {
	hello := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	for name, tt := range map[string]struct {
		typed          string
		argv           []string
		code           int
		stdout, stderr string
	}{
		"a shell":                 {"echo 'Hello, world!' > hello.txt; cat \"$TURNGATE_INSTRUCTION\"; false", nil, 0, "Write the line", "reward: 1\n"},
		"a task that is not done": {"exit 5", nil, 0, "", "reward: 0\n"},
		"a command":               {"typed", []string{"--", "sh", "-c", "read -r line; echo \"<$line>\"; exit 7"}, 7, "<typed>", "reward: 0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), testenv.Binary(t), append([]string{"sandbox", "run", hello, "--sandbox", "local"}, tt.argv...)...)
			var out, errs strings.Builder
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(tt.typed+"\n"), &out, &errs
			_ = cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(out.String(), tt.stdout) || !strings.Contains(errs.String(), tt.stderr) {
				t.Errorf("exit status %d, stdout %q, stderr %q", code, out.String(), errs.String())
			}
		})
	}
}

// The command has a terminal of the size of the person's terminal, which has its old settings
// again at the end. Keys that were typed before are not the command's, and Ctrl-D then does not
// end its input.
func TestAPersonAtATerminal(t *testing.T) {
	script, err := exec.LookPath("script") // makes a terminal
	testenv.Need(t, "script", err)
	hello := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	inner := `stty size >size; echo begun; read -r line; echo "Hello, $line!" >hello.txt; cat size`
	line := "stty rows 33 cols 99; before=$(stty -g); " + testenv.Binary(t) + " sandbox run " + hello + " --sandbox local -- sh -c '" + strings.ReplaceAll(inner, "'", `'\''`) + `'; test "$(stty -g)" = "$before" && echo restored`
	cmd := exec.CommandContext(t.Context(), script, "-qec", line, "/dev/null")
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out harness.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	typed := func(text string) {
		_, err := keys.Write([]byte(text))
		harness.Must(t, err)
	}
	typed("nobody\r\x04")
	harness.Eventually(t, "the command", 5*time.Minute, func() bool { return strings.Contains(out.String(), "begun") })
	typed("world\r")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"33 99", "reward: 1", "restored"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}
