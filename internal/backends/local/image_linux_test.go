package local_test

import (
	"archive/tar"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/turngate/turngate/internal/backends/layout"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/imagefile"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// withImages returns a backend with an empty folder of images.
func withImages(t *testing.T) (*local.Backend, layout.Dir) {
	t.Helper()
	b := backend(t)
	b.Local = sandboxes.Local{Images: t.TempDir(), Unpacked: filepath.Join(t.TempDir(), "unpacked")}
	return b, layout.Dir(b.Local.Images)
}

// TestContractWithAnImage runs the suite in sandboxes of an engine's image, with an overlay
// and with a copy.
func TestContractWithAnImage(t *testing.T) {
	testenv.Slow(t)
	ref, root := testenv.Image(t), os.Geteuid() == 0
	saved := exec.Command("docker", "save", ref)
	out, err := saved.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, saved.Start())
	b, images := withImages(t)
	_, err = images.Add(ref, out)
	harness.Must(t, errors.Join(err, saved.Wait()))
	fixture := func(b *local.Backend) sandboxtest.Fixture {
		return sandboxtest.Fixture{
			New:      func(*testing.T) sandboxes.Backend { return b },
			Spec:     sandboxes.Spec{Image: ref},
			Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: root, Users: root},
		}
	}
	sandboxtest.Run(t, fixture(b))
	t.Run("a copy", func(t *testing.T) {
		copying := *b
		copying.Copying()
		var note string
		sb := sandboxtest.Create(t, &copying, sandboxes.Spec{Owner: "local", Rollout: "alpha-1", Image: ref, Note: func(_, text string) { note = text }})
		if got := sandboxtest.Output(t, sb, `stat -f -c %T /; rm -r /usr/share && mkdir /usr/share && ls -A /usr/share && stat -c %U /etc/passwd`); got != "tmpfs\nroot\n" || !strings.Contains(note, "the files of the image count") {
			t.Errorf("%q, noted %q", got, note)
		}
	})
}

// TestAnImageWithoutAnEngine makes an image of a few programs of this host. Its settings
// count, its links stay in the sandbox, and each sandbox has files of its own.
func TestAnImageWithoutAnEngine(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	harness.Must(t, os.WriteFile(secret, []byte("host"), 0o644))
	type file = imagefile.LayerFile
	link := func(name, to string) file {
		return file{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}}
	}
	layers := [][]byte{
		imagefile.Layer(t, append(imagefile.Programs(t, "sh", "cat", "ls", "rm", "mkdir", "id", "stat"), file{Header: tar.Header{Name: "gone"}, Data: "x"}, file{Header: tar.Header{Name: "data/old"}, Data: "x"})...),
		imagefile.Layer(t,
			file{Header: tar.Header{Name: ".wh.gone"}, Data: ""}, file{Header: tar.Header{Name: "of/agent", Uid: 1000, Gid: 1000, Mode: 0o600}, Data: "x"}, file{Header: tar.Header{Name: "etc/passwd"}, Data: "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/me:/bin/sh\n"},
			link("etc/resolv.conf", secret), link("etc/hostname", "/proc/1/environ"), link("dev", filepath.Dir(secret)), link("proc", "/etc"), link("secret", secret),
			file{Header: tar.Header{Name: ".turngate/turngate/file"}, Data: "x"}, file{Header: tar.Header{Name: "sys", Typeflag: tar.TypeFifo}}),
	}
	b, images := withImages(t)
	config := dockerspec.DockerOCIImageConfig{ImageConfig: v1.ImageConfig{Env: []string{"A=image", "B=image", "PATH=/nowhere:/bin"}, WorkingDir: "/data"}}
	config.Healthcheck = &dockerspec.HealthcheckConfig{Test: []string{"CMD", "true"}}
	_, err := images.Add("some/programs:1", imagefile.SavedImage(t, config, layers, layers))
	harness.Must(t, err)
	for _, copies := range []bool{false, true} {
		if copies {
			b.Copying()
		}
		spec := sandboxes.Spec{Owner: "local", Rollout: "alpha-1", Image: "some/programs:1", Env: map[string]string{"B": "task"}}
		sb := sandboxtest.Create(t, b, spec)
		got := sandboxtest.Output(t, sb, `exec 2>&1; echo "$PWD $A $B $PATH"; ls /; ls -A /sys; cat /secret /etc/resolv.conf; cat /etc/hostname; rm -r /data && mkdir /data && ls -A /data; echo mine > /data/new; echo x > /dev/null && ls /dev`)
		want := "/data image task /nowhere:/bin\nbin\ndata\ndev\netc\nlib\n"
		if !strings.HasPrefix(got, want) || strings.Contains(got, "gone") || strings.Contains(got, "host\n") || !strings.Contains(got, "No such file") || !strings.Contains(got, "\nsandbox\n") || strings.Contains(got, "old") || strings.Contains(got, "secret\nfull") {
			t.Errorf("copies %t: %q", copies, got)
		}
		if p := sb.Health(); p == nil || len(p.Test) != 1 {
			t.Errorf("the health check is %+v", p)
		}
		if os.Geteuid() == 0 {
			if got := sandboxtest.Output(t, sb, "stat -c '%u %g' /of/agent; stat -c '%u' /bin/sh"); got != "1000 1000\n0\n" {
				t.Errorf("owners: %q", got)
			}
		}
		spec.Rollout = "alpha-2"
		if got := sandboxtest.Output(t, sandboxtest.Create(t, b, spec), "ls /data"); got != "old\n" {
			t.Errorf("another sandbox has %q", got)
		}
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "host" {
		t.Errorf("a file of the host is %q, %v", data, err)
	}
}

// TestAnImageThatIsMissingIsNamed asks for images that no layout has, before a sandbox is
// made.
func TestAnImageThatIsMissingIsNamed(t *testing.T) {
	b, images := withImages(t)
	build := &sandboxes.Build{Tar: strings.NewReader("")}
	for want, spec := range map[string]sandboxes.Spec{
		"turngate image export --to " + string(images) + " debian:12": {Image: "debian:12"},
		"turngate image export --to " + string(images) + " TASK":      {Build: build},
	} {
		spec.Owner, spec.Rollout = "local", "alpha-1"
		_, err := b.Create(t.Context(), spec)
		var missing *sandboxes.ImageError
		if !errors.As(err, &missing) || missing.Code != schema.CodeNoImage || !strings.Contains(missing.Reason, want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	if os.Geteuid() != 0 {
		layers := [][]byte{imagefile.Layer(t)}
		_, err := images.Add("a:1", imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{ImageConfig: v1.ImageConfig{User: "me"}}, layers, layers))
		harness.Must(t, err)
		var no *sandboxes.UnsupportedError
		if _, err := b.Create(t.Context(), sandboxes.Spec{Owner: "local", Rollout: "alpha-1", Image: "a:1"}); !errors.As(err, &no) || no.Field != "sandbox.image" || !strings.Contains(no.Reason, `"me"`) {
			t.Errorf("an image with another user: %v", err)
		}
	}
}

// TestAFaultOfTheHostIsNotThatOfTheImage takes folders that the worker cannot use. The
// task can correct neither.
func TestAFaultOfTheHostIsNotThatOfTheImage(t *testing.T) {
	b, images := withImages(t)
	layers := [][]byte{imagefile.Layer(t)}
	_, err := images.Add("a:1", imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{}, layers, layers))
	harness.Must(t, err)
	gone, noFolder := *b, *b
	gone.Local.Images += "/gone"
	noFolder.Local.Unpacked = "/proc/1/fd/unpacked"
	for _, b := range []*local.Backend{&gone, &noFolder} {
		var image *sandboxes.ImageError
		if _, err := b.Create(t.Context(), sandboxes.Spec{Owner: "local", Rollout: "alpha-1", Image: "a:1"}); !errors.Is(err, layout.ErrFolder) || errors.As(err, &image) {
			t.Errorf("%v", err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	others := filepath.Join(t.TempDir(), "others")
	harness.Must(t, os.Mkdir(others, 0o755))
	harness.Must(t, os.Chown(others, 1000, 1000))
	link := filepath.Join(t.TempDir(), "link")
	harness.Must(t, os.Symlink(t.TempDir(), link))
	harness.Must(t, os.Lchown(link, 1000, 1000))
	for _, dir := range []string{others, link} {
		b.Local.Unpacked = dir
		if _, err := b.Create(t.Context(), sandboxes.Spec{Owner: "local", Rollout: "alpha-1", Image: "a:1"}); !errors.Is(err, layout.ErrFolder) || !strings.Contains(err.Error(), "XDG_CACHE_HOME") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
