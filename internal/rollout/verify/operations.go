package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// maxEntryName bounds the name of a file in a list, in bytes. Linux has at most 255.
const maxEntryName = 1024

// operate runs one operation of the trainer. Everything in it is untrusted: the
// sandbox bounds its effects, and this function its time and size.
func (v *byTrainer) operate(ctx context.Context, number int, op *schema.Operation) (schema.OperationResult, error) {
	start := time.Now()
	event := &schema.VerifyEvent{Number: number, Do: op.Do, Path: op.Path, Command: schema.Clip(cmp.Or(op.Run, strings.Join(op.Args, " ")), 1000)}
	r, err := v.do(ctx, op)
	var stop *ends.Failed
	if errors.Is(err, sandboxes.ErrLost) || errors.As(err, &stop) && (stop.Fault.Code == schema.CodeOOM || stop.Fault.Code == schema.CodeSpoiled) {
		v.end(err)
	}
	if err != nil && ctx.Err() == nil {
		err = v.fault(op, err)
	}
	errors.As(err, &event.Fault)
	event.MS, event.Exit, event.Bytes = time.Since(start).Milliseconds(), r.Exit, int64(len(op.Data)+len(r.Data))
	v.emit(event)
	return r, err
}

func (v *byTrainer) do(ctx context.Context, op *schema.Operation) (r schema.OperationResult, err error) {
	r.V = schema.Version
	files, at := v.box.Files(), place.Abs(v.box, op.Path)
	owner := cmp.Or(op.User, v.Step.Verify.User)
	switch op.Do {
	case schema.DoExec:
		return v.exec(ctx, op)
	case schema.DoRead:
		r.Data, err = sandboxes.ReadFile(ctx, files, at, schema.MaxOperationData)
	case schema.DoWrite:
		err = files.Write(ctx, at, bytes.NewReader(op.Data), fs.FileMode(cmp.Or(op.Mode, 0o644)), owner)
	case schema.DoList:
		var list []sandboxes.FileInfo
		if list, err = files.List(ctx, at); err == nil && len(list) > schema.MaxEntries {
			err = refusal(schema.CodeTooLarge, http.StatusRequestEntityTooLarge, fmt.Sprintf("list %s: %d entries, at most %d", op.Path, len(list), schema.MaxEntries))
		} else {
			r.Files = entries(list)
		}
	}
	return r, err
}

// exec runs a command to its end.
func (v *byTrainer) exec(ctx context.Context, op *schema.Operation) (r schema.OperationResult, err error) {
	r.V = schema.Version
	env := sandboxes.Environment(v.Step.Verify.Env, op.Env)
	var out, errs bytes.Buffer
	c := sandboxes.Cmd{
		Args: op.Args, Env: env, User: cmp.Or(op.User, v.Step.Verify.User), Stdin: bytes.NewReader(op.Data), Timeout: max(v.left(), time.Millisecond),
		Stdout: io.MultiWriter(&out, v.out), Stderr: io.MultiWriter(&errs, v.err), OutputLimit: schema.MaxOutput,
	}
	if op.Run != "" {
		c.Args = place.Shell(op.Run)
	}
	if op.Path != "" {
		c.Dir = place.Abs(v.box, op.Path)
	}
	if asked := stage.MS(op.TimeoutMS); asked > 0 {
		c.Timeout = min(c.Timeout, asked)
	}
	proc, err := v.Place.Start(ctx, v.box, v.phase, c)
	if err != nil {
		return r, err
	}
	if r.Exit, err = stage.Await(ctx, proc); err != nil {
		return r, ends.BlameCommand(v.phase, err)
	}
	r.Stdout, r.Stderr = out.Bytes(), errs.Bytes()
	r.Truncated = r.Exit.StdoutBytes > schema.MaxOutput || r.Exit.StderrBytes > schema.MaxOutput
	return r, nil
}

// fault turns the error of an operation into a fault for the trainer.
func (v *byTrainer) fault(op *schema.Operation, err error) *schema.Fault {
	var stop *ends.Failed
	var large *sandboxes.TooLargeError
	var f *schema.Fault
	var none *sandboxes.NoCommandError
	code, status := schema.CodeInvalid, http.StatusConflict
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, sandboxes.ErrLost):
		code, status = schema.CodeInternal, http.StatusServiceUnavailable
	case errors.As(err, &none):
		code, status = schema.CodeMissing, http.StatusNotFound
	case errors.As(err, &stop):
		fault := *stop.Fault
		fault.Status = http.StatusNotFound
		return &fault
	case errors.As(err, &large):
		code, status = schema.CodeTooLarge, http.StatusRequestEntityTooLarge
	case errors.Is(err, fs.ErrNotExist):
		code, status = schema.CodeMissing, http.StatusNotFound
	}
	return refusal(code, status, fmt.Sprintf("%s %s: %v", op.Do, op.Path, err))
}

func refusal(code string, status int, text string) *schema.Fault {
	f := schema.Faultf("verify", code, schema.WhoTrainer, "%s", text)
	f.Status = status
	return f
}

func kindOf(f sandboxes.FileInfo) string {
	switch {
	case f.Mode.IsRegular():
		return schema.KindFile
	case f.Mode.IsDir():
		return schema.KindFolder
	case f.Mode&fs.ModeSymlink != 0:
		return schema.KindLink
	default:
		return schema.KindOther
	}
}
