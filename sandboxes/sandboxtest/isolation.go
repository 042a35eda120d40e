package sandboxtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
)

func (s *suite) hostileStrings(t *testing.T) {
	sb := s.open(t)
	for _, text := range []string{`"q" 's' \`, "$(touch /pwned)", "`touch /pwned`", "--help", "a\nb\r\n", "-e x", "; touch /pwned #", "héllo\u2028"} {
		if got := run(t, sb, sandboxes.Cmd{Args: s.Command("print", text, "", "0")}); got.out != text {
			t.Errorf("as argument: %q became %q", text, got.out)
		}
		if got := run(t, sb, sandboxes.Cmd{Args: s.Command("env", "X"), Env: map[string]string{"X": text}}); got.out != strings.TrimRight(text, "\n") {
			t.Errorf("as environment: %q became %q", text, got.out)
		}
		if got := run(t, sb, sandboxes.Cmd{Args: s.Command("cat"), Stdin: strings.NewReader(text)}); got.out != text {
			t.Errorf("on stdin: %q became %q", text, got.out)
		}
	}
	if _, err := sb.Files().Stat(t.Context(), "/pwned"); err == nil {
		t.Error("a string was run by a shell")
	}
}

func (s *suite) count1(t *testing.T, sb sandboxes.Sandbox, what string) string {
	t.Helper()
	return strings.TrimSpace(s.sh(t, sb, `n=0; for p in /proc/[0-9]*; do if tr '\0' ' ' < $p/cmdline 2>/dev/null | grep -q "^sleep `+what+`"; then n=$((n+1)); fi; done; echo $n`).out)
}

func (s *suite) tree(t *testing.T) {
	sb := s.open(t)
	// A child, a grandchild in a session of its own, and an orphan.
	script := `sleep 7001 & setsid sleep 7001 & (setsid sh -c 'sleep 7001 & exec sleep 7001' &) ; wait; sleep 7001`
	for _, untrusted := range []bool{false, true} {
		got := run(t, sb, sandboxes.Cmd{Args: []string{"/bin/sh", "-c", script}, Timeout: time.Second, Untrusted: untrusted})
		if !got.exit.TimedOut {
			t.Fatalf("got %+v", got.exit)
		}
		if n := s.count1(t, sb, "7001"); n != "0" {
			t.Errorf("untrusted %v: %s processes are left", untrusted, n)
		}
	}
}

func (s *suite) heldOutput(t *testing.T) {
	sb := s.open(t)
	start := time.Now()
	got := s.sh(t, sb, `echo hi; sleep 7002 & exit 4`)
	if got.exit.Code != 4 || got.out != "hi\n" || time.Since(start) > 30*time.Second {
		t.Fatalf("got %+v after %s", got, time.Since(start))
	}
	harness.Must(t, sb.KillAll(t.Context()))
	if n := s.count1(t, sb, "7002"); n != "0" {
		t.Fatalf("%s processes are left", n)
	}
}

// release leaves processes behind, of which some use a folder.
func (s *suite) release(t *testing.T) {
	for _, untrusted := range []bool{false, true} {
		sb := s.open(t)
		script := `exec >/dev/null 2>&1; mkdir -p /srv/a/b; cd /srv/a/b; sleep 7003 & three=$!; cd /; sleep 7004 & four=$!; sh -c 'exec 5>/srv/a/x; sleep 7005; :' &
until [ -e /srv/a/x ] && tr '\0' ' ' </proc/$three/cmdline | grep '^sleep' && tr '\0' ' ' </proc/$four/cmdline | grep '^sleep'; do :; done; exit 0`
		if got := run(t, sb, sandboxes.Cmd{Args: []string{"/bin/sh", "-c", script}, Untrusted: untrusted}); !got.exit.OK() {
			t.Fatalf("got %+v", got.exit)
		}
		got, err := sb.Release(t.Context(), []string{"/srv/a"})
		if err != nil || !slices.Equal(got.Left, []string{"sleep 7004"}) || !slices.Contains(got.Ended, "sleep 7003") {
			t.Errorf("untrusted %v: %+v, %v", untrusted, got, err)
		}
		if got := s.sh(t, sb, "exit 3"); got.exit.Code != 3 {
			t.Errorf("got %+v", got.exit)
		}
		if got := run(t, sb, sandboxes.Cmd{Args: []string{"sleep", "7006"}, Timeout: 100 * time.Millisecond}); !got.exit.TimedOut {
			t.Errorf("got %+v", got.exit)
		}
		for of, want := range map[string]string{"7003": "0", "7004": "1", "7005": "0", "7006": "0"} {
			if n := s.count1(t, sb, of); n != want {
				t.Errorf("untrusted %v: %s processes of %s, want %s", untrusted, n, of, want)
			}
		}
		harness.Must(t, sb.KillAll(t.Context()))
		if n := s.count1(t, sb, "7004"); n != "0" {
			t.Errorf("untrusted %v: %s processes are left after KillAll", untrusted, n)
		}
	}
}

// lateOutput lets a process write to the output of its command after the command has
// ended.
func (s *suite) lateOutput(t *testing.T) {
	for _, untrusted := range []bool{false, true} {
		sb := s.open(t)
		script := `(trap '' PIPE; until [ -e /tmp/go ]; do sleep 0.05; done; if echo late; then echo yes >/tmp/echoed; else echo no >/tmp/echoed; fi) & exit 0`
		if got := run(t, sb, sandboxes.Cmd{Args: []string{"/bin/sh", "-c", script}, Untrusted: untrusted}); !got.exit.OK() {
			t.Fatalf("got %+v", got.exit)
		}
		harness.Must(t, sb.Files().Write(t.Context(), "/tmp/go", strings.NewReader(""), 0o644, ""))
		var echoed []byte
		harness.Eventually(t, "a late line of output", 20*time.Second, func() bool {
			echoed, _ = sandboxes.ReadFile(t.Context(), sb.Files(), "/tmp/echoed", 10)
			return len(echoed) > 0
		})
		if string(echoed) != "yes\n" {
			t.Errorf("untrusted %v: it could not write", untrusted)
		}
	}
}

type slowWriter struct {
	release chan struct{}
	n       int
}

func (w *slowWriter) Write(p []byte) (int, error) {
	<-w.release
	w.n += len(p)
	return len(p), nil
}

func (s *suite) backPressure(t *testing.T) {
	sb := s.open(t)
	w := &slowWriter{release: make(chan struct{})}
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: s.Command("flood", "20000000"), Stdout: w})
	harness.Must(t, err)
	// With no reader the command blocks; other operations continue.
	if got := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "x", "", "0")}); got.out != "x" {
		t.Fatalf("got %+v", got)
	}
	close(w.release)
	exit, err := p.Wait()
	if err != nil || !exit.OK() || w.n != 20_000_000 {
		t.Fatalf("%d bytes, %+v, %v", w.n, exit, err)
	}
}

func (s *suite) freeze(t *testing.T) {
	sb := s.open(t)
	r, w := io.Pipe()
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/sh", "-c", `while :; do echo tick; sleep 0.05; done`}, Stdout: w, Untrusted: true})
	harness.Must(t, err)
	ticks := make(chan struct{}, 1000)
	go func() {
		buf := make([]byte, 5)
		for {
			if _, err := io.ReadFull(r, buf); err != nil {
				return
			}
			ticks <- struct{}{}
		}
	}()
	<-ticks
	harness.Must(t, sb.Freeze(t.Context()))
	for quiet := false; !quiet; { // output under way arrives
		select {
		case <-ticks:
		case <-time.After(300 * time.Millisecond):
			quiet = true
		}
	}
	harness.Must(t, sb.Thaw(t.Context()))
	select {
	case <-ticks:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not go on after Thaw")
	}
	harness.Must(t, sb.KillAll(t.Context()))
	_, err = p.Wait()
	harness.Must(t, err)
	r.Close()
}

// freezeStarts freezes a sandbox while commands start in it, and thaws it again.
func (s *suite) freezeStarts(t *testing.T) {
	sb := s.open(t)
	ended := make(chan struct{})
	starts := make(chan error, 1)
	go func() {
		for {
			p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/true"}, Untrusted: true})
			if err == nil {
				_, err = p.Wait()
			}
			select {
			case <-ended:
				starts <- err
				return
			default:
			}
			if err != nil {
				starts <- err
				return
			}
		}
	}()
	for range 100 {
		harness.Must(t, sb.Freeze(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		err := sb.Thaw(ctx)
		cancel()
		harness.Must(t, err)
	}
	close(ended)
	harness.Must(t, <-starts)
}

// frozenOutput runs a command that ends while its child still writes. The time
// limit for reading that output must not count frozen time.
func (s *suite) frozenOutput(t *testing.T) {
	sb := s.open(t)
	r, w := io.Pipe()
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/sh", "-c", `(echo begun; sleep 0.2; sleep 0.2; sleep 0.2; echo late) &`}, Stdout: w})
	harness.Must(t, err)
	out := bufio.NewReader(r)
	if line, err := out.ReadString('\n'); err != nil || line != "begun\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	harness.Must(t, sb.Freeze(t.Context()))
	<-time.After(3 * time.Second)
	harness.Must(t, sb.Thaw(t.Context()))
	late := make(chan string, 1)
	go func() {
		line, _ := out.ReadString('\n')
		late <- line
	}()
	exit, err := p.Wait()
	w.Close()
	if line := <-late; err != nil || !exit.OK() || line != "late\n" {
		t.Fatalf("got %q, %+v, %v", line, exit, err)
	}
}

// closeFrozen closes a frozen sandbox. Its box may not answer any more.
func (s *suite) closeFrozen(t *testing.T) {
	sb := s.open(t)
	p := s.startUp(t, sb)
	harness.Must(t, sb.Freeze(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := p.Signal(ctx, syscall.SIGTERM); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("signal: %v", err)
	}
	harness.Must(t, sb.Close(t.Context()))
	if exit, err := p.Wait(); err == nil && exit.OK() {
		t.Errorf("it ended well: %+v", exit)
	}
}

func (s *suite) specialFiles(t *testing.T) {
	sb := s.open(t)
	if got := s.sh(t, sb, `mkdir -p /x && mkfifo /x/fifo && ln -s /dev/zero /x/zero && ln -s /proc/1/environ /x/environ && echo ok > /x/plain`); !got.exit.OK() {
		t.Fatalf("got %+v", got)
	}
	for _, path := range []string{"/x/fifo", "/x/zero", "/x"} {
		if _, err := sandboxes.ReadFile(t.Context(), sb.Files(), path, 100); err == nil {
			t.Errorf("%s was read", path)
		}
	}
	var out bytes.Buffer
	harness.Must(t, sb.Files().TarOut(t.Context(), "/x", &out, sandboxes.TarOptions{Limit: 1 << 20}))
	if !bytes.Contains(out.Bytes(), []byte("plain")) || bytes.Contains(out.Bytes(), []byte("fifo")) {
		t.Error("only regular files are packed")
	}
}

func (s *suite) life(t *testing.T) {
	spec := s.spec()
	spec.Life = time.Second
	sb := s.openSpec(t, spec)
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: s.Command("forever")})
	harness.Must(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := p.Wait()
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, sandboxes.ErrLost) {
			t.Fatalf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it lives on")
	}
}

func (s *suite) users(t *testing.T) {
	sb := s.open(t)
	caps := `grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -d '\t' | tr '\n' ' '`
	root := s.sh(t, sb, "id -u; "+caps)
	// Docker's default set without NET_RAW and MKNOD.
	const want = "0\nCapPrm:00000000a00405fb CapEff:00000000a00405fb CapBnd:00000000a00405fb NoNewPrivs:1 "
	if root.out != want {
		t.Errorf("root has %q, want %q", root.out, want)
	}
	if got := s.sh(t, sb, "touch /tmp/x && chown 1234:1234 /tmp/x && stat -c %u /tmp/x"); got.out != "1234\n" {
		t.Errorf("root cannot chown: %+v", got)
	}
	other := run(t, sb, sandboxes.Cmd{Args: []string{"/bin/sh", "-c", "id -u; " + caps}, User: "1234", Timeout: time.Minute})
	if other.out != "1234\nCapPrm:0000000000000000 CapEff:0000000000000000 CapBnd:0000000000000000 NoNewPrivs:1 " {
		t.Errorf("another user has %q", other.out)
	}
	if got := s.sh(t, sb, `cp "$(command -v id)" /tmp/raised && chmod 4755 /tmp/raised`); !got.exit.OK() {
		t.Fatalf("%+v", got)
	}
	if got := run(t, sb, sandboxes.Cmd{Args: []string{"/tmp/raised", "-u"}, User: "1234", Timeout: time.Minute}); got.out != "1234\n" {
		t.Errorf("a program with the setuid bit of root: %+v", got)
	}
	_, err := sb.Start(t.Context(), sandboxes.Cmd{Args: s.Command("pwd"), User: "nosuchuser"})
	var none *sandboxes.NoCommandError
	if !errors.As(err, &none) || !strings.Contains(err.Error(), "nosuchuser") {
		t.Errorf("an unknown user: %v", err)
	}
}

func (s *suite) helperIsSafe(t *testing.T) {
	// The helper ignores signals, its commands do not.
	if ignored := s.sh(t, s.open(t), `sed -n 's/^SigIgn:[[:space:]]*//p' /proc/self/status`); strings.Trim(ignored.out, "0\n") != "" || ignored.out == "" {
		t.Errorf("a command ignores the signals %q", ignored.out)
	}
	s.withHelper(t, `for s in KILL STOP TERM INT HUP QUIT SEGV ABRT USR1 TRAP BUS; do kill -$s 1; done`)
}

func (s *suite) helperIsPrivate(t *testing.T) {
	s.withHelper(t, `
		cat /proc/1/environ >/dev/null 2>&1 && echo "read environ"
		head -c 1 /proc/1/mem >/dev/null 2>&1 && echo "read mem"
		ls -l /proc/1/fd >/dev/null 2>&1 && echo "read fd"
		for f in /.turngate/turngate; do (echo x >> $f) 2>/dev/null && echo "wrote $f"; rm -f $f 2>/dev/null && echo "removed $f"; done
		cat /.turngate/run/* 2>/dev/null | grep -q secret && echo "read the secret"
		true`)
}

// withHelper runs a script, which prints its successes, as the agent and as the verifier.
func (s *suite) withHelper(t *testing.T, script string) {
	t.Helper()
	for _, untrusted := range []bool{false, true} {
		sb := s.open(t)
		got := run(t, sb, sandboxes.Cmd{Untrusted: untrusted, Timeout: time.Minute, Args: []string{"/bin/sh", "-c", script}})
		if got.out != "" {
			t.Errorf("untrusted %v: %q", untrusted, got.out)
		}
		if after := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "alive", "", "0")}); after.out != "alive" {
			t.Errorf("untrusted %v: the helper is gone: %+v", untrusted, after)
		}
	}
}

func (s *suite) noNetwork(t *testing.T) {
	sb := s.open(t)
	got := s.sh(t, sb, `tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '`)
	var up []string
	for _, dev := range strings.Fields(got.out) {
		switch dev {
		case "tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0": // kernel modules add these interfaces; they are down
		default:
			up = append(up, dev)
		}
	}
	if strings.Join(up, " ") != "lo" {
		t.Fatalf("interfaces %v, want lo alone", up)
	}
	if got := s.sh(t, sb, `command -v bash`); got.exit.Code != 0 {
		t.Skip("SKIPPED, since the sandbox has no bash to connect with")
	}
	for _, address := range outside(t) {
		for _, protocol := range []string{"tcp", "udp"} {
			got := run(t, sb, sandboxes.Cmd{Args: []string{"/bin/bash", "-c", `echo x >"/dev/$0/$1"`, protocol, address}, Timeout: time.Minute})
			// The second error is that of a network without IPv6.
			if !strings.Contains(got.errOut, "Network is unreachable") && !strings.Contains(got.errOut, "Cannot assign requested address") {
				t.Errorf("%s to %s: %+v", protocol, address, got)
			}
		}
	}
}

// outside are addresses that a sandbox without a network must not reach: those of this
// host, and one of the Internet.
func outside(t *testing.T) []string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	harness.Must(t, err)
	list := []string{"198.51.100.1/80"}
	for _, a := range addrs {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			list = append(list, ip.String()+"/22")
		}
	}
	return list
}

// online checks that Online of a sandbox without the open network gives an
// *UnsupportedError.
func (s *suite) online(t *testing.T) {
	var no *sandboxes.UnsupportedError
	if err := s.open(t).Online(t.Context(), true); !errors.As(err, &no) || no.Field != "sandbox.network" {
		t.Fatalf("got %v", err)
	}
}

func (s *suite) neighbours(t *testing.T) {
	a, b := s.open(t), s.open(t)
	p := s.startUp(t, a)
	if got := s.sh(t, b, `ls -d /proc/[0-9]* | wc -l`); len(strings.TrimSpace(got.out)) > 1 {
		t.Errorf("%s processes are visible to a neighbour", strings.TrimSpace(got.out))
	}
	if got := run(t, a, sandboxes.Cmd{Args: s.Command("put", "/tmp/mine", "secret")}); !got.exit.OK() {
		t.Fatalf("got %+v", got)
	}
	if _, err := b.Files().Stat(t.Context(), "/tmp/mine"); err == nil {
		t.Error("a neighbour sees a file")
	}
	harness.Must(t, p.Signal(t.Context(), syscall.SIGKILL))
}

func (s *suite) orphans(t *testing.T) {
	sb := s.open(t)
	s.sh(t, sb, `for i in 1 2 3 4 5 6 7 8 9; do (sh -c 'sleep 0.01 &' &); done; sleep 0.3`)
	got := s.sh(t, sb, `sleep 0.3; grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l`)
	if strings.TrimSpace(got.out) != "0" {
		t.Fatalf("%s zombies", strings.TrimSpace(got.out))
	}
}

func (s *suite) memory(t *testing.T) {
	spec := s.spec()
	spec.MemoryBytes = 96 << 20
	sb := s.openSpec(t, spec)
	got := run(t, sb, sandboxes.Cmd{Timeout: time.Minute, Args: []string{"/bin/sh", "-c", `head -c 400000000 /dev/zero | tail -c 399999999 | wc -c; exit 9`}})
	if !got.exit.OOM {
		t.Fatalf("got %+v", got)
	}
	if got := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "alive", "", "0")}); got.out != "alive" || got.exit.OOM {
		t.Fatalf("the sandbox is of no use after a lack of memory: %+v", got)
	}
}

// memoryOfTheHelper fills a folder in memory with processes that the kernel kills
// later than the helper.
func (s *suite) memoryOfTheHelper(t *testing.T) {
	spec := s.spec()
	spec.MemoryBytes = 48 << 20
	sb := s.openSpec(t, spec)
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Timeout: time.Minute, Args: []string{"/bin/sh", "-c",
		`while :; do echo 0 > /proc/self/oom_score_adj; head -c 1000000 /dev/zero >> /dev/shm/full; done`}})
	harness.Must(t, err)
	if exit, err := p.Wait(); !errors.Is(err, sandboxes.ErrMemory) || !errors.Is(err, sandboxes.ErrLost) {
		t.Errorf("wait: %+v, %v", exit, err)
	}
	if _, err := sb.Files().Stat(t.Context(), "/"); !errors.Is(err, sandboxes.ErrMemory) {
		t.Errorf("stat: %v", err)
	}
	if _, err := sb.Start(t.Context(), sandboxes.Cmd{Args: s.Command("pwd")}); !errors.Is(err, sandboxes.ErrMemory) {
		t.Errorf("start: %v", err)
	}
	harness.Must(t, sb.Close(t.Context()))
}

// memoryOfAll uses the memory up in a sandbox that ends then.
func (s *suite) memoryOfAll(t *testing.T) {
	spec := s.spec()
	spec.MemoryBytes = 96 << 20
	sb := s.openSpec(t, spec)
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Timeout: time.Minute, Args: []string{"/bin/sh", "-c", `head -c 400000000 /dev/zero | tail -c 399999999 | wc -c; exit 9`}})
	harness.Must(t, err)
	if exit, err := p.Wait(); !errors.Is(err, sandboxes.ErrMemory) && !errors.Is(err, sandboxes.ErrKilled) {
		t.Errorf("wait: %+v, %v", exit, err)
	}
	harness.Must(t, sb.Close(t.Context()))
}

// killedHelper ends the helper as the agent.
func (s *suite) killedHelper(t *testing.T) {
	sb := s.open(t)
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Untrusted: true, Timeout: time.Minute, Args: []string{"/bin/sh", "-c", "kill -KILL 1; sleep 50"}})
	harness.Must(t, err)
	if exit, err := p.Wait(); !errors.Is(err, sandboxes.ErrKilled) {
		t.Errorf("wait: %+v, %v", exit, err)
	}
	harness.Must(t, sb.Close(t.Context()))
}
