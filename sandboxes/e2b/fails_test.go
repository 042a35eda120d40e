package e2b_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/e2b/e2btest"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// work is a worker with one sandbox, until it is killed.
func work(s sandboxes.E2B, mark string) int {
	b, err := newBackend(s)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	sb, err := b.Create(context.Background(), spec())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	c := sandboxtest.Sleeps(mark)
	c.Stdout = os.Stdout
	p, err := sb.Start(context.Background(), c)
	if err == nil {
		_, err = p.Wait()
	}
	fmt.Println(err)
	return 1
}

func markOf(t *testing.T) string {
	return strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()) + "-" + strconv.Itoa(os.Getpid())
}

// up starts the command that lives, and returns it with the end of its output's reader.
func up(t *testing.T, sb sandboxes.Sandbox, mark string) sandboxes.Process {
	t.Helper()
	c := sandboxtest.Sleeps(mark)
	out, in, err := os.Pipe()
	harness.Must(t, err)
	t.Cleanup(func() { in.Close(); out.Close() })
	c.Stdout = in
	p, err := sb.Start(t.Context(), c)
	harness.Must(t, err)
	_, err = bufio.NewReader(out).ReadString('\n')
	harness.Must(t, err)
	return p
}

// TestASandboxThatIsGoneIsLost: whatever ended it, the error says so, and Close removes the
// rest.
func TestASandboxThatIsGoneIsLost(t *testing.T) {
	s := e2btest.Start(t)
	b := backend(t, settings(s))
	for name, tt := range map[string]struct {
		end  func(*testing.T, e2btest.Info)
		says string
	}{
		"ended by E2B":             {func(_ *testing.T, i e2btest.Info) { s.End(i.ID) }, "E2B has ended it"},
		"the stream is cut":        {func(_ *testing.T, i e2btest.Info) { s.Cut(i.ID) }, "the connection to the sandbox is lost"},
		"the far turngate is gone": {func(t *testing.T, i e2btest.Info) { harness.Must(t, syscall.Kill(i.Pids[0], syscall.SIGKILL)) }, "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			sb := sandboxtest.Create(t, b, spec())
			p := up(t, sb, markOf(t))
			all := s.Sandboxes()
			if len(all) != 1 || len(all[0].Pids) != 1 {
				t.Fatalf("the sandboxes %+v", all)
			}
			tt.end(t, all[0])
			if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("the process ends with %v", err)
			}
			harness.Must(t, sb.Close(t.Context()))
			if left := s.Sandboxes(); len(left) > 0 {
				t.Errorf("left: %+v", left)
			}
			harness.Eventually(t, "no process is left", 5*time.Minute, func() bool { return len(sandboxtest.Processes(markOf(t))) == 0 })
			_, err := b.Sweep(t.Context(), "w1", func(schema.ID) bool { return false })
			harness.Must(t, err)
		})
	}
}

// TestAKilledWorkersSandboxIsSwept: by the next process of the same worker. Its time at
// E2B, which nobody makes longer, bounds it too.
func TestAKilledWorkersSandboxIsSwept(t *testing.T) {
	s := e2btest.Start(t)
	exe, err := os.Executable()
	harness.Must(t, err)
	mark := markOf(t)
	cmd := exec.Command(exe, "work", s.URL, s.URL, mark)
	cmd.Env = append(os.Environ(), s.Env()...)
	out, err := cmd.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	harness.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if err != nil || line != "up\n" {
		t.Fatalf("the worker says %q, %v", line, err)
	}
	all := s.Sandboxes()
	if len(all) != 1 || time.Until(all[0].Ends) > 5*time.Minute || len(sandboxtest.Processes(mark)) == 0 {
		t.Fatalf("the sandboxes %+v", all)
	}
	b := backend(t, settings(s))
	if n, err := b.Sweep(t.Context(), "w1", func(schema.ID) bool { return false }); n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if left := s.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	harness.Eventually(t, "no process is left", 5*time.Minute, func() bool { return len(sandboxtest.Processes(mark)) == 0 })
}

// TestSweepReadsAllPages: E2B lists 100 sandboxes at once.
func TestSweepReadsAllPages(t *testing.T) {
	s := e2btest.Start(t)
	const all = 105
	owner := ownerOf(t, s)
	for range all {
		harness.Must(t, s.Make(map[string]string{"turngate_owner": owner, "turngate_rollout": "alpha-2"}))
	}
	harness.Must(t, s.Make(map[string]string{"turngate_owner": "another"}))
	if n, err := backend(t, settings(s)).Sweep(t.Context(), "w1", func(schema.ID) bool { return false }); n != all || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if left := s.Sandboxes(); len(left) != 1 {
		t.Errorf("left: %+v", left)
	}
}

// ownerOf returns the owner's name in the metadata.
func ownerOf(t *testing.T, s *e2btest.Server) string {
	t.Helper()
	sb := sandboxtest.Create(t, backend(t, settings(s)), spec())
	owner := s.Sandboxes()[0].Metadata["turngate_owner"]
	harness.Must(t, sb.Close(t.Context()))
	return owner
}

// TestARefusalForNowIsWaitedFor: E2B tells how long, and all requests of a worker wait.
func TestARefusalForNowIsWaitedFor(t *testing.T) {
	s := e2btest.Start(t)
	b := backend(t, settings(s))
	s.Refuse(2, 429, "1")
	before := time.Now()
	sp := spec()
	var log []string
	sp.Log = func(line string) { log = append(log, line) }
	sandboxtest.Create(t, b, sp)
	if waited := s.Made()[0].Sub(before); waited < 2*time.Second || len(log) < 2 || !strings.Contains(log[0], "429") || !strings.Contains(log[1], "another try in 1s") {
		t.Errorf("after %s: %q", waited, log)
	}
	s.Refuse(1, 429, "3600")
	short, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := b.Create(short, sp); err == nil || !strings.Contains(err.Error(), "429") || short.Err() != nil {
		t.Errorf("a wait that is too long: %v", err)
	}
}

// TestAnErrorOfE2BIsNoWait: only 429 is.
func TestAnErrorOfE2BIsNoWait(t *testing.T) {
	s := e2btest.Start(t)
	s.Refuse(1, 500, "")
	if _, err := backend(t, settings(s)).Create(t.Context(), spec()); err == nil || !strings.Contains(err.Error(), "500: refused for a test") {
		t.Errorf("got %v", err)
	}
}

// TestSandboxesAtOnceAreBounded: the next one waits until one is closed.
func TestSandboxesAtOnceAreBounded(t *testing.T) {
	s := e2btest.Start(t)
	e := settings(s)
	e.Sandboxes = 1
	b := backend(t, e)
	first := sandboxtest.Create(t, b, spec())
	sp := spec()
	sp.Attempt = 2
	waits := make(chan struct{}, 8)
	sp.Log = func(line string) {
		if strings.Contains(line, "all 1 sandboxes of E2B are in use") {
			waits <- struct{}{}
		}
	}
	second := make(chan sandboxes.Sandbox, 1)
	go func() {
		sb, err := b.Create(t.Context(), sp)
		if err != nil {
			t.Error(err)
		}
		second <- sb
	}()
	<-waits
	if all := s.Sandboxes(); len(all) != 1 {
		t.Errorf("the sandboxes %+v", all)
	}
	harness.Must(t, first.Close(t.Context()))
	if sb := <-second; sb != nil {
		harness.Must(t, sb.Close(t.Context()))
	}
}

// TestCreationsAreSpread: no more than so many in a minute.
func TestCreationsAreSpread(t *testing.T) {
	s := e2btest.Start(t)
	e := settings(s)
	e.PerMinute = 60
	b := backend(t, e)
	before := time.Now()
	for i := range 2 {
		sp := spec()
		sp.Attempt = i + 1
		harness.Must(t, sandboxtest.Create(t, b, sp).Close(t.Context()))
	}
	if waited := s.Made()[1].Sub(before); waited < time.Second {
		t.Errorf("the second after %s", waited)
	}
}

// TestTheTimeAtE2BIsMadeLonger: a sandbox that lives has always a part of its lease left.
func TestTheTimeAtE2BIsMadeLonger(t *testing.T) {
	s := e2btest.Start(t)
	sp := spec()
	sp.Lost = time.Minute
	sandboxtest.Create(t, backend(t, settings(s)), sp)
	first := s.Sandboxes()[0].Ends
	harness.Eventually(t, "a later end", 5*time.Minute, func() bool { return s.Sandboxes()[0].Ends.After(first.Add(10 * time.Second)) })
}
