package tasks_test

import (
	"fmt"
	"log"
	"time"

	"github.com/turngate/turngate/tasks"
)

// A task directory becomes the request and the bundle of a rollout.
func ExampleLoad() {
	task, err := tasks.Load("../examples/tasks/hello", tasks.Options{})
	if err != nil {
		log.Fatal(err)
	}
	bundle, err := tasks.Open(task.Bundle)
	if err != nil {
		log.Fatal(err)
	}
	limit := time.Duration(task.Request.Limits.AgentMS) * time.Millisecond
	fmt.Println(task.Request.Task.Name, limit, bundle.Has("tests/test.sh"))
	fmt.Print(task.Request.Task.Instruction)
	// Output:
	// hello 10m0s true
	// Write the line `Hello, world!` to the file hello.txt in the working directory.
}

// A verifier may leave several rewards. One of them is the headline.
func ExampleParseRewardJSON() {
	headline, all, err := tasks.ParseRewardJSON([]byte(`{"reward": 0.5, "style": 1}`), "")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(*headline, all["style"])
	// Output: 0.5 1
}
