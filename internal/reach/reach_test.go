package reach

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a box with streams that return each byte.
type echo struct{ lost chan struct{} }

func (e echo) Lost() <-chan struct{} { return e.lost }

func (e echo) Stream() (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		_, _ = io.Copy(theirs, theirs)
	}()
	return ours, nil
}

func none() map[string]string { return nil }

func open(t *testing.T, root string) *Host {
	t.Helper()
	h, err := Open(root)
	harness.Must(t, err)
	return h
}

func TestSandboxesAreReached(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	h := open(t, root)
	running := h.Add(Sandbox{Task: "one"}, echo{}, none)
	kept := h.Add(Sandbox{Task: "two"}, echo{}, func() map[string]string { return map[string]string{"A": "b"} })
	shut := make(chan struct{})
	about, err := kept.Keep(time.Hour, func() { close(shut) })
	harness.Must(t, err)
	kept.Remove() // the close of a kept sandbox calls it
	all, err := List(t.Context(), root)
	harness.Must(t, err)
	if len(all) != 2 || all[0].Task != "one" || all[1].State != Kept || all[1].Env["A"] != "b" || len(h.Kept()) != 1 {
		t.Errorf("%+v", all)
	}
	r, err := Find(t.Context(), root, about.ID[:6])
	harness.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := r.Box(ctx).Stream()
	harness.Must(t, err)
	_, err = conn.Write([]byte("bytes"))
	harness.Must(t, err)
	back := make([]byte, 5)
	if _, err := io.ReadFull(conn, back); err != nil || string(back) != "bytes" {
		t.Errorf("%q, %v", back, err)
	}
	cancel()
	if _, err := conn.Read(back); err == nil {
		t.Error("the stream outlived its context")
	}
	if err := all[0].Remove(t.Context()); err == nil {
		t.Error("a sandbox of a rollout that runs was removed")
	}
	if _, err := Find(t.Context(), root, ""); err == nil {
		t.Error("no id found a sandbox")
	}
	over := make(chan struct{})
	go func() {
		h.Wait(context.Background())
		h.Close()
		close(over)
	}()
	if err := r.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	<-shut
	<-over
	running.Remove()
	if left, _ := hosts(root); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if err := r.Remove(t.Context()); err == nil {
		t.Error("a sandbox was removed twice")
	}
}

// A sandbox that is kept ends with its time, its box and its host. A host keeps a bounded
// number.
func TestKeptSandboxesEnd(t *testing.T) {
	h := open(t, filepath.Join(t.TempDir(), "root"))
	ended := make(chan string, MaxKept+2)
	keep := func(name string, d time.Duration, lost chan struct{}) error {
		_, err := h.Add(Sandbox{}, echo{lost}, none).Keep(d, func() { ended <- name })
		return err
	}
	harness.Must(t, keep("time", time.Millisecond, nil))
	if got := <-ended; got != "time" {
		t.Error(got)
	}
	lost := make(chan struct{})
	harness.Must(t, keep("box", time.Hour, lost))
	close(lost)
	if got := <-ended; got != "box" {
		t.Error(got)
	}
	if err := keep("box", time.Hour, lost); !errors.Is(err, errGone) {
		t.Errorf("a lost sandbox: %v", err)
	}
	h.Wait(t.Context())
	for range MaxKept {
		harness.Must(t, keep("host", time.Hour, nil))
	}
	if err := keep("host", time.Hour, nil); !errors.Is(err, errMany) {
		t.Errorf("one more than %d: %v", MaxKept, err)
	}
	h.Close()
	if len(ended) != MaxKept {
		t.Errorf("%d sandboxes ended", len(ended))
	}
}

// Sweep removes the files of a killed process, and none of a running one.
func TestLeftFoldersAreSwept(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if err := Sweep(root, nil); err != nil {
		t.Error(err)
	}
	alive, dead := open(t, root), open(t, root)
	harness.Must(t, dead.Note("a note"))
	var cleaned []string
	clean := func(fails error) func(string, json.RawMessage) error {
		return func(dir string, note json.RawMessage) error {
			cleaned = append(cleaned, filepath.Base(dir)+string(note))
			return fails
		}
	}
	harness.Must(t, Sweep(root, clean(nil)))
	if len(cleaned) != 0 {
		t.Errorf("cleaned %v", cleaned)
	}
	harness.Must(t, dead.lock.Close()) // as the end of its process does
	busy := errors.New("busy")
	if err := Sweep(root, clean(busy)); !errors.Is(err, busy) {
		t.Error(err)
	}
	harness.Must(t, Sweep(root, clean(nil)))
	want := filepath.Base(dead.dir) + `"a note"`
	if len(cleaned) != 2 || cleaned[0] != want || cleaned[1] != want {
		t.Errorf("cleaned %v", cleaned)
	}
	if left, _ := hosts(root); len(left) != 1 || left[0] != alive.dir {
		t.Errorf("left: %v", left)
	}
	dead.Close()
	alive.Close()
}

func TestFoldersOfOthersAreRefused(t *testing.T) {
	temp := t.TempDir()
	harness.Must(t, os.Mkdir(filepath.Join(temp, "open"), 0o755))
	harness.Must(t, os.Chmod(filepath.Join(temp, "open"), 0o770))
	harness.Must(t, os.Symlink(t.TempDir(), filepath.Join(temp, "link")))
	harness.Must(t, os.WriteFile(filepath.Join(temp, "file"), nil, 0o600))
	for _, name := range []string{"open", "link", "file"} {
		root := filepath.Join(temp, name)
		if h, err := Open(root); err == nil {
			h.Close()
			t.Errorf("%s was used", name)
		}
		if err := Sweep(root, nil); err == nil {
			t.Errorf("%s was swept", name)
		}
	}
}
