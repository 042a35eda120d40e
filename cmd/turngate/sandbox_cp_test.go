package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// sparse returns a tar with one file of size zeros, which has none of them.
func sparse(f *testing.F, size string) []byte {
	f.Helper()
	records := "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
	for _, r := range []string{"GNU.sparse.name=zeros", "GNU.sparse.realsize=" + size} {
		records += strconv.Itoa(len(r)+4) + " " + r + "\n"
	}
	blocks := "1\n" + size + "\n0\n"
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, text := range []string{records, blocks + string(make([]byte, 512-len(blocks)))} {
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: int64(len(text))}), second(io.WriteString(w, text))); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	out := b.Bytes()
	out[156] = tar.TypeXHeader
	sum := 8 * int(' ') // of the field of the sum itself
	for i, c := range out[:512] {
		if i < 148 || i >= 156 {
			sum += int(c)
		}
	}
	copy(out[148:], fmt.Sprintf("%06o\x00 ", sum))
	return out
}

func second[T any](_ T, err error) error { return err }

// FuzzCopyOut: no stream of a sandbox makes a copy write outside its folder, or more than
// the limit.
func FuzzCopyOut(f *testing.F) {
	bomb := sparse(f, "1099511627776")
	if h, err := tar.NewReader(bytes.NewReader(bomb)).Next(); err != nil || h.Size != 1<<40 {
		f.Fatalf("%+v, %v", h, err)
	}
	f.Add(bomb, "")
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
		const limit = 1 << 20
		_ = unpackCopy(root, only, bytes.NewReader(stream), limit)
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("%s has %v, %v", dir, list, err)
		}
		var size int64
		err = filepath.WalkDir(inside, func(at string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if err == nil && (!e.Type().IsRegular() || only != "" && at != filepath.Join(inside, only)) {
				t.Errorf("%s is %s", at, e)
			}
			size += info.Size()
			return err
		})
		if err != nil || size > limit {
			t.Errorf("%d bytes, %v", size, err)
		}
	})
}
