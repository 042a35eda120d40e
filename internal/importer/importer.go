// Package importer converts rows of published data sets into Harbor task
// directories: SWE-bench, SWE-smith, R2E-Gym, OpenEnv and plain JSON lines.
package importer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/turngate/turngate/schema"
)

// Bounds of a row. Rows are untrusted input.
const (
	maxRow   = 64 << 20 // bytes of a line
	maxNames = 200_000  // tests of a row
	maxName  = 8 << 10  // bytes of a test's name
	maxFiles = 4096     // files of a row
	maxDir   = 100      // bytes of a folder's name
)

// Format is the layout of a row.
type Format string

// The formats.
const (
	SWEBench Format = "swe-bench" // instance_id, base_commit, test_patch, FAIL_TO_PASS, PASS_TO_PASS
	SWESmith Format = "swe-smith" // the same without base_commit; its patch adds the bug
	R2E      Format = "r2e"       // docker_image, expected_output_json; the tests are in the image
	OpenEnv  Format = "openenv"   // instruction, setup[], verify[]
	Plain    Format = "plain"     // instruction, image, verify
)

// Formats lists all formats.
func Formats() []Format { return []Format{SWEBench, SWESmith, R2E, OpenEnv, Plain} }

// RowError reports a field of a row that is not valid. The row makes no task.
type RowError struct {
	Line  int
	Field string
	Value string // clipped
	Want  string
}

func (e *RowError) Error() string {
	return fmt.Sprintf("line %d: %s: %q is not valid: %s", e.Line, e.Field, e.Value, e.Want)
}

// Options control how rows are read.
type Options struct {
	// Format is the format of every row. Empty: the fields of each row decide.
	Format Format
	// Image is the image for rows that name none. {id} is replaced by the row's
	// name in lower case.
	Image string
	// Skip leaves out rows with an existing folder, instead of refusing them.
	Skip bool
	// Limit is the largest number of tasks to make; 0: no limit.
	Limit int
}

// Report lists the tasks that were made and the rows that were refused.
type Report struct {
	Made    []string // folders of tasks, relative to out
	Skipped int
	Bad     []*RowError
}

// Import makes a folder in out for each row of JSON lines. It reports a bad row
// and continues with the next. The error comes from reading or writing.
func Import(r io.Reader, out string, o Options) (*Report, error) {
	if o.Format != "" && !slices.Contains(Formats(), o.Format) {
		return nil, &schema.InvalidError{Field: "format", Value: string(o.Format), Want: fmt.Sprintf("want one of %v", Formats())}
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of tasks: %w", err)
	}
	root, err := os.OpenRoot(out)
	if err != nil {
		return nil, fmt.Errorf("open the folder of tasks: %w", err)
	}
	defer root.Close()
	report, lines := &Report{}, bufio.NewReaderSize(r, 1<<20)
	made := map[string]bool{}
	for n := 1; o.Limit == 0 || len(report.Made) < o.Limit; n++ {
		line, err := readLine(lines)
		if errors.Is(err, errLong) {
			report.Bad = append(report.Bad, &RowError{n, "row", fmt.Sprintf("more than %d bytes", maxRow), "want a shorter line"})
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return report, fmt.Errorf("read the rows: %w", err)
		}
		if len(strings.TrimSpace(string(line))) > 0 {
			if err := o.one(root, n, line, made, report); err != nil {
				return report, err
			}
		}
		if errors.Is(err, io.EOF) {
			return report, nil
		}
	}
	return report, nil
}

var errLong = errors.New("the line is too long")

// readLine returns the next line. It may return the last line together with
// io.EOF. It skips a line that is too long and returns errLong.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > maxRow; !long {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case long:
			return nil, errLong
		default:
			return line, err
		}
	}
}

// one makes the task of a row.
func (o *Options) one(root *os.Root, line int, data []byte, made map[string]bool, report *Report) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		report.Bad = append(report.Bad, &RowError{line, "row", schema.Clip(string(data), 80), "want a JSON object"})
		return nil
	}
	w := &row{line: line, fields: fields, options: o}
	t := w.task()
	w.places(t)
	if w.bad != nil {
		report.Bad = append(report.Bad, w.bad)
		return nil
	}
	name := folder(t.name)
	if name == "" {
		name = fmt.Sprintf("row-%d", line)
	}
	if made[strings.ToLower(name)] {
		report.Bad = append(report.Bad, &RowError{line, "name", schema.Clip(t.name, 80), "want another name: an earlier row has the folder " + name})
		return nil
	}
	switch _, err := root.Lstat(name); {
	case err == nil && o.Skip:
		made[strings.ToLower(name)] = true
		report.Skipped++
		return nil
	case err == nil:
		report.Bad = append(report.Bad, &RowError{line, "name", schema.Clip(t.name, 80), "want another name: the folder " + name + " exists already"})
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("make the task %s: %w", name, err)
	}
	if err := t.write(root, name); err != nil {
		return fmt.Errorf("make the task %s: %w", name, err)
	}
	made[strings.ToLower(name)] = true
	report.Made = append(report.Made, name)
	return nil
}

// places refuses files with names that conflict with each other or that no file
// system accepts.
func (w *row) places(t *task) {
	size := 0
	for at, data := range t.files {
		if size += len(data); size > maxRow {
			w.wrong("row", fmt.Sprintf("files of more than %d bytes", maxRow), "want less")
			return
		}
		if len(at) > 1000 || slices.ContainsFunc(strings.Split(at, "/"), func(part string) bool { return len(part) > 200 }) {
			w.wrong("row", at, "want shorter paths")
			return
		}
		for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
			if _, ok := t.files[dir]; ok {
				w.wrong("row", at, "want a path that is not below the file "+dir)
				return
			}
		}
	}
}

// folder turns any text into the name of a folder: without separators, a leading
// dot or dash, and characters that are special to a shell or to another system.
func folder(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '.', r == '-':
			return r
		}
		return '-'
	}, s)
	s = strings.TrimLeft(s, ".-")
	return strings.TrimRight(s[:min(len(s), maxDir)], ".-")
}

// task is the content of a task's folder.
type task struct {
	name        string
	instruction string
	config      config
	files       map[string][]byte // by path in the folder
}

// config is the task.toml of an imported task.
type config struct {
	SchemaVersion string            `toml:"schema_version"`
	Metadata      map[string]string `toml:"metadata,omitempty"`
	Agent         *limit            `toml:"agent,omitempty"`
	Verifier      *limit            `toml:"verifier,omitempty"`
	Environment   environment       `toml:"environment"`
}

type limit struct {
	TimeoutSec float64 `toml:"timeout_sec"`
}

type environment struct {
	DockerImage     string  `toml:"docker_image,omitempty"`
	BuildTimeoutSec float64 `toml:"build_timeout_sec,omitempty"`
	Workdir         string  `toml:"workdir,omitempty"`
}

// write writes the task into a new folder. The folder has a temporary name until
// it is complete.
func (t *task) write(root *os.Root, name string) error {
	tmp := ".importing-" + name
	if err := root.RemoveAll(tmp); err != nil {
		return err
	}
	data, err := toml.Marshal(t.config)
	if err != nil {
		return err
	}
	t.files["task.toml"], t.files["instruction.md"] = data, []byte(t.instruction)
	for at, data := range t.files {
		at = path.Join(tmp, at)
		if err := root.MkdirAll(filepath.FromSlash(path.Dir(at)), 0o755); err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(at, ".sh") {
			mode = 0o755
		}
		if err := root.WriteFile(filepath.FromSlash(at), data, mode); err != nil {
			return err
		}
	}
	if t.config.Environment.DockerImage != "" { // other tools require the folder
		if err := root.MkdirAll(path.Join(tmp, "environment"), 0o755); err != nil {
			return err
		}
	}
	return root.Rename(tmp, name)
}
