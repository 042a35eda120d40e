// Package programs looks in a sandbox for the programs that an agent needs, and
// has small versions of some of them. These are sub-commands of the turngate
// binary. It is static and in every sandbox, so they run in any image.
package programs

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Provided lists the programs that turngate can put into a sandbox that lacks
// them: name → sub-command of its binary.
func Provided() map[string]string { return map[string]string{"ps": "ps"} }

// Report is the result of Look.
type Report struct {
	Path    string   `json:"path"`              // the PATH that was searched
	Missing []string `json:"missing,omitempty"` // programs that are not in it
}

// Look searches this process's PATH for the programs.
func Look(names []string) Report {
	r := Report{Path: os.Getenv("PATH")}
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			r.Missing = append(r.Missing, name)
		}
	}
	return r
}

// PrintReport writes Look's report as one line of JSON.
func PrintReport(out io.Writer, names []string) error {
	if err := json.NewEncoder(out).Encode(Look(names)); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

// Stub returns a shell script that starts argv, followed by the script's own
// arguments. It does not quote argv, which must be paths and names of turngate.
func Stub(argv ...string) []byte {
	return []byte("#!/bin/sh\nexec " + strings.Join(argv, " ") + " \"$@\"\n")
}

func ownerOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
