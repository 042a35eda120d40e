package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"time"

	"github.com/docker/docker/client"

	"github.com/turngate/turngate/sandboxes"
)

const (
	// labelBuild marks the images that builds of turngate leave; sweeps remove
	// only these.
	labelBuild = "turngate.build"
	// labelShared has the name that an image would have as a build of the
	// worker's operator. The images of one build for several trainers share it.
	labelShared = "turngate.build.shared"
	// tailLines is the number of last output lines in the error of a failed
	// build.
	tailLines = 30
)

// building holds the inputs of one build.
type building struct {
	ref        string
	how        *sandboxes.Build
	context    *contextFS
	dockerfile string // its path
	text       []byte // of the Dockerfile
	labels     map[string]string
	limits     sandboxes.BuildLimits
}

// builder builds images with the engine.
type builder struct {
	api    *client.Client
	repo   string // of the images
	limits sandboxes.BuildLimits
}

// errContextClosed means that the rollout that began the build has ended and closed the
// build's files. Another one that waits for the image begins it again.
var errContextClosed = errors.New("the files of the build are closed")

// errNoLimits means that this engine's BuildKit cannot limit memory and cpus.
var errNoLimits = errors.New("this engine's BuildKit cannot limit the memory and the cpus of a build")

// build makes an image. A defect of the build's files or a build that takes too
// long gives an *sandboxes.ImageError.
func (b builder) build(ctx context.Context, ref, shared string, how *sandboxes.Build, say func(string)) (err error) {
	w := &building{ref: ref, how: how, dockerfile: how.File(), limits: b.limits, labels: map[string]string{
		labelBuild: cmp.Or(how.Task, "task"), labelShared: shared,
	}}
	bad := func(code string, err error, tail *lastLines) error {
		reason := err.Error()
		if t := tail.String(); t != "" {
			reason += "\n" + t
		}
		return &sandboxes.ImageError{Image: w.dockerfile, Code: code, Reason: reason}
	}
	from := contextReader{how.Tar, &atomic.Pointer[error]{}}
	defer func() {
		switch failed := from.failed.Load(); {
		case err == nil || failed == nil:
		case errors.Is(*failed, fs.ErrClosed):
			err = errContextClosed
		default:
			err = fmt.Errorf("read the build context: %w", *failed)
		}
	}()
	if w.context, err = readContext(from); err != nil {
		return bad("", err, nil)
	}
	if w.text, err = w.context.text(w.dockerfile); err != nil {
		return bad("", err, nil)
	}
	limit := cmp.Or(b.limits.Time, time.Hour)
	late := fmt.Errorf("the build took longer than the %s that this worker allows", limit)
	inner, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	tail := &lastLines{}
	saying := func(line string) { tail.add(line); say(line) }
	err = b.buildWith(inner, w, saying)
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(inner), late):
		return bad("", late, tail)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, errEngine):
		return err
	default:
		code, hint := "", ""
		if text := err.Error(); !ranAndFailed(text) {
			code, hint = pullFault(text)
		}
		if hint != "" {
			err = fmt.Errorf("%w; %s", err, hint)
		}
		return bad(code, err, tail)
	}
}

// buildWith selects the builder. It uses the engine's BuildKit, and the classic
// builder if the engine has no BuildKit or only the classic builder can enforce
// the limits.
func (b builder) buildWith(ctx context.Context, w *building, say func(string)) error {
	kit, err := openKit(ctx, b.api)
	if err != nil {
		return err
	}
	if kit != nil {
		defer func() { _ = kit.Close() }()
		if err := kit.build(ctx, w, say); !errors.Is(err, errNoLimits) {
			return err
		}
	}
	feature, err := needsBuildKit(w.text)
	switch {
	case err != nil:
		return err
	case feature != "" && kit == nil:
		return fmt.Errorf("%s needs BuildKit, and this Docker engine has none: use engine 18.09 or later, or write the file without it", feature)
	case feature != "":
		return fmt.Errorf("%s needs BuildKit, and %w: take a newer engine, or a worker with --build-memory-mb -1 and --build-cpus -1", feature, errNoLimits)
	}
	return classic{b.api}.build(ctx, w, say)
}

// ranAndFailed reports whether the error comes from a command of the build.
// Such an error may contain any text.
func ranAndFailed(text string) bool {
	return strings.Contains(text, "did not complete successfully") || strings.Contains(text, "returned a non-zero code")
}

// lastLines keeps the last tailLines lines of a build's output.
type lastLines struct{ lines []string }

func (l *lastLines) add(line string) {
	if l.lines = append(l.lines, line); len(l.lines) > tailLines {
		l.lines = l.lines[1:]
	}
}

func (l *lastLines) String() string {
	if l == nil {
		return ""
	}
	return strings.Join(l.lines, "\n")
}
