package broker

import "time"

// Timing are the durations of the protocol. Every worker of a pool has the
// same; only tests use others than DefaultTiming.
type Timing struct {
	AckWait   time.Duration // after which a silent job's message comes back: 60 s
	Lease     time.Duration // how long a worker is taken for alive after its last sign: 40 s
	Renew     time.Duration // between its signs: 10 s
	Progress  time.Duration // between the signs that keep a job's message away: 20 s
	Confirm   time.Duration // how long an absent lease is watched before its rollouts are taken over: 20 s
	Busy      time.Duration // how long a message of a rollout that runs elsewhere is sent away: 20 s
	Unfit     time.Duration // how long a request is sent away that nobody can take now: 5 s
	NoCapable time.Duration // after which it fails, when nobody offers what it asks: 10 min
	Tidy      time.Duration // between the janitor's rounds: 30 s
	Lost      time.Duration // how long a rollout has no lease before the janitor acts: 60 s
}

// DefaultTiming is the protocol's own.
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
