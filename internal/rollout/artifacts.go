package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

const (
	// maxRestored is the maximum size in bytes of all artifacts for a separate
	// verifier.
	maxRestored = 256 << 20
	// agentLogs is the folder for logs of an agent or of the task's solution.
	agentLogs = "/logs/agent"
	// published is the folder in which an agent may leave files for the verifier
	// and for users. It is always kept.
	published = "/logs/artifacts"
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

// collection keeps the artifacts of one step.
type collection struct {
	r        *Rollout
	s        *step
	claimed  map[string]string // maps the name of an artifact to its source
	manifest []manifestEntry
	restored int64 // bytes so far for a separate verifier
}

// collect runs the task's hooks and keeps the agent's logs and sessions and the
// artifacts of the rules. A missing or too large artifact adds a note and does
// not fail the step; only artifacts beyond maxRestored do.
func (r *Rollout) collect(ctx context.Context, s *step) error {
	main, others := r.hooks(s)
	// Hooks may inspect processes that the agent left running.
	if err := r.runHooks(ctx, s, main); err != nil {
		return err
	}
	c := &collection{r: r, s: s, claimed: map[string]string{
		schema.ArtifactManifest: "", record.TranscriptName: "", record.StdoutName: "", record.StderrName: "", "agent-sessions": "", "logs/agent": "",
	}}
	limit := r.Request.Limits.VerifyMS + storeGrace.Milliseconds()
	err := r.phase(ctx, s.phase("artifacts"), limit, func(ctx context.Context, _ *record.Phase) error {
		if err := r.endProcesses(ctx, s); err != nil {
			return err
		}
		if err := r.sandbox.Files().Remove(ctx, loginPath); errors.Is(err, sandboxes.ErrLost) {
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
		return err
	}
	if err := r.runHooks(ctx, s, others); err != nil {
		return err
	}
	return r.phase(ctx, s.phase("artifacts/services"), limit, func(ctx context.Context, _ *record.Phase) error { return c.finish(ctx) })
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
	return c.r.Record.Keep(ctx, c.s.artifact(schema.ArtifactManifest), append(data, '\n'))
}

// logs keeps the agent's output, its logs and its session files.
func (c *collection) logs(ctx context.Context) error {
	for name, data := range c.s.log.Files() {
		if err := c.r.Record.Keep(ctx, c.s.artifact(name), data); err != nil {
			return err
		}
	}
	wanted := []schema.ArtifactRule{{Source: agentLogs, Destination: "logs/agent"}}
	if at := c.r.agent.Sessions; at != "" {
		wanted = append(wanted, schema.ArtifactRule{Source: path.Join(agentDir, at), Destination: "agent-sessions"})
	}
	for _, w := range wanted {
		found, err := c.read(ctx, c.r.sandbox.Files(), w.Source, nil)
		if err != nil {
			return err
		}
		if found.data == nil {
			if found.status == "failed" && !found.missing {
				c.r.Record.Note("%s was not kept: %s", w.Source, found.why)
			}
			continue
		}
		if err := c.r.Record.Keep(ctx, c.s.artifact(found.name(w.Destination)), found.data); err != nil {
			return err
		}
	}
	return nil
}

// transcript keeps the transcript of all model calls.
func (r *Rollout) transcript(ctx context.Context) error {
	made := r.Record.Calls.End()
	if made == nil {
		return nil
	}
	return r.phase(ctx, "transcript", r.Request.Limits.VerifyMS+storeGrace.Milliseconds(), func(ctx context.Context, p *record.Phase) error {
		return r.Record.KeepTranscript(ctx, p, made)
	})
}

// rules applies the artifact rules of the main service or of the other
// services.
func (c *collection) rules(ctx context.Context, main bool) error {
	for _, rule := range c.r.artifactRules(c.s) {
		if isMain(rule.Service) != main {
			continue
		}
		if err := c.rule(ctx, rule); err != nil {
			return err
		}
	}
	return nil
}

// artifactRules returns the rules of the request and of the step. The folder of
// published files is always included.
func (r *Rollout) artifactRules(s *step) []schema.ArtifactRule {
	rules := append(append([]schema.ArtifactRule{}, r.Request.Artifacts...), s.Artifacts...)
	for _, a := range rules {
		if isMain(a.Service) && path.Clean(a.Source) == published {
			return rules
		}
	}
	return append([]schema.ArtifactRule{{Source: published}}, rules...)
}

func isMain(service string) bool { return service == "" || service == schema.MainService }

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
		c.r.Record.Note("the artifact %s was not kept: %q is taken%s", rule.Source, dest, other)
		if !c.s.separate() {
			return nil
		}
	} else {
		c.claimed[dest] = rule.Source
	}
	files, at, err := c.r.filesOf(rule)
	if err != nil {
		e.Status = "failed"
		c.r.Record.Note("the artifact %s was not kept: %v", rule.Source, err)
		return nil
	}
	found, err := c.read(ctx, files, at, rule.Exclude)
	if !isMain(rule.Service) && ends.Ruined(err) { // the agent did not run there
		e.Status = "failed"
		c.r.Record.Note("the artifact %s was not kept: %v", rule.Source, err)
		return nil
	}
	if err != nil {
		return err
	}
	e.Status, e.Type = found.status, found.kind(e.Type)
	if found.missing && path.Clean(rule.Source) == published {
		e.Status, e.Type = "empty", "directory"
	} else if found.status == "failed" {
		c.r.Record.Note("the artifact %s was not kept: %s", rule.Source, found.why)
	}
	if found.folder {
		e.Exclude = append(e.Exclude, rule.Exclude...)
	}
	if found.data == nil {
		return nil
	}
	if c.s.separate() {
		if c.restored += int64(len(found.data)); c.restored > maxRestored {
			return ends.Fail(schema.Faultf("artifacts", schema.CodeTooLarge, schema.WhoAgent, "the verifier's sandbox takes at most %d bytes of artifacts: %s does not fit", int64(maxRestored), rule.Source))
		}
		c.s.kept = append(c.s.kept, restorable{source: rule.Source, folder: found.folder, mode: found.mode, data: found.data})
	}
	if taken {
		e.Status = "skipped"
	}
	if taken || found.status == "empty" {
		return nil
	}
	return c.r.Record.Keep(ctx, c.s.artifact(found.name(dest)), found.data)
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
		f.data, err = c.r.fitting(ctx, files, at, exclude)
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
func (r *Rollout) filesOf(rule schema.ArtifactRule) (sandboxes.Files, string, error) {
	sb, err := r.service(rule.Service)
	if err != nil {
		return nil, "", err
	}
	at := rule.Source
	if !path.IsAbs(at) {
		at = path.Join(sb.Workdir(), at)
	}
	return sb.Files(), path.Clean(at), nil
}
