package jobs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzUnpack: no tar makes unpack write outside the folder.
func FuzzUnpack(f *testing.F) {
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		if err := os.Mkdir(filepath.Join(top, "in"), 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(filepath.Join(top, "in"))
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		_, _ = unpack(root, "below", bytes.NewReader(data)) // any error is allowed
		for dir, want := range map[string]string{top: "in", filepath.Join(top, "in"): "below"} {
			list, err := os.ReadDir(dir)
			if err != nil || len(list) != 1 || list[0].Name() != want {
				t.Errorf("%s: %v, %v", dir, list, err)
			}
		}
	})
}
