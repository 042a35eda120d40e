// Package sshd runs OpenSSH's server on loopback for tests of the ssh backend.
package sshd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// Host is the name of the server in its Config.
const Host = "sandbox-host"

// Server is a running sshd that lets the test's own user in.
type Server struct {
	Config string // settings of ssh for Host, for its flag -F
	Cache  string // the cache folder of commands on the server
	Pid    int    // of sshd
}

// Start starts a server, which stops when the test ends. The lines are added to the
// server's settings. Without sshd the test is skipped.
func Start(t testing.TB, lines ...string) *Server {
	t.Helper()
	program, err := find()
	testenv.Need(t, "ssh", err)
	me, err := user.Current()
	must(t, err)
	if me.Uid == "0" {
		must(t, os.MkdirAll("/run/sshd", 0o755))
	}
	dir := t.TempDir()
	s := &Server{Config: filepath.Join(dir, "config"), Cache: filepath.Join(dir, "cache")}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, key := range []string{"host", "user"} {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key)).CombinedOutput()
		if err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	public, err := os.ReadFile(at("host.pub"))
	must(t, err)
	port := testenv.FreePort(t)
	write := func(name string, text ...string) {
		t.Helper()
		must(t, os.WriteFile(at(name), []byte(strings.Join(text, "\n")+"\n"), 0o600))
	}
	write("known_hosts", fmt.Sprintf("[127.0.0.1]:%d %s", port, public))
	write("config", "Host "+Host, "  HostName 127.0.0.1", fmt.Sprintf("  Port %d", port), "  User "+me.Username,
		"  IdentityFile "+at("user"), "  IdentitiesOnly yes", "  UserKnownHostsFile "+at("known_hosts"))
	write("sshd_config", append([]string{
		fmt.Sprintf("Port %d", port), "ListenAddress 127.0.0.1", "HostKey " + at("host"), "AuthorizedKeysFile " + at("user.pub"), "PidFile none",
		"PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password", "UsePAM no", "StrictModes no",
		"SetEnv XDG_CACHE_HOME=" + s.Cache,
	}, lines...)...)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, "-D", "-e", "-f", at("sshd_config"))
	log, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	s.Pid = cmd.Process.Pid
	up, ended := make(chan bool, 1), make(chan struct{})
	var said strings.Builder
	go func() {
		defer close(ended)
		for in := bufio.NewScanner(io.TeeReader(log, &said)); in.Scan(); {
			if strings.HasPrefix(in.Text(), "Server listening") {
				up <- true
			}
		}
		close(up)
		_ = cmd.Wait()
	}()
	stop := func() { cancel(); <-ended }
	t.Cleanup(stop)
	if !<-up {
		stop()
		t.Fatalf("sshd: %s", said.String())
	}
	return s
}

// Flags are the flags of turngate for this server.
func (s *Server) Flags() []string { return []string{"--ssh", Host, "--ssh-config", s.Config} }

func find() (string, error) {
	for _, name := range []string{"ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(name); err != nil {
			return "", err
		}
	}
	for _, path := range []string{"sshd", "/usr/sbin/sshd", "/usr/local/sbin/sshd"} {
		if found, err := exec.LookPath(path); err == nil {
			return filepath.Abs(found)
		}
	}
	return "", errors.New("sshd is not installed (Debian: openssh-server)")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
