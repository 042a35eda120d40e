package box

import (
	"os"
	"path/filepath"
	"testing"
)

func TestIDsThatANamespaceHas(t *testing.T) {
	for _, tt := range []struct {
		text string
		id   uint32
		want string
	}{
		{"         0          0 4294967295\n", 4294967294, ""},
		{"         0          0 4294967295\n", 4294967295, "0 to 4294967294"},
		{"0 1000 1\n", 0, ""},
		{"0 1000 1\n", 1, "0"},
		{"0 1000 1\n1 100000 65535\n", 65535, ""},
		{"0 1000 1\n10 100000 65535\n", 9, "0, 10 to 65544"},
		{"no numbers\n", 7, ""},
	} {
		file := filepath.Join(t.TempDir(), "uid_map")
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := mapped(file, tt.id); got != tt.want {
			t.Errorf("%d in %q: got %q, want %q", tt.id, tt.text, got, tt.want)
		}
	}
	if got := mapped(filepath.Join(t.TempDir(), "none"), 7); got != "" {
		t.Errorf("without a map: %q", got)
	}
}
