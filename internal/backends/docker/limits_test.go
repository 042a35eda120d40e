package docker_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// TestNeedsAreFittedAndStrictLimitsRefused requests more than any engine has.
func TestNeedsAreFittedAndStrictLimitsRefused(t *testing.T) {
	b, image, _ := backend(t)
	s := spec(image)
	var noted []string
	s.Note = func(limit, text string) {
		if !strings.HasPrefix(text, "sandbox."+limit+": ") {
			t.Errorf("a note of %s says %q", limit, text)
		}
		noted = append(noted, limit)
	}
	s.CPUs, s.MemoryBytes = 1000, 1<<20
	sb, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(noted, []string{schema.LimitCPUs, schema.LimitMemory}) {
		t.Errorf("noted %v", noted)
	}
	for _, limit := range noted {
		s.Strict = []string{limit}
		var no *sandboxes.UnsupportedError
		if _, err := b.Create(t.Context(), s); !errors.As(err, &no) || no.Field != "sandbox."+limit {
			t.Errorf("strict %s: got %v", limit, err)
		}
	}
}

// TestTheDiskIsWatched checks that a command that writes too much is killed, in
// one file or in many, and that a later command runs.
func TestTheDiskIsWatched(t *testing.T) {
	testenv.Slow(t)
	b, image, _ := backend(t)
	for name, script := range map[string]string{
		"one file":   "head -c 100M /dev/zero > /large; sleep 300",
		"many files": "mkdir /many; cd /many; seq 60000 | xargs touch; sleep 300",
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(image)
			s.DiskBytes = 40 << 20
			watched := false
			s.Note = func(limit, _ string) { watched = watched || limit == schema.LimitDisk }
			sb, err := b.Create(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Close(t.Context())
			if !watched {
				t.Skip("SKIPPED: this engine limits a container's disk itself")
			}
			run := func(script string) schema.Exit {
				t.Helper()
				p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/sh", "-c", script}, Timeout: 2 * time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				exit, err := p.Wait()
				if err != nil {
					t.Fatal(err)
				}
				return exit
			}
			if exit := run("head -c 10M /dev/zero > /small; sleep 2"); !exit.OK() {
				t.Fatalf("within the limit: %+v", exit)
			}
			if exit := run(script); !exit.Disk || exit.OK() || exit.TimedOut {
				t.Fatalf("beyond the limit: %+v", exit)
			}
			if exit := run("sleep 2"); !exit.OK() {
				t.Fatalf("a later command: %+v", exit)
			}
		})
	}
}
