package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// dockerFlags are the settings of a worker for its containers.
type dockerFlags struct {
	dockerRuntime string
	dockerGPUs    string
	dockerMount   []string
}

func (f *dockerFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.dockerRuntime, "docker-runtime", "", "runtime of the containers, one that the engine knows, such as runsc or kata (default: the engine's)")
	fl.StringVar(&f.dockerGPUs, "docker-gpus", "", "GPUs for containers of tasks that ask for some: their number, all, or device=ID,ID")
	fl.StringArrayVar(&f.dockerMount, "docker-mount", nil, "HOST:PATH, a file or folder of this host that every sandbox has at PATH, read-only; may be repeated")
}

func (f *dockerFlags) check() error {
	_, err := f.settings()
	return err
}

// settings reads the flags.
func (f *dockerFlags) settings() (d sandboxes.Docker, err error) {
	d.Runtime = f.dockerRuntime
	ids, devices := strings.CutPrefix(f.dockerGPUs, "device=")
	switch {
	case f.dockerGPUs == "":
	case f.dockerGPUs == "all":
		d.AllGPUs = true
	case devices:
		d.GPUDevices = splitList(ids)
		if n := len(d.GPUDevices); n == 0 || n > schema.MaxGPUs {
			err = fmt.Errorf("--docker-gpus: %q is not valid: want 1 to %d ids after device=", f.dockerGPUs, schema.MaxGPUs)
		}
	default:
		n, nerr := strconv.Atoi(f.dockerGPUs)
		if nerr != nil || n < 1 || n > schema.MaxGPUs {
			err = fmt.Errorf("--docker-gpus: %q is not valid: want a number of 1 to %d, all, or device=ID,ID", f.dockerGPUs, schema.MaxGPUs)
		}
		d.GPUs = n
	}
	wrong := []error{err}
	for _, text := range f.dockerMount {
		host, guest, _ := strings.Cut(text, ":")
		switch {
		case !filepath.IsAbs(host) || filepath.Clean(host) != host:
			wrong = append(wrong, fmt.Errorf("--docker-mount: %q is not valid: want HOST:PATH with absolute paths, such as /data/sets:/data", text))
			continue
		case schema.CheckContainerPath("path", guest) != nil:
			wrong = append(wrong, fmt.Errorf("--docker-mount: %q: %w", text, schema.CheckContainerPath("path", guest)))
			continue
		case slices.ContainsFunc(d.Mounts, func(m sandboxes.Mount) bool { return m.Guest == guest }):
			wrong = append(wrong, fmt.Errorf("--docker-mount: %s has two mounts", guest))
			continue
		}
		d.Mounts = append(d.Mounts, sandboxes.Mount{Host: host, Guest: guest})
	}
	return d, errors.Join(wrong...)
}
