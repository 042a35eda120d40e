package helm_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"

	"github.com/turngate/turngate/internal/harness"
)

// leaves returns the paths of the values in a file, such as worker.keda.enabled.
func leaves(prefix string, v map[string]any) (paths []string) {
	for key, value := range v {
		if m, ok := value.(map[string]any); ok && len(m) > 0 {
			paths = append(paths, leaves(prefix+key+".", m)...)
			continue
		}
		paths = append(paths, prefix+key)
	}
	return paths
}

func readme(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir, "README.md"))
	harness.Must(t, err)
	return string(data)
}

// TestREADME compares the table of values with values.yaml, renders each example, and
// reads the commands that make Secrets and install the chart.
func TestREADME(t *testing.T) {
	page, c := readme(t), load(t, chartDir)
	table := regexp.MustCompile("(?m)^\\| (`.*?) \\|")
	listed := map[string]bool{}
	for _, row := range table.FindAllStringSubmatch(page, -1) {
		for _, name := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(row[1], -1) {
			listed[name[1]] = true
		}
	}
	for _, path := range leaves("", c.Values) {
		known := false
		for p := path; p != "."; p = strings.TrimSuffix(p, filepath.Ext(p)) {
			known = known || listed[p]
			if filepath.Ext(p) == "" {
				break
			}
		}
		if !known {
			t.Errorf("the table of values has no %s", path)
		}
	}
	examples := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(page, -1)
	if len(examples) < 3 {
		t.Fatalf("%d examples were found: the pattern is wrong", len(examples))
	}
	for _, m := range examples {
		if _, err := tryRender(t, c, m[1], usual); err != nil {
			t.Errorf("%v\n%s", err, m[1])
		}
	}
	installs := 0
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "helm ") || !strings.Contains(line, " deploy/helm/turngate") {
			continue
		}
		installs++
		given := map[string]any{}
		for _, m := range regexp.MustCompile(`--set ([^= ]+)=(\S+)`).FindAllStringSubmatch(line, -1) {
			var value any
			harness.Must(t, yaml.Unmarshal([]byte(m[2]), &value))
			for _, key := range slices.Backward(strings.Split(m[1], ".")) {
				value = map[string]any{key: value}
			}
			given = loader.MergeMaps(given, value.(map[string]any))
		}
		text, err := yaml.Marshal(given)
		harness.Must(t, err)
		if _, err := tryRender(t, c, string(text), usual); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if installs < 2 {
		t.Errorf("%d commands of helm were found: the pattern is wrong", installs)
	}
}
