package sandboxes

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/turngate/turngate/schema"
)

// Kind describes a backend before it is made. Package backends lists all kinds;
// flags, help and checks derive from that list.
type Kind struct {
	Name string // value of sandbox.backend in a request that selects the backend
	// Images is true if a sandbox is made of an image, which the request names or
	// the backend builds.
	Images bool
	// Builds is true if it builds images.
	Builds bool
	// Works is the text of `turngate doctor` if the backend's Check returns nil.
	// Otherwise the text is its error and Remedy.
	Works, Remedy string
	// Asked reports whether the settings name places for this backend, which then must
	// work. nil if it has no such settings.
	Asked func(Host) bool
	// New makes the backend. An error means that the settings are wrong; Check
	// reports whether the backend works on this host.
	New func(Host) (Backend, error)
}

// Host has the settings that a worker gives to every backend.
type Host struct {
	Helper   string // path of the turngate binary, which runs in every sandbox
	StateDir string // folder for records of sandboxes, so that a later process can sweep them
	Build    BuildLimits
	Keep     Keep // bounds of the images and the cache of builds
	// Warn receives lines about sandboxes that run. It is called concurrently; nil drops them.
	Warn func(line string)
	// Subnets is the address range of side-car networks: IPv4, with a prefix of
	// 8 to 24 bits. Default DefaultSubnets.
	Subnets netip.Prefix
	SSH     SSH
	Docker  Docker
	// Machines are for the backend machine.
	Machines Machines
	E2B      E2B
	Prime    Prime
	// Kubernetes is for the backend kubernetes.
	Kubernetes Kubernetes
	Modal      Modal
	Local      Local
}

// Kubernetes has the cluster and the settings of pods of the backend kubernetes, which no
// request can change.
type Kubernetes struct {
	Namespace    string            `json:"namespace"` // of the pods; empty: the backend is not used
	Config       string            `json:"config"`    // file of settings for clusters; empty: KUBECONFIG, ~/.kube/config, or that of the pod of this process
	Context      string            `json:"context"`   // in Config; empty: its current one
	HelperImage  string            `json:"helper_image"`
	RuntimeClass string            `json:"runtime_class"`
	NodeSelector map[string]string `json:"node_selector"`
	Tolerations  []string          `json:"tolerations"`  // KEY, KEY:EFFECT or KEY=VALUE:EFFECT
	PullSecrets  []string          `json:"pull_secrets"` // names in Namespace
	GPUs         int               `json:"gpus"`         // that a sandbox may ask for
	// UserNamespaces gives each pod users of its own: hostUsers is false.
	UserNamespaces bool `json:"user_namespaces"`
}

// Local has the images of local sandboxes.
type Local struct {
	Images   string // folder of images, see package layout; empty: sandboxes have none
	Unpacked string // folder for their files, which the processes of this user share
}

// E2B has the account and the bounds of the backend e2b.
type E2B struct {
	Template   string `json:"template"`    // of the sandboxes; empty: the backend is not used
	Key        string `json:"-"`           // of the account; Check names it if it is missing
	APIURL     string `json:"api_url"`     // of the control plane; default https://api.DOMAIN
	Domain     string `json:"domain"`      // default e2b.app
	SandboxURL string `json:"sandbox_url"` // of all sandboxes, for servers that find them by headers; default https://49983-ID.DOMAIN
	Sandboxes  int    `json:"sandboxes"`   // at once; 0: no bound
	PerMinute  int    `json:"per_minute"`  // sandboxes made in a minute; 0: no bound
}

// Prime has the account and the bounds of the backend prime.
type Prime struct {
	Image     string  `json:"image"`      // of the sandboxes; empty: the backend is not used
	Key       string  `json:"-"`          // of the account; Check names it if it is missing
	APIURL    string  `json:"api_url"`    // of the control plane; default https://api.primeintellect.ai
	Team      string  `json:"team"`       // that owns the sandboxes; empty: the user
	CPUs      float64 `json:"cpus"`       // of a sandbox; default 2
	MemoryGB  float64 `json:"memory_gb"`  // of a sandbox; default 4
	DiskGB    float64 `json:"disk_gb"`    // of a sandbox; default 10
	Sandboxes int     `json:"sandboxes"`  // at once; 0: no bound
	PerMinute int     `json:"per_minute"` // sandboxes made in a minute; 0: no bound
}

// Modal has the app and the bounds of the backend modal. Modal's client itself reads the
// token of the account.
type Modal struct {
	Image     string `json:"image"`      // of the virtual machines, in a registry; empty: the backend is not used
	App       string `json:"app"`        // default modal.DefaultApp
	Sandboxes int    `json:"sandboxes"`  // at once; 0: no bound
	PerMinute int    `json:"per_minute"` // sandboxes made in a minute; 0: no bound
}

// Machines has the machines that take sandboxes over NATS.
type Machines struct {
	Fleet Fleet    // nil: the backend is not used
	Names []string // of the machines to use; none: all live ones
}

// Fleet opens lines to machines. It is safe for concurrent use.
type Fleet interface {
	// Await calls ok with the live machines, again after each announcement, until it returns
	// true or the context ends.
	Await(ctx context.Context, ok func([]schema.Machine) bool) error
	// Open opens a line for a capability to an instance of a machine. stream is this
	// side's end, which Open closes in any case. The line ends with the stream's bytes,
	// or at once with the context. over is called with the machine's end of the line or
	// the reason for an early one, unless Open returns an error.
	Open(ctx context.Context, machine, instance, want string, stream *os.File, over func(schema.LineEnd)) error
}

// Docker has settings of a worker for its containers, which no request can change.
type Docker struct {
	Runtime string // of the containers, a name that the engine knows; empty: the engine's default
	// GPUs, AllGPUs and GPUDevices say how many GPUs a sandbox may ask for: a number, any,
	// or some of these ids. At most one is set; none: no GPUs.
	GPUs       int
	AllGPUs    bool
	GPUDevices []string
	Mounts     []Mount // in every sandbox, read-only; a side-car has none
}

// MostGPUs is the largest number of GPUs that a sandbox may ask for.
func (d Docker) MostGPUs() int {
	if d.AllGPUs {
		return schema.MaxGPUs
	}
	return max(d.GPUs, len(d.GPUDevices))
}

// SSH has the hosts of the backend ssh.
type SSH struct {
	Hosts  []string // destinations of ssh; none: the backend is not used
	Config string   // file of settings for ssh; empty: the user's
}

// ErrNotAsked is the error of Check if the worker has no settings for the backend.
var ErrNotAsked = errors.New("not asked for")

// ImageStore is a backend that keeps images on this host.
type ImageStore interface {
	// Images lists the references of the images. A rollout with one of them needs
	// no pull.
	Images(ctx context.Context) ([]string, error)
	// HasImage returns an error if the image is not there. It does not pull it.
	HasImage(ctx context.Context, ref string) error
}

// Engine is a backend on an engine that may lack features.
type Engine interface {
	// Describe names the engine, and has a sentence for each feature that turngate uses and
	// the engine lacks.
	Describe(ctx context.Context) (engine string, lacks []string, err error)
}

// BuiltImage is an image that a build of turngate left, in this process or
// another.
type BuiltImage struct {
	Ref  string `json:"ref"`
	ID   string `json:"id"`
	Task string `json:"task"`
	// Shared is the name of the build's image, which differs from Ref if the image was
	// built with the cache of one trainer.
	Shared string    `json:"-"`
	Size   int64     `json:"size"`  // bytes not shared with other images; all bytes if the engine does not tell
	Used   time.Time `json:"used"`  // last use by a rollout, or else the build
	InUse  bool      `json:"inUse"` // a container has the image
}

// CacheKeeper is a backend with a cache on this host that grows with its builds.
type CacheKeeper interface {
	// KeepCache prunes the cache to the bound of Host.Keep now and after each
	// build, until the context ends. It prunes once at a time, for 5 minutes at
	// most, and delays no other call. failed gets the error of each prune.
	KeepCache(ctx context.Context, failed func(error))
}

// DefaultSubnets is the address range of side-car networks. RFC 2544 reserves
// it for benchmarks of network devices, so no real host has these addresses.
// The pools of a Docker engine have room for about 30 networks only.
const DefaultSubnets = "198.18.0.0/15"

// BuildLimits bound every build of an image on this worker. A request may
// shorten the time that it waits for a build.
type BuildLimits struct {
	Network     string        // network of RUN: schema.NetworkOpen (the default) or schema.NetworkNone
	CPUs        float64       // 0: no limit
	MemoryBytes int64         // 0: no limit
	Time        time.Duration // default 1 h
}

// Keep bounds the images and the cache that builds leave on a host. Items with the oldest last
// use are removed first. 0 means no bound.
type Keep struct {
	Images int
	Bytes  int64         // bytes that the images do not share with other images
	Age    time.Duration // time since the last use
	// Cache is the number of bytes that the engine's cache for builds may have
	// after a prune, see CacheKeeper. All builds of the engine share this cache.
	Cache int64
}
