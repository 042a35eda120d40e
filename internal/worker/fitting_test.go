package worker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/schema"
)

// A file without room among the artifacts is left out, and the other files of its
// folder are kept.
func TestALargeFileDropsItselfAlone(t *testing.T) {
	t.Parallel()
	agent := func(_ context.Context, p *dummy.Proc) int {
		errs := []error{p.Files.MkdirAll("logs/artifacts/sub", 0o755), p.Files.WriteFile("logs/artifacts/small", []byte("x"), 0o644), p.Files.WriteFile("logs/artifacts/sub/b*g?", nil, 0o644)}
		f, err := p.Files.Create("logs/artifacts/sub/b*g")
		if err != nil {
			return 1
		}
		if errors.Join(append(errs, f.Truncate(65<<20), f.Close())...) != nil { // sparse
			return 1
		}
		return 0
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": agent}))
	res := b.result(t, request("alpha-large"))
	if res.Reward == nil || *res.Reward != 1 {
		t.Fatalf("got %+v, fault %v", res, res.Fault)
	}
	if !slices.ContainsFunc(res.Notes, func(n string) bool {
		return strings.Contains(n, "/logs/artifacts was kept without its largest files") && strings.Contains(n, "sub/b*g (68157440 bytes)")
	}) {
		t.Errorf("notes %q", res.Notes)
	}
	i := slices.IndexFunc(res.Artifacts, func(a schema.Artifact) bool { return a.Name == "logs/artifacts.tar" })
	if i < 0 {
		t.Fatalf("artifacts %v", res.Artifacts)
	}
	data, err := b.trainer.Artifact(t.Context(), res.Artifacts[i])
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for archive := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if want := []string{"small", "sub/b*g?"}; !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
}
