package tasks

// Name returns the name of the task in a folder: that of its task.toml, or the
// folder's. It reads no other file, and reports no error.
func Name(dir string) string {
	c, err := (&Task{Dir: dir}).readConfig(dir)
	if err != nil {
		c = &config{}
	}
	return name(c, dir)
}
