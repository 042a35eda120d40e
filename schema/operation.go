package schema

import "fmt"

// Operation is one action of the trainer in a sandbox that it verifies. Do selects
// the action; fields of other actions are empty. A relative path begins in the
// working directory.
type Operation struct {
	V  int    `json:"v"`
	Do string `json:"do"` // exec, read, write or list
	// Path is the file to read or write, the folder to list, or the directory of a
	// command; default for list and exec: the working directory.
	Path string `json:"path,omitempty"`
	// Data is the content to write, or the standard input of a command.
	Data []byte `json:"data,omitempty"`
	Mode int    `json:"mode,omitempty"` // permission bits of a written file; default 0644
	// User runs the command, or owns the written file. Default verify.user.
	User string `json:"user,omitempty"`

	Args []string `json:"args,omitempty"` // of exec: the argv, without a shell
	// Run is text for /bin/sh -c, in place of args.
	Run string            `json:"run,omitempty"`
	Env map[string]string `json:"env,omitempty"` // of exec, added to verify.env
	// TimeoutMS limits a command. 0, and more than is left of the verification: to
	// its end.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// Values of Operation.Do.
const (
	DoExec  = "exec"
	DoRead  = "read"
	DoWrite = "write"
	DoList  = "list"
)

// Bounds of operations.
const (
	MaxOperationData = 8 << 20 // bytes of a file, or of a command's input
	MaxOutput        = 1 << 20 // bytes of each stream of a command; the rest is dropped
	MaxEntries       = 10_000  // of a folder
	maxPath          = 4096
)

func (o *Operation) check() error {
	if err := checkOneOf("do", o.Do, DoExec, DoRead, DoWrite, DoList); err != nil {
		return err
	}
	if err := checkText("path", o.Path, maxPath); err != nil {
		return err
	}
	if o.Path == "" && (o.Do == DoRead || o.Do == DoWrite) {
		return invalid("path", o.Path, "the path of a file")
	}
	if len(o.Data) > MaxOperationData {
		return invalid("data", fmt.Sprintf("%d bytes", len(o.Data)), fmt.Sprintf("at most %d bytes", MaxOperationData))
	}
	if err := checkRange("mode", o.Mode, 0, 0o777); err != nil {
		return err
	}
	if err := CheckUser("user", o.User); err != nil {
		return err
	}
	if o.Do != DoExec {
		if len(o.Args) > 0 || o.Run != "" {
			return invalid("do", o.Do, "exec, since there is a command")
		}
		return nil
	}
	if (len(o.Args) == 0) == (o.Run == "") {
		return invalid("args", o.Args, "a command in args, or text for a shell in run")
	}
	if err := checkTextList("args", o.Args, maxCommand); err != nil {
		return err
	}
	if len(o.Args) > 0 && o.Args[0] == "" {
		return invalid("args[0]", "", "the name of a program")
	}
	if err := checkText("run", o.Run, maxCommand); err != nil {
		return err
	}
	if err := checkEnv("env", o.Env); err != nil {
		return err
	}
	return checkRange("timeout_ms", o.TimeoutMS, 0, maxDurationMS)
}

// OperationResult is the outcome of an Operation that the worker ran. The failure
// of a command is data; other failures are a Fault.
type OperationResult struct {
	V         int     `json:"v"`
	Exit      *Exit   `json:"exit,omitempty"` // of a command
	Stdout    []byte  `json:"stdout,omitempty"`
	Stderr    []byte  `json:"stderr,omitempty"`
	Truncated bool    `json:"truncated,omitempty"` // the command wrote more than is here
	Data      []byte  `json:"data,omitempty"`      // content of a file
	Files     []Entry `json:"files,omitempty"`     // of a folder, by name
}

// Entry is a file of a folder.
type Entry struct {
	Name string `json:"name"` // without the folder
	Kind string `json:"kind"` // file, folder, link or other
	Size int64  `json:"size"`
	Mode int    `json:"mode"` // permission bits
}

// Values of Entry.Kind.
const (
	KindFile   = "file"
	KindFolder = "folder"
	KindLink   = "link"
	KindOther  = "other"
)

func (r *OperationResult) check() error {
	for _, d := range []struct {
		field string
		data  []byte
		limit int
	}{{"stdout", r.Stdout, MaxOutput}, {"stderr", r.Stderr, MaxOutput}, {"data", r.Data, MaxOperationData}} {
		if len(d.data) > d.limit {
			return invalid(d.field, fmt.Sprintf("%d bytes", len(d.data)), fmt.Sprintf("at most %d bytes", d.limit))
		}
	}
	if err := checkCount("files", len(r.Files), MaxEntries); err != nil {
		return err
	}
	for i := range r.Files {
		if err := checkOneOf(fmt.Sprintf("files[%d].kind", i), r.Files[i].Kind, KindFile, KindFolder, KindLink, KindOther); err != nil {
			return err
		}
	}
	return nil
}
