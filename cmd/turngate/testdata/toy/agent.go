package agents

// toy solves one task without a model.
func toy() Spec {
	return Spec{Name: "toy", Command: func(Launch) Command {
		return Command{Args: []string{"/bin/sh", "-c", "echo 'Hello, world!' >hello.txt"}}
	}}
}
