package sandboxtest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

func (s *suite) snapshot(t *testing.T) {
	ctx := t.Context()
	first := s.open(t)
	harness.Must(t, first.Files().Write(ctx, "/workspace/deep/er/a", strings.NewReader("one"), 0o640, ""))
	harness.Must(t, first.Files().Mkdir(ctx, "/workspace/empty", 0o711, ""))
	harness.Must(t, first.CanSnapshot())
	made, err := first.Snapshot(ctx, 0)
	harness.Must(t, err)
	t.Cleanup(func() {
		if err := made.Remove(context.WithoutCancel(ctx)); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
	harness.Must(t, first.Files().Write(ctx, "/workspace/deep/er/a", strings.NewReader("changed since"), 0o640, ""))
	harness.Must(t, first.Close(ctx))

	from := func() sandboxes.Sandbox {
		spec := s.spec()
		spec.Snapshot = made
		return s.openSpec(t, spec)
	}
	second, third := from(), from()
	for _, sb := range []sandboxes.Sandbox{second, third} {
		if got, err := sandboxes.ReadFile(ctx, sb.Files(), "/workspace/deep/er/a", 100); err != nil || string(got) != "one" {
			t.Fatalf("the file has %q, %v", got, err)
		}
		file, err := sb.Files().Stat(ctx, "/workspace/deep/er/a")
		harness.Must(t, err)
		folder, err := sb.Files().Stat(ctx, "/workspace/empty")
		harness.Must(t, err)
		if file.Mode.Perm() != 0o640 || !folder.Mode.IsDir() || folder.Mode.Perm() != 0o711 {
			t.Errorf("modes %v and %v", file.Mode, folder.Mode)
		}
		harness.Must(t, sb.Files().Write(ctx, "/workspace/deep/er/a", strings.NewReader("its own"), 0o644, "")) // the other one still reads "one"
		if out := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "works", "", "0")}).out; out != "works" {
			t.Errorf("a command printed %q", out)
		}
	}
	// A sweep of this process's own owner spares the snapshot.
	if _, err := s.backend.Sweep(ctx, s.spec().Owner, func(schema.ID) bool { return true }); err != nil {
		t.Fatal(err)
	}
	harness.Must(t, from().Close(ctx))
	harness.Must(t, second.Close(ctx))
	harness.Must(t, third.Close(ctx))
	harness.Must(t, made.Remove(ctx))
	harness.Must(t, made.Remove(ctx))
	spec := s.spec()
	spec.Snapshot = made
	if sb, err := s.backend.Create(ctx, spec); !errors.Is(err, sandboxes.ErrNoSnapshot) {
		t.Errorf("with a removed snapshot: %v", err)
		if err == nil {
			harness.Must(t, sb.Close(ctx))
		}
	}
}

func (s *suite) noSnapshot(t *testing.T) {
	sb := s.open(t)
	made, err := sb.Snapshot(t.Context(), 0)
	for _, err := range []error{err, sb.CanSnapshot()} {
		var no *sandboxes.UnsupportedError
		if !errors.As(err, &no) || no.Field != "snapshot" || made != nil {
			t.Errorf("got %v, %v", made, err)
		}
	}
}
