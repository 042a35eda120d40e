package tasks

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/go-units"

	"github.com/turngate/turngate/schema"
)

// volume mounts a folder of the rollout, or a file of the task, in a container.
func (c *composer) volume(service string, i int, v types.ServiceVolumeConfig, out *schema.Container) {
	at := fmt.Sprintf("services.%s.volumes[%d]", service, i)
	if err := schema.CheckContainerPath(at, path.Clean(v.Target)); err != nil {
		c.bad(at+".target", v.Target, "want an absolute path outside of /proc, /sys, /dev and /.turngate, and not the root")
		return
	}
	target := path.Clean(v.Target)
	switch v.Type {
	case types.VolumeTypeTmpfs:
		t := schema.Tmpfs{Path: target}
		if v.Tmpfs != nil {
			t.SizeBytes, t.Mode = int64(v.Tmpfs.Size), int64(v.Tmpfs.Mode)
		}
		out.Tmpfs = append(out.Tmpfs, t)
	case types.VolumeTypeVolume:
		if v.Volume != nil && v.Volume.Subpath != "" {
			c.bad(at+".volume.subpath", v.Volume.Subpath, "part of a volume cannot be mounted; use another volume")
			return
		}
		name := v.Source
		if name == "" { // an anonymous volume, which no other service shares
			name = service + "-" + strconv.Itoa(i)
		}
		seed := v.Volume == nil || !v.Volume.NoCopy
		out.Mounts = append(out.Mounts, schema.Mount{Folder: c.folder("volume:"+name, name, schema.Folder{Seed: seed}), Path: target, ReadOnly: v.ReadOnly})
	case types.VolumeTypeBind:
		c.bind(service, at, target, v, out)
	default:
		c.bad(at+".type", v.Type, "want bind, volume or tmpfs")
	}
}

// bind handles a bind of a path of the author's disk. The container gets a copy
// of the task's folder or file, or an empty folder for a path around the task.
func (c *composer) bind(service, at, target string, v types.ServiceVolumeConfig, out *schema.Container) {
	source := path.Clean(v.Source)
	mount := func(folder schema.Folder, name string) {
		folder.Keep = !v.ReadOnly
		out.Mounts = append(out.Mounts, schema.Mount{Folder: c.folder(source, name, folder), Path: target, ReadOnly: v.ReadOnly})
	}
	for _, dir := range logFolders() {
		if source != dir {
			continue
		}
		if service == schema.MainService && target == dir {
			return // every sandbox has it
		}
		c.note("%s: %s of main is not shared; %s has its own folder", at, dir, service)
		mount(schema.Folder{}, "logs-"+service)
		return
	}
	rel, ok := inTask(source)
	if !ok {
		if source != composeUp1 && source != composeUp2 && !strings.HasPrefix(source, composeUp2+"/") {
			c.bad(at+".source", v.Source, "the host's paths are not available; want a path below the task's folder, or up to two levels above it")
			return
		}
		c.note("%s: %s is an empty folder of the rollout, not the folder above the task", at, target)
		mount(schema.Folder{}, path.Base(target))
		return
	}
	top, _, _ := strings.Cut(rel, "/")
	own := rel == c.home || strings.HasPrefix(rel, c.home+"/")
	switch {
	case own:
	case slices.Contains([]string{"tests", "solution", "steps"}, top):
		if service == schema.MainService && target == "/tests" {
			return // the tests are put there before the verifier runs
		}
		c.note("%s: %s is an empty folder: the agent has no access to tests and solutions", at, target)
		mount(schema.Folder{}, path.Base(target))
		return
	default:
		c.note("%s: %s is an empty folder of the rollout: only %s/ of the task can be mounted", at, target, c.home)
		mount(schema.Folder{}, path.Base(target))
		return
	}
	info, err := c.files.stat(rel)
	switch {
	case err != nil && !os.IsNotExist(err):
		c.bad(at+".source", rel, "the path is outside the task's folder; want one below it")
	case err != nil:
		c.note("%s: the task has no %s, so %s is an empty folder", at, rel, target)
		mount(schema.Folder{}, path.Base(target))
	case info.Mode().IsRegular():
		out.Files = append(out.Files, schema.File{Path: target, From: rel, Mode: int64(info.Mode().Perm())})
	default:
		c.note("%s: %s is a folder of the rollout that starts as a copy of %s", at, target, rel)
		mount(schema.Folder{From: rel}, path.Base(target))
	}
}

// folder returns the name of the folder of a source. It makes the folder at the
// source's first use, with a name derived from hint.
func (c *composer) folder(source, hint string, f schema.Folder) string {
	if name, ok := c.sources[source]; ok {
		for i := range c.sandbox.Folders {
			if c.sandbox.Folders[i].Name == name {
				c.sandbox.Folders[i].Keep = c.sandbox.Folders[i].Keep || f.Keep
			}
		}
		return name
	}
	hint = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '-'
	}, hint)
	hint = hint[:min(len(hint), 32)]
	name := hint
	for n := 2; slices.ContainsFunc(c.sandbox.Folders, func(o schema.Folder) bool { return o.Name == name }); n++ {
		name = hint + "-" + strconv.Itoa(n)
	}
	f.Name = name
	c.sources[source] = name
	c.sandbox.Folders = append(c.sandbox.Folders, f)
	return name
}

// tmpfs reads the short form PATH:OPTIONS.
func (c *composer) tmpfs(at, text string, out *schema.Container) {
	where, options, _ := strings.Cut(text, ":")
	t := schema.Tmpfs{Path: path.Clean(where)}
	if err := schema.CheckContainerPath(at, t.Path); err != nil {
		c.bad(at, text, "want an absolute path outside of /proc, /sys, /dev and /.turngate, and not the root")
		return
	}
	for o := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(o, "=")
		var err error
		switch key {
		case "size":
			t.SizeBytes, err = units.RAMInBytes(value)
		case "mode":
			t.Mode, err = strconv.ParseInt(value, 8, 32)
		case "", "rw", "noexec", "nosuid", "nodev":
		case "uid", "gid", "exec":
			c.note("%s: the option %s has no effect", at, o)
		default:
			c.bad(at, text, "want only the options size and mode")
			return
		}
		if err != nil {
			c.bad(at, text, err.Error())
			return
		}
	}
	out.Tmpfs = append(out.Tmpfs, t)
}

// object puts a config or a secret into a container as a file.
func (c *composer) object(at string, ref types.FileReferenceConfig, o types.FileObjectConfig, target string, out *schema.Container) {
	f := schema.File{Path: target}
	if ref.Target != "" {
		if f.Path = ref.Target; !path.IsAbs(ref.Target) {
			f.Path = path.Join(path.Dir(target), ref.Target)
		}
	}
	f.Path = path.Clean(f.Path)
	if err := schema.CheckContainerPath(at, f.Path); err != nil {
		c.bad(at, f.Path, "want a target outside of /proc, /sys, /dev and /.turngate")
		return
	}
	if ref.Mode != nil {
		f.Mode = int64(*ref.Mode)
	}
	switch {
	case o.File != "":
		rel, ok := inTask(o.File)
		if info, err := c.files.stat(rel); !ok || err != nil || !info.Mode().IsRegular() || !strings.HasPrefix(rel, c.home+"/") {
			c.bad(at, o.File, "want a file below "+c.home+"/")
			return
		}
		f.From = rel
	case o.Environment != "":
		v, ok := c.lookup(o.Environment)
		if !ok {
			c.empty(o.Environment)
		}
		f.Content = []byte(v)
	default:
		f.Content = []byte(o.Content)
	}
	out.Files = append(out.Files, f)
}
