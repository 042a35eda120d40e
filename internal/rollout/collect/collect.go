// Package collect keeps what an agent has left, as artifacts of its rollout and for a
// separate verifier.
package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

const (
	// maxRestored is the maximum size in bytes of all artifacts for a separate
	// verifier.
	maxRestored = 256 << 20
)

// manifestEntry describes one artifact that a rule names. The format is
// Harbor's.
type manifestEntry struct {
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Type        string   `json:"type"`   // file or directory
	Status      string   `json:"status"` // ok, empty, failed or skipped
	Service     *string  `json:"service"`
	Exclude     []string `json:"exclude"`
}

// Kept is an artifact for a separate verifier.
type Kept struct {
	source string // path in the form of the rule
	folder bool   // data is a tar stream
	mode   fs.FileMode
	data   []byte
}

// Restore puts an artifact at the path that it was read from.
func (k Kept) Restore(ctx context.Context, sb sandboxes.Sandbox, owner string) error {
	at := place.Abs(sb, k.source)
	files := sb.Files()
	if at != "/" {
		if err := place.Clear(ctx, files, at); err != nil {
			return err
		}
	}
	if !k.folder {
		if err := files.Write(ctx, at, k.data, k.mode.Perm(), owner); err != nil {
			return fmt.Errorf("restore %s: %w", k.source, err)
		}
		return nil
	}
	if err := files.TarIn(ctx, at, bytes.NewReader(k.data), owner); err != nil {
		return fmt.Errorf("restore %s: %w", k.source, err)
	}
	return nil
}

// collection keeps the artifacts of one step.
type collection struct {
	*place.Place
	rec      *record.Record
	s        *plan.Step
	log      *record.AgentLog
	claimed  map[string]string // maps the name of an artifact to its source
	manifest []manifestEntry
	kept     []Kept
	restored int64 // bytes so far for a separate verifier
}

// Step runs the task's hooks, then end, which ends the agent's processes, and keeps the
// agent's logs and sessions and the artifacts of the rules. It returns the artifacts for
// a separate verifier. A missing or too large artifact adds a note and does
// not fail the step; only artifacts beyond maxRestored do.
func Step(ctx context.Context, p *place.Place, s *plan.Step, log *record.AgentLog, end func(context.Context) error) ([]Kept, error) {
	c := &collection{Place: p, rec: p.Stages.Record, s: s, log: log, claimed: map[string]string{
		schema.ArtifactManifest: "", record.TranscriptName: "", record.StdoutName: "", record.StderrName: "", "agent-sessions": "", "logs/agent": "",
	}}
	main, others := hooks(s)
	// Hooks may inspect processes that the agent left running.
	if err := c.runHooks(ctx, main); err != nil {
		return nil, err
	}
	limit := p.Request.Limits.VerifyMS + place.StoreGrace.Milliseconds()
	err := p.Stages.Run(ctx, s.Phase("artifacts"), limit, func(ctx context.Context, _ *record.Phase) error {
		if err := end(ctx); err != nil {
			return err
		}
		if err := c.logs(ctx); err != nil {
			return err
		}
		if err := c.rules(ctx, true); err != nil || len(others) > 0 {
			return err
		}
		return c.finish(ctx)
	})
	if err != nil || len(others) == 0 {
		return c.kept, err
	}
	if err := c.runHooks(ctx, others); err != nil {
		return nil, err
	}
	err = p.Stages.Run(ctx, s.Phase("artifacts/services"), limit, func(ctx context.Context, _ *record.Phase) error { return c.finish(ctx) })
	return c.kept, err
}

// finish keeps the artifacts of services other than the main one, and the
// manifest.
func (c *collection) finish(ctx context.Context) error {
	if err := c.rules(ctx, false); err != nil {
		return err
	}
	data, err := json.MarshalIndent(c.manifest, "", "  ")
	if err != nil {
		return err
	}
	return c.rec.Keep(ctx, c.s.Artifact(schema.ArtifactManifest), append(data, '\n'))
}

// logs keeps the agent's output, its logs and its session files.
func (c *collection) logs(ctx context.Context) error {
	for name, data := range c.log.Files() {
		if err := c.rec.Keep(ctx, c.s.Artifact(name), data); err != nil {
			return err
		}
	}
	wanted := []schema.ArtifactRule{{Source: place.AgentLogs, Destination: "logs/agent"}}
	if at := c.Agent.Sessions; at != "" {
		wanted = append(wanted, schema.ArtifactRule{Source: path.Join(place.AgentDir, at), Destination: "agent-sessions"})
	}
	for _, w := range wanted {
		found, err := c.read(ctx, c.Main.Files(), w.Source, nil)
		if err != nil {
			return err
		}
		if found.data == nil {
			if found.status == "failed" && !found.missing {
				c.rec.Note("%s was not kept: %s", w.Source, found.why)
			}
			continue
		}
		if err := c.rec.Keep(ctx, c.s.Artifact(found.name(w.Destination)), found.data); err != nil {
			return err
		}
	}
	return nil
}

// rules applies the artifact rules of the main service or of the other
// services.
func (c *collection) rules(ctx context.Context, main bool) error {
	for _, rule := range c.ruleList() {
		if place.IsMain(rule.Service) != main {
			continue
		}
		if err := c.rule(ctx, rule); err != nil {
			return err
		}
	}
	return nil
}

// ruleList returns the rules of the request and of the step. The folder of
// published files is always included.
func (c *collection) ruleList() []schema.ArtifactRule {
	rules := append(append([]schema.ArtifactRule{}, c.Request.Artifacts...), c.s.Artifacts...)
	for _, a := range rules {
		if place.IsMain(a.Service) && path.Clean(a.Source) == place.Published {
			return rules
		}
	}
	return append([]schema.ArtifactRule{{Source: place.Published}}, rules...)
}

func (c *collection) rule(ctx context.Context, rule schema.ArtifactRule) error {
	dest := rule.Destination
	if dest == "" {
		dest = strings.TrimPrefix(path.Clean(rule.Source), "/")
	}
	dest = path.Clean(dest)
	e := manifestEntry{Source: rule.Source, Destination: "artifacts/" + dest, Type: "directory", Status: "skipped", Exclude: []string{}}
	if dest == "." || dest == "" {
		dest, e.Destination = "root", "artifacts"
	}
	if rule.Service != "" {
		e.Service = &rule.Service
	}
	defer func() { c.manifest = append(c.manifest, e) }()
	if path.Ext(rule.Source) != "" {
		e.Type = "file"
	}
	other, taken := c.taken(dest, rule.Source)
	if taken {
		c.rec.Note("the artifact %s was not kept: %q is taken%s", rule.Source, dest, other)
		if !c.s.Apart() {
			return nil
		}
	} else {
		c.claimed[dest] = rule.Source
	}
	files, at, err := c.filesOf(rule)
	if err != nil {
		e.Status = "failed"
		c.rec.Note("the artifact %s was not kept: %v", rule.Source, err)
		return nil
	}
	found, err := c.read(ctx, files, at, rule.Exclude)
	if !place.IsMain(rule.Service) && ends.Ruined(err) { // the agent did not run there
		e.Status = "failed"
		c.rec.Note("the artifact %s was not kept: %v", rule.Source, err)
		return nil
	}
	if err != nil {
		return err
	}
	e.Status, e.Type = found.status, found.kind(e.Type)
	if found.missing && path.Clean(rule.Source) == place.Published {
		e.Status, e.Type = "empty", "directory"
	} else if found.status == "failed" {
		c.rec.Note("the artifact %s was not kept: %s", rule.Source, found.why)
	}
	if found.folder {
		e.Exclude = append(e.Exclude, rule.Exclude...)
	}
	if found.data == nil {
		return nil
	}
	if c.s.Apart() {
		if c.restored += int64(len(found.data)); c.restored > maxRestored {
			return ends.Fail(schema.Faultf("artifacts", schema.CodeTooLarge, schema.WhoAgent, "the verifier's sandbox takes at most %d bytes of artifacts: %s does not fit", int64(maxRestored), rule.Source))
		}
		c.kept = append(c.kept, Kept{source: rule.Source, folder: found.folder, mode: found.mode, data: found.data})
	}
	if taken {
		e.Status = "skipped"
	}
	if taken || found.status == "empty" {
		return nil
	}
	return c.rec.Keep(ctx, c.s.Artifact(found.name(dest)), found.data)
}

// taken reports whether an earlier artifact has this name, a parent of it or a
// name below it.
func (c *collection) taken(name, source string) (by string, taken bool) {
	for have, from := range c.claimed {
		if from == source && from != "" {
			continue
		}
		if have == name || strings.HasPrefix(have, name+"/") || strings.HasPrefix(name, have+"/") {
			if from != "" {
				by = " by " + from
			}
			return by, true
		}
	}
	return "", false
}

// content is a file or folder read from a sandbox.
type content struct {
	status  string // ok, empty or failed
	why     string
	missing bool
	folder  bool
	mode    fs.FileMode
	data    []byte // a tar for a folder; nil: not read
}

func (f content) name(dest string) string {
	if f.folder {
		return dest + ".tar"
	}
	return dest
}

func (f content) kind(guess string) string {
	switch {
	case f.folder:
		return "directory"
	case f.missing:
		return guess
	default:
		return "file"
	}
}

// read reads a file or a folder. It returns an error only if the sandbox is
// gone.
func (c *collection) read(ctx context.Context, files sandboxes.Files, at string, exclude []string) (content, error) {
	lost := func(err error) bool { return errors.Is(err, sandboxes.ErrLost) || ctx.Err() != nil }
	info, err := files.Stat(ctx, at)
	if err != nil {
		if lost(err) {
			return content{}, err
		}
		return content{status: "failed", why: err.Error(), missing: errors.Is(err, fs.ErrNotExist)}, nil
	}
	f := content{status: "ok", folder: info.Mode.IsDir(), mode: info.Mode}
	if f.folder {
		if list, err := files.List(ctx, at); err == nil && len(list) == 0 {
			f.status = "empty"
		}
		f.data, err = place.Pack(ctx, c.rec, files, at, exclude)
	} else {
		f.data, err = files.Read(ctx, at, record.MaxFile)
	}
	switch {
	case err == nil && f.data == nil:
		f.data = []byte{} // the file exists
	case err != nil && lost(err):
		return content{}, err
	case err != nil:
		f.status, f.why, f.data = "failed", err.Error(), nil
	}
	return f, nil
}

// filesOf returns the files of the rule's service and the absolute path in it.
func (c *collection) filesOf(rule schema.ArtifactRule) (sandboxes.Files, string, error) {
	sb, err := c.Service(rule.Service)
	if err != nil {
		return nil, "", err
	}
	return sb.Files(), place.Abs(sb, rule.Source), nil
}
