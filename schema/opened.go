package schema

import "cmp"

// Opened is a worker's answer to a trainer that asked for its streams. The bounds are the
// trainer's; 0: there is none.
type Opened struct {
	V                int    `json:"v"`
	Error            string `json:"error,omitempty"`              // reason why a stream is missing; empty: none is missing
	MaxQueue         int64  `json:"max_queue,omitempty"`          // requests in the queue
	MaxQueueBytes    int64  `json:"max_queue_bytes,omitempty"`    // bytes of the requests in the queue
	MaxBundleBytes   int64  `json:"max_bundle_bytes,omitempty"`   // bytes of bundles and large answers
	MaxArtifactBytes int64  `json:"max_artifact_bytes,omitempty"` // bytes of artifacts and large calls
	Weight           int    `json:"weight,omitempty"`             // share of the workers, compared with other trainers
}

func (o *Opened) check() error {
	return cmp.Or(
		checkText("error", o.Error, maxText),
		checkRange("max_queue", o.MaxQueue, 0, maxBytes),
		checkRange("max_queue_bytes", o.MaxQueueBytes, 0, maxBytes),
		checkRange("max_bundle_bytes", o.MaxBundleBytes, 0, maxBytes),
		checkRange("max_artifact_bytes", o.MaxArtifactBytes, 0, maxBytes),
		checkRange("weight", o.Weight, 0, MaxWeight),
	)
}

// MaxWeight is the largest weight of a trainer.
const MaxWeight = 1000
