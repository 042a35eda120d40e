package sandboxes_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/sandboxes"
)

// A backend makes a sandbox, in which a command runs. The dummy's programs are Go
// functions; docker and local have the same methods.
func Example() {
	ctx := context.Background()
	var backend sandboxes.Backend = &dummy.Backend{Programs: map[string]dummy.Program{
		"greet": func(_ context.Context, p *dummy.Proc) int {
			fmt.Fprintln(p.Stdout, "hello", p.Env["NAME"])
			return 3
		},
	}}
	box, err := backend.Create(ctx, sandboxes.Spec{Owner: "w1", Rollout: "alpha-1", Attempt: 1, Env: map[string]string{"NAME": "world"}})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close(ctx) //nolint:errcheck // of an example

	process, err := box.Start(ctx, sandboxes.Cmd{Args: []string{"greet"}, Stdout: os.Stdout, Stderr: io.Discard})
	if err != nil {
		log.Fatal(err)
	}
	exit, err := process.Wait() // a failure of the command is in exit, one of the sandbox in err
	fmt.Println(exit.Code, err)
	// Output:
	// hello world
	// 3 <nil>
}

// Patterns of files to leave out are GNU tar's.
func ExampleNewExcluder() {
	x, err := sandboxes.NewExcluder([]string{"*.pyc", "./build"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x.Excludes("src/a.pyc"), x.Excludes("build/out"), x.Excludes("src/build"))
	// Output: true true false
}
