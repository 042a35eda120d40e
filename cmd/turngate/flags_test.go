package main_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestAFieldHasTheNameOfItsFlag compares the fields that flags set with the names of
// the flags. A field for --nats is a URL.
func TestAFieldHasTheNameOfItsFlag(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	flags := 0
	for _, name := range files {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			field, flag := fieldOf(call.Args[0]), textOf(call.Args[1])
			if fun, ok := call.Fun.(*ast.SelectorExpr); !ok || !strings.Contains(fun.Sel.Name, "Var") || field == "" || ast.IsExported(field) {
				return true
			}
			flags++
			if flag != "nats" && !strings.EqualFold(field, strings.ReplaceAll(flag, "-", "")) {
				t.Errorf("%s: the field %s has the value of --%s", fset.Position(call.Pos()), field, flag)
			}
			return true
		})
	}
	if flags < 50 {
		t.Errorf("%d flags were found", flags)
	}
}

// fieldOf returns the name of the field in &x.field or new…(&x.field, …).
func fieldOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.CallExpr:
		if len(e.Args) > 0 {
			return fieldOf(e.Args[0])
		}
	case *ast.UnaryExpr:
		if s, ok := e.X.(*ast.SelectorExpr); ok && e.Op == token.AND {
			return s.Sel.Name
		}
	}
	return ""
}

func textOf(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		text, _ := strconv.Unquote(lit.Value)
		return text
	}
	return ""
}
