package schema

import (
	"cmp"
	"path/filepath"
)

// Build says how the image of a sandbox is built from files of the bundle.
type Build struct {
	Context    string            `json:"context,omitempty"`    // folder of the bundle; default environment
	Dockerfile string            `json:"dockerfile,omitempty"` // path in the context; default Dockerfile
	Target     string            `json:"target,omitempty"`     // stage; default the last
	Args       map[string]string `json:"args,omitempty"`
}

// WithDefaults returns the build with every absent field set.
func (b *Build) WithDefaults() *Build {
	if b == nil {
		return nil
	}
	out := *b
	out.Context = cmp.Or(b.Context, "environment")
	out.Dockerfile = cmp.Or(b.Dockerfile, "Dockerfile")
	return &out
}

// validate reports the first field that is wrong. field is the path of the
// build in its message.
func (b *Build) validate(field string) error {
	if b == nil {
		return nil
	}
	for _, p := range []struct{ name, path string }{{".context", b.Context}, {".dockerfile", b.Dockerfile}} {
		if err := checkText(field+p.name, p.path, 4096); err != nil {
			return err
		}
		if p.path != "" && !filepath.IsLocal(p.path) {
			return invalid(field+p.name, p.path, `want a relative path that does not leave its folder, such as "environment"`)
		}
	}
	if err := checkText(field+".target", b.Target, maxName); err != nil {
		return err
	}
	return checkEnv(field+".args", b.Args)
}
