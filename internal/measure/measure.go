package main

import (
	"cmp"
	"go/ast"
	"go/types"
	"maps"
	"slices"
	"strings"
)

// width is the number of methods of a named type, with the methods of embedded types.
type width struct {
	name              string // package.Type
	methods, exported int
}

// widths returns the named types of the module, the widest first.
func (m *module) widths() (all []width) {
	for _, p := range m.packages {
		for _, name := range p.types.Scope().Names() {
			t, ok := p.types.Scope().Lookup(name).(*types.TypeName)
			if !ok || t.IsAlias() || types.IsInterface(t.Type()) {
				continue
			}
			w := width{name: m.short(p.path) + "." + name}
			for method := range types.NewMethodSet(types.NewPointer(t.Type())).Methods() {
				w.methods++
				if method.Obj().Exported() {
					w.exported++
				}
			}
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b width) int { return cmp.Or(b.methods-a.methods, cmp.Compare(a.name, b.name)) })
	return all
}

// exported returns the number of exported names of each package that others can
// import: its declarations, and the methods of its exported types.
func (m *module) exported() map[string]int {
	counts := map[string]int{}
	for _, p := range m.packages {
		if p.types.Name() == "main" || slices.Contains(strings.Split(p.path, "/"), "internal") || m.below(p.path, "e2e") {
			continue
		}
		for _, f := range p.syntax {
			for _, d := range f.Decls {
				counts[m.short(p.path)] += exportedOf(d)
			}
		}
	}
	return counts
}

func exportedOf(d ast.Decl) (n int) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
			return 1
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					n++
				}
			case *ast.ValueSpec:
				for _, name := range s.Names {
					if name.IsExported() {
						n++
					}
				}
			}
		}
	}
	return n
}

// receiver returns the name of a method's type.
func receiver(d *ast.FuncDecl) string {
	switch t := ast.Unparen(d.Recv.List[0].Type).(type) {
	case *ast.StarExpr:
		return types.ExprString(t.X)
	default:
		return types.ExprString(t)
	}
}

// writes returns the number of places in each file that set fields of a type, such as
// schema.Result: assignments, and literals with fields.
func (m *module) writes(target string) map[string]int {
	counts := map[string]int{}
	for _, p := range m.packages {
		for _, f := range p.syntax {
			ast.Inspect(f, func(n ast.Node) bool {
				var to []ast.Expr
				switch n := n.(type) {
				case *ast.AssignStmt:
					to = n.Lhs
				case *ast.IncDecStmt:
					to = []ast.Expr{n.X}
				case *ast.CompositeLit:
					if len(n.Elts) > 0 && m.named(p.info.Types[n].Type) == target {
						counts[m.file(f.Pos())]++
					}
				}
				if slices.ContainsFunc(to, func(e ast.Expr) bool { return m.isField(p, e, target) }) {
					counts[m.file(f.Pos())]++
				}
				return true
			})
		}
	}
	return counts
}

// isField reports whether an expression belongs to a field of a type, as do
// r.Usage.Tokens and r.Calls[tag].
func (m *module) isField(p *pkg, e ast.Expr, target string) bool {
	for {
		switch x := e.(type) {
		case *ast.SelectorExpr:
			if m.named(p.info.Types[x.X].Type) == target {
				return true
			}
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		default:
			return false
		}
	}
}

// named returns the name of a type, or of the one behind a pointer, as package.Type.
func (m *module) named(t types.Type) string {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		return ""
	}
	return m.short(n.Obj().Pkg().Path()) + "." + n.Obj().Name()
}

func (m *module) short(path string) string { return strings.TrimPrefix(path, m.path+"/") }

// arrow leads from a file to another one: a function or method of the first uses one
// of the other.
type arrow struct{ from, to string }

// arrows counts the pairs of functions behind each arrow inside the packages of a
// folder.
func (m *module) arrows(folder string) map[arrow]int {
	seen := map[[2]types.Object]arrow{}
	for _, p := range m.packages {
		if !m.below(p.path, folder) {
			continue
		}
		for _, f := range p.syntax {
			for _, d := range f.Decls {
				d, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				ast.Inspect(d, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					if !ok {
						return true
					}
					used, ok := p.info.Uses[id].(*types.Func)
					if !ok || used.Pkg() != p.types || used.Pos() == 0 {
						return true
					}
					if a := (arrow{m.file(d.Pos()), m.file(used.Pos())}); a.from != a.to {
						seen[[2]types.Object{p.info.Defs[d.Name], used}] = a
					}
					return true
				})
			}
		}
	}
	counts := map[arrow]int{}
	for _, a := range seen {
		counts[a]++
	}
	return counts
}

func (m *module) below(path, folder string) bool {
	return m.short(path) == folder || strings.HasPrefix(m.short(path), folder+"/")
}

// backUp returns the number of pairs with arrows against the order of files. The order puts a
// file before the ones that it uses, as far as circles allow: it takes again and again the file
// with the greatest surplus of arrows that leave it.
func backUp(arrows map[arrow]int) (all, back int) {
	left := map[string]bool{}
	for a, n := range arrows {
		left[a.from], left[a.to] = true, true
		all += n
	}
	place := map[string]int{}
	for len(left) > 0 {
		best, most := "", 0
		for _, file := range slices.Sorted(maps.Keys(left)) {
			surplus := 0
			for a, n := range arrows {
				if a.from == file && left[a.to] {
					surplus += n
				}
				if a.to == file && left[a.from] {
					surplus -= n
				}
			}
			if best == "" || surplus > most {
				best, most = file, surplus
			}
		}
		place[best] = len(place)
		delete(left, best)
	}
	for a, n := range arrows {
		if place[a.from] > place[a.to] {
			back += n
		}
	}
	return all, back
}
