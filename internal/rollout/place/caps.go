package place

// Caps are this worker's limits for any request, and the defaults of a request
// that names no limit. With 0 the sandbox's own default applies: no limit for
// CPUs and MemoryBytes.
type Caps struct {
	Networks    []string // allowed networks besides none
	GPUs        int      // maximum per rollout; 0: no GPUs
	CPUs        float64
	MemoryBytes int64
	DiskBytes   int64
	Pids        int64
}
