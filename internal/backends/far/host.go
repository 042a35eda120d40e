package far

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
)

// Digest returns the sha256 of a file as hex digits.
func Digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read turngate's own program: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read turngate's own program: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Over waits for the end of a channel, for a time at most or until the context ends. It returns
// false if the channel has not ended.
func Over(ctx context.Context, over <-chan struct{}, most time.Duration) bool {
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case <-over:
		return true
	case <-limit.C:
	case <-ctx.Done():
	}
	return false
}

// Conns is line.Pair for a host in this process: both ends are here.
func Conns() (ours, theirs *net.UnixConn, err error) {
	ours, file, err := line.Pair()
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		_ = ours.Close() // nothing was sent
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	return ours, conn.(*net.UnixConn), nil
}

// Fits returns an error if this program does not run on a system and machine, in the words
// of uname. The error of the backend begins with place, such as "the node is", and ends
// with remedy.
func Fits(there, backend, place, remedy string) error {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	if here := "Linux " + machine; there != here {
		return &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: backend, Reason: fmt.Sprintf("%s %s, this turngate is for %s%s", place, plain.Line(there, MaxSays), here, remedy)}
	}
	return nil
}
