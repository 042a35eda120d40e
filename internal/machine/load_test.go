package machine

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryOfControlGroups(t *testing.T) {
	root := t.TempDir()
	write := func(group, name, text string) {
		t.Helper()
		dir := filepath.Join(root, group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("pod", "memory.max", "1000000\n")
	write("pod", "memory.current", "900000\n")
	write("pod", "memory.stat", "anon 5\ninactive_file 50000\nactive_file 7\n")
	write("pod/worker", "memory.max", "max\n")
	write("pod/worker", "memory.current", "800000\n")
	write("small", "memory.max", "1000\n")
	write("small", "memory.current", "2000\n")
	for _, c := range []struct {
		name, cgroup string
		most, free   int64
	}{
		{"a limit above the process", "0::/pod/worker\n", 1000000, 150000},
		{"more in use than the limit", "0::/small\n", 1000, 0},
		{"no limit", "0::/other\n", math.MaxInt64, math.MaxInt64},
		{"version 1 alone", "4:memory:/pod\n", math.MaxInt64, math.MaxInt64},
		{"a way out of the tree", "0::/../../pod\n", 1000000, 150000},
	} {
		if most, free := groupMemory(root, []byte(c.cgroup)); most != c.most || free != c.free {
			t.Errorf("%s: %d and %d free; want %d and %d", c.name, most, free, c.most, c.free)
		}
	}
}

func TestLoadOfThisHost(t *testing.T) {
	l := Load()
	if l.CPUs < 1 || l.MemoryBytes <= 0 || l.FreeMemoryBytes <= 0 || l.FreeMemoryBytes > l.MemoryBytes || l.WorkerBytes <= 0 {
		t.Errorf("the load is %+v", l)
	}
	if free, size := FreeDisk(t.TempDir()); free < 0 || size <= 0 || free > size {
		t.Errorf("the disk has %d bytes free of %d", free, size)
	}
}
