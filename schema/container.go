package schema

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a sandbox of several containers.
const (
	maxServices = 16
	maxFolders  = 32
	maxMounts   = 64
	maxFileSize = 256 << 10
)

// Container has the settings of one container besides its image and limits.
// Its paths are in the container or in the task's bundle, never on the worker.
type Container struct {
	// Entrypoint replaces the image's entrypoint, and drops the image's command.
	// In the agent's own container the two run in the background, and only if
	// one is set here. Like Command it has the form of an argv.
	Entrypoint []string `json:"entrypoint,omitempty"`
	// Command replaces the image's command.
	Command  []string      `json:"command,omitempty"`
	Mounts   []Mount       `json:"mounts,omitempty"`
	Files    []File        `json:"files,omitempty"`
	Tmpfs    []Tmpfs       `json:"tmpfs,omitempty"`
	ShmBytes int64         `json:"shm_bytes,omitempty"` // of /dev/shm; default 64 MiB
	Hostname string        `json:"hostname,omitempty"`
	Hosts    []HostAddress `json:"hosts,omitempty"` // further lines of /etc/hosts
	Ulimits  []Ulimit      `json:"ulimits,omitempty"`
	Health   *Probe        `json:"health,omitempty"`
	After    []After       `json:"after,omitempty"`   // side-cars that it waits for before it starts
	Offline  bool          `json:"offline,omitempty"` // it has no network, not even that of the rollout
}

// Folder is a writable folder of one rollout. Its containers may share it.
type Folder struct {
	Name string `json:"name"`
	// From is a folder of the bundle. Its files are in the folder at first.
	From string `json:"from,omitempty"`
	// Seed, without From, copies the files that the first image has at the
	// folder's mount path.
	Seed bool `json:"seed,omitempty"`
	Keep bool `json:"keep,omitempty"` // kept as the artifact folders/NAME.tar
}

// Mount shows a folder of the rollout in a container.
type Mount struct {
	Folder   string `json:"folder"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// File is one file that is put into a container before it starts: a regular
// file of the bundle, or Content.
type File struct {
	Path    string `json:"path"`
	From    string `json:"from,omitempty"`
	Content []byte `json:"content,omitempty"`
	Mode    int64  `json:"mode,omitempty"` // permission bits; default: the bundle's, or 0444
}

// Tmpfs is a folder in memory.
type Tmpfs struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes,omitempty"` // default: half of the container's memory
	Mode      int64  `json:"mode,omitempty"`       // permission bits; default 01777
}

// HostAddress is a name and its address.
type HostAddress struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// Ulimit is a limit of each process, named as Docker names it, such as nofile.
type Ulimit struct {
	Name string `json:"name"`
	Soft int64  `json:"soft"` // -1: none
	Hard int64  `json:"hard"`
}

// Probe is a container's health check with the meaning of Docker's
// HEALTHCHECK: the container is healthy after one success, and unhealthy after
// Retries failures in a row, of which those within StartMS do not count.
type Probe struct {
	Test            []string `json:"test"`                  // argv
	IntervalMS      int64    `json:"interval_ms,omitempty"` // default 30 000
	TimeoutMS       int64    `json:"timeout_ms,omitempty"`  // default 30 000
	StartMS         int64    `json:"start_ms,omitempty"`
	StartIntervalMS int64    `json:"start_interval_ms,omitempty"` // default 5 000
	Retries         int      `json:"retries,omitempty"`           // default 3
}

// After delays the start of a container until a side-car meets a condition.
type After struct {
	Service   string `json:"service"`
	Condition string `json:"condition"` // the state that the side-car must have reached
}

// Conditions of After.
const (
	AfterStarted   = "started"
	AfterHealthy   = "healthy"
	AfterCompleted = "completed" // ended with exit status 0
)

// Service is a side-car: a container beside the agent's own, on a network that
// these containers alone have. Other containers reach it under its name.
type Service struct {
	Name        string            `json:"name"`
	Image       string            `json:"image,omitempty"`
	Build       *Build            `json:"build,omitempty"` // instead of Image
	User        string            `json:"user,omitempty"`
	Workdir     string            `json:"workdir,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Aliases     []string          `json:"aliases,omitempty"` // further names
	Restart     string            `json:"restart,omitempty"` // no (default), on-failure, always
	CPUs        float64           `json:"cpus,omitempty"`    // its part of the sandbox's limits; default: side-cars without a part share half of the rest
	MemoryBytes int64             `json:"memory_bytes,omitempty"`
	Pids        int64             `json:"pids,omitempty"`
	Container   Container         `json:"container,omitzero"`
}

// Restart policies of a side-car, applied when its command has ended.
const (
	RestartNo        = "no"
	RestartOnFailure = "on-failure"
	RestartAlways    = "always"
)

// withServiceDefaults returns copies with every absent field set.
func withServiceDefaults(services []Service) []Service {
	out := slices.Clone(services)
	for i := range out {
		s := &out[i]
		s.Build = s.Build.WithDefaults()
		s.Restart = cmp.Or(s.Restart, RestartNo)
		s.Container.Health = s.Container.Health.WithDefaults()
	}
	return out
}

// WithDefaults returns a copy with every absent field set.
func (p *Probe) WithDefaults() *Probe {
	if p == nil {
		return nil
	}
	out := *p
	out.IntervalMS = cmp.Or(p.IntervalMS, 30_000)
	out.TimeoutMS = cmp.Or(p.TimeoutMS, 30_000)
	out.StartIntervalMS = cmp.Or(p.StartIntervalMS, 5_000)
	out.Retries = cmp.Or(p.Retries, 3)
	return &out
}

// IdleCommand returns a command that keeps a container without a command of its
// own alive.
func IdleCommand() []string { return []string{"sh", "-c", "sleep infinity"} }

func (s *SandboxChoice) validateServices(at string) error {
	if err := checkCount(at+".services", len(s.Services), maxServices); err != nil {
		return err
	}
	if err := checkCount(at+".folders", len(s.Folders), maxFolders); err != nil {
		return err
	}
	folders, names := map[string]bool{}, map[string]bool{MainService: true}
	for i, f := range s.Folders {
		field := fmt.Sprintf("%s.folders[%d]", at, i)
		if err := CheckToken(field+".name", f.Name); err != nil {
			return err
		}
		if folders[f.Name] {
			return invalid(field+".name", f.Name, "a name of its own")
		}
		folders[f.Name] = true
		if err := checkBundlePath(field+".from", f.From); err != nil {
			return err
		}
	}
	for i := range s.Services {
		field := fmt.Sprintf("%s.services[%d]", at, i)
		if err := s.Services[i].validate(field); err != nil {
			return err
		}
		if names[s.Services[i].Name] {
			return invalid(field+".name", s.Services[i].Name, "a name of its own, and not "+MainService)
		}
		names[s.Services[i].Name] = true
	}
	delete(names, MainService)
	if err := s.Container.validate(at+".container", folders, names); err != nil {
		return err
	}
	after := map[string][]After{}
	for i := range s.Services {
		c := &s.Services[i].Container
		if err := c.validate(fmt.Sprintf("%s.services[%d].container", at, i), folders, names); err != nil {
			return err
		}
		after[s.Services[i].Name] = c.After
	}
	return checkOrder(at+".services", after)
}

// checkOrder refuses side-cars that wait for each other in a circle.
func checkOrder(field string, after map[string][]After) error {
	const open, done = 1, 2
	seen := map[string]int{}
	var visit func(name string) error
	visit = func(name string) error {
		switch seen[name] {
		case open:
			return invalid(field, name, "an order: it waits for itself by way of container.after")
		case done:
			return nil
		}
		seen[name] = open
		for _, a := range after[name] {
			if err := visit(a.Service); err != nil {
				return err
			}
		}
		seen[name] = done
		return nil
	}
	for name := range after {
		if err := visit(name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) validate(field string) error {
	if err := checkHostname(field+".name", s.Name); err != nil {
		return err
	}
	if err := checkImage(field+".image", s.Image); err != nil {
		return err
	}
	if (s.Image == "") == (s.Build == nil) {
		return invalid(field+".image", s.Image, "either an image or build")
	}
	if err := s.Build.validate(field + ".build"); err != nil {
		return err
	}
	if err := CheckUser(field+".user", s.User); err != nil {
		return err
	}
	if err := checkWorkdir(field+".workdir", s.Workdir); err != nil {
		return err
	}
	if err := checkEnv(field+".env", s.Env); err != nil {
		return err
	}
	if err := checkCount(field+".aliases", len(s.Aliases), maxServices); err != nil {
		return err
	}
	for i, a := range s.Aliases {
		if err := checkHostname(fmt.Sprintf("%s.aliases[%d]", field, i), a); err != nil {
			return err
		}
	}
	if s.Restart != "" {
		if err := checkOneOf(field+".restart", s.Restart, RestartNo, RestartOnFailure, RestartAlways); err != nil {
			return err
		}
	}
	if err := checkRange(field+".cpus", s.CPUs, 0, 1024); err != nil {
		return err
	}
	if err := checkRange(field+".memory_bytes", s.MemoryBytes, 0, maxBytes); err != nil {
		return err
	}
	return checkRange(field+".pids", s.Pids, 0, 1<<22)
}

func (c *Container) validate(field string, folders, services map[string]bool) error {
	for name, list := range map[string][]string{".entrypoint": c.Entrypoint, ".command": c.Command} {
		if err := checkTextList(field+name, list, maxCommand); err != nil {
			return err
		}
	}
	if err := c.validatePlaces(field, folders); err != nil {
		return err
	}
	if err := checkRange(field+".shm_bytes", c.ShmBytes, 0, maxBytes); err != nil {
		return err
	}
	if c.Hostname != "" {
		if err := checkHostname(field+".hostname", c.Hostname); err != nil {
			return err
		}
	}
	if err := c.validateHosts(field); err != nil {
		return err
	}
	if err := c.Health.validate(field + ".health"); err != nil {
		return err
	}
	if err := checkCount(field+".after", len(c.After), maxServices); err != nil {
		return err
	}
	for i, a := range c.After {
		if !services[a.Service] {
			return invalid(fmt.Sprintf("%s.after[%d].service", field, i), a.Service, "the name of a side-car in sandbox.services")
		}
		if err := checkOneOf(fmt.Sprintf("%s.after[%d].condition", field, i), a.Condition, AfterStarted, AfterHealthy, AfterCompleted); err != nil {
			return err
		}
	}
	return nil
}

// validatePlaces checks mounts, files and tmpfs folders, and that each has a
// path of its own.
func (c *Container) validatePlaces(field string, folders map[string]bool) error {
	for name, n := range map[string]int{".mounts": len(c.Mounts), ".files": len(c.Files), ".tmpfs": len(c.Tmpfs)} {
		if err := checkCount(field+name, n, maxMounts); err != nil {
			return err
		}
	}
	taken := map[string]bool{}
	place := func(field, p string) error {
		if err := CheckContainerPath(field, p); err != nil {
			return err
		}
		if taken[p] {
			return invalid(field, p, "a path of its own")
		}
		taken[p] = true
		return nil
	}
	for i, m := range c.Mounts {
		at := fmt.Sprintf("%s.mounts[%d]", field, i)
		if !folders[m.Folder] {
			return invalid(at+".folder", m.Folder, "the name of a folder in sandbox.folders")
		}
		if err := place(at+".path", m.Path); err != nil {
			return err
		}
	}
	for i, f := range c.Files {
		at := fmt.Sprintf("%s.files[%d]", field, i)
		if err := place(at+".path", f.Path); err != nil {
			return err
		}
		if err := checkBundlePath(at+".from", f.From); err != nil {
			return err
		}
		if f.From != "" && len(f.Content) > 0 {
			return invalid(at+".from", f.From, "either from or content")
		}
		if len(f.Content) > maxFileSize {
			return invalid(at+".content", fmt.Sprintf("%d bytes", len(f.Content)), fmt.Sprintf("at most %d bytes", maxFileSize))
		}
		if err := checkRange(at+".mode", f.Mode, 0, 0o7777); err != nil {
			return err
		}
	}
	for i, t := range c.Tmpfs {
		at := fmt.Sprintf("%s.tmpfs[%d]", field, i)
		if err := place(at+".path", t.Path); err != nil {
			return err
		}
		if err := checkRange(at+".size_bytes", t.SizeBytes, 0, maxBytes); err != nil {
			return err
		}
		if err := checkRange(at+".mode", t.Mode, 0, 0o7777); err != nil {
			return err
		}
	}
	return nil
}

func (c *Container) validateHosts(field string) error {
	if err := checkCount(field+".hosts", len(c.Hosts), maxMounts); err != nil {
		return err
	}
	for i, h := range c.Hosts {
		if err := checkHostname(fmt.Sprintf("%s.hosts[%d].name", field, i), h.Name); err != nil {
			return err
		}
		if _, err := netip.ParseAddr(h.Address); err != nil {
			return invalid(fmt.Sprintf("%s.hosts[%d].address", field, i), h.Address, "want an IP address")
		}
	}
	if err := checkCount(field+".ulimits", len(c.Ulimits), maxMounts); err != nil {
		return err
	}
	for i, u := range c.Ulimits {
		at := fmt.Sprintf("%s.ulimits[%d]", field, i)
		if err := checkOneOf(at+".name", u.Name, Ulimits()...); err != nil {
			return err
		}
		for name, v := range map[string]int64{".soft": u.Soft, ".hard": u.Hard} {
			if err := checkRange(at+name, v, -1, maxBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// Ulimits returns the names of the limits that a request may set. None of them
// lets a container take resources from others.
func Ulimits() []string {
	return []string{"core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nofile", "nproc", "sigpending", "stack"}
}

func (p *Probe) validate(field string) error {
	if p == nil {
		return nil
	}
	if len(p.Test) == 0 || p.Test[0] == "" {
		return invalid(field+".test", "none", "want the argv of the check")
	}
	if err := checkTextList(field+".test", p.Test, maxCommand); err != nil {
		return err
	}
	for name, v := range map[string]int64{
		".interval_ms": p.IntervalMS, ".timeout_ms": p.TimeoutMS, ".start_ms": p.StartMS, ".start_interval_ms": p.StartIntervalMS,
	} {
		if err := checkRange(field+name, v, 0, 24*3600*1000); err != nil {
			return err
		}
	}
	return checkRange(field+".retries", p.Retries, 0, 100_000)
}

// CheckContainerPath checks a path for a mount, file or tmpfs folder of a
// container: not the root, not the kernel's folders, not turngate's own.
func CheckContainerPath(field, p string) error {
	if err := CheckPath(field, p); err != nil {
		return err
	}
	if p == "/" || reserved(p) {
		return invalid(field, p, "a path outside of /proc, /sys, /dev and /.turngate, and not the root")
	}
	return nil
}

// checkWorkdir checks a working directory. An empty one is valid.
func checkWorkdir(field, p string) error {
	if p == "" {
		return nil
	}
	if err := CheckPath(field, p); err != nil {
		return err
	}
	if reserved(p) {
		return invalid(field, p, "a path outside of /proc, /sys, /dev and /.turngate, such as /workspace")
	}
	return nil
}

// reserved reports whether an absolute path is one of the kernel's folders or of
// turngate's own.
func reserved(p string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	return slices.Contains([]string{"proc", "sys", "dev", ".turngate"}, top)
}

// checkBundlePath checks a path in a task's bundle. An empty path is valid.
func checkBundlePath(field, p string) error {
	if p == "" {
		return nil
	}
	if err := checkText(field, p, 4096); err != nil {
		return err
	}
	if !filepath.IsLocal(p) || path.Clean(p) != p {
		return invalid(field, p, "want a path in the task's bundle, such as environment/data")
	}
	return nil
}

// checkHostname checks a host name of a container.
func checkHostname(field, s string) error {
	const want = "want 1 to 63 letters, digits, -, _ and ., the first and last of them a letter or digit"
	if s == "" || len(s) > 63 {
		return invalid(field, s, want)
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || i == len(s)-1 || strings.IndexByte("-_.", c) < 0) {
			return invalid(field, s, want)
		}
	}
	return nil
}

// checkImage checks the form of an image reference. An empty one is valid.
func checkImage(field, s string) error {
	if err := checkText(field, s, 512); err != nil {
		return err
	}
	if strings.HasPrefix(s, "-") || strings.ContainsAny(s, " \t\n") {
		return invalid(field, s, "want an image reference")
	}
	return nil
}
