package layout

import (
	"archive/tar"
	"errors"
	"strings"
	"testing"
)

// TestFilesOfLayersAreCounted counts files, folders that only names tell, and names.
func TestFilesOfLayersAreCounted(t *testing.T) {
	u := &unpacking{}
	for _, c := range []struct {
		name  string
		files int
	}{{"a", 1}, {"a/b", 2}, {"a/b/c/d", 4}, {"a/b/c/e", 5}, {"a/bb/c", 7}, {"x/y/z", 10}} {
		if ok, err := u.filter(&tar.Header{Name: c.name, Typeflag: tar.TypeReg}); !ok || err != nil || u.files != c.files {
			t.Errorf("%s: %d files, want %d; %v", c.name, u.files, c.files, err)
		}
	}
	for name, u := range map[string]*unpacking{"files": {files: maxFiles - 2}, "names": {names: maxNames - 4}} {
		if _, err := u.filter(&tar.Header{Name: "a/b/c"}); !errors.Is(err, errTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2 {
		ok, err := u.filter(&tar.Header{Name: "big", Size: maxBytes/2 + 1})
		if ok == errors.Is(err, errTooLarge) {
			t.Errorf("%t, %v", ok, err)
		}
	}
	if u.content != maxBytes/2+1 {
		t.Errorf("%d bytes", u.content)
	}
}

// TestHeadersKeepLittle gives a header of a folder more records than the folder needs.
func TestHeadersKeepLittle(t *testing.T) {
	h := tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o7755, Uid: 5, Gid: 6, Uname: "u", Linkname: "l", PAXRecords: map[string]string{"comment": strings.Repeat("x", 1000), "SCHILY.xattr.security.capability": "y"}}
	if ok, err := (&unpacking{owners: true}).filter(&h); !ok || err != nil || h.Name != "d" || h.Mode != 0o1755 || h.Uid != 5 || h.Gid != 6 || h.PAXRecords != nil || h.Uname+h.Linkname != "" {
		t.Errorf("%t, %v, %+v", ok, err, h)
	}
}
