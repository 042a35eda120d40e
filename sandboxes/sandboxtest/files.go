package sandboxtest

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
)

func (s *suite) files(t *testing.T) {
	f, ctx := s.open(t).Files(), t.Context()
	data := []byte("a\x00b\xff\n")
	harness.Must(t, f.Write(ctx, "/data/deep/x.bin", bytes.NewReader(data), 0o640, ""))
	got, err := sandboxes.ReadFile(ctx, f, "/data/deep/x.bin", 100)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("read %q, %v", got, err)
	}
	info, err := f.Stat(ctx, "/data/deep/x.bin")
	if err != nil || info.Size != 5 || info.Mode.Perm() != 0o640 {
		t.Fatalf("stat %+v, %v", info, err)
	}
	harness.Must(t, f.Mkdir(ctx, "/data/dir", 0o755, ""))
	list, err := f.List(ctx, "/data")
	if err != nil || len(list) != 2 {
		t.Fatalf("list %+v, %v", list, err)
	}
	var large *sandboxes.TooLargeError
	if _, err := sandboxes.ReadFile(ctx, f, "/data/deep/x.bin", 4); !errors.As(err, &large) {
		t.Fatalf("read beyond the limit: %v", err)
	}
	harness.Must(t, f.Remove(ctx, "/data"))
	harness.Must(t, f.Remove(ctx, "/data"))
	if _, err := sandboxes.ReadFile(ctx, f, "/data/deep/x.bin", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("read of a removed file: %v", err)
	}
}

func tarOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		body := []byte("of " + h.Name)
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		harness.Must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write(body)
			harness.Must(t, err)
		}
	}
	harness.Must(t, w.Close())
	return &b
}

// linksOf returns the symbolic links of a tar.
func linksOf(t *testing.T, in io.Reader) map[string]string {
	t.Helper()
	out := map[string]string{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		harness.Must(t, err)
		if h.Typeflag == tar.TypeSymlink {
			out[h.Name] = h.Linkname
		}
	}
}

func (s *suite) tar(t *testing.T) {
	f, ctx := s.open(t).Files(), t.Context()
	in := tarOf(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "d/run.sh", Typeflag: tar.TypeReg, Mode: 0o755}, tar.Header{Name: "e/f", Typeflag: tar.TypeReg, Mode: 0o644})
	harness.Must(t, f.TarIn(ctx, "/in", in, ""))
	if got, err := sandboxes.ReadFile(ctx, f, "/in/d/run.sh", 100); err != nil || string(got) != "of d/run.sh" {
		t.Fatalf("got %q, %v", got, err)
	}
	if info, err := f.Stat(ctx, "/in/d/run.sh"); err != nil || info.Mode.Perm() != 0o755 {
		t.Fatalf("got %+v, %v", info, err)
	}
	var out bytes.Buffer
	harness.Must(t, f.TarOut(ctx, "/in", &out, sandboxes.TarOptions{Limit: 1 << 20}))
	names := map[string]bool{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		harness.Must(t, err)
		if h.Typeflag == tar.TypeReg {
			names[h.Name] = true
		}
	}
	if !names["d/run.sh"] || !names["e/f"] || len(names) != 2 {
		t.Fatalf("got %v", names)
	}
	if err := f.TarOut(ctx, "/in", io.Discard, sandboxes.TarOptions{Limit: 10}); err == nil {
		t.Fatal("a tree beyond the limit was packed")
	}
	harness.Must(t, f.TarIn(ctx, "/", tarOf(t, tar.Header{Name: "to-in", Typeflag: tar.TypeSymlink, Linkname: "in"}), ""))
	out.Reset()
	harness.Must(t, f.TarOut(ctx, "/to-in", &out, sandboxes.TarOptions{Limit: 1 << 20}))
	if !bytes.Contains(out.Bytes(), []byte("of d/run.sh")) {
		t.Fatal("a link to a folder was packed without its files")
	}
	harness.Must(t, f.TarIn(ctx, "/in", tarOf(t, tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "../no where"}), ""))
	for _, links := range []bool{false, true} {
		out.Reset()
		harness.Must(t, f.TarOut(ctx, "/in", &out, sandboxes.TarOptions{Limit: 1 << 20, Links: links}))
		if got := linksOf(t, &out); links && got["link"] != "../no where" || !links && len(got) > 0 {
			t.Fatalf("the links are %q", got)
		}
	}
	harness.Must(t, f.Empty(ctx, "/to-in/own", 0o755, ""))
	if info, err := f.Stat(ctx, "/to-in/own"); err != nil || !info.Mode.IsDir() {
		t.Fatalf("got %+v, %v", info, err)
	}
	if _, err := f.Stat(ctx, "/in/own"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a link above an emptied folder was followed: %v", err)
	}
	harness.Must(t, f.Empty(ctx, "/to-in", 0o755, ""))
	if list, err := f.List(ctx, "/to-in"); err != nil || len(list) != 0 {
		t.Fatalf("got %v, %v", list, err)
	}
	out.Reset()
	harness.Must(t, f.TarOut(ctx, "/in", &out, sandboxes.TarOptions{Limit: 1 << 20, Exclude: []string{"run.*"}}))
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		harness.Must(t, err)
		if h.Name == "d/run.sh" {
			t.Fatal("an excluded file was packed")
		}
	}
}

func (s *suite) tarBroken(t *testing.T) {
	f, broken := s.open(t).Files(), errors.New("the disk with the archive is broken")
	archive := tarOf(t, tar.Header{Name: "file", Typeflag: tar.TypeReg, Mode: 0o644}).Bytes()
	for _, n := range []int{0, 100, 512, 515} {
		var unread *sandboxes.SourceError
		if err := f.TarIn(t.Context(), "/in", io.MultiReader(bytes.NewReader(archive[:n]), iotest.ErrReader(broken)), ""); !errors.As(err, &unread) || !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

func (s *suite) tarEscape(t *testing.T) {
	f, ctx := s.open(t).Files(), t.Context()
	harness.Must(t, f.Write(ctx, "/outside/keep", strings.NewReader("mine"), 0o644, ""))
	for name, archive := range map[string]*bytes.Buffer{
		"dots":    tarOf(t, tar.Header{Name: "../outside/keep", Typeflag: tar.TypeReg, Mode: 0o644}),
		"symlink": tarOf(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/outside"}, tar.Header{Name: "l/keep", Typeflag: tar.TypeReg, Mode: 0o644}),
	} {
		if err := f.TarIn(ctx, "/in", archive, ""); err == nil {
			t.Errorf("%s: the archive was unpacked", name)
		}
		if got, err := sandboxes.ReadFile(ctx, f, "/outside/keep", 100); err != nil || string(got) != "mine" {
			t.Errorf("%s: the file outside is %q, %v", name, got, err)
		}
	}
}
