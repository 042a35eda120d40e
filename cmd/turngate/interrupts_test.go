package main

import (
	"strings"
	"testing"
)

// TestHelpSaysWhatCtrlCDoes: each command that lasts until a signal, or that changes
// something meanwhile, says it.
func TestHelpSaysWhatCtrlCDoes(t *testing.T) {
	root := rootCommand(nil, nil, nil)
	names := []string{"job attach", "run", "up", "worker", "machine serve", "nats", "trainer serve", "console", "metrics", "serve", "nats enroll", "tap", "rollout watch", "top", "backup", "restore"}
	for name := range interrupts() {
		names = append(names, name)
	}
	for _, name := range names {
		cmd, _, err := root.Find(strings.Fields(name))
		if err != nil || cmd.CommandPath() != "turngate "+name {
			t.Errorf("%s: there is no such command: %v", name, err)
			continue
		}
		if !strings.Contains(cmd.Long, "Ctrl-C ") {
			t.Errorf("the help of %s does not say what Ctrl-C does: %s", name, cmd.Long)
		}
	}
}
