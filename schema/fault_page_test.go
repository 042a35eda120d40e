package schema_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// TestThePageOfFaultsIsComplete compares docs/faults.md with the source: each code
// has a row, which names every party that the source gives with it, and no other.
func TestThePageOfFaultsIsComplete(t *testing.T) {
	root := testenv.Root(t)
	want := faultsOfSource(t, root)
	page, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		code := strings.Trim(cells[1], " `")
		seen[code] = true
		whose, known := want[code]
		if !known {
			t.Errorf("the page has the code %s, which the source does not have", code)
		}
		var listed []string
		for who := range strings.SplitSeq(cells[2], ",") {
			listed = append(listed, strings.TrimSpace(who))
		}
		for who := range whose {
			if !slices.Contains(listed, who) {
				t.Errorf("the row of %s lists %v; the source also gives it to %s", code, listed, who)
			}
		}
	}
	for _, code := range slices.Sorted(maps.Keys(want)) {
		if !seen[code] {
			t.Errorf("the page has no row for %s", code)
		}
	}
	if len(want) < 30 {
		t.Errorf("%d codes were found in the source: the search is wrong", len(want))
	}
}

// faultsOfSource returns the parties of each code: from the constants named Code… of
// this package, the calls of Faultf in the tree, tests apart, and the Faults that the
// Python client makes.
func faultsOfSource(t *testing.T, root string) map[string]map[string]bool {
	t.Helper()
	files := token.NewFileSet()
	constants := map[string]string{} // CodeOOM: oom, WhoTask: task
	var calls []*ast.CallExpr
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || d.Name() == "gatetest" || d.Name() == "e2e") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if file.Name.Name == "schema" && len(n.Values) == 1 {
					constants[n.Names[0].Name], _ = literal(n.Values[0])
				}
			case *ast.CallExpr:
				if nameOf(n.Fun) == "Faultf" {
					calls = append(calls, n)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	found := faultsOfPython(t, root)
	for name, value := range constants {
		if strings.HasPrefix(name, "Code") && value != "" {
			found[value] = map[string]bool{}
		}
	}
	for _, c := range calls {
		code, ok := literal(c.Args[1])
		if !ok {
			code = constants[nameOf(c.Args[1])]
		}
		if code == "" {
			continue // a variable: its constants are in the list
		}
		if found[code] == nil {
			found[code] = map[string]bool{}
		}
		if who := constants[nameOf(c.Args[2])]; who != "" {
			found[code][who] = true
		}
	}
	return found
}

// faultsOfPython returns the codes that the Python client gives as literals.
func faultsOfPython(t *testing.T, root string) map[string]map[string]bool {
	t.Helper()
	found := map[string]map[string]bool{}
	fault := regexp.MustCompile(`\bFault\((?:stage="[a-z]+", )?code="([a-z_]+)"`)
	who := regexp.MustCompile(`\bwho="([a-z]+)"`)
	err := filepath.WalkDir(filepath.Join(root, "clients", "python", "src"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".py") {
			return err
		}
		text, err := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			m := fault.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			if found[m[1]] == nil {
				found[m[1]] = map[string]bool{}
			}
			if party := who.FindStringSubmatch(line); party != nil {
				found[m[1]][party[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 6 {
		t.Errorf("%d codes were found in the Python client: the pattern is wrong", len(found))
	}
	return found
}

func literal(e ast.Expr) (string, bool) {
	b, ok := e.(*ast.BasicLit)
	if !ok || b.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(b.Value)
	return s, err == nil
}

// nameOf returns the name of Faultf and of schema.Faultf.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
