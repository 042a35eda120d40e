// Package testenv provides the things that tests need besides Go, such as Docker
// and agents. A test without one of them is skipped with a message, or fails if
// TURNGATE_REQUIRE lists it.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Need skips the test when err says that a feature (docker, agents, python,
// browser, ssh, xvfb, port-8000) is missing, or fails it when TURNGATE_REQUIRE lists the feature.
func Need(t testing.TB, feature string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if Required(feature) {
		t.Fatalf("TURNGATE_REQUIRE asks for %s: %v", feature, err)
	}
	t.Skipf("SKIPPED, since %s is missing: %v", feature, err)
}

// Slow skips a test of many seconds, unless TURNGATE_SLOW is set: all the others together
// take less than five minutes on two processors.
func Slow(t testing.TB) {
	t.Helper()
	if os.Getenv("TURNGATE_SLOW") == "" {
		t.Skip("SKIPPED, since it takes long: TURNGATE_SLOW=1 runs it, as .ci/full does")
	}
}

// Required reports whether TURNGATE_REQUIRE lists a feature.
func Required(feature string) bool {
	return slices.Contains(strings.Split(os.Getenv("TURNGATE_REQUIRE"), ","), feature)
}

// Root is the folder of the repository, also for the tests of a module inside it.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the folder of the repository: %w", err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "turngate")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("the folder of the repository was not found")
}

// The programs that tests start, which a process of tests builds once.
var (
	turngate   = sync.OnceValues(func() (string, error) { return shared("./cmd/turngate") })                    //nolint:gochecknoglobals // see above
	natsServer = sync.OnceValues(func() (string, error) { return shared("github.com/nats-io/nats-server/v2") }) //nolint:gochecknoglobals // see above
)

// Binary returns the path of the static turngate binary, which all tests share: to link
// it takes seconds.
func Binary(t testing.TB) string {
	t.Helper()
	noContext(t)
	out, err := turngate()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// NATSServer returns the path of the program of nats-server, which all tests share.
func NATSServer(t testing.TB) string {
	t.Helper()
	out, err := natsServer()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// BinaryWith builds the turngate binary with these flags of the go command and
// returns its path.
func BinaryWith(t testing.TB, flags ...string) string {
	t.Helper()
	noContext(t)
	out := filepath.Join(t.TempDir(), "turngate")
	if err := build(Root(t), "./cmd/turngate", out, flags...); err != nil {
		t.Fatal(err)
	}
	return out
}

// shared builds a program where the processes of all tests find it, one at a time.
func shared(program string) (string, error) {
	dir, err := root()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "bin", "test")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("build %s: %w", program, err)
	}
	lock, err := os.OpenFile(filepath.Join(bin, "lock"), os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", program, err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	out := filepath.Join(bin, path.Base(strings.TrimSuffix(program, "/v2")))
	return out, build(dir, program, out)
}

func build(dir, program, out string, flags ...string) error {
	cmd := exec.Command("go", slices.Concat([]string{"build"}, flags, []string{"-o", out, program})...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", program, err, said)
	}
	return nil
}

// noContext keeps tests from using, and from making, a context of the user.
func noContext(t testing.TB) {
	t.Helper()
	if err := os.Setenv("TURNGATE_CONTEXT", ""); err != nil {
		t.Fatal(err)
	}
}

// BareImage returns the name of an image that has the files of Image without some
// programs and without CA certificates, also if the machine's own image has them.
func BareImage(t testing.TB, programs ...string) string {
	t.Helper()
	image := "turngate-test-bare:" + strings.Join(programs, "-")
	remove := "rm -f /etc/ssl/certs/ca-certificates.crt; for p in " + strings.Join(programs, " ") +
		"; do while at=$(command -v $p); do rm -f $at; done; done"
	build := exec.CommandContext(context.Background(), "docker", "build", "-q", "-t", image, "-")
	build.Env = append(build.Environ(), "DOCKER_BUILDKIT=0")
	build.Stdin = strings.NewReader("FROM " + Image(t) + "\nRUN " + remove + "\n")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", image, err, said)
	}
	return image
}

// Image returns the name of a Docker image with a shell, bash and the usual
// tools: TURNGATE_TEST_IMAGE, or turngate-test-base:bookworm, which .ci/run
// makes.
func Image(t testing.TB) string {
	t.Helper()
	image := os.Getenv("TURNGATE_TEST_IMAGE")
	if image == "" {
		image = "turngate-test-base:bookworm"
	}
	said, err := exec.CommandContext(context.Background(), "docker", "image", "inspect", "--format", "ok", image).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("docker image inspect %s: %w: %s", image, err, strings.TrimSpace(string(said)))
	}
	Need(t, "docker", err)
	return image
}
