package far

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/sandboxes"
)

// PodBoxCommand is the sub-command of turngate that runs PodBox.
const PodBoxCommand = "pod-box"

// Names below the folder of Serve, which the container of the box has too.
const (
	// ReadyFile exists when the container of the box may start.
	ReadyFile = "ready"
	// RunFolder has the socket of the box until the box is connected.
	RunFolder  = "run"
	socketName = "box.sock"
)

// runPath is RunFolder in the container of the box.
const runPath = "/.turngate/" + RunFolder

// meetTime bounds the exchange of a box and Serve.
const meetTime = time.Minute

// hello is the first line of a box to Serve, which answers with a line that has its
// box.Config.
type hello struct {
	Workdir string `json:"workdir"` // of the image
}

// maxHello bounds a line of them.
const maxHello = 8 << 20

// beside lets the container of the box start, gives the box its configuration, and carries
// its bytes until it or the worker is gone. The box is the first process of its container,
// so nothing else there can reach the socket before it.
func (s *server) beside(ctx context.Context, b *beside) int {
	conn, a, err := s.meet(ctx, b)
	if err != nil {
		_ = s.answer(failed(err))
		return 0
	}
	defer conn.Close()
	if s.answer(a) != nil {
		return 0
	}
	if s.carry(ctx, conn) {
		return 0
	}
	return exitLost
}

// meet waits for the box and configures it.
func (s *server) meet(ctx context.Context, b *beside) (_ net.Conn, a answer, err error) {
	if b.Ready <= 0 {
		return nil, a, fmt.Errorf("ready: %s is not valid: want a time above 0", b.Ready)
	}
	ctx, cancel := box.Within(ctx, b.Ready, fmt.Errorf("the box did not come up within %s", b.Ready))
	defer cancel()
	dir := filepath.Join(s.folder, RunFolder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, a, fmt.Errorf("make the folder of the box: %w", err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, socketName))
	if err != nil {
		return nil, a, fmt.Errorf("listen for the box: %w", err)
	}
	defer func() { _ = l.Close() }() // it removes the socket
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	closed := make(chan error, 1)
	go func() { closed <- networkClosed(ctx) }()
	if err := os.WriteFile(filepath.Join(s.folder, ReadyFile), nil, 0o644); err != nil {
		return nil, a, fmt.Errorf("start the box: %w", err)
	}
	conn, err := l.Accept()
	if err != nil {
		if ctx.Err() != nil {
			return nil, a, context.Cause(ctx)
		}
		return nil, a, fmt.Errorf("wait for the box: %w", err)
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if err := <-closed; err != nil {
		return nil, a, err
	}
	_ = conn.SetDeadline(time.Now().Add(meetTime))
	var says hello
	if err := readLine(conn, &says); err != nil {
		return nil, a, fmt.Errorf("hear the box: %w", err)
	}
	if says.Workdir == "/" { // also that of an image without one
		says.Workdir = ""
	}
	c := &box.Config{
		Secret: make([]byte, 32), LifeMS: cmp.Or(b.Life, 24*time.Hour).Milliseconds(), LostMS: cmp.Or(b.Lost, 5*time.Minute).Milliseconds(),
		User: b.User, Workdir: cmp.Or(b.Workdir, says.Workdir, sandboxes.DefaultWorkdir), DiskBytes: b.Disk,
	}
	_, _ = rand.Read(c.Secret) // never fails
	for k, v := range b.Env {
		c.Env = append(c.Env, k+"="+v)
	}
	slices.Sort(c.Env)
	if err := json.NewEncoder(conn).Encode(c); err != nil {
		return nil, a, fmt.Errorf("configure the box: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, answer{Secret: c.Secret, Workdir: c.Workdir}, nil
}

// Bounds of the look at a pod's network.
const (
	closeTime = 20 * time.Second // for the cluster to close it
	dialTime  = time.Second
	dialPause = 500 * time.Millisecond
	dialFails = 2 // one after the other: the first can fail since the network is not up yet
)

// networkClosed returns an error unless the pod reaches nothing of its cluster. It tries
// the address of the API server, which each container of a pod has in its environment.
func networkClosed(ctx context.Context) error {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return errors.New("the environment of the pod has no KUBERNETES_SERVICE_HOST, so nothing shows whether its network is closed")
	}
	fails := 0
	for until := time.Now().Add(closeTime); ; {
		conn, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
		if err == nil {
			conn.Close()
			fails = 0
			if time.Now().After(until) {
				return &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: "kubernetes", Reason: "the pod reaches the API server: this cluster does not enforce NetworkPolicy; use a network plugin that does"}
			}
		} else if fails++; fails == dialFails {
			return context.Cause(ctx) // it reaches nothing
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// readLine reads a line of JSON and no byte beyond it.
func readLine(r io.Reader, to any) error {
	var text []byte
	for one := make([]byte, 1); len(text) < maxHello; {
		if _, err := io.ReadFull(r, one); err != nil {
			return err
		}
		if one[0] == '\n' {
			return rawjson.Plain(json.Unmarshal(text, to))
		}
		text = append(text, one[0])
	}
	return fmt.Errorf("a line has more than %d bytes", maxHello)
}
