// Package backends lists the sandbox backends that turngate offers.
package backends

import (
	"slices"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/docker"
	"github.com/turngate/turngate/sandboxes/e2b"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/sandboxes/machine"
	"github.com/turngate/turngate/sandboxes/ssh"
)

// All lists every backend. The first is the default of `turngate run`, the first
// with images the default of `turngate task check`.
func All() []sandboxes.Kind {
	return []sandboxes.Kind{
		local.Kind(),
		docker.Kind(),
		ssh.Kind(),
		machine.Kind(),
		e2b.Kind(),
	}
}

// Names returns the names of all backends.
func Names() []string {
	var names []string
	for _, k := range All() {
		names = append(names, k.Name)
	}
	return names
}

// WithImages returns the names of the backends that make sandboxes of images.
func WithImages() []string {
	var names []string
	for _, k := range All() {
		if k.Images {
			names = append(names, k.Name)
		}
	}
	return names
}

// Find returns the backend of this name.
func Find(name string) (sandboxes.Kind, bool) {
	all := All()
	i := slices.IndexFunc(all, func(k sandboxes.Kind) bool { return k.Name == name })
	if i < 0 {
		return sandboxes.Kind{}, false
	}
	return all[i], true
}
