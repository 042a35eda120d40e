package schema

// Presence announces a live worker and the rollouts that it can take.
type Presence struct {
	V        int    `json:"v"`
	Worker   string `json:"worker"`
	Instance string `json:"instance"`
	Version  string `json:"version,omitempty"`
	Slots    int    `json:"slots"`
	Draining bool   `json:"draining,omitempty"`
	Full     string `json:"full,omitempty"`   // reason for which it takes no request now, though slots may be free
	Shells   bool   `json:"shells,omitempty"` // operators may run commands in the sandboxes of its rollouts
	Offer    Offer  `json:"offer"`
	Running  []ID   `json:"running,omitempty"`
	Load     *Load  `json:"load,omitempty"` // when the presence was made; null: not known
}

// Load tells how busy a worker and its host are. 0 means that a value is not known.
type Load struct {
	CPUs            int     `json:"cpus,omitempty"`              // of the host
	Load            float64 `json:"load,omitempty"`              // processes of the host that run or want to, mean of the last minute
	MemoryBytes     int64   `json:"memory_bytes,omitempty"`      // of the host, or of the worker's control group if that has less
	FreeMemoryBytes int64   `json:"free_memory_bytes,omitempty"` // of it, that programs can still get
	WorkerBytes     int64   `json:"worker_bytes,omitempty"`      // memory of the worker's process, without its sandboxes
}

// Offer lists the resources that a worker can give to one rollout. A limit of
// 0 means no limit.
type Offer struct {
	Backends []string `json:"backends"`
	// Failing has the backends whose services make no sandboxes for now, with the reasons. The
	// worker tries again.
	Failing     SortedMap[string] `json:"failing,omitempty"`
	Agents      []string          `json:"agents"`             // installed ones
	Networks    []string          `json:"networks,omitempty"` // besides none
	GPUs        int               `json:"gpus,omitempty"`     // 0: none
	CPUs        float64           `json:"cpus,omitempty"`
	MemoryBytes int64             `json:"memory_bytes,omitempty"`
	DiskBytes   int64             `json:"disk_bytes,omitempty"`
	Pids        int64             `json:"pids,omitempty"`
	Images      []string          `json:"images,omitempty"`    // warm ones
	Upstreams   []string          `json:"upstreams,omitempty"` // that requests of the modes transparent_proxy and black_box can name
}

func (p *Presence) check() error { return CheckToken("worker", p.Worker) }

// Values of Control.Do.
const (
	ControlCancel   = "cancel"    // end this rollout: its state is cancelling
	ControlGiveBack = "give_back" // requeue this rollout if you do not run it, though its state names you
	ControlCopy     = "copy"      // store the copy of this rollout's request again
)

// Control is a command from one worker to another.
type Control struct {
	V       int    `json:"v"`
	Do      string `json:"do"`
	ID      ID     `json:"id"`
	Attempt int    `json:"attempt,omitempty"`
}

func (c *Control) check() error {
	if err := checkOneOf("do", c.Do, ControlCancel, ControlGiveBack, ControlCopy); err != nil {
		return err
	}
	_, err := ParseID(string(c.ID))
	return err
}
