package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// maxKept is the largest single artifact in bytes, as it is kept.
const maxKept = 64 << 20

// collect keeps the agent's log, the transcript, and the files that the agent
// and the request name. A file that is not there, or is too large, is noted
// and no reason to fail.
func (r *Rollout) collect(ctx context.Context, p *phase) error {
	for name, data := range r.rec.files() {
		if err := r.keep(ctx, name, data); err != nil {
			return err
		}
	}
	if data, leftOut := r.rec.transcript(); data != nil {
		if leftOut > 0 {
			_, _ = fmt.Fprintf(&p.tail, "the last %d lines of the transcript were not kept: it has more than %d bytes\n", leftOut, maxKept)
		}
		if err := r.keep(ctx, transcriptName, data); err != nil {
			return err
		}
		r.result.Transcript = transcriptName
	}
	if s := r.agent.Sessions; s != "" {
		if err := r.keepPath(ctx, p, path.Join(agentDir, s), "agent-sessions"); err != nil {
			return err
		}
	}
	wanted := slices.Concat(r.Request.Artifacts, []string{"/logs/agent", "/logs/artifacts"})
	slices.Sort(wanted)
	for _, at := range slices.Compact(wanted) {
		if !path.IsAbs(at) {
			at = path.Join(r.sandbox.Workdir(), at)
		}
		if err := r.keepPath(ctx, p, at, strings.TrimPrefix(path.Clean(at), "/")); err != nil {
			return err
		}
	}
	return nil
}

// keepPath keeps a file, or a folder as a tar, under a name.
func (r *Rollout) keepPath(ctx context.Context, p *phase, at, name string) error {
	files := r.sandbox.Files()
	info, err := files.Stat(ctx, at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var data []byte
	if info.Mode.IsDir() {
		if list, err := files.List(ctx, at); err != nil || len(list) == 0 {
			return nil
		}
		name += ".tar"
		var b bytes.Buffer
		err = files.TarOut(ctx, at, &b, maxKept)
		data = b.Bytes()
	} else {
		data, err = files.Read(ctx, at, maxKept)
	}
	if errors.Is(err, sandboxes.ErrLost) || ctx.Err() != nil {
		return err
	}
	if err != nil {
		_, _ = p.tail.Write([]byte(name + " was not kept: " + err.Error() + "\n"))
		return nil
	}
	return r.keep(ctx, name, data)
}

func (r *Rollout) keep(ctx context.Context, name string, data []byte) error {
	a, err := r.Services.PutArtifact(ctx, name, r.rec.redactFile(data))
	if err != nil {
		return &BrokenError{schema.Faultf("artifacts", schema.CodeInternal, schema.WhoWorker, "keep %s: %v", name, err)}
	}
	r.result.Artifacts = append(r.result.Artifacts, a)
	return nil
}
