package layout_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/backends/layout"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/imagefile"
)

type file = imagefile.LayerFile

func dir(name string) file {
	return file{Header: tar.Header{Name: name, Typeflag: tar.TypeDir}}
}
func text(name, data string) file {
	return file{Header: tar.Header{Name: name, Mode: 0o644}, Data: data}
}
func link(name, to string) file {
	return file{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}}
}
func hard(name, to string) file {
	return file{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}}
}

// add adds an image of layers to a new folder.
func add(t *testing.T, ref string, layers ...[]file) layout.Dir {
	t.Helper()
	d := layout.Dir(t.TempDir())
	var plain [][]byte
	for _, files := range layers {
		plain = append(plain, imagefile.Layer(t, files...))
	}
	_, err := d.Add(ref, imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{}, plain, plain))
	harness.Must(t, err)
	return d
}

func roots(t *testing.T) layout.Roots {
	return layout.Roots{Dir: filepath.Join(t.TempDir(), "unpacked"), Owners: os.Geteuid() == 0}
}

// unpack unpacks an image into a new folder.
func unpack(t *testing.T, d layout.Dir, ref string) (string, error) {
	t.Helper()
	i, err := d.Find(ref)
	if err != nil {
		return "", err
	}
	root, err := roots(t).Open(t.Context(), i)
	if err != nil {
		return "", err
	}
	t.Cleanup(root.Release)
	return root.Path, nil
}

func TestImagesAreFoundByTheirReferences(t *testing.T) {
	d := add(t, "debian:12", []file{text("a", "1")})
	inner := layout.Dir(filepath.Join(string(d), "other"))
	plain := [][]byte{imagefile.Layer(t, text("a", "2"))}
	_, err := inner.Add("ghcr.io/some/tools", imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{}, plain, plain))
	harness.Must(t, err)
	harness.Must(t, os.MkdirAll(filepath.Join(string(d), "my/files:1", "rootfs"), 0o755))
	for ref, want := range map[string]bool{
		"debian:12": true, "docker.io/library/debian:12": true, "debian": false, "debian:13": false, "ghcr.io/some/tools:latest": true, "my/files:1": true,
	} {
		if _, err := d.Find(ref); (err == nil) != want || err != nil && !errors.Is(err, layout.ErrNoImage) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	i, err := d.Find("debian:12")
	harness.Must(t, err)
	if _, err := d.Find("debian@" + i.Digest.String()); err != nil {
		t.Errorf("by its digest: %v", err)
	}
	for _, ref := range []string{"../x", "UPPER", "", "a b"} {
		if _, err := d.Find(ref); err == nil || errors.Is(err, layout.ErrNoImage) {
			t.Errorf("%q: %v", ref, err)
		}
	}
	refs, err := d.Refs()
	slices.Sort(refs)
	if err != nil || !slices.Equal(refs, []string{"debian:12", "ghcr.io/some/tools:latest"}) {
		t.Errorf("%q, %v", refs, err)
	}
	if _, err := layout.Dir("/nonexistent/images").Find("debian:12"); !errors.Is(err, layout.ErrFolder) {
		t.Errorf("without the folder: %v", err)
	}
}

// TestAnImageIsReplaced adds another image of the same name, which shares a layer.
func TestAnImageIsReplaced(t *testing.T) {
	d := add(t, "a:1", []file{text("a", "old")})
	other := [][]byte{imagefile.Layer(t, text("a", "old")), imagefile.Layer(t, text("a", "new"))}
	for range 2 {
		_, err := d.Add("a:1", imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{ImageConfig: v1.ImageConfig{User: "me"}}, other, other))
		harness.Must(t, err)
	}
	i, err := d.Find("a:1")
	harness.Must(t, err)
	root, err := unpack(t, d, "a:1")
	harness.Must(t, err)
	refs, err := d.Refs()
	if data, rerr := os.ReadFile(filepath.Join(root, "a")); err != nil || rerr != nil || string(data) != "new" || i.Config.User != "me" || len(refs) != 1 {
		t.Errorf("%q %v, %+v, %q %v", data, rerr, i.Config, refs, err)
	}
	left, err := filepath.Glob(filepath.Join(string(d), ".export-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// TestLayersAreApplied: later layers replace, remove and hide files of earlier ones, and
// links keep their form.
func TestLayersAreApplied(t *testing.T) {
	root, err := unpack(t, add(t, "a:1",
		[]file{dir("d"), text("d/gone", "x"), text("d/stays", "x"), dir("o"), text("o/hidden", "x"), text("f", "old"), link("abs", "/d/stays"), link("bin", "usr/bin")},
		[]file{text("d/.wh.gone", ""), text("o/.wh..wh..opq", ""), text("o/new", "y"), text("f", "new"), hard("f2", "f"), dir("usr"), dir("usr/bin"), text("bin/sh", "sh"),
			{Header: tar.Header{Name: "zero", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5}},
			{Header: tar.Header{Name: "su", Mode: 0o6755}, Data: "su"},
			{Header: tar.Header{Name: "marked", Mode: 0o644, PAXRecords: map[string]string{"SCHILY.xattr.user.overlay.opaque": "y"}}}},
	), "a:1")
	harness.Must(t, err)
	var names []string
	harness.Must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if !e.IsDir() {
			names = append(names, strings.TrimPrefix(path, root+"/"))
		}
		return err
	}))
	if want := []string{"abs", "bin", "d/stays", "f", "f2", "marked", "o/new", "su", "usr/bin/sh"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
	var one, two syscall.Stat_t
	harness.Must(t, syscall.Stat(filepath.Join(root, "f"), &one))
	harness.Must(t, syscall.Stat(filepath.Join(root, "f2"), &two))
	su, err := os.Stat(filepath.Join(root, "su"))
	harness.Must(t, err)
	if one.Ino != two.Ino || su.Mode() != 0o755 {
		t.Errorf("inodes %d and %d, mode %s", one.Ino, two.Ino, su.Mode())
	}
	if _, err := unix.Getxattr(filepath.Join(root, "marked"), "user.overlay.opaque", nil); err == nil {
		t.Error("a file has an attribute of an overlay")
	}
}

// TestLayersCannotLeaveTheirFolder writes through links and names that lead out.
func TestLayersCannotLeaveTheirFolder(t *testing.T) {
	outside := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
	up := strings.Repeat("../", 30)
	for name, files := range map[string][]file{
		"a name that leads up":       {text(up+outside[1:]+"/new", "x")},
		"an absolute name":           {text(outside+"/new", "x")},
		"through an absolute link":   {link("out", outside), text("out/new", "x")},
		"through a link up":          {link("out", up+outside[1:]), text("out/new", "x")},
		"a hard link to the outside": {hard("leak", up+outside[1:]+"/secret"), text("leak", "x")},
		"a whiteout outside":         {link("out", outside), text("out/.wh.secret", "")},
		"an opaque folder outside":   {link("out", outside), text("out/.wh..wh..opq", "")},
		"a whiteout of the parent":   {text(".wh...", "")},
		"a whiteout of the folder":   {text("d/.wh..", "")},
	} {
		root, err := unpack(t, add(t, "a:1", files), "a:1")
		entries, derr := os.ReadDir(outside)
		data, rerr := os.ReadFile(filepath.Join(outside, "secret"))
		if derr != nil || rerr != nil || len(entries) != 1 || string(data) != "secret" {
			t.Errorf("%s: %q, %q, %v %v", name, entries, data, derr, rerr)
		}
		if err == nil {
			if data, err := os.ReadFile(filepath.Join(root, "leak")); err == nil && string(data) == "secret" {
				t.Errorf("%s: the file is in the image", name)
			}
		}
	}
}

// TestASparseFileIsBounded unpacks a layer of two blocks with a file of a TiB without data.
func TestASparseFileIsBounded(t *testing.T) {
	block := make([]byte, 512)
	copy(block, "big")
	copy(block[100:], "0000644\x000000000\x000000000\x0000000000000\x0000000000000\x00        S") // mode, owners, size, time, checksum, type
	copy(block[257:], "ustar  \x00")
	const size = "\x80\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00"
	copy(block[386:], size) // the only piece begins at the end
	copy(block[483:], size)
	sum := 0
	for _, c := range block {
		sum += int(c)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00", sum))
	layer := [][]byte{append(block, make([]byte, 1024)...)}
	d := layout.Dir(t.TempDir())
	_, err := d.Add("a:1", imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{}, layer, layer))
	harness.Must(t, err)
	if _, err := unpack(t, d, "a:1"); err == nil || !strings.Contains(err.Error(), "its layers have more than") {
		t.Errorf("%v", err)
	}
}

// TestALayerIsCheckedAgainstItsDigests changes and cuts layers: nothing of them is left.
func TestALayerIsCheckedAgainstItsDigests(t *testing.T) {
	plain := imagefile.Layer(t, text("a", strings.Repeat("x", 4000)))
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write(plain)
	harness.Must(t, errors.Join(err, z.Close()))
	packer, err := zstd.NewWriter(nil)
	harness.Must(t, err)
	small := packer.EncodeAll(plain, nil)
	for name, stored := range map[string][]byte{"plain": plain, "gzip": zipped.Bytes(), "zstd": small} {
		d := layout.Dir(t.TempDir())
		_, err := d.Add("a:1", imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{}, [][]byte{plain}, [][]byte{stored}))
		harness.Must(t, err)
		root, err := unpack(t, d, "a:1")
		if info, serr := os.Stat(filepath.Join(root, "a")); err != nil || serr != nil || info.Size() != 4000 {
			t.Errorf("%s: %v, %v", name, err, serr)
		}
	}
	for name, other := range map[string][]byte{
		"other content": imagefile.Layer(t, text("a", strings.Repeat("y", 4000))), "cut": plain[:1000], "empty": nil, "a broken gzip": {0x1f, 0x8b, 1, 2, 3}, "a broken zstd": {0x28, 0xb5, 0x2f, 0xfd, 1},
	} {
		d := layout.Dir(t.TempDir())
		_, err := d.Add("a:1", imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{}, [][]byte{plain}, [][]byte{other}))
		harness.Must(t, err)
		i, err := d.Find("a:1")
		harness.Must(t, err)
		r := roots(t)
		if _, err := r.Open(t.Context(), i); err == nil || !strings.Contains(err.Error(), "layer 1 of 1") {
			t.Errorf("%s: %v", name, err)
		}
		left, err := filepath.Glob(filepath.Join(r.Dir, "*[^k]"))
		if err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %q, %v", name, left, err)
		}
	}
}

// TestAnImageIsUnpackedOnce opens an image many times at once, after a process that died
// while it unpacked it.
func TestAnImageIsUnpackedOnce(t *testing.T) {
	i, err := add(t, "a:1", []file{text("a", "1")}).Find("a:1")
	harness.Must(t, err)
	r := roots(t)
	first, err := r.Open(t.Context(), i)
	harness.Must(t, err)
	part := first.Path + ".part"
	first.Release()
	harness.Must(t, os.RemoveAll(first.Path))
	harness.Must(t, os.MkdirAll(filepath.Join(part, "half"), 0o755))
	var all sync.WaitGroup
	var inodes [8]uint64
	for n := range inodes {
		all.Go(func() {
			root, err := r.Open(t.Context(), i)
			if err != nil {
				t.Error(err)
				return
			}
			defer root.Release()
			var st syscall.Stat_t
			if err := syscall.Stat(filepath.Join(root.Path, "a"), &st); err != nil {
				t.Error(err)
			}
			inodes[n] = st.Ino
		})
	}
	all.Wait()
	if _, err := os.Stat(part); !errors.Is(err, fs.ErrNotExist) || len(slices.Compact(inodes[:])) != 1 {
		t.Errorf("%v, inodes %v", err, inodes)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	harness.Must(t, os.RemoveAll(first.Path))
	if _, err := r.Open(ctx, i); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled one: %v", err)
	}
}

// TestOldImagesArePruned: beyond the bound, the image with the oldest last use goes, but none
// in use, of another process too, and none that was used just now.
func TestOldImagesArePruned(t *testing.T) {
	r := roots(t)
	open := func(name string) *layout.Root {
		t.Helper()
		i, err := add(t, name, []file{text(name, strings.Repeat(name, 100_000))}).Find(name)
		harness.Must(t, err)
		root, err := r.Open(t.Context(), i)
		harness.Must(t, err)
		return root
	}
	lastUse := func(root *layout.Root, ago time.Duration) {
		t.Helper()
		at := time.Now().Add(-ago)
		harness.Must(t, os.Chtimes(root.Path+".lock", at, at))
	}
	there := func(root *layout.Root) bool {
		_, err := os.Stat(root.Path)
		return err == nil
	}
	a, b, c, d := open("a"), open("b"), open("c"), open("d")
	for _, root := range []*layout.Root{b, c, d} {
		root.Release()
	}
	lastUse(a, 4*time.Hour) // in use
	lastUse(b, 3*time.Hour)
	lastUse(c, 2*time.Hour)
	harness.Must(t, r.Prune())
	if !there(b) {
		t.Error("pruned without a bound")
	}
	r.Keep = 350_000
	harness.Must(t, r.Prune())
	if !there(a) || there(b) || !there(c) || !there(d) {
		t.Errorf("for three images: a %t, b %t, c %t, d %t", there(a), there(b), there(c), there(d))
	}
	r.Keep = 1
	open("e").Release() // after an image was unpacked
	if !there(a) || there(c) || !there(d) {
		t.Errorf("for one byte: a %t, c %t, d %t", there(a), there(c), there(d))
	}
	a.Release()
	again := open("b")
	defer again.Release()
	if data, err := os.ReadFile(filepath.Join(again.Path, "b")); err != nil || len(data) != 100_000 {
		t.Errorf("unpacked again: %d bytes, %v", len(data), err)
	}
	if left, err := filepath.Glob(filepath.Join(r.Dir, "*.part")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// TestPrunesBesideUses opens images while other processes prune: each opened one is whole.
func TestPrunesBesideUses(t *testing.T) {
	r := roots(t)
	r.Keep = 1
	i, err := add(t, "a", []file{text("f", "1")}).Find("a")
	harness.Must(t, err)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				root, err := r.Open(t.Context(), i)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(filepath.Join(root.Path, "f")); err != nil {
					t.Error(err)
				}
				root.Release()
				long := time.Now().Add(-time.Hour)
				if err := errors.Join(os.Chtimes(root.Path+".lock", long, long), r.Prune()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// TestWhatDeadProcessesLeft: the remains of processes that died while they unpacked or added an
// image go with the next image, also a different one; the files of live processes stay. A
// broken index is begun anew.
func TestWhatDeadProcessesLeft(t *testing.T) {
	d := add(t, "debian:12", []file{text("a", "1")})
	r := roots(t)
	leave := func(dir string, names ...string) {
		for _, name := range names {
			harness.Must(t, os.MkdirAll(filepath.Join(dir, name, "etc"), 0o755))
		}
	}
	held := func(path string) {
		f, err := os.Open(path)
		harness.Must(t, err)
		t.Cleanup(func() { f.Close() })
		harness.Must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	}
	there := func(dir, pattern string) []string {
		all, err := filepath.Glob(filepath.Join(dir, pattern))
		harness.Must(t, err)
		for i := range all {
			all[i] = filepath.Base(all[i])
		}
		return all
	}
	harness.Must(t, os.MkdirAll(r.Dir, 0o700))
	leave(r.Dir, "dead-1.part", "alive-1.part")
	harness.Must(t, os.WriteFile(filepath.Join(r.Dir, "alive-1.lock"), nil, 0o600))
	held(filepath.Join(r.Dir, "alive-1.lock"))
	i, err := d.Find("debian:12")
	harness.Must(t, err)
	root, err := r.Open(t.Context(), i)
	harness.Must(t, err)
	root.Release()
	if got := there(r.Dir, "*.part"); !slices.Equal(got, []string{"alive-1.part"}) {
		t.Errorf("parts of images: %q", got)
	}

	leave(string(d), ".export-dead", ".export-alive")
	held(filepath.Join(string(d), ".export-alive"))
	harness.Must(t, os.WriteFile(filepath.Join(string(d), v1.ImageIndexFile), nil, 0o644))
	if _, err := d.Find("debian:12"); err == nil || !strings.Contains(err.Error(), "export its images again") {
		t.Errorf("a broken index: %v", err)
	}
	plain := [][]byte{imagefile.Layer(t, text("a", "2"))}
	_, err = d.Add("debian:13", imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{}, plain, plain))
	harness.Must(t, err)
	if refs, err := d.Refs(); err != nil || !slices.Equal(refs, []string{"debian:13"}) {
		t.Errorf("images: %q, %v", refs, err)
	}
	if got := there(string(d), ".export-*"); !slices.Equal(got, []string{".export-alive"}) {
		t.Errorf("folders of exports: %q", got)
	}
}

func TestForeignFilesAreRefused(t *testing.T) {
	for name, index := range map[string]string{
		"no JSON":              "{",
		"a name in a digest":   `{"manifests":[{"digest":"sha256:../../../etc/passwd","annotations":{"org.opencontainers.image.ref.name":"a:1"}}]}`,
		"another algorithm":    `{"manifests":[{"digest":"sha512:` + strings.Repeat("0", 128) + `","annotations":{"org.opencontainers.image.ref.name":"a:1"}}]}`,
		"a blob that is gone":  `{"manifests":[{"digest":"sha256:` + strings.Repeat("0", 64) + `","annotations":{"org.opencontainers.image.ref.name":"a:1"}}]}`,
		"too large an index":   strings.Repeat(" ", 5<<20),
		"no digest of an item": `{"manifests":[{"annotations":{"org.opencontainers.image.ref.name":"a:1"}}]}`,
	} {
		d := t.TempDir()
		harness.Must(t, os.WriteFile(filepath.Join(d, "index.json"), []byte(index), 0o644))
		if _, err := layout.Dir(d).Find("a:1"); err == nil || errors.Is(err, layout.ErrNoImage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, archive := range map[string]io.Reader{
		"nothing":       strings.NewReader(""),
		"no archive":    strings.NewReader("x"),
		"no manifest":   bytes.NewReader(imagefile.Layer(t, text("a", "b"))),
		"two images":    bytes.NewReader(imagefile.Layer(t, text("manifest.json", "[{},{}]"))),
		"a loop":        bytes.NewReader(imagefile.Layer(t, link("manifest.json", "other"), link("other", "manifest.json"))),
		"missing files": bytes.NewReader(imagefile.Layer(t, text("manifest.json", `[{"Config":"c","Layers":["l"]}]`))),
	} {
		if _, err := layout.Dir(t.TempDir()).Add("a:1", archive); err == nil {
			t.Errorf("%s was added", name)
		}
	}
}

// FuzzUnpack unpacks layers of any bytes. Nothing appears beside the folder of unpacked
// images.
func FuzzUnpack(f *testing.F) {
	f.Add(imagefile.Layer(f, dir("d"), text("d/a", "x"), link("l", "/d"), hard("h", "d/a"), text("l/.wh.a", "")))
	f.Add(imagefile.Layer(f, link("out", "../.."), text("out/x", "y")))
	f.Fuzz(func(t *testing.T, layer []byte) {
		top := t.TempDir()
		d := layout.Dir(filepath.Join(top, "images"))
		_, err := d.Add("a:1", imagefile.SavedImage(t, dockerspec.DockerOCIImageConfig{}, [][]byte{layer}, [][]byte{layer}))
		harness.Must(t, err)
		i, err := d.Find("a:1")
		harness.Must(t, err)
		if root, err := (layout.Roots{Dir: filepath.Join(top, "unpacked")}).Open(t.Context(), i); err == nil {
			root.Release()
		}
		entries, err := os.ReadDir(top)
		if err != nil || len(entries) > 2 {
			t.Errorf("%v, %v", entries, err)
		}
	})
}
