package trainer_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestATrainerGoesOnAfterARestore saves a server with rollouts that wait, run and have
// ended, and restores it into a new one. Each rollout has one result.
func TestATrainerGoesOnAfterARestore(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "state")
	first := b.start(t, func(c *trainer.Config) { c.State = file })
	var all []schema.Request
	for i := range 6 {
		all = append(all, harness.Request(schema.ID(fmt.Sprintf("alpha-%d", i))))
	}
	harness.Must(t, first.Submit(ctx, all))
	read := b.run(t)
	if r, err := first.NextResult(ctx); err != nil || r.ID != read {
		t.Fatalf("%v, %v", r.ID, err)
	}
	ended := b.run(t)
	running, err := b.worker.Take(ctx)
	harness.Must(t, err)
	kept, err := first.PutBundle(ctx, []byte("the files of a task"))
	harness.Must(t, err)

	dir := filepath.Join(t.TempDir(), "backup")
	saved := 0
	_, err = broker.SaveBackup(ctx, b.nats.Admin(t), dir, "test", func(*broker.SavedStream) { saved++ })
	harness.Must(t, err)
	first.Close()
	b.leave()
	b.nats.Shutdown()
	if _, err := broker.SaveBackup(ctx, nil, dir, "test", nil); err == nil || !strings.Contains(err.Error(), "is not empty") || strings.Contains(err.Error(), "not complete") {
		t.Errorf("a second backup in the same folder: %v", err)
	}
	info, err := os.Stat(filepath.Join(dir, "backup.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}

	state := t.TempDir()
	harness.Must(t, os.CopyFS(filepath.Join(state, "creds"), os.DirFS(b.nats.Dir())))
	harness.Must(t, filepath.WalkDir(filepath.Join(state, "creds"), func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Chmod(path, 0o700))
	}))
	srv := testenv.Serve(t, broker.EmbeddedConfig{StateDir: state, Relaxed: true, Log: zerolog.Nop()})
	dial := func(creds, role, name string) *broker.Broker {
		return testenv.DialAt(t, srv.URL(), creds, broker.InboxFor(role, name), zerolog.Nop())
	}
	admin := dial(srv.AdminCreds(), broker.RoleAdmin, broker.RoleAdmin)
	from, err := broker.OpenBackup(t.Context(), dir)
	harness.Must(t, err)
	restored := 0
	harness.Must(t, broker.RestoreBackup(ctx, admin, dir, from, func(*broker.SavedStream) { restored++ }))
	if restored != saved || saved < 7 { // three for all trainers, four of the trainer
		t.Errorf("%d streams were saved, %d restored", saved, restored)
	}
	if err := broker.RestoreBackup(ctx, admin, dir, from, nil); !errors.Is(err, broker.ErrNotEmpty) {
		t.Errorf("a second restore: %v", err)
	}

	wb := dial(testenv.AdmitWorker(t, srv, "w2"), broker.RoleWorker, "w2")
	harness.Must(t, wb.Streams.Setup(ctx, broker.StreamsConfig{}))
	side, err := queue.NewWorker(wb, queue.WorkerConfig{Worker: "w2", Instance: "i2", Timing: testenv.Quick()})
	harness.Must(t, err)
	defer side.Close()
	defer testenv.RunWorker(t, side)()
	second, err := trainer.Dial(ctx, trainer.Config{Broker: dial(srv.TrainerCreds("alpha"), broker.RoleTrainer, "alpha"), Name: "alpha", AnswerAll: true, State: file, Log: zerolog.Nop()})
	harness.Must(t, err)
	defer second.Close()
	if n := second.Outstanding(); n != 5 {
		t.Errorf("%d rollouts are outstanding", n)
	}
	if data, err := wb.Objects.Bundle(ctx, "alpha", kept); err != nil || string(data) != "the files of a task" {
		t.Errorf("%q, %v", data, err)
	}
	attempts := map[schema.ID]int{}
	for range 4 { // three that waited and the one that ran
		j, err := side.Take(ctx)
		harness.Must(t, err)
		attempts[j.Request.ID] = j.Attempt
		harness.Must(t, j.Done(ctx, schema.Result{ID: j.Request.ID, Attempt: j.Attempt, Status: schema.StatusDone}))
	}
	if len(attempts) != 4 || attempts[running.Request.ID] != running.Attempt+1 || attempts[read]+attempts[ended] != 0 {
		t.Errorf("ran %v; %s ran before, %s and %s had ended", attempts, running.Request.ID, read, ended)
	}
	results := map[schema.ID]int{}
	for range 5 {
		r, err := second.NextResult(ctx)
		harness.Must(t, err)
		results[r.ID]++
	}
	if len(results) != 5 || results[ended] != 1 || results[read] != 0 || second.Outstanding() != 0 {
		t.Errorf("%v, %d outstanding", results, second.Outstanding())
	}
}

// TestFilesOfABackupAreFilesOfThisUser: a FIFO, a link, a folder or a file that is too large
// in the place of one is refused at once, and so are a folder and a file of another user.
func TestFilesOfABackupAreFilesOfThisUser(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("abc"))
	text := fmt.Sprintf(`{"v":1,"streams":[{"name":"EVENTS","file":"x","bytes":3,"sha256":"%x"}]}`, sum)
	foreign := func(name string) error { return os.Chown(name, 1234, 1234) }
	for _, tt := range []struct {
		file, want string
		spoil      func(name string) error
	}{
		{"x", "", func(string) error { return nil }},
		{"x", "x is a FIFO", func(name string) error { return errors.Join(os.Remove(name), unix.Mkfifo(name, 0o600)) }},
		{"backup.json", "backup.json is a FIFO", func(name string) error { return errors.Join(os.Remove(name), unix.Mkfifo(name, 0o600)) }},
		{"x", "x is a link", func(name string) error { return errors.Join(os.Rename(name, name+"2"), os.Symlink("x2", name)) }},
		{"x", "x is a folder", func(name string) error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) }},
		{"x", "want at most 3", func(name string) error { return os.Truncate(name, 1<<40) }},
		{"x", "belongs to the user 1234", foreign}, {"backup.json", "belongs to the user 1234", foreign}, {".", "belongs to the user 1234", foreign},
	} {
		if strings.Contains(tt.want, "1234") && os.Geteuid() != 0 {
			continue // only root makes files of another user
		}
		dir := t.TempDir()
		harness.Must(t, os.WriteFile(filepath.Join(dir, "x"), []byte("abc"), 0o600))
		harness.Must(t, os.WriteFile(filepath.Join(dir, "backup.json"), []byte(text), 0o600))
		harness.Must(t, tt.spoil(filepath.Join(dir, tt.file)))
		_, err := broker.OpenBackup(t.Context(), dir)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %q: %v", tt.file, tt.want, err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := broker.OpenBackup(ended, dir); err == nil {
			t.Errorf("%s: it was read after the command was interrupted", tt.file)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	dir := t.TempDir()
	harness.Must(t, foreign(dir))
	if _, err := broker.SaveBackup(t.Context(), nil, dir, "test", nil); err == nil || !strings.Contains(err.Error(), "belongs to the user 1234") {
		t.Errorf("a backup into the folder of another user: %v", err)
	}
}

// TestABadBackupIsRefused before anything is sent to a server.
func TestABadBackupIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := broker.OpenBackup(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "no backup") {
		t.Error(err)
	}
	for want, text := range map[string]string{
		"is damaged":        `{"v":1,"streams":[{"name":"EVENTS","file":"x","bytes":3,"sha256":"00"}]}`,
		"want the name":     `{"v":1,"streams":[{"name":"EVENTS","file":"../x","bytes":1,"sha256":"00"}]}`,
		"a stream \"A.B\"":  `{"v":1,"streams":[{"name":"A.B","file":"x","bytes":1,"sha256":"00"}]}`,
		"no such file":      `{"v":1,"streams":[{"name":"EVENTS","file":"y","bytes":1,"sha256":"00"}]}`,
		"version 9":         `{"v":9}`,
		"invalid character": `x`,
		"backup.json: streams.bytes: a string is not valid: want a whole number": `{"v":1,"streams":[{"bytes":"3"}]}`,
	} {
		dir := t.TempDir()
		harness.Must(t, os.WriteFile(filepath.Join(dir, "x"), []byte("abc"), 0o600))
		harness.Must(t, os.WriteFile(filepath.Join(dir, "backup.json"), []byte(text), 0o600))
		if _, err := broker.OpenBackup(t.Context(), dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
