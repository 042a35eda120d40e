package worker

// Caps are what this worker allows any request. A limit of 0 means none.
type Caps struct {
	Networks    []string // besides none
	GPUs        int      // of one rollout; 0: the worker offers none
	CPUs        float64
	MemoryBytes int64
	DiskBytes   int64
}
