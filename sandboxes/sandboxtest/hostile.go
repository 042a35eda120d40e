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

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

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
				"write":        f.Write(ctx, "/home/agent/work/file", strings.NewReader("x"), 0o777, agentUser),
				"make":         f.Mkdir(ctx, "/home/agent/work/new", 0o777, agentUser),
				"remove":       f.Remove(ctx, "/home/agent/work/file"),
				"pack":         f.TarOut(ctx, "/home/agent/work", io.Discard, sandboxes.TarOptions{Limit: 1 << 20}),
			} {
				if err == nil {
					t.Errorf("%s follows the link", operation)
				}
			}
			if got, err := sandboxes.ReadFile(ctx, f, "/home/agent/work/file", 100); err == nil {
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
		harness.Must(t, f.Write(ctx, workdir+"/x", strings.NewReader("y"), 0o644, agentUser))
		var out bytes.Buffer
		harness.Must(t, f.TarOut(ctx, workdir, &out, sandboxes.TarOptions{Limit: 1 << 20}))
		if got, err := sandboxes.ReadFile(ctx, f, workdir+"/d/file", 100); err != nil || string(got) != "of d/file" || !bytes.Contains(out.Bytes(), got) {
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
		harness.Must(t, f.Write(t.Context(), "/x/file", strings.NewReader("x"), 0o644, "0"))
		harness.Must(t, f.TarOut(t.Context(), "/x", io.Discard, sandboxes.TarOptions{Limit: 1 << 20}))
	}
}
