package schema

import (
	"cmp"
	"fmt"
)

// SandboxChoice describes the sandbox. CPUs, MemoryBytes, DiskBytes and Pids
// are needs: the request goes to a worker that offers as much, and they become
// limits. If the backend cannot enforce a limit, the worker watches it where
// possible and adds a note to the result; if Strict names the limit, the
// rollout is refused instead. 0 means the worker's own cap.
type SandboxChoice struct {
	Backend     string            `json:"backend"`
	Image       string            `json:"image,omitempty"`
	Build       *Build            `json:"build,omitempty"`   // instead of Image
	Network     string            `json:"network,omitempty"` // none (default), allowlist, open
	Allow       []string          `json:"allow,omitempty"`   // host names, *.domain, IP addresses and ranges
	CPUs        float64           `json:"cpus,omitempty"`
	MemoryBytes int64             `json:"memory_bytes,omitempty"`
	DiskBytes   int64             `json:"disk_bytes,omitempty"`
	Pids        int64             `json:"pids,omitempty"`
	Strict      []string          `json:"strict,omitempty"` // limits that must be enforced: cpus, memory_bytes, disk_bytes, pids
	GPUs        int               `json:"gpus,omitempty"`
	User        string            `json:"user,omitempty"`    // default: the backend's
	Workdir     string            `json:"workdir,omitempty"` // default: the image's, or /workspace
	Env         map[string]string `json:"env,omitempty"`
	// Container has further settings of the agent's own container.
	Container Container `json:"container,omitzero"`
	Services  []Service `json:"services,omitempty"` // side-cars; the limits above are for all containers together
	Folders   []Folder  `json:"folders,omitempty"`  // for Container.Mounts
}

// Values of SandboxChoice.Network.
const (
	NetworkNone      = "none"
	NetworkAllowlist = "allowlist"
	NetworkOpen      = "open"
)

// MaxGPUs is the largest number of GPUs that a request can ask for.
const MaxGPUs = 64

// Limits that SandboxChoice.Strict can name.
const (
	LimitCPUs   = "cpus"
	LimitMemory = "memory_bytes"
	LimitDisk   = "disk_bytes"
	LimitPids   = "pids"
)

// withDefaults returns the sandbox with every absent field set to its default.
func (s SandboxChoice) withDefaults() SandboxChoice {
	s.Network = cmp.Or(s.Network, NetworkNone)
	s.Build = s.Build.WithDefaults()
	s.Container.Health = s.Container.Health.WithDefaults()
	s.Services = withServiceDefaults(s.Services)
	return s
}

// Validate returns an *InvalidError for the first field that is not valid, with a name that
// begins with "sandbox.". Absent fields have their defaults; the backend may be absent.
func (s SandboxChoice) Validate() error {
	s = s.withDefaults()
	return s.validate("sandbox")
}

func (s *SandboxChoice) validate(at string) error {
	if err := CheckToken(at+".backend", cmp.Or(s.Backend, "default")); err != nil {
		return err
	}
	if err := checkImage(at+".image", s.Image); err != nil {
		return err
	}
	if s.Image != "" && s.Build != nil {
		return invalid(at+".build", s.Build.Context, "either build or image, not both")
	}
	if err := s.Build.validate(at + ".build"); err != nil {
		return err
	}
	if err := checkNetwork(at, s.Network, s.Allow); err != nil {
		return err
	}
	if err := checkCount(at+".strict", len(s.Strict), maxList); err != nil {
		return err
	}
	for i, name := range s.Strict {
		if err := checkOneOf(fmt.Sprintf("%s.strict[%d]", at, i), name, LimitCPUs, LimitMemory, LimitDisk, LimitPids); err != nil {
			return err
		}
	}
	if err := checkRange(at+".cpus", s.CPUs, 0, 1024); err != nil {
		return err
	}
	for _, n := range []struct {
		field   string
		v, high int64
	}{
		{at + ".memory_bytes", s.MemoryBytes, maxBytes}, {at + ".disk_bytes", s.DiskBytes, maxBytes},
		{at + ".pids", s.Pids, 1 << 22}, {at + ".gpus", int64(s.GPUs), MaxGPUs},
	} {
		if err := checkRange(n.field, n.v, 0, n.high); err != nil {
			return err
		}
	}
	if err := CheckUser(at+".user", s.User); err != nil {
		return err
	}
	if err := checkWorkdir(at+".workdir", s.Workdir); err != nil {
		return err
	}
	if err := checkEnv(at+".env", s.Env); err != nil {
		return err
	}
	return s.validateServices(at)
}
