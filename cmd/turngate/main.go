package main

import (
	"os"

	"github.com/turngate/turngate/sandboxes/local"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "box" {
		os.Exit(local.BoxMain(os.Args[2:]))
	}
}
