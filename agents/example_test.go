package agents_test

import (
	"fmt"
	"log"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/schema"
)

// The catalogue has each agent with its version, its dialect and its command.
func ExampleFind() {
	spec, err := agents.Find(agents.All(), "grok-cli")
	if err != nil {
		log.Fatal(err)
	}
	command := spec.Command(agents.Launch{BaseURL: "http://127.0.0.1:4000", Key: "k", Model: "policy", Instruction: "Say hello.", Dir: "/tmp/agent", Installed: "/opt/agent"})
	fmt.Println(spec.Name, spec.Dialect)
	fmt.Println(command.Args)
	// Output:
	// grok-cli chat
	// [/opt/agent/node/bin/node --require /tmp/agent/home.cjs /opt/agent/grok-cli/node_modules/@vibe-kit/grok-cli/dist/index.js --prompt=Say hello.]
}

// An agent refuses a setting that it does not have, by its name.
func ExampleSpec_Check() {
	spec, err := agents.Find(agents.All(), "pi")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(spec.Check(schema.AgentChoice{Name: "pi", MaxTurns: 5}))
	// Output: agent.max_turns: "5" is not valid: none: pi cannot limit its turns; gate.max_calls can
}
