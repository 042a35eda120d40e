package main_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// TestServicesTellSystemd starts a server and a worker with a socket in the place of
// systemd's. They say when they are ready, renew the watchdog, also while the worker has
// no server, and say that they stop.
func TestServicesTellSystemd(t *testing.T) {
	binary, dir, port := testenv.Binary(t), t.TempDir(), strconv.Itoa(testenv.FreePort(t))
	nats := notifies(t, binary, "nats", "--state", dir, "--port", port, "--workers", "w1")
	nats.hears(t, "READY=1\nSTATUS=ready")
	nats.hears(t, "WATCHDOG=1\nSTATUS=ready")
	worker := notifies(t, binary, "worker", "--nats", "nats://127.0.0.1:"+port, "--creds", filepath.Join(dir, "creds", "worker-w1.nk"), "--state", t.TempDir(), "--sandboxes", "local", "--grace", "0s")
	worker.hears(t, "READY=1\nSTATUS=")
	worker.hears(t, "WATCHDOG=1\nSTATUS=ready")
	nats.stops(t)
	if err := <-nats.ended; err != nil {
		t.Errorf("the server: %v", err)
	}
	worker.hears(t, "WATCHDOG=1\nSTATUS=not ready: ")
	worker.stops(t)
}

// service is a process with a socket that hears it.
type service struct {
	cmd    *exec.Cmd
	socket *net.UnixConn
	ended  chan error
}

func notifies(t *testing.T, binary string, args ...string) *service {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify-") // the path of a socket must be short
	harness.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	address := filepath.Join(dir, "s")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	harness.Must(t, err)
	s := &service{cmd: exec.Command(binary, args...), socket: socket, ended: make(chan error, 1)}
	s.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+address, "WATCHDOG_USEC=200000")
	s.cmd.Stderr = os.Stderr
	harness.Must(t, s.cmd.Start())
	go func() {
		s.ended <- s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.ended
		_ = socket.Close()
	})
	return s
}

// hears waits for a message that begins with text.
func (s *service) hears(t *testing.T, text string) {
	t.Helper()
	harness.Must(t, s.socket.SetReadDeadline(time.Now().Add(3*time.Minute)))
	buffer := make([]byte, 4096)
	for {
		n, err := s.socket.Read(buffer)
		if err != nil {
			t.Fatalf("%q was not told: %v", text, err)
		}
		if strings.HasPrefix(string(buffer[:n]), text) {
			return
		}
	}
}

// stops sends SIGTERM and waits until the process tells that it stops.
func (s *service) stops(t *testing.T) {
	t.Helper()
	harness.Must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.hears(t, "STOPPING=1\n")
}
