package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzCopyOut: no stream of a sandbox makes a copy write outside its folder.
func FuzzCopyOut(f *testing.F) {
	for _, h := range []tar.Header{
		{Name: "./a/b", Typeflag: tar.TypeReg, Size: 3, Mode: 0o4777}, {Name: "../out", Typeflag: tar.TypeReg, Size: 1},
		{Name: "/out", Typeflag: tar.TypeReg, Size: 1}, {Name: "out", Typeflag: tar.TypeSymlink, Linkname: "../out"}, {Name: "./", Typeflag: tar.TypeDir},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
		_, _ = w.Write(make([]byte, h.Size)) // it fails for an entry without content
		_ = w.Close()
		f.Add(b.Bytes(), "")
		f.Add(b.Bytes(), "one")
	}
	f.Fuzz(func(t *testing.T, stream []byte, only string) {
		if only != "" {
			only = "one"
		}
		dir := t.TempDir()
		inside := filepath.Join(dir, "inside")
		if err := os.Mkdir(inside, 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(inside)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		below := "below"
		if only != "" {
			below = ""
		}
		_ = unpackCopy(root, below, only, bytes.NewReader(stream))
		for at, want := range map[string]string{dir: "inside", inside: below + only} {
			list, err := os.ReadDir(at)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				if e.Name() != want || e.Type()&os.ModeSymlink != 0 {
					t.Errorf("%s has %s", at, e)
				}
			}
		}
	})
}
