package console

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turngate/turngate/jobs"
)

// hostPaths replaces paths of this host in texts for others by short names.
type hostPaths struct {
	paths []hostPath // the longest first
	home  string     // replaced in texts of errors alone: sandboxes often have the same one
}

type hostPath struct{ path, name string }

// hostPathsOf returns the paths of a job, its tasks and its flags.
func hostPathsOf(dir string, p *jobs.Plan) *hostPaths {
	h := &hostPaths{}
	h.home, _ = os.UserHomeDir() // without one none is replaced
	h.add(dir, jobName(dir))
	if here, err := os.Getwd(); err == nil {
		h.add(here, ".")
	}
	if p != nil {
		h.add(p.State, "state")
		for _, t := range p.Trials {
			h.add(t.Dir, cell(t.Task))
		}
		for _, values := range p.Flags {
			for _, v := range values {
				_, at, _ := strings.Cut(v, ":") // such as replay:FILE
				for _, path := range []string{v, at} {
					h.add(path, cell(filepath.Base(path)))
				}
			}
		}
	}
	slices.SortStableFunc(h.paths, func(a, b hostPath) int {
		return cmp.Or(cmp.Compare(len(b.path), len(a.path)), cmp.Compare(a.path, b.path))
	})
	h.paths = slices.CompactFunc(h.paths, func(a, b hostPath) bool { return a.path == b.path }) // the first name counts
	return h
}

// add adds an absolute path and the folder that has it. A path of one element, such as /tmp, is
// one of sandboxes, too.
func (h *hostPaths) add(path, name string) {
	if !filepath.IsAbs(path) {
		return
	}
	path = filepath.Clean(path)
	for _, one := range []hostPath{{path, name}, {filepath.Dir(path), "..."}} {
		if strings.Count(one.path, "/") > 1 {
			h.paths = append(h.paths, one)
		}
	}
}

// isError reports whether a field of a page has texts of errors.
func isError(field string) bool {
	return slices.Contains([]string{"text", "missing", "stopped", "trouble", "example", "fault", "notes", "findings"}, field)
}

// value replaces paths in all texts of a decoded value of JSON, which is that of a field.
func (h *hostPaths) value(v any, field string) any {
	switch v := v.(type) {
	case string:
		for _, p := range h.paths {
			v = replacePath(v, p.path, p.name)
		}
		if h.home != "" && isError(field) {
			v = replacePath(v, h.home, "~")
		}
		return v
	case []any:
		for i := range v {
			v[i] = h.value(v[i], field)
		}
	case map[string]any:
		for k, inner := range v {
			v[k] = h.value(inner, k)
		}
	}
	return v
}

// replacePath replaces a path where it ends, or goes on with an element below it.
func replacePath(text, path, name string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, path)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		if within := after != "" && isOfName(after[0]) || before != "" && isOfName(before[len(before)-1]); within {
			out.WriteString(path)
		} else {
			out.WriteString(name)
		}
		text = after
	}
}

// isOfName reports whether a byte continues a name of a path.
func isOfName(c byte) bool {
	return c == '_' || c == '-' || c == '.' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
