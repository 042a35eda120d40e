package box

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/harness"
)

const firstProcess = "TURNGATE_TEST_FIRST_PROCESS"

// TestSignalsThatTheFirstThreadBlocks: the first process of a namespace lives on although
// its first thread blocks the signals that it gets. Threads of Go's runtime block all
// signals for moments, and with the default action the kernel would end the process then.
func TestSignalsThatTheFirstThreadBlocks(t *testing.T) {
	if os.Getenv(firstProcess) != "" {
		surviveSignals()
	}
	if err := exec.Command("unshare", "--user", "--map-root-user", "true").Run(); err != nil {
		t.Skipf("SKIPPED, since this user makes no namespaces: %v", err)
	}
	self, err := os.Executable()
	harness.Must(t, err)
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), firstProcess+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "alive\n" {
		t.Errorf("the first process: %v\n%s", err, out)
	}
}

// surviveSignals ends this process, the first one of a namespace.
func surviveSignals() {
	blocked, hold := make(chan bool), make(chan bool)
	for range 64 { // one of these goroutines gets the first thread, and all keep theirs
		go func() {
			runtime.LockOSThread()
			if unix.Gettid() == unix.Getpid() {
				var all unix.Sigset_t
				for i := range all.Val {
					all.Val[i] = ^uint64(0)
				}
				_ = unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil)
				blocked <- true
			}
			<-hold
		}()
	}
	<-blocked
	keep := []syscall.Signal{syscall.SIGCHLD, syscall.SIGURG}
	dropSignals(keep...)
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if n == syscall.SIGKILL || n == syscall.SIGSTOP || slices.Contains(keep, n) {
			continue
		}
		if out, err := exec.Command("sh", "-c", "kill -"+strconv.Itoa(int(n))+" 1").CombinedOutput(); err != nil {
			fmt.Printf("signal %d: %v %s\n", n, err, out)
		}
	}
	fmt.Println("alive")
	os.Exit(0)
}
