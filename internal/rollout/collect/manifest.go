package collect

import (
	"path"
	"strings"

	"github.com/turngate/turngate/schema"
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

// newEntry returns the destination of a rule's artifact, and its entry before the artifact
// is read.
func newEntry(rule schema.ArtifactRule) (dest string, e manifestEntry) {
	dest = rule.Destination
	if dest == "" {
		dest = strings.TrimPrefix(path.Clean(rule.Source), "/")
	}
	dest = path.Clean(dest)
	e = manifestEntry{Source: rule.Source, Destination: "artifacts/" + dest, Type: "directory", Status: "skipped", Exclude: []string{}}
	if dest == "." || dest == "" {
		dest, e.Destination = "root", "artifacts"
	}
	if path.Ext(rule.Source) != "" {
		e.Type = "file"
	}
	if rule.Service != "" {
		e.Service = &rule.Service
	}
	return dest, e
}
