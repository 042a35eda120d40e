package dialect_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// TestADialectIsAPackageAndOneLine adds the dialect in testdata/toy: its package,
// its fixture, and a line for each in the lists. The suite, the tests of the
// memory and the sessions of a gate run for it.
func TestADialectIsAPackageAndOneLine(t *testing.T) {
	root, dir := testenv.Root(t), t.TempDir()
	toys := filepath.Join(root, "internal/gate/dialect/testdata/toy")
	replace := map[string]string{
		filepath.Join(root, "internal/gate/dialect/toy/toy.go"):      filepath.Join(toys, "toy.go"),
		filepath.Join(root, "internal/gate/dialect/toy/toy_test.go"): filepath.Join(toys, "toy_test.go"),
		filepath.Join(root, "internal/gate/gatetest/toy.go"):         filepath.Join(toys, "fixture.go"),
	}
	for file, lines := range map[string][]string{ // each line, and the line before it
		"internal/gate/dialects.go": {
			"\t\"github.com/turngate/turngate/internal/gate/dialect/responses\"\n", "\t\"github.com/turngate/turngate/internal/gate/dialect/toy\"\n",
			"\t\tgemini.Dialect{},\n", "\t\ttoy.Dialect{},\n",
		},
		"internal/gate/gatetest/fixture.go": {"\t\tGemini(),\n", "\t\tToy(),\n"},
	} {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		for i := 0; i < len(lines); i += 2 {
			if strings.Count(text, lines[i]) != 1 {
				t.Fatalf("%s has no single line %q", file, lines[i])
			}
			text = strings.Replace(text, lines[i], lines[i]+lines[i+1], 1)
		}
		changed := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, file)] = changed
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ folder, run, passed string }{
		{"internal/gate", "^TestEveryDialectHasAFixture$", "TestEveryDialectHasAFixture"},
		{"internal/gate/history", "^TestAnyHistoryIsRebuilt$/^toy$", "TestAnyHistoryIsRebuilt/toy"},
		{"internal/gate/dialect/toy", "^(TestConformance|FuzzToyEncode)$", "TestConformance/tool_calls"},
	} {
		binary := filepath.Join(dir, filepath.Base(tt.folder)+".test") // there is no folder to run the toy's in
		build := exec.Command("go", "test", "-c", "-overlay", overlay, "-vet=off", "-o", binary, "./"+tt.folder)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the tests of %s: %v\n%s", tt.folder, err, out)
		}
		test := exec.Command(binary, "-test.v", "-test.run", tt.run)
		test.Dir = dir
		if out, err := test.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+tt.passed) {
			t.Errorf("%s: %v\n%s", tt.folder, err, out)
		}
	}
}
