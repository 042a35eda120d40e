package place

import (
	"bytes"
	"cmp"
	"io"
	"io/fs"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// sources has the task's files for one sandbox, up to a bound. Its errors are faults of
// the task.
type sources struct {
	task    string // name
	bundle  *tasks.Bundle
	bounded *boundedBundle // of bundle
}

func newSources(task string, bundle *tasks.Bundle) *sources {
	return &sources{task: task, bundle: bundle, bounded: &boundedBundle{bundle: bundle, tars: map[string]*io.SectionReader{}, left: maxBundleRead}}
}

// badBundle returns the fault of a bundle that does not fit its request.
func badBundle(format string, args ...any) error {
	return ends.Fail(schema.Faultf("create", schema.CodeBadBundle, schema.WhoTask, format, args...))
}

// build describes the build of an image.
func (f *sources) build(b *schema.Build) (*sandboxes.Build, error) {
	build, err := sandboxes.NewBuild(f.bounded, b, f.task)
	if err != nil {
		return nil, badBundle("%v", err)
	}
	return build, nil
}

// files returns the files to put into a container.
func (f *sources) files(c schema.Container) ([]sandboxes.File, error) {
	var out []sandboxes.File
	for _, one := range c.Files {
		file := sandboxes.File{Path: one.Path, Mode: fs.FileMode(cmp.Or(one.Mode, 0o444)), Data: bytes.NewReader(one.Content)}
		if one.From != "" {
			content := f.bundle.File(one.From)
			if content == nil {
				return nil, badBundle("sandbox: the task's bundle has no file %s", one.From)
			}
			file.Data, file.Mode = content, fs.FileMode(cmp.Or(one.Mode, 0o644))
		}
		if err := f.bounded.take(file.Data.Size()); err != nil {
			return nil, badBundle("%v", err)
		}
		out = append(out, file)
	}
	return out, nil
}

// folders returns the folders that the containers of a sandbox share.
func (f *sources) folders(all []schema.Folder) ([]sandboxes.Folder, error) {
	var out []sandboxes.Folder
	for _, one := range all {
		folder := sandboxes.Folder{Name: one.Name, Seed: one.Seed && one.From == ""}
		if one.From != "" {
			if !f.bundle.Has(one.From) {
				return nil, badBundle("sandbox.folders: the task's bundle has no %s", one.From)
			}
			packed, err := f.bounded.Tar(one.From)
			if err != nil {
				return nil, badBundle("%v", err)
			}
			folder.Tar = packed
		}
		out = append(out, folder)
	}
	return out, nil
}

// services returns the side-cars of a sandbox.
func (f *sources) services(all []schema.Service) ([]sandboxes.Service, error) {
	var out []sandboxes.Service
	for _, one := range all {
		sub := sandboxes.Spec{
			Image: one.Image, CPUs: one.CPUs, MemoryBytes: one.MemoryBytes, Pids: one.Pids, User: one.User, Workdir: one.Workdir, Env: one.Env,
			Container: one.Container,
		}
		var err error
		if sub.Files, err = f.files(one.Container); err != nil {
			return nil, err
		}
		if one.Build != nil {
			if sub.Build, err = f.build(one.Build); err != nil {
				return nil, err
			}
		}
		out = append(out, sandboxes.Service{Name: one.Name, Aliases: one.Aliases, Spec: sub})
	}
	return out, nil
}
