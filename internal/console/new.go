package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// maxAnswer is the largest body of an answer or of a rollout to run, in bytes.
const maxAnswer = 4 << 20

// Choices are the choices on the page that runs a rollout.
type Choices struct {
	Trainer   string     `json:"trainer"`
	Tasks     []TaskName `json:"tasks"`
	Agents    []string   `json:"agents"` // that a live worker has
	Sandboxes []string   `json:"sandboxes"`
}

// TaskName is a folder of a task that the page offers.
type TaskName struct {
	Name   string `json:"name"`
	Folder string `json:"folder"`
}

// Ask is a rollout to run.
type Ask struct {
	Folder      string `json:"folder"`      // of the task; empty: the next fields are the task
	Instruction string `json:"instruction"` // of a task without files
	Check       string `json:"check"`       // shell command that succeeds for the reward 1; empty: no reward
	Agent       string `json:"agent"`
	Sandbox     string `json:"sandbox"`
	Image       string `json:"image"`    // of docker; empty: the task's
	Answerer    string `json:"answerer"` // such as upstream:URL; empty: a person
	Model       string `json:"model"`    // of the upstream; empty: its only one
}

// Played tells of a rollout that a browser has run, or of a call that it has answered.
type Played struct {
	ID   schema.ID `json:"id"`
	Call int       `json:"call,omitempty"`
}

// played returns a function that leaves a line in the log about a write.
func (s *Server) played(name string) func(*http.Request, Played, error) {
	return func(r *http.Request, v Played, err error) {
		refused := ""
		if err != nil {
			refused = err.Error()
		}
		audit(&s.config.Log, name, sessionIn(r), refused, func(line *zerolog.Event) {
			if v.ID != "" {
				line.Strs("rollouts", []string{string(v.ID)})
			}
			if v.Call > 0 {
				line.Int("call", v.Call)
			}
		})
	}
}

var errNoPlayer = errors.New("this console runs no rollouts: start `turngate up`, or `turngate console` with a trainer's credentials")

// withPlayer answers a request with the value that do returns. log is told of it, unless
// it is nil.
func withPlayer[T any](life context.Context, s *Server, do func(*http.Request, *trainer.Trainer) (T, error), log func(*http.Request, T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxAnswer)
		var v T
		status, err := http.StatusNotFound, errNoPlayer
		if s.player != nil {
			var t *trainer.Trainer
			status = http.StatusServiceUnavailable
			if t, err = s.player.open(life); err == nil {
				if status = http.StatusBadRequest; r.Method == http.MethodGet { // it has no input that could be wrong
					status = http.StatusBadGateway
				}
				v, err = do(r, t)
			}
		}
		if log != nil {
			log(r, v, err)
		}
		switch {
		case errors.Is(err, errAnswered):
			http.Error(w, plain.Line(err.Error(), maxFault), http.StatusConflict)
		case err != nil:
			http.Error(w, plain.Line(err.Error(), maxFault), status)
		default:
			writeJSON(w, v)
		}
	}
}

func (s *Server) choices(r *http.Request, t *trainer.Trainer) (Choices, error) {
	ctx, cancel := context.WithTimeout(r.Context(), readWithin) // a request that is lost is never answered
	defer cancel()
	fleet, err := t.Fleet(ctx)
	if err != nil {
		return Choices{}, err
	}
	c := Choices{Trainer: s.config.Play.Name, Tasks: []TaskName{}, Agents: []string{}, Sandboxes: []string{}}
	for _, dir := range s.config.Play.Tasks {
		c.Tasks = append(c.Tasks, TaskName{cell(filepath.Base(dir)), dir})
	}
	for _, w := range fleet.Workers {
		if !w.Draining {
			c.Agents, c.Sandboxes = append(c.Agents, w.Offer.Agents...), append(c.Sandboxes, w.Offer.Backends...)
		}
	}
	slices.Sort(c.Agents)
	slices.Sort(c.Sandboxes)
	c.Agents, c.Sandboxes = slices.Compact(c.Agents), slices.Compact(c.Sandboxes)
	return c, nil
}

// submit runs a rollout, and answers with its id.
func (s *Server) submit(r *http.Request, t *trainer.Trainer) (out Played, err error) {
	var a Ask
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		return out, fmt.Errorf("the rollout cannot be read: %w", rawjson.Plain(err))
	}
	var q schema.Request
	var bundle []byte
	var answer trainer.Answerer
	switch {
	case a.Folder != "":
		if q, bundle, err = s.config.Play.Load(a.Folder); err != nil {
			return out, err
		}
	case a.Instruction == "":
		return out, errors.New("instruction: want a text, or the folder of a task")
	default:
		q.Task = schema.Task{Name: "pasted", Instruction: a.Instruction}
		if a.Check != "" {
			q.Verify = &schema.Verify{Run: "mkdir -p /logs/verifier; if ( " + a.Check + "\n); then echo 1; else echo 0; fi > /logs/verifier/reward.txt"}
		}
	}
	if a.Answerer != "" {
		if answer, err = s.config.Play.Answerer(a.Answerer, a.Model); err != nil {
			return out, err
		}
	}
	q.Mode, q.Agent.Name, q.Sandbox.Backend = schema.ModeGate, a.Agent, a.Sandbox
	if a.Image != "" {
		q.Sandbox.Image, q.Sandbox.Build = a.Image, nil
	}
	if answer == nil { // a person needs time
		q.Limits.AgentMS = max(q.Limits.AgentMS, personMS)
	}
	out.ID, err = s.player.submit(r.Context(), t, q, bundle, answer)
	return out, err
}

// personMS is the least time limit of an agent with a person as its model, in ms.
const personMS = 4 * 60 * 60 * 1000

// reply sends the answer of a person.
func (s *Server) reply(r *http.Request, _ *trainer.Trainer) (to Played, err error) {
	if to.ID, err = schema.ParseID(r.PathValue("id")); err != nil {
		return to, err
	}
	if to.Call, err = strconv.Atoi(r.PathValue("call")); err != nil {
		return to, errAnswered
	}
	var answer Reply
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		return to, fmt.Errorf("the answer cannot be read: %w", rawjson.Plain(err))
	}
	return to, s.player.reply(to.ID, to.Call, answer)
}

// questioner returns a function that writes the open questions of a rollout to its live
// feed when they have changed, and returns a channel that is closed at the next change.
func (s *Server) questioner(life context.Context, found *recorded.Rollout) func(*feed) <-chan struct{} {
	if s.player == nil || found.Asked == nil || found.Asked.Shard != PlayShard || found.ID.Trainer() != s.config.Play.Name {
		return func(*feed) <-chan struct{} { return nil }
	}
	if _, err := s.player.open(life); err != nil { // an earlier console submitted it
		return func(*feed) <-chan struct{} { return nil }
	}
	told := "nothing"
	return func(f *feed) <-chan struct{} {
		list, changed := s.player.questions(found.ID)
		now := ""
		for _, q := range list {
			now += q.Key + " " + q.Gen + "\n"
		}
		if now != told {
			f.note("asked", list)
			told = now
		}
		return changed
	}
}
