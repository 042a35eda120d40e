package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/enroll"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// A server starts while strangers hold all connections of hosts that enroll, and answers
// hosts when these are closed.
func TestAFloodOfConnections(t *testing.T) {
	srv := testenv.Serve(t, broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Enroll: true, Relaxed: true, Log: zerolog.Nop()})
	pair, err := broker.EnrollKey()
	harness.Must(t, err)
	seed, err := pair.Seed()
	harness.Must(t, err)
	file := filepath.Join(t.TempDir(), "everybody.nk")
	harness.Must(t, os.WriteFile(file, seed, 0o600))
	var held []interface{ Close() }
	for range 64 {
		held = append(held, testenv.Raw(t, srv.URL(), file, broker.EnrollInbox))
	}
	check, err := enroll.NewCheck(srv.URL(), "m1", file)
	harness.Must(t, err)
	if err := check.Ask(t.Context()); err == nil || !strings.Contains(err.Error(), "connections exceeded") {
		t.Fatalf("one more host connected: %v", err)
	}
	f := &serverFlags{enroll: true}
	end := f.desk(t.Context(), srv, zerolog.Nop()) // returns although no desk can connect
	defer end()
	for _, nc := range held {
		nc.Close()
	}
	harness.Eventually(t, "the desk", time.Minute, func() bool { return errors.Is(check.Ask(t.Context()), enroll.ErrRevoked) })
}
