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

// TestServePage runs the commands of docs/serve.md in their order: a group with curl.
func TestServePage(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, program := range []string{"curl", "jq", "openssl"} {
		_, err := exec.LookPath(program)
		testenv.Need(t, program, err)
	}
	root, binary := testenv.Root(t), testenv.Binary(t)
	dir := clone(t, root, binary)
	page, err := os.ReadFile(filepath.Join(root, "docs", "serve.md"))
	harness.Must(t, err)
	block := regexp.MustCompile("(?ms)^```bash\n(.*?)^```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no commands")
	}
	port, at := strconv.Itoa(testenv.FreePort(t)), strconv.Itoa(testenv.FreePort(t))
	text := strings.NewReplacer(":4222", ":"+port, ":8420", ":"+at).Replace(string(block[1]))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var last []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "make build"): // it is built
		case strings.Contains(line, "turngate up"):
			words[3] = filepath.Join(dir, words[3]) // --state
			up := start(t, append(append([]string{binary}, words[1:]...), "--port", port)...)
			harness.Eventually(t, "a server that is up", 5*time.Minute, func() bool { return strings.Contains(up.err.String(), "are ready") })
		case strings.Contains(line, "turngate serve"):
			for i, w := range words {
				if w == "tokens.yaml" || strings.HasSuffix(w, ".nk") {
					words[i] = filepath.Join(dir, w)
				}
			}
			front := start(t, append([]string{binary}, words[1:]...)...)
			harness.Eventually(t, "a front", 5*time.Minute, func() bool { return strings.Contains(front.err.String(), "serving trainers") })
		default:
			cmd := exec.CommandContext(ctx, "bash", "-c", line)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s%v\n%s", line, err, out)
			}
			last = append(last, string(out))
		}
	}
	row := regexp.MustCompile(`(?m)^\["local-\S+","done",1\]$`)
	for _, out := range last[len(last)-2:] {
		if len(row.FindAllString(out, -1)) != 2 {
			t.Errorf("a command printed\n%s", out)
		}
	}
}
