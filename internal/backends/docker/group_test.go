package docker_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// grouped describes a sandbox with the side-car "peer" and a shared folder.
func grouped(image, rollout string) sandboxes.Spec {
	s := spec(image)
	s.Rollout = schema.ID(rollout)
	s.MemoryBytes, s.Pids = 256<<20, 200
	s.Folders = []sandboxes.Folder{{Name: "shared"}}
	s.Container = schema.Container{
		Command: []string{"serve"}, Mounts: []schema.Mount{{Folder: "shared", Path: "/shared"}}, Hostname: "client",
		Hosts: []schema.HostAddress{{Name: "old-db", Address: "192.0.2.77"}}, Tmpfs: []schema.Tmpfs{{Path: "/scratch", SizeBytes: 1 << 20}},
		Ulimits: []schema.Ulimit{{Name: "nofile", Soft: 99, Hard: 99}}, ShmBytes: 1 << 20,
	}
	s.Services = []sandboxes.Service{{Name: "peer", Aliases: []string{"other-name"}, Spec: sandboxes.Spec{
		Image: image, Env: map[string]string{"COLOUR": "blue"},
		Files:     []sandboxes.File{{Path: "/etc/peer/peer.conf", Mode: 0o640, Data: strings.NewReader("conf")}},
		Container: schema.Container{Entrypoint: []string{"perl", "-e"}, Command: []string{echo}, Mounts: []schema.Mount{{Folder: "shared", Path: "/in", ReadOnly: true}}},
	}}}
	return s
}

// echo answers each connection with the content of a file in the shared folder.
const echo = `use IO::Socket::INET; my $s = IO::Socket::INET->new(LocalPort => 7000, Listen => 5, ReuseAddr => 1) or die $!; $| = 1; print "up\n";
while (my $c = $s->accept) { open(my $f, "<", "/in/word"); print {$c} <$f>; close $c }`

func sh(t *testing.T, sb sandboxes.Sandbox, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"bash", "-c", script}, Stdout: &out, Stderr: &out, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait()
	if err != nil || !exit.OK() {
		t.Fatalf("%s: %s %v\n%s", script, exit, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

func leftovers(t *testing.T, label string) string {
	t.Helper()
	var all []string
	for _, args := range [][]string{{"ps", "-aq"}, {"network", "ls", "-q"}, {"volume", "ls", "-q"}} {
		out, err := exec.Command("docker", append(args, "--filter", "label="+label)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.Fields(string(out))...)
	}
	return strings.Join(all, " ")
}

func TestSideCarsShareANetworkAndFoldersAndNothingElse(t *testing.T) {
	testenv.Slow(t)
	b, image, _ := backend(t)
	sb, err := b.Create(t.Context(), grouped(image, "alpha-group"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	peer, err := sb.Service("peer")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Service("nobody"); err == nil {
		t.Error("a side-car that is not there was found")
	}
	if got := strings.Join(sb.Argv(), " "); got != "serve" {
		t.Errorf("argv %q", got)
	}
	said := make(chan string, 1)
	out := writerFunc(func(p []byte) {
		select {
		case said <- string(p):
		default:
		}
	})
	_, err = peer.Start(t.Context(), sandboxes.Cmd{Args: peer.Argv(), Stdout: out, Stderr: out})
	harness.Must(t, err)
	if got := <-said; got != "up\n" {
		t.Fatalf("the side-car says %q", got)
	}
	sh(t, sb, "echo hello > /shared/word")
	for script, want := range map[string]string{
		"cat < /dev/tcp/peer/7000":                                   "hello",
		"cat < /dev/tcp/other-name/7000":                             "hello",
		"hostname; getent hosts old-db | cut -d' ' -f1":              "client\n192.0.2.77",
		"ulimit -n; df -k /scratch /dev/shm | awk 'NR>1 {print $2}'": "99\n1024\n1024",
		"getent hosts example.com || echo unknown":                   "unknown",
	} {
		got := sh(t, sb, script)
		for try := 0; got == "" && try < 20; try++ { // the side-car serves one connection at a time
			got = sh(t, sb, script)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	if got := sh(t, peer, "hostname; echo $COLOUR; cat /etc/peer/peer.conf; stat -c %a /etc/peer/peer.conf; touch /in/x 2>/dev/null || echo read-only; pwd"); got != "peer\nblue\nconf640\nread-only\n/" {
		t.Errorf("the side-car has %q", got)
	}
	if info, err := peer.Files().Stat(t.Context(), "/in"); err != nil || info.Mode.Perm() != fs.FileMode(0o777) {
		t.Errorf("the folder: %+v, %v", info, err)
	}
	checkNoHost(t, sb, peer)
	harness.Must(t, sb.Freeze(t.Context()))
	if paused := ps(t, "status=paused"); strings.Count(paused, "\n") < 1 {
		t.Errorf("paused: %q", paused)
	}
	harness.Must(t, sb.Thaw(t.Context()))
	if got := sh(t, sb, "cat < /dev/tcp/peer/7000"); got != "hello" {
		t.Errorf("after a thaw: %q", got)
	}
	harness.Must(t, sb.Close(t.Context()))
	if left := leftovers(t, "turngate.rollout=alpha-group"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// checkNoHost checks that the sandboxes reach no address of the host on any
// network.
func checkNoHost(t *testing.T, boxes ...sandboxes.Sandbox) {
	t.Helper()
	l, err := net.Listen("tcp", "0.0.0.0:0")
	harness.Must(t, err)
	defer l.Close()
	addrs, err := net.InterfaceAddrs()
	harness.Must(t, err)
	var hosts []string
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			hosts = append(hosts, n.IP.String())
		}
	}
	port := l.Addr().(*net.TCPAddr).Port
	for _, sb := range boxes {
		// The container's gateway would have the first address of its network.
		own := net.ParseIP(strings.Fields(sh(t, sb, `hostname -i`))[0]).To4().Mask(net.CIDRMask(27, 32))
		own[3]++
		script := fmt.Sprintf(`for h in %s %s; do timeout 3 bash -c "< /dev/tcp/$h/%d" 2>/dev/null && echo $h & done; wait`, own, strings.Join(hosts, " "), port)
		if got := sh(t, sb, script); got != "" {
			t.Errorf("the host is reached at %s", got)
		}
	}
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestSideCarsOfADeadWorkerAreSwept(t *testing.T) {
	b, image, state := backend(t)
	s := grouped(image, "alpha-swept")
	s.Owner = "dead"
	if _, err := b.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	again, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: testenv.Binary(t), StateDir: state}})
	harness.Must(t, err)
	n, err := again.Sweep(t.Context(), "dead", func(id schema.ID) bool { return id == "alpha-swept" })
	if err != nil || n != 0 {
		t.Errorf("swept %d of those to keep, %v", n, err)
	}
	n, err = again.Sweep(t.Context(), "dead", func(schema.ID) bool { return false })
	if err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
	if left := leftovers(t, "turngate.owner=dead"); left != "" {
		t.Errorf("left: %s", left)
	}
}

func TestASideCarThatCannotBeMadeLeavesNothing(t *testing.T) {
	b, image, _ := backend(t)
	s := grouped(image, "alpha-nothing")
	s.Services[0].Spec.Image = "turngate-no-such-image:1"
	if _, err := b.Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), "peer") {
		t.Errorf("got %v", err)
	}
	s = grouped(image, "alpha-nothing")
	s.Services[0].Spec.Files[0].Path = "/etc/passwd/x"
	if _, err := b.Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), "peer") {
		t.Errorf("got %v", err)
	}
	if left := leftovers(t, "turngate.rollout=alpha-nothing"); left != "" {
		t.Errorf("left: %s", left)
	}
}
