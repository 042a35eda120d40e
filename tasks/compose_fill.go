package tasks

import (
	"cmp"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/turngate/turngate/schema"
)

// Limits of a side-car that names none, in a task that names limits for main.
// The task's limits are needs of main alone, so these are added to them.
const (
	sideMemory = 1 << 30 // bytes
	sideCPUs   = 1.0
	sidePids   = 1024
)

// mostPids is the largest number of processes for which a compose file can ask,
// all services together: the limit of a rollout that names none.
const mostPids = 4096

// fill makes the containers of the request. The keys of the file have been
// checked by refuse.
func (c *composer) fill() {
	names := slices.Sorted(maps.Keys(c.project.Services))
	for _, name := range names {
		c.links(name)
	}
	task := c.sandbox.Env // takes precedence over the variables of the file
	for _, name := range names {
		s := c.project.Services[name]
		one := schema.Service{Name: name, User: s.User, Workdir: s.WorkingDir, Env: c.env("services."+name, s)}
		one.Container = c.container(name, s)
		c.image(name, s, &one)
		c.limits(name, s)
		if name != schema.MainService {
			one.Restart = c.restart("services."+name+".restart", s.Restart)
			c.sandbox.Services = append(c.sandbox.Services, one)
			continue
		}
		main := c.sandbox
		main.Image, main.Build, main.Container = one.Image, one.Build, one.Container
		main.User, main.Workdir = cmp.Or(main.User, one.User), cmp.Or(main.Workdir, one.Workdir)
		main.Env = one.Env
		for k, v := range task {
			main.Env[k] = v
		}
		if len(main.Env) == 0 {
			main.Env = nil
		}
	}
	for i := range c.sandbox.Services {
		s := &c.sandbox.Services[i]
		s.Aliases = slices.Compact(slices.Sorted(slices.Values(c.aliases[s.Name])))
		s.Aliases = slices.DeleteFunc(s.Aliases, func(a string) bool { return a == s.Name })
	}
	c.total()
	c.apart()
}

// maxApart is the largest number of notes about services that the file keeps
// apart.
const maxApart = 16

// apart notes each pair of services that reach each other only here: the file has
// no network with both, but a rollout has one network.
func (c *composer) apart() {
	if len(c.project.Services) > maxApart+1 {
		return // more than a request may have
	}
	names := slices.Sorted(maps.Keys(c.project.Services))
	noted := 0
	for i, a := range names {
		for _, b := range names[i+1:] {
			one, other := c.project.Services[a], c.project.Services[b]
			if one.NetworkMode == schema.NetworkNone || other.NetworkMode == schema.NetworkNone {
				continue
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(one.Networks)), func(n string) bool { _, both := other.Networks[n]; return both }) {
				c.note("services %s and %s can reach each other: a rollout has one network, although they have none in common", a, b)
				if noted++; noted == maxApart {
					return
				}
			}
		}
	}
}

// total adds the needs of the side-cars to the needs of main.
func (c *composer) total() {
	s := c.sandbox
	s.CPUs, s.MemoryBytes = cmp.Or(c.cpus[schema.MainService], s.CPUs), cmp.Or(c.memory[schema.MainService], s.MemoryBytes)
	cpus, memory, pids := s.CPUs, s.MemoryBytes, c.pids[schema.MainService]
	s.Pids = pids
	for i := range s.Services {
		one := &s.Services[i]
		one.CPUs, one.MemoryBytes, one.Pids = c.cpus[one.Name], c.memory[one.Name], c.pids[one.Name]
		if cpus > 0 {
			one.CPUs = cmp.Or(one.CPUs, sideCPUs)
			s.CPUs += one.CPUs
		}
		if memory > 0 {
			one.MemoryBytes = cmp.Or(one.MemoryBytes, sideMemory)
			s.MemoryBytes += one.MemoryBytes
		}
		if pids > 0 {
			one.Pids = cmp.Or(one.Pids, sidePids)
			s.Pids += one.Pids
		}
	}
	s.Pids = min(s.Pids, mostPids)
}

func (c *composer) limits(name string, s types.ServiceConfig) {
	c.cpus[name], c.memory[name], c.pids[name] = float64(s.CPUS), int64(s.MemLimit), pidsOf(s.PidsLimit)
	at := "services." + name
	if s.Deploy == nil {
		if s.Scale != nil && *s.Scale != 1 {
			c.bad(at+".scale", *s.Scale, "a service has one container; want 1")
		}
		return
	}
	if l := s.Deploy.Resources.Limits; l != nil {
		c.cpus[name] = cmp.Or(float64(l.NanoCPUs), c.cpus[name])
		c.memory[name] = cmp.Or(int64(l.MemoryBytes), c.memory[name])
		c.pids[name] = cmp.Or(pidsOf(l.Pids), c.pids[name])
		if len(l.Devices) > 0 || len(l.GenericResources) > 0 {
			c.bad(at+".deploy.resources.limits.devices", l.Devices, "environment.gpus of task.toml is the number of GPUs; leave it out")
		}
	}
	if r := s.Deploy.Resources.Reservations; r != nil && (len(r.Devices) > 0 || len(r.GenericResources) > 0) {
		c.bad(at+".deploy.resources.reservations.devices", r.Devices, "environment.gpus of task.toml is the number of GPUs; leave it out")
	}
	if n := s.Deploy.Replicas; n != nil && *n != 1 {
		c.bad(at+".deploy.replicas", *n, "a service has one container; want 1")
	}
	if s.Deploy.Placement.Constraints != nil || s.Deploy.UpdateConfig != nil || s.Deploy.RollbackConfig != nil || s.Deploy.RestartPolicy != nil {
		c.note("%s.deploy: only resources.limits has an effect", at)
	}
}

// pidsOf returns a limit of processes; 0 means none. In Docker -1 means none.
func pidsOf(n int64) int64 { return min(max(n, 0), mostPids) }

// image sets the image of a service. For main it is docker_image, or else the
// Dockerfile beside the compose file, as in Harbor, unless the compose file
// names another.
func (c *composer) image(name string, s types.ServiceConfig, one *schema.Service) {
	at := "services." + name
	own := *c.sandbox
	if name == schema.MainService && own.Image != "" {
		one.Image = own.Image
		if s.Image != "" && s.Image != mainImage && s.Build == nil {
			one.Image = s.Image
		}
		return
	}
	if s.Build != nil {
		one.Build = c.build(at+".build", *s.Build)
		return
	}
	if (name == schema.MainService || s.Image == mainImage) && own.Build != nil && (s.Image == "" || s.Image == mainImage || name == schema.MainService) {
		b := *own.Build
		one.Build = &b
		return
	}
	if one.Image = s.Image; s.Image == "" || s.Image == mainImage {
		one.Image = ""
		c.bad(at+".image", s.Image, "want an image, or a build; the task has neither "+c.home+"/Dockerfile nor docker_image")
	}
}

func (c *composer) build(at string, b types.BuildConfig) *schema.Build {
	rel, ok := inTask(b.Context)
	if !ok || rel != c.home && !strings.HasPrefix(rel, c.home+"/") {
		c.bad(at+".context", b.Context, "want a folder of the task's "+c.home+"/, such as .")
		return nil
	}
	file := cmp.Or(b.Dockerfile, "Dockerfile")
	if path.IsAbs(file) {
		file = strings.TrimPrefix(file, path.Clean(b.Context)+"/")
	}
	if file = path.Clean(file); !filepath.IsLocal(file) {
		c.bad(at+".dockerfile", b.Dockerfile, "want a file in the context")
		return nil
	}
	if info, err := c.files.stat(rel + "/" + file); err != nil || !info.Mode().IsRegular() {
		c.bad(at+".dockerfile", file, "the task has no "+rel+"/"+file)
		return nil
	}
	out := &schema.Build{Context: rel, Dockerfile: file, Target: b.Target}
	for k, v := range b.Args {
		if v == nil {
			value, ok := c.lookup(k)
			if !ok {
				c.empty(k)
				continue
			}
			v = &value
		}
		if out.Args == nil {
			out.Args = map[string]string{}
		}
		out.Args[k] = *v
	}
	return out
}

// env returns the service's variables. Its list takes precedence over its files.
func (c *composer) env(at string, s types.ServiceConfig) map[string]string {
	out := map[string]string{}
	for _, f := range s.EnvFiles {
		data, err := c.open(f.Path)
		if err != nil {
			if bool(f.Required) || !strings.Contains(reason(err), "missing") {
				c.bad(at+".env_file", f.Path, reason(err)+"; want a file below environment/")
			}
			continue
		}
		vars, err := dotenv.ParseWithLookup(strings.NewReader(string(data)), c.lookup)
		if err != nil {
			c.bad(at+".env_file", f.Path, err.Error())
			continue
		}
		maps.Copy(out, vars)
	}
	for k, v := range s.Environment {
		if v != nil {
			out[k] = *v
		} else if value, ok := c.lookup(k); ok {
			out[k] = value
		} else {
			c.empty(k)
		}
	}
	return out
}

func (c *composer) container(name string, s types.ServiceConfig) schema.Container {
	at := "services." + name
	c.closed(at, s)
	out := schema.Container{
		Entrypoint: s.Entrypoint, Command: s.Command, ShmBytes: int64(s.ShmSize), Hostname: s.Hostname, Offline: s.NetworkMode == "none",
		Health: c.probe(at+".healthcheck", s.HealthCheck),
	}
	if s.Entrypoint != nil && len(s.Entrypoint) == 0 { // an empty list also removes the image's entrypoint
		out.Entrypoint, out.Command = s.Command, nil
	}
	for _, dep := range slices.Sorted(maps.Keys(s.DependsOn)) {
		d := s.DependsOn[dep]
		if _, ok := c.project.Services[dep]; !ok || dep == schema.MainService {
			if d.Required {
				c.bad(at+".depends_on", dep, "want another service of this file; main starts last")
			}
			continue
		}
		out.After = append(out.After, schema.After{Service: dep, Condition: map[string]string{
			types.ServiceConditionHealthy: schema.AfterHealthy, types.ServiceConditionCompletedSuccessfully: schema.AfterCompleted,
		}[d.Condition]})
		last := &out.After[len(out.After)-1]
		last.Condition = cmp.Or(last.Condition, schema.AfterStarted)
		if last.Condition == schema.AfterHealthy && unchecked(c.project.Services[dep]) {
			c.bad("services."+dep+".healthcheck", "disabled", "another service waits until it is healthy; write a healthcheck, or leave disable out to use the image's")
		}
	}
	for _, host := range slices.Sorted(maps.Keys(s.ExtraHosts)) {
		for _, addr := range s.ExtraHosts[host] {
			if _, err := netip.ParseAddr(addr); err != nil {
				c.note("%s.extra_hosts: %s:%s is left out: the host cannot be reached", at, host, addr)
				continue
			}
			out.Hosts = append(out.Hosts, schema.HostAddress{Name: host, Address: addr})
		}
	}
	for _, u := range slices.Sorted(maps.Keys(s.Ulimits)) {
		limit := s.Ulimits[u]
		if !slices.Contains(schema.Ulimits(), u) {
			c.bad(at+".ulimits", u, "want one of "+strings.Join(schema.Ulimits(), ", "))
			continue
		}
		out.Ulimits = append(out.Ulimits, schema.Ulimit{Name: u, Soft: int64(cmp.Or(limit.Soft, limit.Single)), Hard: int64(cmp.Or(limit.Hard, limit.Single))})
	}
	for _, t := range s.Tmpfs {
		c.tmpfs(at+".tmpfs", t, &out)
	}
	for i, v := range s.Volumes {
		c.volume(name, i, v, &out)
	}
	for _, f := range s.Configs {
		c.object(at+".configs", types.FileReferenceConfig(f), types.FileObjectConfig(c.project.Configs[f.Source]), "/"+f.Source, &out)
	}
	for _, f := range s.Secrets {
		c.object(at+".secrets", types.FileReferenceConfig(f), types.FileObjectConfig(c.project.Secrets[f.Source]), "/run/secrets/"+f.Source, &out)
	}
	return out
}

// unchecked reports whether a service turns its health check off.
func unchecked(s types.ServiceConfig) bool {
	h := s.HealthCheck
	return h != nil && (h.Disable || len(h.Test) > 0 && h.Test[0] == "NONE")
}

// closed refuses values that give a container access to the host or to other
// containers.
func (c *composer) closed(at string, s types.ServiceConfig) {
	switch s.NetworkMode {
	case "", "none", "default":
	case "bridge":
		c.note("%s.network_mode: bridge means the network of the rollout", at)
	default:
		c.bad(at+".network_mode", s.NetworkMode, "other networks cannot be used; want none, or leave it out")
	}
	allowed := []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP"}
	for _, k := range s.CapAdd {
		if !slices.Contains(allowed, strings.TrimPrefix(strings.ToUpper(k), "CAP_")) {
			c.bad(at+".cap_add", k, "want one of "+strings.Join(allowed, ", "))
		}
	}
	for _, o := range s.SecurityOpt {
		if o != "no-new-privileges" && o != "no-new-privileges:true" && o != "no-new-privileges=true" {
			c.bad(at+".security_opt", o, "want no-new-privileges:true, which is always set, or leave it out")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Networks)) {
		n := s.Networks[name]
		if n == nil {
			continue
		}
		if a := cmp.Or(n.Ipv4Address, n.Ipv6Address, n.MacAddress); a != "" {
			c.bad(at+".networks."+name, a, "the worker sets addresses; services reach each other by name")
		}
		if len(n.DriverOpts) > 0 {
			c.bad(at+".networks."+name+".driver_opts", n.DriverOpts, "options of a driver can change the host; leave them out")
		}
		c.aliases[s.Name] = append(c.aliases[s.Name], n.Aliases...)
	}
	if s.ContainerName != "" {
		c.aliases[s.Name] = append(c.aliases[s.Name], s.ContainerName)
	}
}

// links adds the aliases that a service's links give to other services.
func (c *composer) links(name string) {
	for _, l := range c.project.Services[name].Links {
		if service, alias, ok := strings.Cut(l, ":"); ok {
			c.aliases[service] = append(c.aliases[service], alias)
		}
	}
}

func (c *composer) restart(at, s string) string {
	kind, _, _ := strings.Cut(s, ":")
	switch kind {
	case "", "no":
		return ""
	case "always", "unless-stopped":
		return schema.RestartAlways
	case "on-failure":
		return schema.RestartOnFailure
	default:
		c.bad(at, s, "want no, on-failure, always or unless-stopped")
		return ""
	}
}

func (c *composer) probe(at string, h *types.HealthCheckConfig) *schema.Probe {
	if h == nil || h.Disable || len(h.Test) == 0 || h.Test[0] == "NONE" {
		return nil
	}
	p := &schema.Probe{}
	switch h.Test[0] {
	case "CMD":
		p.Test = h.Test[1:]
	case "CMD-SHELL":
		p.Test = []string{"/bin/sh", "-c", strings.Join(h.Test[1:], " ")}
	default:
		c.bad(at+".test", h.Test, "want a list that begins with CMD, CMD-SHELL or NONE, or a string")
		return nil
	}
	for _, d := range []struct {
		from *types.Duration
		to   *int64
	}{{h.Interval, &p.IntervalMS}, {h.Timeout, &p.TimeoutMS}, {h.StartPeriod, &p.StartMS}, {h.StartInterval, &p.StartIntervalMS}} {
		if d.from != nil {
			*d.to = max(int64(*d.from)/1e6, 0)
		}
	}
	if h.Retries != nil {
		p.Retries = int(min(*h.Retries, 100_000))
	}
	return p
}
