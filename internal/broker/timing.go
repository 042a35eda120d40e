package broker

import "time"

// Timing has the durations of the protocol. All workers of a pool must have the
// same; only tests use others than DefaultTiming.
type Timing struct {
	AckWait   time.Duration // ack wait of the queue's consumers: 60 s
	Lease     time.Duration // life of a lease, a presence or a hold after its last renewal: 40 s
	Renew     time.Duration // interval of renewing the lease: 10 s
	Progress  time.Duration // interval of restarting the ack wait of a job's message: 20 s
	Confirm   time.Duration // time that a lease must be absent before its rollouts are taken over: 20 s
	Busy      time.Duration // redelivery delay for a rollout that another worker runs: 20 s
	Unfit     time.Duration // redelivery delay for a request that no worker can take now: 5 s
	NoCapable time.Duration // time without a capable worker after which a request fails: 10 min
	Tidy      time.Duration // interval of the janitor's rounds: 30 s
	Lost      time.Duration // time without a lease after which the janitor requeues a rollout: 60 s
}

// DefaultTiming returns the durations that are specified in docs/protocol.md.
func DefaultTiming() Timing {
	return Timing{
		AckWait: 60 * time.Second, Lease: 40 * time.Second, Renew: 10 * time.Second, Progress: 20 * time.Second, Confirm: 20 * time.Second,
		Busy: 20 * time.Second, Unfit: 5 * time.Second, NoCapable: 10 * time.Minute, Tidy: 30 * time.Second, Lost: 60 * time.Second,
	}
}

// Faster divides every duration by n.
func (t Timing) Faster(n int) Timing {
	for _, d := range []*time.Duration{&t.AckWait, &t.Lease, &t.Renew, &t.Progress, &t.Confirm, &t.Busy, &t.Unfit, &t.NoCapable, &t.Tidy, &t.Lost} {
		*d /= time.Duration(n)
	}
	return t
}
