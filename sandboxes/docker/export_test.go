package docker

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
