package sandboxtest

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

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
}

// forkBomb starts processes up to the limit and beyond, while the helper works.
func (s *suite) forkBomb(t *testing.T) {
	spec := s.spec()
	spec.Pids = sandboxes.LeastPids
	sb := s.openSpec(t, spec)
	r, w := io.Pipe()
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/sh", "-c", `(while :; do sleep 1000 & done) 2>/dev/null; echo full; sleep 1000`}, Stdout: w, Untrusted: true, Timeout: time.Minute})
	harness.Must(t, err)
	ended := make(chan error, 1)
	go func() {
		exit, err := p.Wait()
		w.CloseWithError(errors.Join(fmt.Errorf("the command ended: %+v", exit), err))
		ended <- err
	}()
	if _, err := io.ReadFull(r, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, r) //nolint:errcheck // a pipe in memory
	done := make(chan error, 64)
	for range cap(done) {
		go func() {
			_, err := sb.Files().List(t.Context(), "/")
			done <- err
		}()
	}
	for range cap(done) {
		harness.Must(t, <-done)
	}
	harness.Must(t, sb.KillAll(t.Context()))
	harness.Must(t, <-ended)
	if got := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "alive", "", "0")}); got.out != "alive" {
		t.Errorf("afterwards: %+v", got)
	}
}

// smallLimits asks for limits with which no sandbox works.
func (s *suite) smallLimits(t *testing.T) {
	for name, set := range map[string]func(*sandboxes.Spec){
		schema.LimitMemory: func(s *sandboxes.Spec) { s.MemoryBytes = 1 },
		schema.LimitPids:   func(s *sandboxes.Spec) { s.Pids = 1 },
		schema.LimitCPUs:   func(s *sandboxes.Spec) { s.CPUs = 0.0001 },
		schema.LimitDisk:   func(s *sandboxes.Spec) { s.DiskBytes = 1 },
	} {
		spec := s.spec()
		set(&spec)
		var noted []string
		spec.Note = func(limit, _ string) { noted = append(noted, limit) }
		sb := s.openSpec(t, spec)
		if got := run(t, sb, sandboxes.Cmd{Args: []string{"/bin/sh", "-c", "/bin/echo works"}}); got.out != "works\n" || !slices.Contains(noted, name) {
			t.Errorf("%s: %+v, noted %v", name, got, noted)
		}
		spec = s.spec()
		set(&spec)
		spec.Strict = []string{name}
		var no *sandboxes.UnsupportedError
		if sb, err := s.backend.Create(t.Context(), spec); !errors.As(err, &no) || no.Field != "sandbox."+name {
			t.Errorf("strict %s: %v", name, err)
			if err == nil {
				harness.Must(t, sb.Close(t.Context()))
			}
		}
	}
}

// agentUser is the user of agents that are not root.
const agentUser = "1234"

// afterAgent prepares a sandbox as root, and then runs the agent there.
func (s *suite) afterAgent(t *testing.T, workdir, setup, agent string) sandboxes.Sandbox {
	t.Helper()
	spec := s.spec()
	spec.Workdir = workdir
	sb := s.openSpec(t, spec)
	for _, c := range []sandboxes.Cmd{
		{Args: []string{"/bin/sh", "-ec", setup}, Dir: "/"},
		{Args: []string{"/bin/sh", "-ec", agent}, Dir: "/home/agent", User: agentUser, Untrusted: true},
	} {
		if got := run(t, sb, c); !got.exit.OK() {
			t.Fatalf("%q: %+v", c.Args[2], got)
		}
	}
	return sb
}

// linksOfAgents puts links of an agent in the way of all operations on files. No
// operation changes the root's folder behind them.
func (s *suite) linksOfAgents(t *testing.T) {
	const setup = `mkdir -p /home/agent/work/sub /keep/sub; echo mine > /keep/file; echo mine > /keep/sub/file; chmod 700 /keep; chown -R 1234 /home/agent; ln -s /keep /home/agent/ofroot`
	const look = `find /keep -printf '%p %u %m %s\n' | sort; cat /keep/file`
	for name, agent := range map[string]string{
		"the folder":             `mv work old; ln -s /keep work`,
		"a folder above":         `cd ..; mv agent/work agent/old; ln -s / agent/up; ln -s up/keep agent/work`,
		"a chain":                `mv work old; ln -s a b; ln -s /keep a; ln -s b work`,
		"a relative link":        `mv work old; ln -s ../../keep work`,
		"a link of root, moved":  `mv work old; mv ofroot work`,
		"a link of the kernel":   `mv work old; ln -s /proc/1/root/keep work`,
		"a link to the own root": `mv work old; ln -s /proc/self/root/keep work`,
	} {
		t.Run(name, func(t *testing.T) {
			sb := s.afterAgent(t, "/home/agent/work", setup, agent)
			f, ctx := sb.Files(), t.Context()
			before := s.sh2(t, sb, look)
			files := []tar.Header{{Name: "sub/", Typeflag: tar.TypeDir, Mode: 0o777}, {Name: "file", Typeflag: tar.TypeReg, Mode: 0o777}, {Name: "sub/file", Typeflag: tar.TypeReg, Mode: 0o777}}
			for operation, err := range map[string]error{
				"unpack":       f.TarIn(ctx, "/home/agent/work", tarOf(t, files...), agentUser),
				"unpack below": f.TarIn(ctx, "/home/agent/work/sub", tarOf(t, files[1]), agentUser),
				"write":        f.Write(ctx, "/home/agent/work/file", []byte("x"), 0o777, agentUser),
				"make":         f.Mkdir(ctx, "/home/agent/work/new", 0o777, agentUser),
				"remove":       f.Remove(ctx, "/home/agent/work/file"),
				"pack":         f.TarOut(ctx, "/home/agent/work", io.Discard, sandboxes.TarOptions{Limit: 1 << 20}),
			} {
				if err == nil {
					t.Errorf("%s follows the link", operation)
				}
			}
			if got, err := f.Read(ctx, "/home/agent/work/file", 100); err == nil {
				t.Errorf("read follows the link: %q", got)
			}
			if got, err := f.List(ctx, "/home/agent/work"); err == nil {
				t.Errorf("list follows the link: %v", got)
			}
			if _, err := f.Stat(ctx, "/home/agent/work/file"); err == nil {
				t.Error("stat follows the link")
			}
			if _, err := sb.Start(ctx, sandboxes.Cmd{Args: []string{"/bin/pwd"}, User: "0"}); err == nil {
				t.Error("a command of root works behind the link")
			}
			var there strings.Builder
			p, err := sb.Start(ctx, sandboxes.Cmd{Args: []string{"/bin/pwd"}, User: agentUser, Untrusted: true, Stdout: &there})
			if err == nil {
				_, err = p.Wait()
			}
			var none *sandboxes.NoCommandError
			if err != nil && !errors.As(err, &none) || strings.HasPrefix(there.String(), "/keep") {
				t.Errorf("the agent works in a folder of root: %q, %v", there.String(), err)
			}
			harness.Must(t, f.Empty(ctx, "/home/agent/work/sub", 0o755, agentUser)) // replaces the link
			if after := s.sh2(t, sb, look); after != before {
				t.Errorf("changed: %s, was %s", after, before)
			}
		})
	}
}

// sh2 is sh in "/".
func (s *suite) sh2(t *testing.T, sb sandboxes.Sandbox, script string) string {
	t.Helper()
	return run(t, sb, sandboxes.Cmd{Args: []string{"/bin/sh", "-c", script}, Dir: "/", User: "0", Timeout: time.Minute}).out
}

// linksOfRoot uses a working directory and artifacts beneath links of the image,
// after an agent has run.
func (s *suite) linksOfRoot(t *testing.T) {
	for workdir, setup := range map[string]string{
		"/app/work":        `mkdir -p /srv/app/work; ln -s srv/app /app; chown -R 1234 /srv/app`,
		"/app":             `mkdir -p /srv/app; ln -s /srv/app /app; chown 1234 /srv/app`,
		"/tmp/link/work":   `mkdir -p /srv/app/work; ln -s /srv/app /tmp/link`,
		"/home/agent/link": `mkdir -p /srv/app; ln -s /srv/app /home/agent/link; chown -h 1234 /home/agent/link; chown 1234 /srv/app`,
	} {
		sb := s.afterAgent(t, workdir, `mkdir -p /home/agent; chown 1234 /home/agent; `+setup, `true`)
		f, ctx := sb.Files(), t.Context()
		harness.Must(t, f.TarIn(ctx, workdir, tarOf(t, tar.Header{Name: "d/file", Typeflag: tar.TypeReg, Mode: 0o644}), agentUser))
		harness.Must(t, f.Write(ctx, workdir+"/x", []byte("y"), 0o644, agentUser))
		var out bytes.Buffer
		harness.Must(t, f.TarOut(ctx, workdir, &out, sandboxes.TarOptions{Limit: 1 << 20}))
		if got, err := f.Read(ctx, workdir+"/d/file", 100); err != nil || string(got) != "of d/file" || !bytes.Contains(out.Bytes(), got) {
			t.Errorf("%s: read %q, %v", workdir, got, err)
		}
		if got := run(t, sb, sandboxes.Cmd{Args: []string{"/bin/sh", "-c", "cat d/file"}, User: "0"}); got.out != "of d/file" {
			t.Errorf("%s: %+v", workdir, got)
		}
	}
}

// foldersKeepTheirOwner puts files into a folder of root, for another user.
func (s *suite) foldersKeepTheirOwner(t *testing.T) {
	sb := s.open(t)
	f, ctx := sb.Files(), t.Context()
	s.sh2(t, sb, `mkdir -p /app/old; chmod 711 /app/old; echo root > /app/old/other; mkfifo /app/pipe; ln /app/old/other /app/hard`)
	harness.Must(t, f.TarIn(ctx, "/app", tarOf(t,
		tar.Header{Name: "old/", Typeflag: tar.TypeDir, Mode: 0o777}, tar.Header{Name: "old/file", Typeflag: tar.TypeReg, Mode: 0o600},
		tar.Header{Name: "new/", Typeflag: tar.TypeDir, Mode: 0o750}, tar.Header{Name: "late/file", Typeflag: tar.TypeReg, Mode: 0o600},
		tar.Header{Name: "late/", Typeflag: tar.TypeDir, Mode: 0o710}, tar.Header{Name: "pipe", Typeflag: tar.TypeReg, Mode: 0o600},
		tar.Header{Name: "hard", Typeflag: tar.TypeReg, Mode: 0o600}, tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "hard"}), agentUser))
	harness.Must(t, f.Mkdir(ctx, "/app/old", 0o777, agentUser))
	harness.Must(t, f.Mkdir(ctx, "/app/made/deep", 0o700, agentUser))
	got := s.sh2(t, sb, `cd /app; stat -c '%n %u %a' . old old/other old/file new late late/file pipe hard link made made/deep`)
	want := ". 0 755\nold 0 711\nold/other 0 644\nold/file 1234 600\nnew 1234 750\nlate 1234 710\nlate/file 1234 600\npipe 1234 600\nhard 1234 600\nlink 1234 777\nmade 1234 755\nmade/deep 1234 700\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// pipesInPlaceOfAccounts replaces the lists of users by files that never end.
func (s *suite) pipesInPlaceOfAccounts(t *testing.T) {
	sb := s.open(t)
	f := sb.Files()
	for _, script := range []string{`mkfifo /etc/passwd /etc/group`, `ln -s /dev/zero /etc/passwd; ln -s /dev/zero /etc/group`, `truncate -s 1T /etc/passwd /etc/group`} {
		s.sh(t, sb, `rm -f /etc/passwd /etc/group; `+script)
		if got := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "alive", "", "0"), User: "0"}); got.out != "alive" {
			t.Errorf("%s: %+v", script, got)
		}
		harness.Must(t, f.Write(t.Context(), "/x/file", []byte("x"), 0o644, "0"))
		harness.Must(t, f.TarOut(t.Context(), "/x", io.Discard, sandboxes.TarOptions{Limit: 1 << 20}))
	}
}
