// Package local runs sandboxes without Docker, as root or as an ordinary user.
// The box makes its own namespaces and a root directory in which the host's
// /usr and a few other paths are read-only; nothing else of the host is
// visible. If the kernel forbids this, Create fails: there is no mode without
// isolation.
package local

import (
	"cmp"
	"context"
	"maps"
	"os"
	"strconv"
	"strings"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Backend makes local sandboxes.
type Backend struct {
	// Helper is the path of a program with BoxMain as its "box" sub-command, such
	// as this binary.
	Helper string
	// StateDir keeps records of sandboxes, so that a later process can sweep
	// them.
	StateDir string
	// Workspace is a folder of the host that is the working directory of every sandbox,
	// where commands may write. The folder's owner is the only user of the sandbox, root
	// there. That owner is not root of the host, and is this process's user unless that is
	// root. Empty: the working directory is the sandbox's own.
	Workspace string
	// Local has the images of sandboxes.
	Local sandboxes.Local
	// KeepBytes bounds the unpacked images on the disk; 0: it does not.
	KeepBytes int64
	// BuildNetwork is that of the builds of tasks with a Dockerfile, see
	// sandboxes.BuildLimits.
	BuildNetwork string

	copies bool // copy images in place of an overlay, also where this kernel has one
}

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "local", Works: "namespaces work", Remedy: remedy,
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			return &Backend{Helper: h.Helper, StateDir: h.StateDir, Local: h.Local, KeepBytes: h.Keep.Bytes, BuildNetwork: h.Build.Network}, nil
		},
	}
}

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return Kind().Name }

// Check makes a sandbox and closes it.
func (b *Backend) Check(ctx context.Context) error {
	sb, err := b.Create(ctx, sandboxes.Spec{Owner: "check", Rollout: schema.ID("check-" + strconv.Itoa(os.Getpid())), Attempt: 1})
	if err != nil {
		return err
	}
	return sb.Close(ctx)
}

// Refuse returns an *UnsupportedError if s asks for something that a local sandbox
// lacks. backend is the name of the backend that makes it.
func Refuse(s sandboxes.Spec, backend string) error {
	if s.Network != "" && s.Network != schema.NetworkNone {
		return &sandboxes.UnsupportedError{Field: "sandbox.network", Value: s.Network, Reason: "the " + backend + " sandbox has no network; use the docker sandbox, or ask for none (--network none)"}
	}
	if s.Image != "" || s.Build != nil {
		return &sandboxes.UnsupportedError{Field: "sandbox.image", Value: cmp.Or(s.Image, "environment/Dockerfile"),
			Reason: "the " + backend + " sandbox shows the host's /usr and has no images; use the docker sandbox"}
	}
	if s.GPUs > 0 {
		return sandboxes.GPUsUnsupported(s.GPUs)
	}
	for file := range etcFiles() {
		if s.Workdir == file || strings.HasPrefix(s.Workdir, file+"/") {
			return &sandboxes.UnsupportedError{Field: "sandbox.workdir", Value: s.Workdir, Reason: file + " is a file; use a folder, such as " + sandboxes.DefaultWorkdir}
		}
	}
	return sandboxes.RefuseContainers(s, backend)
}

// etcFiles are generated for a sandbox without an image; they contain nothing of the
// host's files.
func etcFiles() map[string]string {
	files := networkFiles()
	maps.Copy(files, map[string]string{
		"/etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"/etc/group":         "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	})
	return files
}

// networkFiles are generated for every sandbox, as container engines do.
func networkFiles() map[string]string {
	return map[string]string{
		"/etc/hosts":       "127.0.0.1 localhost sandbox\n::1 localhost\n",
		"/etc/hostname":    "sandbox\n",
		"/etc/resolv.conf": "",
	}
}
