package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// interrupts tells for each command that lasts what Ctrl-C does, by its name without the
// program's.
func interrupts() map[string]string {
	return map[string]string{
		"run":            "Ctrl-C stops the job: open calls end, and rollouts without a result are cancelled. `turngate run --resume DIR` goes on.",
		"up":             "Ctrl-C stops the worker, then the server: running rollouts have the time of --grace to end, and the others go back into the queue. A second Ctrl-C ends that time at once.",
		"worker":         "Ctrl-C stops the worker: it takes no new rollouts, running ones have the time of --grace to end, and the others go back into the queue. A second Ctrl-C ends that time at once.",
		"machine serve":  "Ctrl-C is as SIGTERM.",
		"nats":           "Ctrl-C stops the server. Its clients wait, and go on when it is started again.",
		"trainer serve":  "Ctrl-C ends the process. Agents wait for `gate.wait_ms` of their requests (30 min) until another one answers.",
		"console":        "Ctrl-C ends the console and no rollout.",
		"metrics":        "Ctrl-C ends it.",
		"nats enroll":    "Ctrl-C ends it. Hosts that ask wait, until it is started again or their time is over.",
		"serve":          "Ctrl-C ends it and no rollout. Clients go on where they were with another `turngate serve`, or when it is started again.",
		"tap":            "Ctrl-C ends the output and no rollout.",
		"rollout watch":  "Ctrl-C ends the output and not the rollout.",
		"rollout replay": "Ctrl-C ends the replay.",
		"top":            "Ctrl-C ends it, with the exit status 130.",
		"backup":         "Ctrl-C leaves an incomplete folder, which `turngate restore` refuses.",
		"restore":        "Ctrl-C deletes the streams that were made so far.",
		"sandbox ports":  "Ctrl-C ends the forwarding of --listen and not the sandbox.",
	}
}

// addInterrupts adds these texts to the help.
func addInterrupts(root *cobra.Command) {
	texts := interrupts()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), root.Name()+" ")
		if text := texts[name]; text != "" {
			if c.Long == "" {
				c.Long = strings.TrimSuffix(c.Short, ".") + "."
			}
			c.Long += "\n\n" + text
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}
