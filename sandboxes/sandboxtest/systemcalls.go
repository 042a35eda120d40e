package sandboxtest

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
)

// systemCalls tries system calls that a sandbox must refuse, both as the agent
// and as a setup command. Perl makes the calls because Debian's smallest images
// include it.
func (s *suite) systemCalls(t *testing.T) {
	sb := s.open(t)
	if got := s.sh(t, sb, `command -v perl`); got.exit.Code != 0 {
		t.Skip("SKIPPED, since the sandbox has no perl to make system calls with")
	}
	socket := func(family int) string {
		return fmt.Sprintf(`print socket(S, %d, 1, 0) ? "opened" : 0+$!`, family)
	}
	call := func(number uintptr, args string) string {
		return fmt.Sprintf(`print syscall(%d, %s) < 0 ? 0+$! : "done"`, number, args)
	}
	for name, c := range map[string]struct{ script, want string }{
		"AF_UNIX":        {socket(unix.AF_UNIX), "opened"},
		"AF_INET":        {socket(unix.AF_INET), "opened"},
		"AF_VSOCK":       {socket(unix.AF_VSOCK), errno(unix.EAFNOSUPPORT)},
		"AF_ALG":         {socket(unix.AF_ALG), errno(unix.EAFNOSUPPORT)},
		"AF_BLUETOOTH":   {socket(unix.AF_BLUETOOTH), errno(unix.EAFNOSUPPORT)},
		"AF_RDS":         {socket(unix.AF_RDS), errno(unix.EAFNOSUPPORT)},
		"keyctl":         {call(unix.SYS_KEYCTL, "0, -3, 0"), errno(unix.EPERM)}, // the id of the session's keyring
		"add_key":        {call(unix.SYS_ADD_KEY, "0, 0, 0, 0, -3"), errno(unix.EPERM)},
		"request_key":    {call(unix.SYS_REQUEST_KEY, "0, 0, 0, 0"), errno(unix.EPERM)},
		"io_uring_setup": {call(unix.SYS_IO_URING_SETUP, "1, 0"), errno(unix.EPERM)},
		"bpf":            {call(unix.SYS_BPF, "0, 0, 0"), errno(unix.EPERM)},
	} {
		for _, untrusted := range []bool{false, true} {
			got := run(t, sb, sandboxes.Cmd{Args: []string{"perl", "-e", c.script}, Untrusted: untrusted})
			if strings.TrimSpace(got.out) != c.want {
				t.Errorf("%s, untrusted %v: got %q %q, want %s", name, untrusted, got.out, got.errOut, c.want)
			}
		}
	}
}

func errno(e unix.Errno) string { return fmt.Sprint(int(e)) }
