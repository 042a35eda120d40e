// Package backends lists the sandbox backends that turngate offers.
package backends

import (
	"runtime"
	"slices"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/backends/e2b"
	"github.com/turngate/turngate/internal/backends/kubernetes"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/backends/machine"
	"github.com/turngate/turngate/internal/backends/modal"
	"github.com/turngate/turngate/internal/backends/prime"
	"github.com/turngate/turngate/internal/backends/ssh"
	"github.com/turngate/turngate/sandboxes"
)

// All lists every backend. The first is the default of all commands with tasks.
func All() []sandboxes.Kind {
	all := []sandboxes.Kind{
		docker.Kind(),
		ssh.Kind(),
		machine.Kind(),
		e2b.Kind(),
		kubernetes.Kind(),
		prime.Kind(),
		modal.Kind(),
	}
	if runtime.GOOS == "linux" {
		return slices.Insert(all, 0, local.Kind())
	}
	return append(all, local.Kind()) // which refuses by name
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

// Builders returns the names of the backends that build images.
func Builders() []string {
	var names []string
	for _, k := range All() {
		if k.Builds {
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
