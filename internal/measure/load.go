package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// module is a module's packages with their types, without tests.
type module struct {
	files    *token.FileSet
	dir      string
	path     string
	packages []*pkg // in the order of go list
}

type pkg struct {
	path   string
	syntax []*ast.File
	types  *types.Package
	info   *types.Info
}

// listed is a package as go list prints it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Module                  *struct {
		Path string
		Dir  string
		Main bool
	}
}

// load reads the module of a folder. The go command compiles its dependencies, or has
// them in its cache.
func load(dir string) (*module, error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Dir,Export,GoFiles,Module", "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	var own []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[l.ImportPath] = l.Export
		if l.Module != nil && l.Module.Main && len(l.GoFiles) > 0 {
			own = append(own, l)
		}
	}
	m := &module{files: token.NewFileSet()}
	imports := importer.ForCompiler(m.files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, l := range own {
		m.path, m.dir = l.Module.Path, l.Module.Dir
		p, err := m.check(l, imports)
		if err != nil {
			return nil, err
		}
		m.packages = append(m.packages, p)
	}
	return m, nil
}

func (m *module) check(l listed, imports types.Importer) (*pkg, error) {
	p := &pkg{path: l.ImportPath, info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}}
	for _, name := range l.GoFiles {
		f, err := parser.ParseFile(m.files, filepath.Join(l.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.syntax = append(p.syntax, f)
	}
	var err error
	p.types, err = (&types.Config{Importer: imports}).Check(l.ImportPath, m.files, p.syntax, p.info)
	return p, err
}

// file returns the path of a position's file in the module.
func (m *module) file(pos token.Pos) string {
	path, err := filepath.Rel(m.dir, m.files.File(pos).Name())
	if err != nil {
		return m.files.File(pos).Name()
	}
	return path
}
