package collect

import (
	"context"
	"encoding/json"
	"path"
	"slices"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// maxRestored is the maximum size in bytes of all artifacts for a separate verifier.
const maxRestored = 256 << 20

// collection keeps the artifacts of one step that rules name.
type collection struct {
	place    *place.Place
	rec      *record.Record
	step     *plan.Step
	names    names
	manifest []manifestEntry
	kept     []Kept
	restored int64 // bytes so far for a separate verifier
}

func newCollection(p *place.Place, s *plan.Step) *collection {
	return &collection{place: p, rec: p.Stages.Record, step: s, names: names{
		schema.ArtifactManifest: "", record.TranscriptName: "", record.StdoutName: "", record.StderrName: "", "agent-sessions": "", "logs/agent": "",
	}}
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
	rules := append(append([]schema.ArtifactRule{}, c.place.Request.Artifacts...), c.step.Artifacts...)
	for _, a := range rules {
		if place.IsMain(a.Service) && path.Clean(a.Source) == place.Published {
			return rules
		}
	}
	return append([]schema.ArtifactRule{{Source: place.Published}}, rules...)
}

// rule keeps the artifact of one rule and adds it to the manifest.
func (c *collection) rule(ctx context.Context, rule schema.ArtifactRule) error {
	dest, e := newEntry(rule)
	defer func() { c.manifest = append(c.manifest, e) }()
	by, taken := c.names.claim(dest, rule.Source)
	if taken {
		c.rec.Note("the artifact %s was not kept: %q is taken%s", rule.Source, dest, by)
		if !c.step.Apart() {
			return nil
		}
	}
	files, at, err := c.filesOf(rule)
	if err != nil {
		e.Status = "failed"
		c.rec.Note("the artifact %s was not kept: %v", rule.Source, err)
		return nil
	}
	if rule.KeepsWorkdir() && at == "/" {
		e.Status = "failed"
		c.rec.Note("the working directory was not kept: it is /, whose files are mostly those of the image")
		return nil
	}
	found, err := read(ctx, c.rec, files, at, rule.Exclude, c.withLinks(rule))
	if !place.IsMain(rule.Service) && ends.Ruined(err) { // the agent did not run there
		e.Status = "failed"
		c.rec.Note("the artifact %s was not kept: %v", rule.Source, err)
		return nil
	}
	if err != nil {
		return err
	}
	forVerifier := false
	defer func() {
		if !forVerifier {
			found.close()
		}
	}()
	e.Status, e.Type = found.status, found.kind(e.Type)
	if found.missing && path.Clean(rule.Source) == place.Published {
		e.Status, e.Type = "empty", "directory"
	} else if found.status == "failed" {
		c.rec.Note("the artifact %s was not kept: %s", rule.Source, found.why)
	}
	if found.folder {
		e.Exclude = append(append(e.Exclude, rule.Exclude...), found.leftOut...)
	}
	if found.file == nil {
		return nil
	}
	if forVerifier, err = c.keepForVerifier(rule.Source, found); err != nil {
		return err
	}
	if taken {
		e.Status = "skipped"
	}
	if taken || found.status == "empty" && !rule.KeepsWorkdir() {
		return nil
	}
	content, err := found.file.Content()
	if err != nil {
		return err
	}
	return c.rec.Keep(ctx, c.step.Artifact(found.name(dest)), content)
}

// withLinks reports whether the symbolic links of a folder are kept, too: the verifier of
// the agent's sandbox sees them, and shall see them if it runs again.
func (c *collection) withLinks(rule schema.ArtifactRule) bool {
	return rule.KeepsWorkdir() || !c.step.Apart() && slices.ContainsFunc(c.place.Request.Artifacts, func(r schema.ArtifactRule) bool { return r.KeepsWorkdir() })
}

// keepForVerifier keeps an artifact for the separate verifier of the step. It returns false
// if there is none.
func (c *collection) keepForVerifier(source string, found content) (bool, error) {
	if !c.step.Apart() {
		return false, nil
	}
	if c.restored += found.file.Size(); c.restored > maxRestored {
		return false, ends.Fail(schema.Faultf("artifacts", schema.CodeTooLarge, schema.WhoAgent, "the verifier's sandbox takes at most %d bytes of artifacts: %s does not fit", int64(maxRestored), source))
	}
	c.kept = append(c.kept, Kept{source: source, folder: found.folder, mode: found.mode, file: found.file})
	return true, nil
}

// filesOf returns the files of the rule's service and the absolute path in it.
func (c *collection) filesOf(rule schema.ArtifactRule) (sandboxes.Files, string, error) {
	sb, err := c.place.Service(rule.Service)
	if err != nil {
		return nil, "", err
	}
	return sb.Files(), place.Abs(sb, rule.Source), nil
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
	return c.rec.Keep(ctx, c.step.Artifact(schema.ArtifactManifest), record.Text(append(data, '\n')))
}
