package console

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/url"
	"strings"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/vocabulary"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/trajectory"
)

// Share describes a file with the pages of a job.
type Share struct {
	Dir      string // of the job
	MaxBytes int64  // the largest size of the file
	// Variables (NAME=VALUE) have values that are masked wherever they are, if the names are
	// names of credentials.
	Variables []string
	// Tokenizer has the texts of tokens; nil: the file has their ids.
	Tokenizer *vocabulary.Vocabulary
}

// Shared tells of a file that was written.
type Shared struct {
	Bytes    int64
	Rollouts int // with their conversations
	Left     int // rollouts without, since the file would be too large
	Tokens   int // training rows that are left out for the same reason
	// Hidden counts the training rows of rollouts with a masked text: their tokens have it, too.
	Hidden int
	// Masked counts the masked texts by their kind.
	Masked map[string]int
}

// Write writes the pages of a job as one HTML file, which a browser opens without a
// server. It has no script but the console's own one, and loads nothing. Each answer of
// the console's server is a compressed part of the file.
func (o *Share) Write(ctx context.Context, w io.Writer) (*Shared, error) {
	list, err := recorded.InJob(o.Dir)
	if err != nil {
		return nil, err
	}
	variables := o.Variables
	var plan *jobs.Plan
	if len(list) > 0 {
		plan = list[0].Plan
		for _, values := range plan.Flags {
			variables = append(variables, values...)
		}
	}
	f := &sharedFile{w: w, left: o.MaxBytes, masker: newMasker(variables), paths: hostPathsOf(o.Dir, plan)}
	out := &Shared{}
	if err := f.begin(jobName(o.Dir)); err != nil {
		return nil, err
	}
	state, err := jobs.StateOf(ctx, o.Dir)
	if err != nil && ctx.Err() != nil {
		return nil, err
	} // else its process gives no answer, and the state is empty
	if err := f.pages(o.Dir, string(state), list); err != nil {
		return nil, err
	}
	tokens := f.left / 2 // for training rows
	for _, r := range list {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		rows, hidden, err := f.rollout(ctx, r)
		if errors.Is(err, errTooLarge) {
			out.Left++
			continue
		}
		if err != nil {
			return nil, err
		}
		out.Rollouts++
		if hidden {
			out.Hidden += len(rows)
			continue
		}
		for i, row := range rows {
			size, err := f.put(min(tokens, f.left), tokensOf(row, o.Tokenizer), "api", "rollouts", cell(string(r.ID)), "rows", fmt.Sprint(row.Row))
			if errors.Is(err, errTooLarge) {
				out.Tokens += len(rows) - i
				break
			}
			if err != nil {
				return nil, err
			}
			tokens -= size
		}
	}
	if err := f.write(sharedEnd); err != nil {
		return nil, err
	}
	out.Bytes, out.Masked = f.size, f.masker.found
	return out, nil
}

// errTooLarge means that a part does not fit into the file.
var errTooLarge = errors.New("it does not fit")

// sharedEnd is the end of the file.
const sharedEnd = "</body>\n</html>\n"

// sharedFile is a file that is being written.
type sharedFile struct {
	w      io.Writer
	size   int64
	left   int64 // bytes that the file may still have
	masker *masker
	paths  *hostPaths
}

func (f *sharedFile) write(text string) error {
	n, err := io.WriteString(f.w, text)
	f.size += int64(n)
	f.left -= int64(n)
	if err != nil {
		return fmt.Errorf("write the shared file: %w", err)
	}
	return nil
}

// begin writes the page with its script and its style, to which its policy binds it.
func (f *sharedFile) begin(job string) error {
	var parts []string
	for _, name := range []string{"app.js", "app.css"} {
		data, err := assets.ReadFile("web/dist/" + name)
		if err != nil {
			return fmt.Errorf("read the built pages: %w", err)
		}
		sum := sha256.Sum256(data)
		parts = append(parts, string(data), "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	policy := "default-src 'none'; script-src " + parts[1] + "; style-src " + parts[3] + "; img-src data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
	start := "/job?" + url.Values{"job": {job}}.Encode()
	return f.write(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="` + policy + `">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>turngate</title>
<style>` + parts[2] + `</style>
</head>
<body>
<div id="app" data-start="` + html.EscapeString(f.masker.text(start)) + `"></div>
<noscript>This page needs JavaScript, which is in this file.</noscript>
<script type="module">` + parts[0] + `</script>
`)
}

// pages writes the rows, the job and its groups.
func (f *sharedFile) pages(dir, state string, list []*recorded.Rollout) error {
	page := pageOf(dir, list)
	page.State = state
	for i := range page.Tasks { // folders of this host
		page.Tasks[i].Dir = page.Tasks[i].Task
	}
	type group struct{ trainer, group string }
	rows, groups := []Row{}, map[group][]Row{}
	for _, r := range list {
		row := rowOf(r)
		row.Worker = "" // a name of a host
		rows = append(rows, row)
		if row.Group != "" {
			at := group{row.Trainer, row.Group}
			groups[at] = append(groups[at], row)
		}
	}
	put := func(v any, path ...string) error {
		_, err := f.put(f.left, v, path...)
		if errors.Is(err, errTooLarge) {
			return errors.New("the table of the job is larger than the file may be: raise --max-mb")
		}
		return err
	}
	if err := put(map[string]any{"source": page.Job, "jobs": true, "rows": rows}, "api", "rollouts"); err != nil {
		return err
	}
	if err := put(map[string]any{"jobs": []JobInfo{page.JobInfo}}, "api", "jobs"); err != nil {
		return err
	}
	if err := put(page, "api", "job", "job="+page.Job); err != nil {
		return err
	}
	for at, rows := range groups {
		if err := put(groupOf(at.trainer, at.group, rows), "api", "group", "group="+at.group, "trainer="+at.trainer); err != nil {
			return err
		}
	}
	return nil
}

// rollout writes the page of a rollout. It returns the training rows, and whether its
// conversation has a text that is masked, also beyond the part that the page shows.
func (f *sharedFile) rollout(ctx context.Context, r *recorded.Rollout) (rows []*trajectory.Row, hidden bool, err error) {
	d, versions := detailOf(r), Versions{Versions: []string{}}
	d.Worker = ""
	if t, err := r.Read(ctx, trajectory.Options{Messages: true}); err != nil {
		d.Missing = plain.Line(err.Error(), maxFault)
		versions.Missing = d.Missing
	} else {
		d.addCalls(t)
		versions, hidden = versionsOf(t), f.masker.hides(t)
		for row := range t.Rows() {
			rows = append(rows, row)
		}
	}
	if _, err := f.put(f.left, d, "api", "rollouts", d.ID); err != nil {
		return nil, false, err
	}
	_, err = f.put(f.left, versions, "api", "rollouts", d.ID, "versions")
	return rows, hidden, err
}

// put writes an answer of the server at a path, without probable credentials. It returns the
// number of bytes, of at most limit.
func (f *sharedFile) put(limit int64, v any, path ...string) (int64, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return 0, fmt.Errorf("write the shared file: %w", err)
	}
	numbers := json.NewDecoder(bytes.NewReader(data))
	numbers.UseNumber()
	var value any
	if err := numbers.Decode(&value); err != nil {
		return 0, fmt.Errorf("write the shared file: %w", err)
	}
	if data, err = json.Marshal(f.masker.value(f.paths.value(value, ""))); err != nil {
		return 0, fmt.Errorf("write the shared file: %w", err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(data); err != nil {
		return 0, fmt.Errorf("write the shared file: %w", err)
	}
	if err := z.Close(); err != nil {
		return 0, fmt.Errorf("write the shared file: %w", err)
	}
	for i := range path {
		path[i] = f.masker.text(path[i])
	}
	part := `<script type="application/octet-stream" data-path="` + html.EscapeString(strings.Join(path, "\n")) + `">` + base64.StdEncoding.EncodeToString(packed.Bytes()) + "</script>\n"
	if size := int64(len(part)); size > limit-int64(len(sharedEnd)) {
		return 0, errTooLarge
	}
	return int64(len(part)), f.write(part)
}
