package trainer

import "github.com/turngate/turngate/schema"

// maxRecent is the number of newest rollouts that are surely kept. At most twice as
// many are.
const maxRecent = 2_000

// recent has the rollouts that were added last.
type recent struct {
	newer, older map[schema.ID]struct{}
}

func (r *recent) add(id schema.ID) {
	if r.newer == nil || len(r.newer) >= maxRecent {
		r.newer, r.older = map[schema.ID]struct{}{}, r.newer
	}
	r.newer[id] = struct{}{}
}

func (r *recent) has(id schema.ID) bool {
	_, newer := r.newer[id]
	_, older := r.older[id]
	return newer || older
}
