package analyze

import (
	"context"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trajectory"
)

// instructions returns the texts of the task: its files, if they exist, and the first messages
// of the user to the model. Later messages may be the model's own, such as a summary.
func instructions(r *recorded.Rollout, t *trajectory.Rollout) (out []string) {
	for _, c := range t.Calls {
		if c.Tag != schema.TagAgent {
			continue
		}
		for _, raw := range c.Messages {
			m := trajectory.ReadMessage(raw)
			if m.Role == "assistant" {
				break
			}
			if m.Role == "user" {
				out = append(out, m.Text)
			}
		}
		break
	}
	if r.Trial == nil || !filepath.IsAbs(r.Trial.Dir) {
		return out
	}
	names := []string{"instruction.md"}
	if r.Result != nil {
		for _, s := range r.Result.Steps {
			names = append(names, path.Join("steps", s.Name, "instruction.md"))
		}
	}
	for _, name := range names {
		if data, err := tasks.ReadFile(r.Trial.Dir, name); err == nil { // the folder may be gone
			out = append(out, string(data))
		}
	}
	return out
}

// readTools collects the tool calls of answers that reached the agent, with their
// results.
func (f *finder) readTools(ctx context.Context) {
	open := map[string]*toolCall{}
	written := &files{text: map[string]string{}}
	for _, c := range f.t.Calls {
		if ctx.Err() != nil {
			return
		}
		var ended []string
		for _, raw := range c.Messages {
			m := trajectory.ReadMessage(raw)
			if t := open[m.ToolCall]; m.ToolCall != "" && t != nil {
				t.result, t.got = resultText(m.Text), true // the last one: ids may repeat in a conversation
				ended = append(ended, m.ToolCall)
			}
		}
		for _, id := range ended {
			delete(open, id)
		}
		if c.Role == trajectory.RoleDiscarded || c.Message == nil {
			continue
		}
		for _, w := range trajectory.ReadMessage(c.Message).Tools {
			t := &toolCall{number: c.Number, name: w.Name, given: w.Arguments}
			readTool(t, written)
			open[w.ID] = t
			f.tools = append(f.tools, t)
		}
	}
}

// checkUses finds the uses of paths that belong to the verifier or to the solution.
func (f *finder) checkUses(c *toolCall) {
	type key struct {
		code string
		path string
	}
	if c.effects.unread {
		f.add(trajectory.LevelInfo, CodeUnreadCommand, c.number, c.given, "call %d has a command that is too large to be read", c.number)
	}
	seen := map[key]bool{}
	report := func(code, verb string, u use) {
		if seen[key{code, u.path}] {
			return
		}
		seen[key{code, u.path}] = true
		level, tail := trajectory.LevelError, ""
		if c.failed(u) {
			level, tail = trajectory.LevelWarning, ", in vain"
		}
		f.add(level, code, c.number, u.cited, "call %d %s %s%s", c.number, verb, u.path, tail)
	}
	for _, u := range c.effects.uses {
		switch {
		case u.within(rewardDir):
			if u.write {
				report(CodeRewardTouched, "changes", u)
			}
		case u.within(testsDir) && !f.own[testsDir] && u.write:
			report(CodeTestsTouched, "changes", u)
		case u.within(testsDir) && !f.own[testsDir]:
			report(CodeTestsRead, "reads", u)
		case u.within(solutionDir) && !f.own[solutionDir]:
			report(CodeSolutionSought, "uses", u)
		case u.write && startsInVerifier(u.path):
			report(CodeProgramReplaced, "writes", u)
		}
	}
	for _, s := range c.effects.searches {
		switch {
		case sought(s.path, "solution", "solve.sh", "oracle.sh") && !f.own[solutionDir]:
			f.add(trajectory.LevelWarning, CodeSolutionSought, c.number, s.cited, "call %d searches all files for %s", c.number, s.path)
		case sought(s.path, "test.sh", "test_outputs.py", "reward.txt", "reward.json") && !f.own[testsDir]:
			f.add(trajectory.LevelWarning, CodeTestsRead, c.number, s.cited, "call %d searches all files for %s", c.number, s.path)
		}
	}
}

// sought reports whether a pattern of a search is one of the names.
func sought(pattern string, names ...string) bool {
	name := strings.ToLower(strings.Trim(path.Base(strings.TrimRight(pattern, "/*")), "*"))
	return slices.Contains(names, name) || slices.Contains(names, name+".sh")
}

// startsInVerifier reports whether a path is a module that every Python program loads,
// or a program that verifiers start and that the system's packages do not install by a
// copy.
func startsInVerifier(at string) bool {
	name := path.Base(at)
	if slices.Contains([]string{"sitecustomize.py", "usercustomize.py"}, name) || at == "/etc/ld.so.preload" || at == "/conftest.py" {
		return true
	}
	return slices.Contains([]string{"/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin"}, path.Dir(at)) && slices.Contains([]string{"pytest", "py.test", "sh", "bash", "python3", "uvx"}, name)
}

// failed reports whether the result says that a use failed: it has a sentence about the
// path or a folder above it, or nothing at all although the command hides its errors.
func (c *toolCall) failed(u use) bool {
	if !c.got {
		return false
	}
	text := strings.TrimSpace(c.result)
	if !c.commands {
		return refused().MatchString(text) || fails(text) && len(text) < 300
	}
	if text == "" || text == "(no output)" {
		return !u.write && strings.Contains(u.cited, "/dev/null")
	}
	for line := range strings.Lines(text) {
		if !fails(line) {
			continue
		}
		for at := u.path; at != "/" && at != "."; at = path.Dir(at) {
			if strings.Contains(line, at) || at == u.path && strings.Contains(line, path.Base(at)) {
				return true
			}
		}
	}
	return false
}

func fails(text string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc([]string{"no such file", "cannot access", "cannot open", "can't open", "can't cd", "not found", "not exist", "permission denied", "enoent", "eacces", "read-only file system", "not a directory", "not in workspace"}, func(s string) bool { return strings.Contains(text, s) })
}

// refused matches a result in which an agent says that it did not run a tool: there is
// none of that name, or its arguments are not valid. Each agent has its own words.
func refused() *regexp.Regexp {
	return regexp.MustCompile(`^(?:<system>ERROR: Tool execution failed\.</system>\s*|Error executing tool \S+ )?(?:` + strings.Join([]string{
		`<tool_use_error>(?:Error: No such tool|InputValidationError)`,
		`The arguments provided to the tool are invalid`,
		`The \S+ tool was called with invalid arguments`,
		`Model tried to call unavailable tool`,
		`[Tt]ool ['"]?[^\s'"]+['"]? (?:not found|does not exist)`,
		`Tool call \S+ was rejected`,
		`Validation failed for tool`,
		`params\S* must `,
		`(?:✖ )?Invalid (?:input|args|arguments|parameters)\b`,
		`Required parameter "[^"]+" missing for tool`,
		`[Uu]nknown tool`,
		`unsupported call`,
		`[Ff]ailed to parse (?:function )?arguments`,
		`[Ee]rror: there is no tool`,
		`Error: Not found: \S+ Only request exact tool names`,
		`Error: \S+ is required and must be`,
	}, "|") + `)`)
}

// missing matches the sentences of shells about a program that is not there.
func missing() *regexp.Regexp {
	return regexp.MustCompile(`(?m)(?:^|[ :])(?:line )?(?:\d+: )?([^\s:]+): (?:command )?not found\r?$|: line \d+: ([^\s:]*/[^\s:]*): No such file or directory\r?$|: command not found: (\S+)\r?$|: failed to run command ['"‘]([^\s'"’]+)['"’]: No such file`)
}

// checkResult finds failures of tools.
func (f *finder) checkResult(c *toolCall) {
	if !c.got {
		return
	}
	text := strings.TrimSpace(c.result)
	if !c.commands || len(c.effects.programs) == 0 {
		if refused().MatchString(text) {
			f.add(trajectory.LevelInfo, CodeToolError, c.number, text, "call %d: the tool %s refused its call", c.number, c.name)
		}
		return
	}
	seen := map[string]bool{}
	for _, m := range missing().FindAllStringSubmatch(text, maxUses) {
		name := m[1] + m[2] + m[3] + m[4]
		if slices.Contains(c.effects.programs, name) && !seen[name] {
			seen[name] = true
			f.add(trajectory.LevelInfo, CodeMissingProgram, c.number, m[0], "call %d starts %s, which the sandbox does not have", c.number, name)
		}
	}
	// An agent can lose the shell's sentence and still tell the status of the last command.
	if status := status127().FindString(text); status != "" && len(seen) == 0 {
		name := c.effects.programs[len(c.effects.programs)-1]
		f.add(trajectory.LevelInfo, CodeMissingProgram, c.number, status, "call %d starts %s, which the sandbox does not have", c.number, name)
	}
}

// status127 matches the line in which an agent tells the exit status 127 of a command:
// the shell did not find the program.
func status127() *regexp.Regexp {
	return regexp.MustCompile(`(?im)^[^\n]{0,40}\bexit(?:ed)?(?: with)?[ _](?:code|status):? 127\b`)
}

// gaveUp matches the words of an agent that gave up.
func gaveUp() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\bI(?: have to| must|'ll|’ll| will)? give up\b|\bI(?:'m| am|’m) giving up\b|\bI(?:'m| am|’m| was|'ve been|’ve been| have been) (?:not able|unable) to (?:complete|finish|solve|do|fulfil|fulfill|accomplish|proceed)\b|\bI (?:cannot|can't|can’t|could not|couldn't|couldn’t) (?:complete|finish|solve|proceed with|accomplish|do) (?:this|the|it)\b`)
}

// checkEnd finds the reason of an end that is not the end of the work.
func (f *finder) checkEnd() {
	q := f.r.Result
	rewarded := f.t.Reward != nil && *f.t.Reward > 0
	var last *trajectory.Call
	for _, c := range f.t.Calls {
		if c.Tag == schema.TagAgent && c.Role != trajectory.RoleDiscarded && c.Message != nil {
			last = c
		}
	}
	if q != nil && q.Fault != nil {
		switch q.Fault.Code {
		case schema.CodeContext, schema.CodeCallCap, schema.CodeTokenCap:
			f.add(trajectory.LevelWarning, CodeLength, 0, q.Fault.Message, "the rollout ended at its length: %s", q.Fault.Code)
		case schema.CodeRepeats:
			f.add(trajectory.LevelWarning, CodeRepeats, 0, q.Fault.Message, "the rollout ended since its calls repeat")
		}
	}
	if last == nil {
		return
	}
	m := trajectory.ReadMessage(last.Message)
	if last.FinishReason == "length" {
		f.add(trajectory.LevelWarning, CodeLength, last.Number, end(m.Text), "call %d, the agent's last one, was cut at its largest length", last.Number)
	}
	if at := gaveUp().FindStringIndex(m.Text); at != nil && len(m.Tools) == 0 && !rewarded {
		f.add(trajectory.LevelWarning, CodeGaveUp, last.Number, around(m.Text, at), "call %d, the agent's last one, gives up", last.Number)
	}
	if rewarded && slices.ContainsFunc(f.t.Findings, func(t trajectory.Finding) bool { return t.Code == "no_tool_calls" }) {
		f.add(trajectory.LevelError, CodeRewardWithoutWork, 0, m.Text, "the reward is %s, and the model called no tool", recorded.RewardText(f.t.Reward))
	}
}

// end returns the last part of a text, and around the line of a place.
func end(text string) string { return strings.ToValidUTF8(text[max(len(text)-maxText, 0):], "") }

func around(text string, at []int) string {
	begin := strings.LastIndexByte(text[:at[0]], '\n') + 1
	begin = max(begin, at[0]-maxText/2)
	line, _, _ := strings.Cut(text[begin:], "\n")
	return strings.ToValidUTF8(line, "")
}

// A round of two to maxRound calls with the same results that comes minRounds times is
// a finding. Package trajectory finds single calls that repeat.
const (
	maxRound  = 4
	minRounds = 4
)

// checkRounds finds rounds of tool calls that repeat with the same results.
func (f *finder) checkRounds() {
	same := func(a, b *toolCall) bool {
		return a.name == b.name && a.given == b.given && a.result == b.result && a.got == b.got
	}
	for i := 0; i < len(f.tools); {
		best := 0
		for n := 2; n <= maxRound; n++ {
			j := i + n
			for j < len(f.tools) && same(f.tools[j], f.tools[j-n]) {
				j++
			}
			single := true
			for k := i + 1; k < min(i+n, len(f.tools)); k++ {
				single = single && same(f.tools[k], f.tools[i])
			}
			if rounds := (j - i) / n; rounds >= minRounds && !single {
				f.add(trajectory.LevelWarning, CodeRepeats, f.tools[i].number, cite(f.tools[i]), "from call %d on, %d rounds of the same %d tool calls have the same results", f.tools[i].number, rounds, n)
				best = j - i
				break
			}
		}
		i += max(best, 1)
	}
}
