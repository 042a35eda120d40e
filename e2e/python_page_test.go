package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// trainersBlock returns the first block of docs/trainers.md in a language.
func trainersBlock(t *testing.T, language string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs", "trainers.md"))
	harness.Must(t, err)
	m := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```").FindSubmatch(page)
	if m == nil {
		t.Fatalf("the page has no %s", language)
	}
	return string(m[1])
}

// TestTrainersPage follows docs/trainers.md from an empty folder to training rows: its commands
// in their order, with its program.
func TestTrainersPage(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	python, err := findPython()
	testenv.Need(t, "python", err)
	root, binary := testenv.Root(t), testenv.Binary(t)
	dir := clone(t, root, binary)
	port := strconv.Itoa(testenv.FreePort(t))
	block := func(language string) string {
		return strings.ReplaceAll(trainersBlock(t, language), ":4222", ":"+port)
	}
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(block("python")), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	last := ""
	for line := range strings.Lines(block("bash")) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "git clone"), strings.HasPrefix(line, "make build"): // both are done
		case strings.Contains(line, "turngate up"):
			words[3] = filepath.Join(dir, words[3]) // --state
			up := start(t, append(append([]string{binary}, words[1:]...), "--port", port)...)
			harness.Eventually(t, "a server that is up", 5*time.Minute, func() bool { return strings.Contains(up.err.String(), "are ready") })
		default:
			cmd := exec.CommandContext(ctx, "bash", "-c", strings.Replace(line, "python3 -m venv", python+" -m venv", 1))
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if strings.Contains(line, "pip install") {
				testenv.Need(t, "python", err)
			}
			if err != nil {
				t.Fatalf("%s%v\n%s", line, err, out)
			}
			last = string(out)
		}
	}
	rows := regexp.MustCompile(`(?m)^local-\S+ reward 1.0 tokens \d{3,} trained \d{2}$`).FindAllString(last, -1)
	if len(rows) != 4 {
		t.Errorf("train.py printed\n%s", last)
	}
}
