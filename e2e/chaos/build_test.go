package chaos_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// binaries are the programs of a run.
type binaries struct{ turngate, proc string }

// TestMain removes the programs that the tests have built.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "turngate-chaos-")
	if err != nil {
		panic(err)
	}
	built.dir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// built has the programs of this test process: each is built once.
var built struct { //nolint:gochecknoglobals // a test binary builds them once
	dir  string
	once sync.Once
	bin  binaries
	err  error
}

// build returns the programs without a mutant.
func build(t testing.TB) binaries {
	t.Helper()
	built.once.Do(func() {
		root := testenv.Root(t)
		built.bin = binaries{filepath.Join(built.dir, "turngate"), filepath.Join(built.dir, "chaosproc")}
		built.err = compile(root, built.bin.proc, "./e2e/chaos/chaosproc", "-tags", "faults")
		if built.err == nil {
			built.err = compile(root, built.bin.turngate, "./cmd/turngate")
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.bin
}

func compile(root, out, pkg string, flags ...string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, said)
	}
	return nil
}

// buildMutant builds a worker and trainer with a patch.
func buildMutant(t testing.TB, patch string) binaries {
	t.Helper()
	bin := build(t)
	bin.proc = filepath.Join(t.TempDir(), "chaosproc")
	if err := compile(testenv.Root(t), bin.proc, "./e2e/chaos/chaosproc", "-tags", "faults", "-overlay", applied(t, patch)); err != nil {
		t.Fatal(err)
	}
	return bin
}

// applied applies a patch to copies of the files that it changes, and returns an
// overlay for `go build` that replaces the files by the copies.
func applied(t testing.TB, patch string) string {
	t.Helper()
	root, dir := testenv.Root(t), t.TempDir()
	data, err := os.ReadFile(patch)
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "+++ b/")
		if !ok {
			continue
		}
		from, to := filepath.Join(root, name), filepath.Join(dir, name)
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o700)
		}
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		replace[from] = to
	}
	if len(replace) == 0 {
		t.Fatalf("%s changes no file", patch)
	}
	cmd := exec.Command("git", "apply", "-C1", "-")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(data)
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s does not apply: %v\n%s", patch, err, said)
	}
	overlay := filepath.Join(dir, "overlay.json")
	data, err = json.Marshal(map[string]any{"Replace": replace})
	if err == nil {
		err = os.WriteFile(overlay, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return overlay
}

// mutant is a patch that breaks the rule behind an invariant.
type mutant struct{ invariant, patch, rule string }

func mutants(t testing.TB) []mutant {
	t.Helper()
	files, err := filepath.Glob("mutants/*.patch")
	if err != nil {
		t.Fatal(err)
	}
	var out []mutant
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		rule, _, _ := strings.Cut(string(data), "\n")
		out = append(out, mutant{strings.ToUpper(strings.TrimSuffix(filepath.Base(f), ".patch")), f, rule})
	}
	return out
}

// TestEveryMutantApplies finds patches that no longer apply to the code.
func TestEveryMutantApplies(t *testing.T) {
	var got []string
	for _, m := range mutants(t) {
		got = append(got, m.invariant)
		applied(t, m.patch)
	}
	if want := []string{"I1", "I2", "I3", "I4", "I5", "I6"}; !slices.Equal(got, want) {
		t.Errorf("there are mutants for %v, want %v", got, want)
	}
}

// crashPoints lists the crash points in the code.
func crashPoints(t testing.TB) []string {
	t.Helper()
	root := testenv.Root(t)
	points := map[string]token.Position{}
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "testdata" || d.Name() == "node_modules" || path == filepath.Join(root, "internal", "crash")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(data, []byte("crash.Here(")) {
			return err
		}
		file, err := parser.ParseFile(files, path, data, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || f.Sel.Name != "Here" || len(call.Args) != 1 {
				return true
			}
			if pkg, ok := f.X.(*ast.Ident); !ok || pkg.Name != "crash" {
				return true
			}
			at := files.Position(call.Pos())
			name := ""
			if lit, ok := call.Args[0].(*ast.BasicLit); ok {
				name, _ = strconv.Unquote(lit.Value)
			}
			if name == "" {
				t.Errorf("%s: the name of a crash point is no literal", at)
			} else if other, ok := points[name]; ok {
				t.Errorf("%s: the crash point %s is also at %s", at, name, other)
			}
			points[name] = at
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(points))
}
