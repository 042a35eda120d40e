package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	"github.com/turngate/turngate/schema"
)

// Handle acts in the sandbox of a rollout that this trainer verifies. Its methods
// run one after the other, also if they are called concurrently, and wait while
// the worker cannot be reached.
//
// They return ErrOver after the end of the verification, and ErrClosed after Close. A failure in the sandbox
// is a *schema.Fault of the worker; a missing file is also fs.ErrNotExist.
type Handle struct {
	schema.Verification
	Rollout schema.ID
	Attempt int

	state  *state
	turn   chan struct{} // of capacity 1; has a value while an operation runs
	number int           // of the last operation
}

// Command is a command to run in the sandbox: Args without a shell, or Run as text
// for /bin/sh -c.
type Command struct {
	Args    []string
	Run     string
	Env     map[string]string // added to verify.env
	Dir     string            // default: the working directory
	User    string            // default: verify.user
	Stdin   []byte            // at most schema.MaxOperationData bytes
	Timeout time.Duration     // 0: to the end of the verification
}

// Output is the outcome of a command.
type Output struct {
	Exit           schema.Exit
	Stdout, Stderr []byte
	Truncated      bool // one of them had more than schema.MaxOutput bytes
}

// Exec runs a command to its end. A command that fails is no error: see
// Output.Exit.
func (h *Handle) Exec(ctx context.Context, c Command) (*Output, error) {
	r, err := h.Operate(ctx, &schema.Operation{
		Do: schema.DoExec, Args: c.Args, Run: c.Run, Env: c.Env, Path: c.Dir, User: c.User, Data: c.Stdin, TimeoutMS: c.Timeout.Milliseconds(),
	})
	if err != nil {
		return nil, err
	}
	out := &Output{Stdout: r.Stdout, Stderr: r.Stderr, Truncated: r.Truncated}
	if r.Exit != nil {
		out.Exit = *r.Exit
	}
	return out, nil
}

// Read returns a file of at most schema.MaxOperationData bytes.
func (h *Handle) Read(ctx context.Context, path string) ([]byte, error) {
	r, err := h.Operate(ctx, &schema.Operation{Do: schema.DoRead, Path: path})
	return r.Data, err
}

// Write creates or replaces a file of the verifier's user, with its missing
// parents.
func (h *Handle) Write(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	_, err := h.Operate(ctx, &schema.Operation{Do: schema.DoWrite, Path: path, Data: data, Mode: int(mode.Perm())})
	return err
}

// List returns the files of a folder by name, at most schema.MaxEntries.
func (h *Handle) List(ctx context.Context, dir string) ([]schema.Entry, error) {
	r, err := h.Operate(ctx, &schema.Operation{Do: schema.DoList, Path: dir})
	return r.Files, err
}

// Operate runs one operation, in its turn; the other methods make one for each purpose.
func (h *Handle) Operate(ctx context.Context, op *schema.Operation) (schema.OperationResult, error) {
	r, err := h.ask(ctx, op)
	switch {
	case err == nil || h.state.ctx.Err() == nil:
		return r, err
	case h.state.rollouts.life.Err() != nil:
		return r, ErrClosed
	default:
		return r, ErrOver
	}
}

func (h *Handle) ask(ctx context.Context, op *schema.Operation) (schema.OperationResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := h.state
	defer context.AfterFunc(s.ctx, func() { cancel(ErrOver) })()
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return schema.OperationResult{}, context.Cause(ctx)
	}
	if ctx.Err() != nil {
		return schema.OperationResult{}, context.Cause(ctx)
	}
	h.number++
	s.mu.Lock()
	asked := s.incoming
	s.mu.Unlock()
	r, err := s.rollouts.server.Operate(ctx, asked, s.gen, h.number, op)
	var f *schema.Fault
	if errors.As(err, &f) {
		switch {
		case f.Code == schema.CodeOver:
			return r, fmt.Errorf("%w: %w", ErrOver, f)
		case f.Status == http.StatusNotFound && op.Do != schema.DoExec:
			return r, fmt.Errorf("%s: %w: %w", op.Path, fs.ErrNotExist, f)
		}
	}
	return r, err
}
