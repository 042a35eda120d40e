package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/tasks"
)

// taskEnv holds the variables that the user gives to tasks. Tasks read no other
// variable of this process, since their authors may be other people.
type taskEnv struct {
	taskEnv     []string
	taskEnvFile string
	read        bool              // the file was read; it may be a pipe, which has its text once
	inFile      map[string]string // its variables
	wrong       error             // of reading it
	refuse      []string          // names that the user refused to all tasks when asked
	once        map[string]bool   // questions that were answered, as task and name
	own         map[string]map[string]string
}

func (e *taskEnv) add(fl *pflag.FlagSet) {
	fl.StringArrayVar(&e.taskEnv, "task-env", nil, "variable that the tasks may read, as NAME (its value here) or NAME=VALUE (repeatable)")
	fl.StringVar(&e.taskEnvFile, "task-env-file", "", "file with variables that the tasks may read, as lines NAME=VALUE")
}

// values returns the variables. The flags take precedence over the file.
func (e *taskEnv) values() (map[string]string, error) {
	out := map[string]string{}
	wrong := flagOf("task-env-file", e.readFile())
	maps.Copy(out, e.inFile)
	given, err := variables("--task-env", e.taskEnv)
	maps.Copy(out, given)
	return out, errors.Join(wrong, err)
}

// readFile reads the file once.
func (e *taskEnv) readFile() error {
	if e.taskEnvFile == "" || e.read {
		return e.wrong
	}
	e.read = true
	data, err := os.ReadFile(e.taskEnvFile)
	if err == nil {
		e.inFile, err = dotenv.ParseWithLookup(strings.NewReader(string(data)), nil)
	}
	e.wrong = err
	return err
}

// check returns all errors in these flags.
func (e *taskEnv) check() error {
	_, err := e.values()
	return err
}

// load reads a task with the variables that the user gives it. On a terminal it
// asks about each variable that the task asks for and that this process has.
func (e *taskEnv) load(cmd *cobra.Command, dir, verifier string) (*tasks.Task, error) {
	given, err := e.values()
	if err != nil {
		return nil, usageOf(err)
	}
	maps.Copy(given, e.own[dir])
	t, err := tasks.Load(dir, tasks.Options{Env: given, Verifier: verifier})
	if err != nil || !isTerminal(os.Stdin) || !isTerminal(os.Stderr) {
		return t, err
	}
	more, err := e.ask(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), t)
	if err != nil || !more {
		return t, err
	}
	return e.load(cmd, dir, verifier)
}

// ask asks about the variables that a task was not given. It reports whether the
// user gave one.
func (e *taskEnv) ask(ctx context.Context, in io.Reader, out io.Writer, t *tasks.Task) (more bool, err error) {
	if e.once == nil {
		e.once, e.own = map[string]bool{}, map[string]map[string]string{}
	}
	for _, m := range t.Missing {
		value, set := os.LookupEnv(m.Name)
		question := t.Dir + "\x00" + m.Name
		if !set || e.once[question] || slices.Contains(e.refuse, m.Name) {
			continue
		}
		e.once[question] = true
		fmt.Fprintf(out, "task %s asks for your variable %s (%s). Give it? y: to this task, a: to all tasks, n: no, x: to no task [n] ",
			oneLine(t.Dir, 200), oneLine(m.Name, 80), oneLine(m.Where, 80))
		answer, err := readLine(ctx, in)
		if err != nil {
			return more, err
		}
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			if e.own[t.Dir] == nil {
				e.own[t.Dir] = map[string]string{}
			}
			e.own[t.Dir][m.Name], more = value, true
		case "a", "all":
			e.taskEnv, more = append(e.taskEnv, m.Name), true
		case "x":
			e.refuse = append(e.refuse, m.Name)
		}
	}
	return more, nil
}

// readLine reads a line, until the context ends.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	type read struct {
		line string
		err  error
	}
	done := make(chan read, 1)
	go func() { // a terminal's read cannot be interrupted
		line, err := bufio.NewReader(in).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		done <- read{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case r := <-done:
		return r.line, r.err
	}
}

// printMissing names the variables that tasks ask for and were not given, if they
// are empty or this process has them.
func printMissing(w io.Writer, list ...*tasks.Task) {
	where, count := map[string]string{}, map[string]int{}
	for _, t := range list {
		for _, m := range t.Missing {
			if _, set := os.LookupEnv(m.Name); !set && !m.Empty {
				continue
			}
			if count[m.Name]++; count[m.Name] == 1 {
				where[m.Name] = fmt.Sprintf("%s (%s of %s)", m.Name, m.Where, t.Dir)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(where)) {
		more := ""
		if n := count[name] - 1; n > 0 {
			more = " and " + plural(n, "more task")
		}
		fmt.Fprintf(w, "not given: the variable %s%s; --task-env %s gives it\n", oneLine(where[name], 300), more, oneLine(name, 80))
	}
}
