// Package imagefile makes images of files, as `docker save` writes them.
package imagefile

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/turngate/turngate/internal/harness"
)

// LayerFile is a file of a layer; without a Typeflag a regular file.
type LayerFile struct {
	tar.Header
	Data string
}

// Layer returns an archive of files.
func Layer(t testing.TB, files ...LayerFile) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := f.Header
		h.Size = int64(len(f.Data))
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		harness.Must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, f.Data)
		harness.Must(t, err)
	}
	harness.Must(t, w.Close())
	return out.Bytes()
}

// SavedImage returns an archive of an image as `docker save` writes it. stored are the layers as
// they are stored, plain without compression.
func SavedImage(t testing.TB, c dockerspec.DockerOCIImageConfig, plain, stored [][]byte) io.Reader {
	t.Helper()
	config := dockerspec.DockerOCIImage{Image: v1.Image{RootFS: v1.RootFS{Type: "layers"}}, Config: c}
	var files []LayerFile
	var names []string
	for i, layer := range stored {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(plain[i]))
		names = append(names, fmt.Sprintf("%d/layer.tar", i))
		files = append(files, LayerFile{tar.Header{Name: names[i]}, string(layer)})
	}
	about, err := json.Marshal(config)
	harness.Must(t, err)
	list, err := json.Marshal([]any{map[string]any{"Config": "config.json", "Layers": names}})
	harness.Must(t, err)
	files = append(files, LayerFile{tar.Header{Name: "config.json"}, string(about)}, LayerFile{tar.Header{Name: "manifest.json"}, string(list)})
	return bytes.NewReader(Layer(t, files...))
}

// Programs returns programs of this host, in /bin, with the libraries that they need.
func Programs(t testing.TB, names ...string) []LayerFile {
	t.Helper()
	var out []LayerFile
	var seen []string
	add := func(path, at string) {
		if slices.Contains(seen, at) {
			return
		}
		seen = append(seen, at)
		data, err := os.ReadFile(path)
		harness.Must(t, err)
		out = append(out, LayerFile{tar.Header{Name: at}, string(data)})
	}
	var needs func(path string)
	needs = func(path string) {
		f, err := elf.Open(path)
		harness.Must(t, err)
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				loader, err := io.ReadAll(p.Open())
				harness.Must(t, err)
				at := string(bytes.TrimRight(loader, "\x00"))
				add(at, at[1:])
			}
		}
		libraries, err := f.ImportedLibraries()
		harness.Must(t, err)
		for _, name := range libraries {
			at := library(t, name)
			add(at, at[1:])
			needs(at)
		}
	}
	for _, name := range names {
		path, err := filepath.EvalSymlinks(filepath.Join("/bin", name))
		harness.Must(t, err)
		add(path, "bin/"+name)
		needs(path)
	}
	return out
}

func library(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode()&fs.ModeType == 0 {
			return filepath.Join(dir, name)
		}
	}
	t.Fatalf("the library %s is in no usual folder", name)
	return ""
}
