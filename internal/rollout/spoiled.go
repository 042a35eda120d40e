package rollout

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// touchedFiles are the files of a sandbox that an agent may have spoiled.
type touchedFiles struct {
	sandboxes.Files
	touched *atomic.Bool
}

// try runs an operation.
func (f touchedFiles) try(ctx context.Context, operation func() error) error {
	start := time.Now()
	err := operation()
	return ends.Spoils(ctx, f.touched, time.Since(start), err)
}

func (f touchedFiles) Read(ctx context.Context, path string, limit int64) (data []byte, err error) {
	err = f.try(ctx, func() (err error) { data, err = f.Files.Read(ctx, path, limit); return err })
	return data, err
}

func (f touchedFiles) Write(ctx context.Context, path string, data []byte, mode fs.FileMode, owner string) error {
	return f.try(ctx, func() error { return f.Files.Write(ctx, path, data, mode, owner) })
}

func (f touchedFiles) Stat(ctx context.Context, path string) (info sandboxes.FileInfo, err error) {
	err = f.try(ctx, func() (err error) { info, err = f.Files.Stat(ctx, path); return err })
	return info, err
}

func (f touchedFiles) List(ctx context.Context, dir string) (list []sandboxes.FileInfo, err error) {
	err = f.try(ctx, func() (err error) { list, err = f.Files.List(ctx, dir); return err })
	return list, err
}

func (f touchedFiles) Mkdir(ctx context.Context, dir string, mode fs.FileMode, owner string) error {
	return f.try(ctx, func() error { return f.Files.Mkdir(ctx, dir, mode, owner) })
}

func (f touchedFiles) Empty(ctx context.Context, dir string, mode fs.FileMode, owner string) error {
	return f.try(ctx, func() error { return f.Files.Empty(ctx, dir, mode, owner) })
}

func (f touchedFiles) Remove(ctx context.Context, path string) error {
	return f.try(ctx, func() error { return f.Files.Remove(ctx, path) })
}

func (f touchedFiles) TarIn(ctx context.Context, dir string, r io.Reader, owner string) error {
	return f.try(ctx, func() error { return f.Files.TarIn(ctx, dir, r, owner) })
}

func (f touchedFiles) TarOut(ctx context.Context, path string, w io.Writer, o sandboxes.TarOptions) error {
	return f.try(ctx, func() error { return f.Files.TarOut(ctx, path, w, o) })
}

// survey makes the verifiers' folder, and looks for their programs, before the
// first agent runs. A program that survey found and that is missing later is not
// the task's fault.
func (r *Rollout) survey(ctx context.Context) error {
	if r.surveyed {
		return nil
	}
	r.surveyed, r.absent, r.absentUsers = true, map[string]bool{}, map[string]bool{}
	files := r.sandbox.Files()
	for _, s := range r.steps {
		var none *sandboxes.NoUserError
		if errors.As(lacksUser(ctx, files, s.User), &none) { // an earlier step may make the user
			r.absentUsers[s.User] = true
		}
		if err := r.measure(ctx, s); err != nil {
			return err
		}
		if s.Verify == nil || s.separate() {
			continue
		}
		if err := checkUser(ctx, files, s.phase("verify"), namedUser{s.field("verify.user"), s.Verify.User}, false); err != nil {
			return err
		}
		err := files.Mkdir(ctx, tasks.VerifierDir, 0o777, s.Verify.User)
		if errors.Is(err, sandboxes.ErrLost) || ctx.Err() != nil {
			return err
		}
		if err != nil {
			return ends.Fail(schema.Faultf(s.phase("verify"), schema.CodeMissing, schema.WhoTask, "the verifier's folder: %v", err))
		}
		content, _ := r.bundle.Read(s.script)
		program := interpreter(content)[0]
		if s.Verify.Run != "" {
			program = shell("")[0]
		}
		if _, err := files.Stat(ctx, program); errors.Is(err, fs.ErrNotExist) {
			r.absent[program] = true
		}
	}
	return nil
}

// start starts a command of the task. In the agent's sandbox it runs in "/" if
// the agent has put something else in place of the working directory.
func (r *Rollout) start(ctx context.Context, sb sandboxes.Sandbox, phase string, c sandboxes.Cmd) (sandboxes.Process, error) {
	proc, err := sb.Start(ctx, c)
	var none *sandboxes.NoCommandError
	if !errors.As(err, &none) {
		return proc, err
	}
	if r.touched.Load() && sb == r.sandbox {
		if info, serr := sb.Files().Stat(ctx, sb.Workdir()); c.Dir == "" && (serr != nil || !info.Mode.IsDir()) {
			r.Record.Note("the agent left no working directory %s: the commands after it ran in /", sb.Workdir())
			c.Dir = "/"
			return r.start(ctx, sb, phase, c)
		}
		if !r.absent[c.Args[0]] {
			return nil, &ends.Spoiled{Err: none}
		}
	}
	return nil, ends.Fail(schema.Faultf(phase, schema.CodeMissing, schema.WhoTask, "%v", none))
}
