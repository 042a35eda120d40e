// Package plan turns a request into the steps of its rollout.
package plan

import (
	"cmp"
	"fmt"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Step is one part of a rollout: a run of the agent and its verification. A
// task without steps has one step without a name.
type Step struct {
	schema.Step
	Index    int
	Last     bool
	Tests    []string // folders of the bundle; a later one overrides files of an earlier one
	Script   string   // path of the test script in the bundle; empty: none
	Solution string   // folder of the bundle
	Folder   string   // folder of the bundle with files for the working directory; empty: none
}

// Phase returns the full name of one of the step's phases.
func (s *Step) Phase(name string) string {
	if s.Name == "" {
		return name
	}
	return "step/" + s.Name + "/" + name
}

// Artifact returns the full name of one of the step's artifacts.
func (s *Step) Artifact(name string) string {
	if s.Name == "" {
		return name
	}
	return "steps/" + s.Name + "/" + name
}

// Field returns the name of a field of the step in the request.
func (s *Step) Field(name string) string {
	switch {
	case s.Name != "":
		return fmt.Sprintf("steps[%d].%s", s.Index, name)
	case name == "user":
		return "agent.user"
	default:
		return name
	}
}

// Apart reports whether the step is verified in a second sandbox.
func (s *Step) Apart() bool { return s.Verify != nil && s.Verify.Separate != nil }

// TestFolders returns the test folders to copy into the verifier's sandbox, in
// order.
func (s *Step) TestFolders() []string {
	if s.Apart() && s.Verify.Bundled {
		return nil
	}
	return s.Tests
}

// UserOf returns user or, if it is empty, the sandbox's user.
func UserOf(q *schema.Request, user string) string {
	return cmp.Or(user, q.Sandbox.User)
}

// Of returns the steps of a request. It refuses a task that lacks a part that its agent or a
// verifier needs.
func Of(q *schema.Request, bundle *tasks.Bundle, agent *agents.Spec) ([]*Step, error) {
	steps := stepsOf(q, bundle)
	for _, s := range steps {
		if agent.Solution && !bundle.Has(s.Solution+"/solve.sh") {
			return nil, ends.Fail(schema.Faultf("request", schema.CodeInvalid, schema.WhoTask, "agent.name: %q needs %s, which the task does not have", agent.Name, s.Artifact("solution/solve.sh")))
		}
		if v := s.Verify; v != nil && v.By == "" && v.Run == "" && s.Script == "" && !v.Bundled {
			return nil, ends.Fail(schema.Faultf("request", schema.CodeInvalid, schema.WhoTask, "verify: the task's bundle has no %s", s.Artifact("tests/test.sh")))
		}
	}
	return steps, nil
}

func stepsOf(q *schema.Request, bundle *tasks.Bundle) []*Step {
	if len(q.Steps) == 0 {
		one := &Step{
			Step: schema.Step{Instruction: q.Task.Instruction, AgentMS: q.Limits.AgentMS, VerifyMS: q.Limits.VerifyMS, Verify: q.Verify, User: UserOf(q, q.Agent.User)},
			Last: true, Solution: "solution",
		}
		one.findTests(bundle, "tests")
		return []*Step{one}
	}
	var all []*Step
	for i, from := range q.Steps {
		s := &Step{Step: from, Index: i, Last: i == len(q.Steps)-1, Solution: "solution"}
		s.AgentMS, s.VerifyMS = cmp.Or(s.AgentMS, q.Limits.AgentMS), cmp.Or(s.VerifyMS, q.Limits.VerifyMS)
		s.User = cmp.Or(s.User, UserOf(q, q.Agent.User))
		own := "steps/" + s.Name
		if bundle.Has(own + "/solution/solve.sh") {
			s.Solution = own + "/solution"
		}
		if bundle.Has(own + "/workdir") {
			s.Folder = own + "/workdir"
		}
		s.findTests(bundle, "tests", own+"/tests")
		all = append(all, s)
	}
	return all
}

func (s *Step) findTests(bundle *tasks.Bundle, folders ...string) {
	for _, dir := range folders {
		if !bundle.Has(dir) {
			continue
		}
		s.Tests = append(s.Tests, dir)
		if bundle.Has(dir + "/test.sh") {
			s.Script = dir + "/test.sh"
		}
	}
}
