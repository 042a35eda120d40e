package ssh_test

import (
	"os"
	"testing"

	"github.com/turngate/turngate/internal/testenv/sshd"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/sandboxes/ssh"
)

// TestMain lets the test binary act as turngate on both sides.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "box":
		os.Exit(local.BoxMain(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == ssh.Command:
		os.Exit(ssh.Serve())
	}
	os.Exit(m.Run())
}

func backend(t *testing.T, s sandboxes.SSH) sandboxes.Backend {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := ssh.Kind().New(sandboxes.Host{Helper: exe, SSH: s})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func working(t *testing.T) (sandboxes.Backend, *sshd.Server) {
	t.Helper()
	s := sshd.Start(t)
	b := backend(t, sandboxes.SSH{Hosts: []string{sshd.Host}, Config: s.Config})
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b, s
}

func TestContract(t *testing.T) {
	root := os.Geteuid() == 0
	sandboxtest.Run(t, sandboxtest.Fixture{
		New:      func(t *testing.T) sandboxes.Backend { b, _ := working(t); return b },
		Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: root, Users: root},
	})
}
