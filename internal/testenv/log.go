package testenv

import (
	"bytes"
	"testing"
	"time"
)

// Retries is a log writer that waits for package broker to ask the server again.
type Retries struct{ seen chan struct{} }

// NewRetries returns a log writer.
func NewRetries() Retries { return Retries{make(chan struct{}, 1000)} }

func (r Retries) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("the server is asked again")) {
		r.seen <- struct{}{}
	}
	return len(p), nil
}

// Wait waits until the server is asked again.
func (r Retries) Wait(t *testing.T) {
	t.Helper()
	select {
	case <-r.seen:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was asked in vain")
	}
}
