package agents

import (
	"encoding/json"
	"maps"
	"strconv"
)

// miniSpec is turngate's own small agent: a loop over chat completions with
// one tool, bash. The agent is a sub-command of the turngate binary, which every
// sandbox has, so it runs in any image.
func miniSpec() Spec {
	return Spec{
		Name: "mini", Dialect: "chat", SystemPrompt: true, MaxTurns: true, Files: systemPromptFile,
		Command: func(l Launch) Command {
			env := common(l)
			args := []string{l.Helper, "mini"}
			if l.SystemPrompt != "" {
				args = append(args, "--system-prompt", l.Dir+"/system.md")
			}
			if l.MaxTurns > 0 {
				args = append(args, "--max-turns", strconv.Itoa(l.MaxTurns))
			}
			return Command{Args: append(args, l.Args...), Env: env, Stdin: l.Instruction}
		},
		ParseEvent: func(line []byte) *Event {
			e := &Event{}
			if json.Unmarshal(line, e) != nil || e.Kind == "" {
				return nil
			}
			return e
		},
	}
}

// command runs any argv that uses OPENAI_BASE_URL and OPENAI_API_KEY. The
// instruction is on stdin and in the file that TURNGATE_INSTRUCTION names.
func command() Spec {
	return Spec{
		Name: "command", Dialect: "chat", AnyProgram: true,
		Files: func(l Launch) (map[string]File, error) {
			return map[string]File{l.Dir + "/instruction.md": {[]byte(l.Instruction), 0o600}}, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{"TURNGATE_INSTRUCTION": l.Dir + "/instruction.md"})
			return Command{Args: l.Args, Env: env, Stdin: l.Instruction}
		},
	}
}

// Person runs any argv at the terminal of a person. The person does the task in place of a
// model. All does not have it, since a worker has a terminal only in a person's own process.
// TURNGATE_INSTRUCTION names the file with the instruction.
func Person() Spec {
	s := command()
	s.Name, s.Dialect, s.Person = "person", "", true
	s.Command = func(l Launch) Command {
		return Command{Args: l.Args, Env: map[string]string{"TURNGATE_INSTRUCTION": l.Dir + "/instruction.md"}}
	}
	return s
}

// oracle runs the task's own solution. A task that gives the oracle no reward is
// broken. The name and the idea are Harbor's.
func oracle() Spec {
	return Spec{
		Name: "oracle", Solution: true,
		Command: func(l Launch) Command { return Command{Args: append([]string{"/solution/solve.sh"}, l.Args...)} },
	}
}

// nop does nothing: a task that rewards it is broken. The name and the idea
// are Harbor's.
func nop() Spec {
	return Spec{Name: "nop", Command: func(Launch) Command { return Command{Args: []string{"/bin/sh", "-c", ":"}} }}
}
