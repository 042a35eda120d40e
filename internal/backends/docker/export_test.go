package docker

import (
	"context"
	"time"
)

// SweepFiles removes the volumes of folders that are older and that no container has.
func (b *Backend) SweepFiles(ctx context.Context, age time.Duration) error {
	d, err := b.deliveries.get(ctx)
	if err != nil {
		return err
	}
	return d.(*copies).removeOlder(ctx, age)
}

// Waiting returns the number of callers that wait for images.
func (s *Store) Waiting() int {
	s.flights.mu.Lock()
	defer s.flights.mu.Unlock()
	n := 0
	for _, f := range s.flights.flights {
		n += f.waiting
	}
	return n
}
