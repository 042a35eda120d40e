// Package testenv provides the things that tests need besides Go, such as Docker
// and agents. A test without one of them is skipped with a message, or fails if
// TURNGATE_REQUIRE lists it.
package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Need skips the test when err says that a feature (docker, agents, python,
// browser, ssh) is missing, or fails it when TURNGATE_REQUIRE lists the feature.
func Need(t testing.TB, feature string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("TURNGATE_REQUIRE"), ","), feature) {
		t.Fatalf("TURNGATE_REQUIRE asks for %s: %v", feature, err)
	}
	t.Skipf("SKIPPED, since %s is missing: %v", feature, err)
}

// Slow skips a test of minutes, unless TURNGATE_REQUIRE is set: all of them together
// take longer than the ten minutes that go test allows a package.
func Slow(t testing.TB) {
	t.Helper()
	if os.Getenv("TURNGATE_REQUIRE") == "" {
		t.Skip("SKIPPED, since it takes minutes: it runs with TURNGATE_REQUIRE, such as TURNGATE_REQUIRE=docker,agents, and in .ci/run")
	}
}

// Root is the folder of the module.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("the module's folder was not found")
	return ""
}

// Binary builds the static turngate binary and returns its path, which all tests
// share: to link it takes seconds.
func Binary(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(Root(t), "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "turngate")
	build(t, out)
	return out
}

// BinaryWith builds the turngate binary with these flags of the go command and
// returns its path.
func BinaryWith(t testing.TB, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "turngate")
	build(t, out, flags...)
	return out
}

func build(t testing.TB, out string, flags ...string) {
	t.Helper()
	if err := os.Setenv("TURNGATE_CONTEXT", ""); err != nil { // no test uses or makes a context of the user
		t.Fatal(err)
	}
	cmd := exec.Command("go", slices.Concat([]string{"build"}, flags, []string{"-o", out, "./cmd/turngate"})...)
	cmd.Dir = Root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build turngate: %v\n%s", err, said)
	}
}

// BareImage returns the name of an image that has the files of Image without some
// programs and without CA certificates, whatever the machine's own image has.
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
