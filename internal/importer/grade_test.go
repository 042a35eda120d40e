package importer_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/importer"
	"github.com/turngate/turngate/internal/testenv"
)

// TestAnAgentCannotRemoveTheReward: the grader of a SWE task writes a reward for
// every state of the repository that an agent leaves.
func TestAnAgentCannotRemoveTheReward(t *testing.T) {
	_, err := exec.LookPath("python3")
	testenv.Need(t, "python", err)
	row := strings.NewReplacer(`test_sum.py b/test_sum.py`, `test_new.py b/test_new.py`, `--- a/test_sum.py\n+++ b/test_sum.py\n@@ -1,5 +1,9 @@\n+import pytest\n from sum import add\n \n \n def test_zero():\n     assert add(1, 0) == 1\n`,
		`new file mode 100644\n--- /dev/null\n+++ b/test_new.py\n@@ -0,0 +1,4 @@\n+import pytest\n`).Replace(sweBench)
	for name, agent := range map[string]string{
		"the file of the tests is there": "echo taken > test_new.py",
		"it is a folder":                 "mkdir -p test_new.py/x",
		"the repository is gone":         "rm -rf .git",
		"pytest writes no report":        "printf 'import os\\nos._exit(0)\\n' > pytest.py",
		"the report is no report":        "printf 'import os\\nopen(os.environ[\"TURNGATE_REPORT\"], \"w\").write(\"[\")\\n' > pytest.py",
	} {
		t.Run(name, func(t *testing.T) {
			dir, repo := t.TempDir(), t.TempDir()
			sh := func(script string) string {
				cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
				cmd.Dir = repo
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return strings.TrimSpace(string(out))
			}
			base := sh("git init -q && echo x > sum.py && git add -A && git -c user.name=t -c user.email=t@localhost commit -q -m base && git rev-parse HEAD")
			run(t, dir, importer.Options{}, strings.Replace(row, "d16bfe05a744909de4b27f5875fe0d4ed41ce607", base, 1))
			tests := filepath.Join(dir, "astropy__astropy-12907", "tests")
			reward := filepath.Join(t.TempDir(), "reward.json")
			grader := strings.Replace(strings.Replace(read(t, tests, "grade.py"), "/logs/verifier/reward.json", reward, 1), "/tmp/turngate-test-report.json", reward+".report", 1)
			if err := os.WriteFile(filepath.Join(tests, "grade.py"), []byte(grader), 0o644); err != nil {
				t.Fatal(err)
			}
			sh(agent)
			said := sh("python3 '" + filepath.Join(tests, "grade.py") + "' 2>&1")
			var got map[string]float64
			if err := json.Unmarshal([]byte(read(t, reward)), &got); err != nil || got["reward"] != 0 || len(got) != 3 {
				t.Errorf("%v, %v: %s", got, err, said)
			}
			if strings.Contains(name, "folder") || strings.Contains(name, "file of the tests") {
				if !strings.Contains(read(t, repo, "test_new.py"), "def test_add") {
					t.Errorf("the tests are not in place: %s", said)
				}
			}
		})
	}
}
