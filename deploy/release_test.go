package deploy_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/strictyaml"
	"github.com/turngate/turngate/internal/testenv"
)

// releaser is .goreleaser.yaml.
type releaser struct {
	Version     int
	ProjectName string `yaml:"project_name"`
	Before      struct{ Hooks []string }
	Builds      []struct {
		ID, Main, Binary    string
		Env, Flags, Ldflags []string
		ModTimestamp        string `yaml:"mod_timestamp"`
		Goos, Goarch        []string
	}
	Archives []struct {
		ID           string
		Formats      []string
		NameTemplate string `yaml:"name_template"`
		BuildsInfo   info   `yaml:"builds_info"`
		Files        []struct {
			Src, Dst    string
			StripParent bool `yaml:"strip_parent"`
			Info        info
		}
	}
	Checksum struct {
		NameTemplate string `yaml:"name_template"`
		Algorithm    string
	}
	Sboms    []struct{ Artifacts string }
	Snapshot struct {
		VersionTemplate string `yaml:"version_template"`
	}
	Changelog struct{ Disable bool }
	Release   struct {
		Draft      bool
		ExtraFiles []struct{ Glob string } `yaml:"extra_files"`
	}
}

type info struct {
	Mode  int
	Mtime string
}

func readReleaser(t *testing.T) (r releaser) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testenv.Root(t), ".goreleaser.yaml"))
	harness.Must(t, err)
	harness.Must(t, strictyaml.Decode(data, &r))
	return r
}

// TestReleaserNamesFilesAndVariables looks up each path, command and variable that
// .goreleaser.yaml names.
func TestReleaserNamesFilesAndVariables(t *testing.T) {
	r, root := readReleaser(t), testenv.Root(t)
	prepare, err := os.ReadFile(filepath.Join(root, ".ci", "release"))
	harness.Must(t, err)
	there := func(path string) {
		t.Helper()
		if made, ok := strings.CutPrefix(path, "bin/release/"); ok { // the hook makes it
			if !strings.Contains(string(prepare), `"$out/`+filepath.Dir(made)+`"`) {
				t.Errorf(".ci/release does not make %s", path)
			}
			return
		}
		if found, err := filepath.Glob(filepath.Join(root, path)); err != nil || len(found) == 0 {
			t.Errorf("%s is not there (%v)", path, err)
		}
	}
	for _, hook := range r.Before.Hooks {
		program, _, _ := strings.Cut(hook, " ")
		if at, err := os.Stat(filepath.Join(root, program)); err != nil || at.Mode()&0o111 == 0 {
			t.Errorf("the hook %s is no program (%v)", program, err)
		}
	}
	for _, b := range r.Builds {
		there(b.Main)
		for _, m := range regexp.MustCompile(`-X main\.(\w+)=`).FindAllStringSubmatch(strings.Join(b.Ldflags, " "), -1) {
			if !declares(t, filepath.Join(root, b.Main), m[1]) {
				t.Errorf("%s has no variable %s", b.Main, m[1])
			}
		}
		if !slices.Contains(b.Flags, "-trimpath") || !strings.Contains(b.ModTimestamp, "CommitTimestamp") || !slices.Contains(b.Env, "CGO_ENABLED=0") {
			t.Errorf("the build %s cannot be repeated", b.ID)
		}
	}
	for _, a := range r.Archives {
		for _, f := range a.Files {
			there(f.Src)
			if f.Info.Mode != 0o644 || f.Info.Mtime != a.BuildsInfo.Mtime {
				t.Errorf("%s has the mode %o and the time %s", f.Src, f.Info.Mode, f.Info.Mtime)
			}
		}
	}
	for _, f := range r.Release.ExtraFiles {
		there(f.Glob)
	}
	if len(r.Before.Hooks) != 1 || len(r.Builds) != 1 || len(r.Archives) != 1 || len(r.Sboms) != 1 {
		t.Errorf("got %+v", r)
	}
}

// declares reports whether the package in a folder has a variable of this name.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	harness.Must(t, err)
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		harness.Must(t, err)
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				for _, s := range g.Specs {
					if v, ok := s.(*ast.ValueSpec); ok && slices.ContainsFunc(v.Names, func(n *ast.Ident) bool { return n.Name == name }) {
						return true
					}
				}
			}
		}
	}
	return false
}

// TestAReleaseHasOneVersion gives .ci/release tags that the rest of the tree does not
// have.
func TestAReleaseHasOneVersion(t *testing.T) {
	root, dir := testenv.Root(t), t.TempDir()
	for _, file := range []string{".ci/release", "CHANGELOG.md", "clients/python/pyproject.toml"} {
		harness.Must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755))
		harness.Must(t, exec.Command("cp", filepath.Join(root, file), filepath.Join(dir, file)).Run())
	}
	refused := func(tag, want string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(dir, ".ci", "release"), tag)
		cmd.Env = append(os.Environ(), "LC_ALL=C") // bash warns of a locale that is not there
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%s: got %v, %s; want %q", tag, err, out, want)
		}
	}
	refused("1.2.3", "the tag 1.2.3 is not valid")
	refused("v87.65.43", `clients/python/pyproject.toml: want version = "87.65.43"`)
	harness.Must(t, os.WriteFile(filepath.Join(dir, "clients", "python", "pyproject.toml"), []byte("version = \"87.65.43\"\n"), 0o600))
	refused("v87.65.43", "CHANGELOG.md: want a heading ## [87.65.43] - ")
}

// TestInstall installs from archives as .goreleaser.yaml describes them, by a real
// server.
func TestInstall(t *testing.T) {
	_, curl := exec.LookPath("curl")
	testenv.Need(t, "curl", curl)
	r := readReleaser(t)
	name := func(template, version, system, processor string) string {
		return strings.NewReplacer("{{ .ProjectName }}", r.ProjectName, "{{ .Version }}", version, "{{ .Os }}", system, "{{ .Arch }}", processor).Replace(template)
	}
	archive := func(version, system, processor string) string {
		return name(r.Archives[0].NameTemplate, version, system, processor) + "." + r.Archives[0].Formats[0]
	}
	files := map[string][]byte{}
	release := func(at, version string, archives ...string) {
		var sums strings.Builder
		for _, a := range archives {
			files[at+a] = archiveOf(t, version+map[bool]string{true: " for macOS"}[strings.Contains(a, "_darwin_")])
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(files[at+a]), a)
			fmt.Fprintf(&sums, "%x  %s.sbom.json\n", sha256.Sum256(nil), a)
		}
		files[at+name(r.Checksum.NameTemplate, version, "", "")] = []byte(sums.String())
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	mine := archive("1.3.0", runtime.GOOS, runtime.GOARCH)
	release("/latest/download/", "1.3.0", mine, archive("1.3.0", runtime.GOOS, other))
	release("/download/v1.2.3/", "1.2.3", archive("1.2.3", runtime.GOOS, other), archive("1.2.3", runtime.GOOS, runtime.GOARCH))
	release("/download/v1.4.0/", "1.4.0", archive("1.4.0", "darwin", "arm64"), archive("1.4.0", "linux", "arm64"))
	release("/download/v1.4.1/", "1.4.1", archive("1.4.1", "darwin", "arm64"))
	release("/download/v1.0.0/", "1.0.0", archive("1.0.0", "plan9", runtime.GOARCH))
	release("/download/v1.0.1/", "1.0.1", archive("1.0.1", runtime.GOOS, runtime.GOARCH))
	files["/download/v1.0.1/"+archive("1.0.1", runtime.GOOS, runtime.GOARCH)] = archiveOf(t, "another")
	release("/download/v1.0.2/", "1.0.2", archive("1.0.2", runtime.GOOS, runtime.GOARCH))
	delete(files, "/download/v1.0.2/"+archive("1.0.2", runtime.GOOS, runtime.GOARCH))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		data, ok := files[q.URL.Path]
		if !ok {
			http.NotFound(w, q)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(server.Close)

	for _, shell := range []string{"sh", "bash"} {
		t.Run(shell, func(t *testing.T) {
			home, temporary := t.TempDir(), t.TempDir()
			bin := filepath.Join(home, ".local", "bin")
			program := filepath.Join(bin, "turngate")
			install := func(env ...string) (string, error) {
				cmd := exec.Command(shell, filepath.Join(testenv.Root(t), "install.sh"))
				cmd.Env = append([]string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + temporary, "TURNGATE_RELEASES=" + server.URL}, env...)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			has := func(version string) {
				t.Helper()
				data, err := os.ReadFile(program)
				if err != nil || string(data) != programOf(version) {
					t.Errorf("%s has %q (%v)", program, data, err)
				}
			}
			out, err := install()
			if err != nil || out != "turngate_1.3.0: "+program+"\nAdd "+bin+" to PATH.\n" {
				t.Errorf("%v, %s", err, out)
			}
			has("1.3.0")
			if at, err := os.Stat(program); err != nil || at.Mode() != 0o755 {
				t.Errorf("%v, %v", at, err)
			}
			if out, err := install("TURNGATE_VERSION=v1.2.3", "PATH="+os.Getenv("PATH")+":"+bin); err != nil || strings.Contains(out, "to PATH") {
				t.Errorf("%v, %s", err, out)
			}
			has("1.2.3")
			elsewhere := filepath.Join(home, "a folder")
			if out, err := install("TURNGATE_BIN=" + elsewhere); err != nil || !strings.Contains(out, elsewhere+"/turngate") {
				t.Errorf("%v, %s", err, out)
			}
			for version, want := range map[string]string{
				"v1.0.0": "no archive for " + runtime.GOOS + " on " + runtime.GOARCH,
				"v1.0.1": "nothing was installed",
				"v1.0.2": archive("1.0.2", runtime.GOOS, runtime.GOARCH) + " cannot be fetched",
				"v9.9.9": "/download/v9.9.9/checksums.txt cannot be fetched",
				"1.2.3":  "TURNGATE_VERSION: 1.2.3 is not valid",
			} {
				if out, err := install("TURNGATE_VERSION=" + version); err == nil || !strings.Contains(out, want) {
					t.Errorf("%s: %v, %s; want %q", version, err, out, want)
				}
			}
			has("1.2.3")
			mac := filepath.Join(home, "mac")
			harness.Must(t, os.Mkdir(mac, 0o700))
			harness.Must(t, os.WriteFile(filepath.Join(mac, "uname"), []byte("#!/bin/sh\ncase $1 in -s) echo Darwin;; *) echo arm64;; esac\n"), 0o700))
			onMac := []string{"PATH=" + mac + ":" + os.Getenv("PATH"), "TURNGATE_BIN=" + mac}
			if out, err := install(append(onMac, "TURNGATE_VERSION=v1.4.1")...); err == nil || !strings.Contains(out, "no archive for linux on arm64") {
				t.Errorf("macOS, without the program of sandboxes: %v, %s", err, out)
			}
			if out, err := install(append(onMac, "TURNGATE_VERSION=v1.4.0")...); err != nil || !strings.HasPrefix(out, "turngate_1.4.0: "+mac+"/turngate\n") {
				t.Errorf("macOS: %v, %s", err, out)
			}
			for name, version := range map[string]string{"turngate": "1.4.0 for macOS", "turngate-linux-arm64": "1.4.0"} {
				if data, err := os.ReadFile(filepath.Join(mac, name)); err != nil || string(data) != programOf(version) {
					t.Errorf("macOS: %s has %q (%v)", name, data, err)
				}
			}
			for _, dir := range []string{bin, temporary} {
				left, err := os.ReadDir(dir)
				harness.Must(t, err)
				for _, e := range left {
					if e.Name() != "turngate" {
						t.Errorf("%s is left in %s", e.Name(), dir)
					}
				}
			}
		})
	}
}

func programOf(version string) string { return "the program of " + version }

// archiveOf has files as a release's archive has.
func archiveOf(t *testing.T, version string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range []struct{ name, text string }{{"LICENSE", "license"}, {"completions/turngate.bash", "# bash"}, {"man/turngate.1", ".TH"}, {"turngate", programOf(version)}} {
		harness.Must(t, w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.text))}))
		_, err := w.Write([]byte(f.text))
		harness.Must(t, err)
	}
	harness.Must(t, w.Close())
	harness.Must(t, z.Close())
	return b.Bytes()
}

// workflow has the parts of a workflow of GitHub that are checked.
type workflow struct {
	Permissions map[string]string
	Jobs        map[string]struct {
		Uses     string
		Strategy struct {
			Matrix struct{ Checks []string }
		}
		Steps []struct{ Uses, Run string }
	}
}

// TestWorkflows: the workflows of GitHub run every step of .ci/run and .ci/full and none
// that these lack, may read only by default, and name the commit of each action.
func TestWorkflows(t *testing.T) {
	root := testenv.Root(t)
	steps, covered := map[string][]string{}, map[string]bool{}
	for _, script := range []string{".ci/run", ".ci/full"} {
		list, err := exec.Command(filepath.Join(root, script), "--list").Output()
		harness.Must(t, err)
		steps[script] = strings.Fields(string(list))
	}
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	harness.Must(t, err)
	pinned := regexp.MustCompile(`^[\w-]+/[\w./-]+@[0-9a-f]{40}$`)
	for _, file := range files {
		name := filepath.Base(file)
		data, err := os.ReadFile(file)
		harness.Must(t, err)
		var w workflow
		harness.Must(t, yaml.Unmarshal(data, &w))
		if len(w.Permissions) != 1 || w.Permissions["contents"] != "read" {
			t.Errorf("%s: the permissions are %v, want contents: read", name, w.Permissions)
		}
		for job, j := range w.Jobs {
			if j.Uses != "" {
				if _, err := os.Stat(filepath.Join(root, j.Uses)); err != nil {
					t.Errorf("%s: %s: %v", name, job, err)
				}
			}
			for _, s := range j.Steps {
				if s.Uses != "" && !pinned.MatchString(s.Uses) {
					t.Errorf("%s: %s: %s names no commit", name, job, s.Uses)
				}
				if !strings.Contains(s.Run, "${{ matrix.checks }}") {
					continue
				}
				for _, command := range j.Strategy.Matrix.Checks {
					script, words, _ := strings.Cut(command, " ")
					named := strings.Fields(words)
					if len(named) == 0 {
						named = steps[script]
					}
					for _, step := range named {
						covered[script+" "+step] = true
						if !slices.Contains(steps[script], step) {
							t.Errorf("%s: %s: %s has no step %s", name, job, script, step)
						}
					}
				}
			}
		}
	}
	for script, list := range steps {
		for _, step := range list {
			if !covered[script+" "+step] && !slices.Contains([]string{"build", "tools", "docker", "agents", "python"}, step) { // others need these
				t.Errorf("no workflow runs the step %s of %s", step, script)
			}
		}
	}
	if len(files) != 2 {
		t.Errorf("%d workflows were found", len(files))
	}
}

// TestThePythonPackageHasTheLicense: a wheel has only files of its own folder.
func TestThePythonPackageHasTheLicense(t *testing.T) {
	ours, err := os.ReadFile(filepath.Join(testenv.Root(t), "LICENSE"))
	harness.Must(t, err)
	copied, err := os.ReadFile(filepath.Join(testenv.Root(t), "clients", "python", "LICENSE"))
	if err != nil || !bytes.Equal(ours, copied) {
		t.Errorf("clients/python/LICENSE differs from LICENSE (%v)", err)
	}
}
