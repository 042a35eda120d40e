package dummy_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func programs() map[string]dummy.Program {
	return map[string]dummy.Program{
		"print": func(_ context.Context, p *dummy.Proc) int {
			fmt.Fprint(p.Stdout, p.Args[1])
			fmt.Fprint(p.Stderr, p.Args[2])
			code, _ := strconv.Atoi(p.Args[3])
			return code
		},
		"cat": func(_ context.Context, p *dummy.Proc) int {
			_, _ = io.Copy(p.Stdout, p.Stdin)
			return 0
		},
		"env": func(_ context.Context, p *dummy.Proc) int {
			fmt.Fprint(p.Stdout, p.Env[p.Args[1]])
			return 0
		},
		"forever": func(ctx context.Context, p *dummy.Proc) int {
			fmt.Fprintln(p.Stdout, "up")
			<-ctx.Done()
			return 1
		},
		"flood": func(_ context.Context, p *dummy.Proc) int {
			n, _ := strconv.Atoi(p.Args[1])
			_, _ = io.Copy(p.Stdout, strings.NewReader(strings.Repeat("\x00", n)))
			return 0
		},
		"pwd": func(_ context.Context, p *dummy.Proc) int {
			fmt.Fprintln(p.Stdout, filepath.Clean(p.Dir))
			return 0
		},
	}
}

func TestContract(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Fixture{
		New:      func(*testing.T) sandboxes.Backend { return &dummy.Backend{Programs: programs()} },
		Features: sandboxtest.Features{Snapshots: true},
		Command:  func(program string, args ...string) []string { return append([]string{program}, args...) },
	})
}
