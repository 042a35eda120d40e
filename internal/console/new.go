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

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// maxAnswer is the largest body of an answer or of a rollout to run, in bytes.
const maxAnswer = 4 << 20

// Choices are those of the page that runs a rollout.
type Choices struct {
	Token     string     `json:"token"` // of the session, for writes
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

// withPlayer answers a request with what do returns.
func (s *Server) withPlayer(life context.Context, do func(r *http.Request, t *trainer.Trainer) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		fail := func(status int, err error) { http.Error(w, plain.Line(err.Error(), maxFault), status) }
		if s.player == nil {
			fail(http.StatusNotFound, errors.New("this console runs no rollouts: start `turngate up`, or `turngate console` with a trainer's credentials"))
			return
		}
		t, err := s.player.open(life)
		if err != nil {
			fail(http.StatusServiceUnavailable, err)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxAnswer)
		v, err := do(r, t)
		if r.Method != http.MethodGet {
			s.config.Log.Log().Str("audit", r.URL.Path).Int("session", sessionOf(r)).AnErr("refused", err).Msg("a write of the console")
		}
		switch {
		case errors.Is(err, errAnswered):
			fail(http.StatusConflict, err)
		case err != nil:
			fail(http.StatusBadRequest, err)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v) // a browser that is gone
		}
	}
}

func (s *Server) choices(r *http.Request, t *trainer.Trainer) (any, error) {
	fleet, err := t.Fleet(r.Context())
	if err != nil {
		return nil, err
	}
	c := Choices{Token: tokenOf(r), Trainer: s.config.Play.Name, Tasks: []TaskName{}, Agents: []string{}, Sandboxes: []string{}}
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
func (s *Server) submit(r *http.Request, t *trainer.Trainer) (any, error) {
	var a Ask
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		return nil, fmt.Errorf("the rollout cannot be read: %w", err)
	}
	var q schema.Request
	var bundle []byte
	var answer trainer.Answerer
	var err error
	switch {
	case a.Folder != "":
		if q, bundle, err = s.config.Play.Load(a.Folder); err != nil {
			return nil, err
		}
	case a.Instruction == "":
		return nil, errors.New("instruction: want a text, or the folder of a task")
	default:
		q.Task = schema.Task{Name: "pasted", Instruction: a.Instruction}
		if a.Check != "" {
			q.Verify = &schema.Verify{Run: "mkdir -p /logs/verifier; if ( " + a.Check + "\n); then echo 1; else echo 0; fi > /logs/verifier/reward.txt"}
		}
	}
	if a.Answerer != "" {
		if answer, err = s.config.Play.Answerer(a.Answerer, a.Model); err != nil {
			return nil, err
		}
	}
	q.Mode, q.Agent.Name, q.Sandbox.Backend = schema.ModeGate, a.Agent, a.Sandbox
	if a.Image != "" {
		q.Sandbox.Image, q.Sandbox.Build = a.Image, nil
	}
	if answer == nil { // a person needs time
		q.Limits.AgentMS = max(q.Limits.AgentMS, personMS)
	}
	id, err := s.player.submit(r.Context(), t, q, bundle, answer)
	if err != nil {
		return nil, err
	}
	return map[string]schema.ID{"id": id}, nil
}

// personMS is the least time limit of an agent whose calls a person answers, in ms.
const personMS = 4 * 60 * 60 * 1000

// reply sends the answer of a person.
func (s *Server) reply(r *http.Request, _ *trainer.Trainer) (any, error) {
	id, err := schema.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	call, err := strconv.Atoi(r.PathValue("call"))
	if err != nil {
		return nil, errAnswered
	}
	var answer Reply
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("the answer cannot be read: %w", err)
	}
	return struct{}{}, s.player.reply(id, call, answer)
}

// Asked are the calls of a rollout that wait for a person.
type Asked struct {
	Token     string     `json:"token"` // of the session, for writes
	Questions []Question `json:"questions"`
}

// questioner returns a function that writes the open questions of a rollout to its live
// feed when they have changed, and returns a channel that is closed at the next change.
func (s *Server) questioner(life context.Context, r *http.Request, found *recorded.Rollout) func(*feed) <-chan struct{} {
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
			f.note("asked", Asked{tokenOf(r), list})
			told = now
		}
		return changed
	}
}
