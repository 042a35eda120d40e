package e2e_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/turngate/turngate/internal/testenv"
)

// TestLinksReachHeadings: each link of a page to a place in the tree names an existing file or
// folder, and behind # a heading of it.
func TestLinksReachHeadings(t *testing.T) {
	t.Parallel()
	root := testenv.Root(t)
	code := regexp.MustCompile("(?ms)^```.*?^```")
	link := regexp.MustCompile(`\]\(([^)\s:#]*)(?:#([^)\s]*))?\)`)
	anchors := map[string]map[string]bool{} // of headings, by file
	found := 0
	for _, page := range pages(t, root) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		anchors[page] = headings(code.ReplaceAllString(string(text), ""))
	}
	for _, page := range slices.Sorted(maps.Keys(anchors)) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(string(text), ""), -1) {
			target := filepath.Join(filepath.Dir(page), m[1])
			if m[1] == "" {
				target = page
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if m[2] != "" && strings.HasSuffix(target, ".md") && !anchors[target][m[2]] {
				t.Errorf("%s links to %s#%s, which is no heading", page, m[1], m[2])
			}
			found++
		}
	}
	if found < 200 {
		t.Errorf("%d links were found: the pattern is wrong", found)
	}
}

// pages returns the Markdown files of the tree, except in examples' tasks and recordings.
func pages(t *testing.T, root string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "tasks" || d.Name() == "node_modules" || d.Name() != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case strings.HasSuffix(path, ".md"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// headings returns the anchors of a page, as GitHub makes them.
func headings(page string) map[string]bool {
	anchors := map[string]bool{}
	for line := range strings.Lines(page) {
		text := strings.TrimLeft(line, "#")
		if text == line || !strings.HasPrefix(text, " ") {
			continue
		}
		anchors[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(text))] = true
	}
	return anchors
}

// TestTheREADMENamesEveryFolder compares the table of folders in the README with the
// folders that git has: each top folder and each one in internal has its place.
func TestTheREADMENamesEveryFolder(t *testing.T) {
	t.Parallel()
	root := testenv.Root(t)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| folder | content |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, parent := range []string{"", "internal", "cmd", "clients"} {
		entries, err := os.ReadDir(filepath.Join(root, parent))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			name := filepath.Join(parent, e.Name())
			if !e.IsDir() || strings.HasPrefix(e.Name(), ".") || len(sources(t, filepath.Join(root, name))) == 0 {
				continue
			}
			if !strings.Contains(table, "("+name+")") && !strings.Contains(table, "("+name+"/") {
				t.Errorf("the table of folders in the README has no %s", name)
			}
		}
	}
}

// sources returns the Go, Python and Markdown files below a folder: one that only
// builds make has none.
func sources(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if slices.Contains([]string{".go", ".py", ".md"}, filepath.Ext(path)) {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
