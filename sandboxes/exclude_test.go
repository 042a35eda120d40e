package sandboxes_test

import (
	"testing"

	"github.com/turngate/turngate/sandboxes"
)

func TestExcludedPaths(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"*.log", "a.log", true}, {"*.log", "d/e/a.log", true}, {"*.log", "a.logs", false}, {"node_modules", "x/node_modules/y", true},
		{"node_modules", "node_modules2", false}, {"d/e", "d/e/f", true}, {"d/e", "x/d/e", true}, {"./d", "d/e", true}, {"./d", "x/d", false},
		{"d*f", "d/e/f", true}, {"?.txt", "a.txt", true}, {"?.txt", "ab.txt", false}, {"[ab].txt", "b.txt", true}, {"[!ab].txt", "b.txt", false},
		{"[!ab].txt", "c.txt", true}, {`a\*`, "a*", true}, {`a\*`, "ab", false}, {"a.b", "axb", false}, {"[", "[", true}, {"[a", "[a", true}, {"d/", "d/x", true}, {"[]]", "]", true},
	} {
		x, err := sandboxes.NewExcluder([]string{c.pattern})
		if err != nil {
			t.Fatal(err)
		}
		if got := x.Excludes(c.path); got != c.want {
			t.Errorf("%q excludes %q: %v, want %v", c.pattern, c.path, got, c.want)
		}
	}
}

func FuzzExcludePatterns(f *testing.F) {
	for _, s := range []string{"*.log", "[!a-z]", "[", "[]", "[!]", `\`, "[z-a]", "((", "\xff"} {
		f.Add(s, "a/b")
	}
	f.Fuzz(func(_ *testing.T, pattern, path string) {
		if x, err := sandboxes.NewExcluder([]string{pattern}); err == nil {
			x.Excludes(path)
		}
	})
}
