package docker

// Waiting returns the number of callers that wait for images.
func (b *Backend) Waiting() int {
	b.images.mu.Lock()
	defer b.images.mu.Unlock()
	n := 0
	for _, f := range b.images.flights {
		n += f.waiting
	}
	return n
}
