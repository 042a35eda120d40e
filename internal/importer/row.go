package importer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/turngate/turngate/schema"
)

// row is a row that is being read. It keeps the first error.
type row struct {
	line    int
	fields  map[string]json.RawMessage
	options *Options
	bad     *RowError
}

func (w *row) wrong(field, value, want string) {
	if w.bad == nil {
		w.bad = &RowError{w.line, field, schema.Clip(value, 80), want}
	}
}

func (w *row) has(field string) bool {
	v, ok := w.fields[field]
	return ok && string(v) != "null"
}

// text reads the first of the given fields that the row has.
func (w *row) text(required bool, fields ...string) string {
	for _, f := range fields {
		if !w.has(f) {
			continue
		}
		var s string
		if json.Unmarshal(w.fields[f], &s) != nil {
			w.wrong(f, string(w.fields[f]), "want a string")
			return ""
		}
		if s != "" {
			if strings.ContainsRune(s, 0) {
				w.wrong(f, s, "want text without a NUL byte")
			}
			return s
		}
	}
	if required {
		w.wrong(fields[0], "", "want a string that is not empty")
	}
	return ""
}

// list reads a list of strings. The field may also be a string that contains
// such a list as JSON, or a single string.
func (w *row) list(field string, required bool) []string {
	if !w.has(field) {
		if required {
			w.wrong(field, "", "want a list of strings")
		}
		return nil
	}
	raw := w.fields[field]
	var inner string
	if json.Unmarshal(raw, &inner) == nil {
		if !strings.HasPrefix(strings.TrimSpace(inner), "[") {
			if inner == "" {
				return nil
			}
			return []string{inner}
		}
		raw = json.RawMessage(inner)
	}
	var out []string
	if json.Unmarshal(raw, &out) != nil {
		w.wrong(field, string(raw), "want a list of strings")
		return nil
	}
	return out
}

// tests reads a list of test names.
func (w *row) tests(field string) []string {
	out := w.list(field, true)
	if len(out) > maxNames {
		w.wrong(field, fmt.Sprintf("%d names", len(out)), fmt.Sprintf("want at most %d", maxNames))
	}
	for _, n := range out {
		if n == "" || len(n) > maxName || strings.ContainsRune(n, 0) {
			w.wrong(field, n, fmt.Sprintf("want names of 1 to %d bytes without a NUL byte", maxName))
		}
	}
	return out
}

// reference matches an image that is safe after FROM: it has no white space and cannot begin
// an option or an instruction.
func reference() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}$`)
}

// image returns the row's image, else the image of the options, else standard.
func (w *row) image(standard string) string {
	image := w.text(false, "image", "image_name", "docker_image")
	if image == "" {
		image = strings.ReplaceAll(w.options.Image, "{id}", strings.ToLower(folder(w.name())))
	}
	if image == "" {
		image = standard
	}
	if !reference().MatchString(image) {
		w.wrong("image", image, "want an image reference, such as registry/name:tag")
	}
	return image
}

// workdir reads an absolute path that needs no escapes in a Dockerfile's quoted
// string.
func (w *row) workdir(standard string) string {
	dir := cmp.Or(w.text(false, "workdir"), standard)
	if !regexp.MustCompile(`^/[A-Za-z0-9._/ @+-]{0,500}$`).MatchString(dir) || path.Clean(dir) != dir {
		w.wrong("workdir", dir, "want an absolute path of letters, digits and . _ - /")
	}
	return dir
}

func (w *row) name() string {
	return w.text(false, "instance_id", "task_id", "id", "name")
}

// task makes the row's task. If the row is not valid, w.bad is set.
func (w *row) task() *task {
	t := &task{name: w.name(), files: map[string][]byte{}}
	t.config.SchemaVersion = "1.4"
	format := w.options.Format
	if format == "" {
		format = w.format()
	}
	t.config.Metadata = map[string]string{"format": string(format)}
	if t.name != "" {
		t.config.Metadata["id"] = schema.Clip(t.name, 1000)
	}
	switch format {
	case SWEBench, SWESmith:
		w.swe(t, format)
	case R2E:
		w.r2e(t)
	case OpenEnv, Plain:
		w.commands(t)
	default:
		w.wrong("row", strings.Join(w.names(), " "), "want the fields of one of: "+fmt.Sprint(Formats()))
	}
	if len(t.instruction) > 1<<20 {
		w.wrong("instruction", t.instruction, "want at most 1 MiB")
	}
	if strings.TrimSpace(t.instruction) == "" {
		w.wrong("instruction", t.instruction, "want text that is not blank")
	}
	return t
}

// format finds the layout of a row by its fields.
func (w *row) format() Format {
	switch {
	case w.has("expected_output_json"):
		return R2E
	case w.has("FAIL_TO_PASS") && (w.has("base_commit") || w.has("test_patch")):
		return SWEBench
	case w.has("FAIL_TO_PASS"):
		return SWESmith
	case w.has("instruction") && (w.has("setup") || w.has("upload_files") || w.has("setup_shell")):
		return OpenEnv
	case w.has("instruction"):
		return Plain
	}
	return ""
}

func (w *row) names() (out []string) {
	for n := range w.fields {
		out = append(out, schema.Clip(n, 40))
		if len(out) == 8 {
			break
		}
	}
	return out
}
