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

// NeedsImage reports whether the task in a folder names or builds the image of its sandbox. It
// reports no error.
func NeedsImage(dir string) bool {
	c, err := (&Task{Dir: dir}).readConfig(dir)
	return err == nil && c.Environment.DockerImage != "" || exists(dir, "environment/Dockerfile") || exists(dir, "environment/"+composeName)
}
