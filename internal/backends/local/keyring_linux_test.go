package local_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/sandboxes"
)

// lookAtKeyring makes a sandbox and counts the users of this process's session
// keyring before and after. It prints both numbers, and the keys that a command
// in the sandbox lists. The kernel counts a process that has ended a moment
// longer, so the second number falls to the first one.
func lookAtKeyring(state string) int {
	var serial string
	users := func() int {
		keys, err := os.ReadFile("/proc/keys")
		if err != nil {
			return -1
		}
		for line := range strings.Lines(string(keys)) {
			if f := strings.Fields(line); f[0] == serial {
				n, _ := strconv.Atoi(f[2])
				return n
			}
		}
		return -1
	}
	id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	serial = fmt.Sprintf("%08x", id)
	before := users()
	exe, perr := os.Executable()
	if err != nil || perr != nil || before < 0 {
		fmt.Println("the keyring", serial, err, perr)
		return 1
	}
	b := &local.Backend{Helper: exe, StateDir: state}
	sb, err := b.Create(context.Background(), sandboxes.Spec{Owner: "local", Rollout: "alpha-1", Attempt: 1})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer sb.Close(context.Background())
	var keys strings.Builder
	p, err := sb.Start(context.Background(), sandboxes.Cmd{Args: []string{"/bin/cat", "/proc/keys"}, Stdout: &keys})
	if err == nil {
		_, err = p.Wait()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for late := time.After(10 * time.Second); users() > before; {
		select {
		case <-late:
			fmt.Printf("%d users before, %d after\n", before, users())
			return 1
		case <-time.After(10 * time.Millisecond):
		}
	}
	fmt.Print(keys.String())
	return 0
}

// TestTheSessionKeyringIsNotTheWorkers starts a process with a session keyring,
// which makes a sandbox. No process of the sandbox has this keyring, and a command
// there does not see the key in it.
func TestTheSessionKeyringIsNotTheWorkers(t *testing.T) {
	b := backend(t)
	runtime.LockOSThread() // never unlocked: the thread has another keyring from here on
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err != nil {
		t.Skipf("SKIPPED: this process may not make a keyring: %v", err)
	}
	key, err := unix.AddKey("user", "turngate-test-secret", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
	if err != nil {
		t.Fatal(err)
	}
	const possessor = 0x3f000000 // all rights, and none for the key's user
	if err := unix.KeyctlSetperm(key, possessor); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(b.Helper, "keyring", t.TempDir()).CombinedOutput()
	if err != nil || strings.Contains(string(out), "turngate-test-secret") {
		t.Errorf("%v: %s", err, out)
	}
}
