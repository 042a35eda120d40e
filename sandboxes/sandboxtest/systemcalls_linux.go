package sandboxtest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

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
		"AF_PACKET":      {socket(unix.AF_PACKET), errno(unix.EAFNOSUPPORT)},
		"raw socket":     {fmt.Sprintf(`print socket(S, %d, %d, %d) ? "opened" : 0+$!`, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP), errno(unix.EPERM)},
		"keyctl":         {call(unix.SYS_KEYCTL, "0, -3, 0"), errno(unix.EPERM)}, // the id of the session's keyring
		"add_key":        {call(unix.SYS_ADD_KEY, "0, 0, 0, 0, -3"), errno(unix.EPERM)},
		"request_key":    {call(unix.SYS_REQUEST_KEY, "0, 0, 0, 0"), errno(unix.EPERM)},
		"io_uring_setup": {call(unix.SYS_IO_URING_SETUP, "1, 0"), errno(unix.EPERM)},
		"bpf":            {call(unix.SYS_BPF, "0, 0, 0"), errno(unix.EPERM)},
		"perf events":    {call(unix.SYS_PERF_EVENT_OPEN, "0, 0, -1, -1, 0"), errno(unix.EPERM)},
		"userfaultfd":    {call(unix.SYS_USERFAULTFD, "0"), errno(unix.EPERM)},
		"file handle":    {call(unix.SYS_OPEN_BY_HANDLE_AT, "0, 0, 0"), errno(unix.EPERM)},
		"kernel module":  {call(unix.SYS_DELETE_MODULE, "0, 0"), errno(unix.EPERM)},
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

// hostilePerl declares tasks, the ids of the helper's threads, and the numbers of
// system calls.
func hostilePerl() string {
	var b strings.Builder
	for name, n := range map[string]int{
		"rt_sigqueueinfo": unix.SYS_RT_SIGQUEUEINFO, "rt_tgsigqueueinfo": unix.SYS_RT_TGSIGQUEUEINFO, "tkill": unix.SYS_TKILL, "tgkill": unix.SYS_TGKILL,
		"prlimit64": unix.SYS_PRLIMIT64, "setpriority": unix.SYS_SETPRIORITY, "sched_setscheduler": unix.SYS_SCHED_SETSCHEDULER,
		"sched_setparam": unix.SYS_SCHED_SETPARAM, "sched_setattr": unix.SYS_SCHED_SETATTR, "sched_setaffinity": unix.SYS_SCHED_SETAFFINITY,
		"ioprio_set": unix.SYS_IOPRIO_SET, "ptrace": unix.SYS_PTRACE, "pidfd_open": unix.SYS_PIDFD_OPEN, "pidfd_getfd": unix.SYS_PIDFD_GETFD,
		"pidfd_send_signal": unix.SYS_PIDFD_SEND_SIGNAL, "process_vm_writev": unix.SYS_PROCESS_VM_WRITEV, "migrate_pages": unix.SYS_MIGRATE_PAGES,
	} {
		fmt.Fprintf(&b, "sub %s { syscall(%d, @_) }\n", name, n)
	}
	return b.String() + "my @tasks = map { m{(\\d+)$} && 0+$1 } glob('/proc/1/task/*');\n"
}

// hostilePrograms runs programs that try to end, to stop or to slow down the
// helper, as the agent and as the verifier. Afterwards the helper works as before.
func (s *suite) hostilePrograms(t *testing.T) {
	sb := s.open(t)
	if got := s.sh(t, sb, `command -v perl`); got.exit.Code != 0 {
		t.Skip("SKIPPED, since the sandbox has no perl to make system calls with")
	}
	state := func() string {
		return s.sh(t, sb, `cat /proc/1/limits /proc/1/oom_score_adj
			for t in /proc/1/task/*; do sed 's/.*) //' $t/stat | cut -d' ' -f16,17,38,39; grep Cpus_allowed_list $t/status; done | sort -u`).out
	}
	before := state()
	for name, program := range map[string]string{
		"queued signals": `for my $sig (1..64) { for my $code (-1, -2, -6, -60) { my $info = pack("iiiiIIqx96", $sig, 0, $code, 0, $$, $<, 1);
			rt_sigqueueinfo(1, $sig, $info); for my $t (@tasks) { rt_sigqueueinfo($t, $sig, $info); rt_tgsigqueueinfo(1, $t, $sig, $info) } } }`,
		"signals": `for my $sig (1..64) { kill $sig, 1; for my $t (@tasks) { tkill($t, $sig); tgkill(1, $t, $sig) } }
			my $fd = pidfd_open(1, 0); for my $sig (1..64) { pidfd_send_signal($fd, $sig, pack("iiiiIIqx96", $sig, 0, -1, 0, $$, $<, 1), 0) }`,
		"limits":              `for my $t (1, @tasks) { for my $r (0..15) { prlimit64($t, $r, pack("QQ", 0, 0), 0) == 0 and print "set $r of $t\n" } }`,
		"priority":            `for my $t (1, @tasks) { setpriority(0, $t, 19); setpriority(1, $t, 19) } ioprio_set(3, 0, 3 << 13);`,
		"scheduler":           `for my $t (1, @tasks) { sched_setscheduler($t, 5, pack("i", 0)); sched_setscheduler($t, 3, pack("i", 0)); sched_setattr($t, pack("IIQiIQQQ", 48, 5, 0, 19, 0, 0, 0, 0), 0) }`,
		"processors":          `for my $t (1, @tasks) { sched_setaffinity($t, 8, pack("Q", 1)) }`,
		"io priority":         `for my $t (1, @tasks) { ioprio_set(1, $t, 3 << 13); ioprio_set(2, $t, 3 << 13) }`,
		"out of memory score": `for my $f (glob("/proc/1/oom_score_adj /proc/1/oom_adj /proc/1/task/*/oom_score_adj")) { if (open(my $h, ">", $f)) { syswrite $h, "1000" } }`,
		"files of the process": `for my $f (glob("/proc/1/* /proc/1/task/*/* /proc/1/attr/*")) { next if $f =~ /oom_/ || -d $f || -p $f; if (open(my $h, "+<", $f)) { syswrite $h, "1\n" } }
			open(my $m, "+<", "/proc/1/mem") and print "opened its memory\n"`,
		"tracing": `for my $r (16, 0x4206) { ptrace($r, 1, 0, 0) == 0 and print "traced\n" } my $fd = pidfd_open(1, 0); for my $n (0..40) { pidfd_getfd($fd, $n, 0) >= 0 and print "took descriptor $n\n" }
			my $x = "x" x 64; my $iov = pack("PQ", $x, 64); process_vm_writev(1, $iov, 1, pack("QQ", 0x400000, 64), 1, 0) > 0 and print "wrote memory\n"`,
		"its user's priority": `setpriority(2, 0, 19)`,
	} {
		for _, untrusted := range []bool{true, false} {
			got := run(t, sb, sandboxes.Cmd{Args: []string{"perl", "-e", hostilePerl() + program}, Untrusted: untrusted, Timeout: time.Minute})
			if got.out != "" || strings.Contains(got.errOut, "syntax error") {
				t.Errorf("%s, untrusted %v: %q %q", name, untrusted, got.out, got.errOut)
			}
			if after := state(); after != before {
				t.Errorf("%s, untrusted %v: the helper has\n%swant\n%s", name, untrusted, after, before)
			}
		}
	}
	for i := range 40 { // signals to the first process from the first moment on
		got := run(t, sb, sandboxes.Cmd{Args: []string{"sh", "-c", `trap "" HUP INT QUIT TERM USR1 USR2; for s in QUIT TERM HUP INT; do kill -$s 1; done; exit 7`}, Untrusted: i%2 == 0, Timeout: time.Minute})
		if got.exit.Code != 7 || got.exit.Signal != "" {
			t.Errorf("signals at once, untrusted %v: %+v", i%2 == 0, got)
		}
	}
	s.floodOfSignals(t, sb)
	if after := state(); after != before {
		t.Errorf("after a flood of signals the helper has\n%swant\n%s", after, before)
	}
}

// floodOfSignals sends signals to the helper from four processes, while it starts one
// command after the other: a thread that starts a process blocks all signals. It takes as
// long as TURNGATE_FLOOD says, such as 10s, and does nothing without it: it holds the
// processors, so it runs alone.
func (s *suite) floodOfSignals(t *testing.T, sb sandboxes.Sandbox) {
	t.Helper()
	long := os.Getenv("TURNGATE_FLOOD")
	if long == "" {
		return
	}
	d, err := time.ParseDuration(long)
	if err != nil {
		t.Fatalf("TURNGATE_FLOOD: %v", err)
	}
	flood := hostilePerl() + `$SIG{$_} = "IGNORE" for qw(HUP INT QUIT TERM USR1 USR2); # a helper of its own passes them on to it
		$| = 1; print "up\n"; for (;;) { for my $t (1, @tasks) { for my $sig (1..64) { kill $sig, 1; tgkill(1, $t, $sig); tgkill(1, 1, 23) } } }`
	var floods []sandboxes.Process
	var said [4]bytes.Buffer // by perl, or by the helper of its own
	for i := range said {
		r, w := io.Pipe()
		p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"perl", "-e", flood}, Untrusted: i%2 == 0, Stdout: w, Stderr: &said[i]})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, make([]byte, len("up\n"))); err != nil {
			t.Fatal(err)
		}
		floods = append(floods, p)
	}
	for began := time.Now(); time.Since(began) < d; {
		if got := s.sh(t, sb, "echo alive"); got.out != "alive\n" {
			t.Fatalf("a flood of signals, after %s: %+v", time.Since(began), got)
		}
	}
	for i, p := range floods {
		if err := p.Signal(t.Context(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if exit, err := p.Wait(); err != nil || exit.Signal != "killed" {
			t.Errorf("a flood of signals, untrusted %v: ended with %+v, %v\n%s", i%2 == 0, exit, err, &said[i])
		}
	}
}
