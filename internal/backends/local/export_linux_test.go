package local

// Copying makes the backend copy images in place of an overlay.
func (b *Backend) Copying() { b.copies = true }
