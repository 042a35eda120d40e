package far

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Host is a place for sandboxes.
type Host struct {
	Backend string // value of sandbox.backend in a request
	Called  string // in errors, such as "the host build1"
	travel  chan struct{}
}

// NewHost returns a host of a backend.
func NewHost(backend, called string) *Host {
	return &Host{Backend: backend, Called: called, travel: make(chan struct{}, 1)}
}

// Travel takes the only place for a line on which files travel. leave gives it back.
func (h *Host) Travel(ctx context.Context) (leave func(), err error) { return Enter(ctx, h.travel) }

// Enter takes a place in a channel; leave gives it back.
func Enter(ctx context.Context, places chan struct{}) (leave func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Ended returns the error for the end of a line to Serve on the host.
func (h *Host) Ended(end schema.LineEnd) error {
	text := plain.Line(end.Text, MaxSays)
	switch {
	case end.Reason == "" && text == "":
		return fmt.Errorf("%s: its process ended with exit status %d", h.Called, end.Status)
	case end.Reason == "":
		return fmt.Errorf("%s: its process ended with exit status %d: %s", h.Called, end.Status, text)
	case end.Reason == schema.LineUnsupported:
		return &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: h.Backend, Reason: "on " + h.Called + ": " + text}
	}
	return fmt.Errorf("%s: the line ended: %s", h.Called, cmp.Or(text, plain.Line(end.Reason, MaxSays)))
}

// Line is the worker's end of a stream to Serve on a host.
type Line struct {
	Host *Host
	Conn *net.UnixConn
	// Broken returns the reason for the end of the line, or the context's cause.
	Broken func(ctx context.Context) error
}

// Sandbox makes a sandbox on the host, to which the line belongs from then on. The
// mounts travel first, unless the host has them. lost is for Client.Explain.
func (l *Line) Sandbox(ctx context.Context, t *Trees, owner string, s sandboxes.Spec, lost func() error) (*box.Client, error) {
	c := &create{
		Owner: owner, Rollout: s.Rollout, Attempt: s.Attempt, Part: s.Part,
		CPUs: s.CPUs, Memory: s.MemoryBytes, Disk: s.DiskBytes, Pids: s.Pids, GPUs: s.GPUs, Strict: s.Strict,
		User: s.User, Workdir: s.Workdir, Env: s.Env, Ready: s.Ready, Life: s.Life, Lost: s.Lost,
	}
	for _, m := range s.Mounts {
		digest, err := l.bring(ctx, t, m.Host, s.Log)
		if err != nil {
			return nil, err
		}
		c.Mounts = append(c.Mounts, mount{digest, m.Guest})
	}
	return l.box(ctx, order{Create: c}, s, lost)
}

// Beside connects to the box of the container beside the one where Serve runs, which
// PodBox starts. The mounts travel first; Trees.Path says where they are. The line belongs to the sandbox
// from then on. lost is for Client.Explain.
func (l *Line) Beside(ctx context.Context, t *Trees, s sandboxes.Spec, lost func() error) (*box.Client, error) {
	for _, m := range s.Mounts {
		if _, err := l.bring(ctx, t, m.Host, s.Log); err != nil {
			return nil, err
		}
	}
	return l.box(ctx, order{Beside: &beside{
		User: s.User, Workdir: s.Workdir, Env: s.Env, Disk: s.DiskBytes, Ready: s.Ready, Life: s.Life, Lost: s.Lost,
	}}, s, lost)
}

// box sends an order that makes a box, and connects to it.
func (l *Line) box(ctx context.Context, o order, s sandboxes.Spec, lost func() error) (*box.Client, error) {
	a, err := l.ask(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, n := range a.Notes[:min(len(a.Notes), maxNotes)] {
		if s.Note != nil {
			s.Note(plain.Line(n.Limit, MaxSays), plain.Line(n.Text, MaxSays))
		}
	}
	client, err := box.NewClient(ctx, l.Conn, a.Secret, a.Workdir)
	if err != nil {
		if ctx.Err() == nil {
			// Nothing of the task has run yet, so the reason is no fault of the task: the text alone.
			err = fmt.Errorf("%w: %s", err, lost().Error())
		}
		return nil, fmt.Errorf("%s: %w", l.Host.Called, err)
	}
	client.Explain(lost)
	return client, nil
}

// Sweep removes the sandboxes that dead processes of an owner left on the host, see
// sandboxes.Backend.
func (l *Line) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	a, err := l.ask(ctx, order{Sweep: owner})
	for err == nil && a.Rollout != "" {
		a, err = l.ask(ctx, order{Keep: keep(a.Rollout)})
	}
	return a.Swept, err
}

// bring makes sure that the host has a folder of this host, and returns the folder's
// digest. log gets a line if the folder travels; nil drops it.
func (l *Line) bring(ctx context.Context, trees *Trees, dir string, log func(string)) (string, error) {
	t, err := trees.Of(dir)
	if err != nil {
		return "", err
	}
	leave, err := l.Host.Travel(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	a, err := l.ask(ctx, order{Have: t.Digest})
	if err != nil || a.Has {
		return t.Digest, err
	}
	if log != nil {
		log(fmt.Sprintf("%s (%d MB) travels to %s", dir, t.Bytes>>20, l.Host.Called))
	}
	return t.Digest, l.put(ctx, dir, t)
}

// put sends a tree.
func (l *Line) put(ctx context.Context, dir string, t Tree) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Conn.SetDeadline(time.Now()) })
	defer stop()
	if err := l.send(ctx, order{Put: &put{t.Digest, t.Bytes}}); err != nil {
		return err
	}
	if err := Pack(dir, l.Conn); err != nil {
		var gone *net.OpError // the line broke: the other side may have said why
		if errors.As(err, &gone) {
			if _, far := l.answer(ctx); far != nil {
				return far
			}
		}
		return fmt.Errorf("send %s to %s: %w", dir, l.Host.Called, err)
	}
	_, err := l.answer(ctx)
	return err
}

// ask sends an order and returns the answer.
func (l *Line) ask(ctx context.Context, o order) (answer, error) {
	if err := l.send(ctx, o); err != nil {
		return answer{}, err
	}
	return l.answer(ctx)
}

func (l *Line) send(ctx context.Context, o order) error {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("write an order: %w", err)
	}
	if _, err := l.Conn.Write(append(data, '\n')); err != nil {
		return l.Broken(ctx)
	}
	return nil
}

// answer reads the next answer.
func (l *Line) answer(ctx context.Context) (a answer, err error) {
	text, err := l.Marked(ctx)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return a, fmt.Errorf("%s: read an answer: %w", l.Host.Called, rawjson.Plain(err))
	}
	switch no := a.Unsupported; {
	case no != nil:
		if no.Field == "sandbox.backend" {
			no.Value = l.Host.Backend
		}
		return a, &sandboxes.UnsupportedError{Field: plain.Line(no.Field, MaxSays), Value: plain.Line(no.Value, MaxSays), Reason: fmt.Sprintf("on %s: %s", l.Host.Called, plain.Line(no.Reason, MaxSays))}
	case a.Error != "":
		return a, fmt.Errorf("%s: %s", l.Host.Called, plain.Line(a.Error, MaxSays))
	}
	return a, nil
}

// maxNoise bounds the output of other programs before an answer.
const maxNoise = 64 << 10

// maxAnswer bounds an answer, maxNotes the notes in it.
const (
	maxAnswer = 1 << 20
	maxNotes  = 20
)

// MaxSays bounds the part of a host's errors that is kept.
const MaxSays = 2 << 10

// Marked returns the rest of the next line behind Mark, wherever in the line Mark begins: a
// greeting need not end its line. It reads no byte beyond that line.
func (l *Line) Marked(ctx context.Context) (string, error) {
	defer context.AfterFunc(ctx, func() { _ = l.Conn.SetReadDeadline(time.Now()) })()
	var text []byte // of this line, or of the answer
	one, marked := make([]byte, 1), false
	for noise := 0; noise < maxNoise; {
		if _, err := l.Conn.Read(one); err != nil {
			return "", l.Broken(ctx)
		}
		switch {
		case marked && one[0] == '\n':
			return string(text), nil
		case marked && len(text) == maxAnswer:
			return "", fmt.Errorf("%s: an answer is longer than %d bytes", l.Host.Called, maxAnswer)
		case one[0] == '\n':
			text = text[:0]
		default:
			text = append(text, one[0])
			if !marked && bytes.HasSuffix(text, []byte(Mark)) {
				marked, text = true, text[:0]
			}
		}
		if !marked {
			noise++
		}
	}
	return "", fmt.Errorf("%s: its login shell writes more than %d bytes to its output before a command runs", l.Host.Called, maxNoise)
}
