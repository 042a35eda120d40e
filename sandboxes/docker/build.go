package docker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/docker/docker/client"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

const (
	// labelBuild marks the images that builds of turngate leave; sweeps remove
	// only these.
	labelBuild = "turngate.build"
	// labelShared has the name that an image would have as a build of the
	// worker's operator. The images of one build for several trainers share it.
	labelShared = "turngate.build.shared"
	buildRepo   = "turngate-build"
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

// refs returns the tag of the image of a build, and its tag as a build of the
// worker's operator. The same files and settings give the same tag in every worker, and
// for every trainer unless a step may mount a trainer's cache.
func (b builder) refs(how *sandboxes.Build) (own, shared string, err error) {
	files, mounts, err := digest(how.Tar)
	if err != nil {
		return "", "", fmt.Errorf("read the build context: %w", err)
	}
	settings, _ := json.Marshal([]any{"1", dockerfileOf(how), how.Target, how.Args, networkOf(b.limits)}) // only strings: never fails
	tag := func(space string) string {
		h := sha256.New()
		fmt.Fprintf(h, "%d\n%s%s%s", len(settings), settings, space, files)
		return b.repo + ":" + hex.EncodeToString(h.Sum(nil)[:16])
	}
	own, shared = tag(""), tag("")
	if how.Trainer != "" && mounts {
		own = tag(cacheSpace(how) + "\n") // the content of a cache can change the image
	}
	return own, shared, nil
}

// digest returns the sha256 of a build context and reports whether a step of its
// Dockerfile may mount something.
func digest(context sandboxes.Content) (sum []byte, mounts bool, err error) {
	const mount = "--mount"
	h := sha256.New()
	buf := make([]byte, 64<<10)
	end := 0 // of the bytes kept of the last round, which may begin the word
	for from := io.NewSectionReader(context, 0, context.Size()); ; {
		n, err := from.Read(buf[end:])
		h.Write(buf[end : end+n])
		mounts = mounts || bytes.Contains(buf[:end+n], []byte(mount))
		if errors.Is(err, io.EOF) {
			return h.Sum(nil), mounts, nil
		}
		if err != nil {
			return nil, false, err
		}
		end = copy(buf, buf[max(end+n-len(mount), 0):end+n])
	}
}

// cacheSpace returns the namespace of the caches that RUN mounts in a build. One
// trainer's build must not change the files of another's.
func cacheSpace(how *sandboxes.Build) string {
	if how.Trainer == "" {
		return "operator"
	}
	return "trainer-" + how.Trainer
}

func dockerfileOf(how *sandboxes.Build) string {
	return path.Clean(cmp.Or(how.Dockerfile, "Dockerfile"))
}

func networkOf(l sandboxes.BuildLimits) string { return cmp.Or(l.Network, schema.NetworkOpen) }

// errContextClosed means that the rollout that began the build has ended and closed the
// build's files. Another one that waits for the image begins it again.
var errContextClosed = errors.New("the files of the build are closed")

// errNoLimits means that this engine's BuildKit cannot limit memory and cpus.
var errNoLimits = errors.New("this engine's BuildKit cannot limit the memory and the cpus of a build")

// build makes an image. A defect of the build's files or a build that takes too
// long gives an *sandboxes.ImageError.
func (b builder) build(ctx context.Context, ref, shared string, how *sandboxes.Build, say func(string)) (err error) {
	w := &building{ref: ref, how: how, dockerfile: dockerfileOf(how), limits: b.limits, labels: map[string]string{
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
