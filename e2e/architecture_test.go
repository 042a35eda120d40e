package e2e_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// TestArchitectureNamesDeclaredFunctions checks each file in docs/architecture.md, and
// each function or type behind a file in the same step.
func TestArchitectureNamesDeclaredFunctions(t *testing.T) {
	t.Parallel()
	root := testenv.Root(t)
	data, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]map[string]bool{} // of declarations, by file
	inStep := map[string]bool{}
	file, checked := "", 0
	step := regexp.MustCompile(`^[0-9]+\. `)
	quoted := regexp.MustCompile("`([a-z/_]+\\.go|[A-Za-z]+(?:\\.[A-Za-z]+)?)`")
	for line := range strings.Lines(string(data)) {
		if step.MatchString(line) || strings.HasPrefix(line, "#") {
			file, inStep = "", map[string]bool{}
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			if strings.HasSuffix(m[1], ".go") {
				if file = m[1]; names[file] == nil {
					names[file] = declared(t, filepath.Join(root, file))
				}
				inStep[file] = true
				continue
			}
			if file == "" {
				continue
			}
			found := false
			for f := range inStep {
				found = found || names[f][m[1]]
			}
			if !found {
				t.Errorf("docs/architecture.md: none of the files named before it in its step declares %s: %s", m[1], line)
			}
			checked++
		}
	}
	if checked < 50 {
		t.Errorf("%d names were found: the pattern is wrong", checked)
	}
}

// declared returns the functions, methods as Type.Name, and types of a file.
func declared(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				of := d.Recv.List[0].Type
				if p, ok := of.(*ast.StarExpr); ok {
					of = p.X
				}
				if id, ok := of.(*ast.Ident); ok {
					name = id.Name + "." + name
				}
			}
			names[name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					names[s.Name.Name] = true
				}
			}
		}
	}
	return names
}

// TestDecisionsHaveTheirForm: each record of decisions says its reasons, its
// decisions and their consequences, and has a number of its own.
func TestDecisionsHaveTheirForm(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(testenv.Root(t), "docs/adr/*.md"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for i, file := range files { // sorted by name
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if number := fmt.Sprintf("%04d-", i+1); !strings.HasPrefix(filepath.Base(file), number) {
			t.Errorf("%s should begin with %s", filepath.Base(file), number)
		}
		for _, heading := range []string{fmt.Sprintf("# %d. ", i+1), "\n## Reasons\n", "\n## Decisions\n", "\n## Consequences\n"} {
			if strings.Count(string(data), heading) < 1 {
				t.Errorf("%s has no %q", filepath.Base(file), heading)
			}
		}
	}
}
