package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"path"
	"slices"
	"strconv"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/vocabulary"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/trajectory"
)

// Bounds of a page, in bytes of text.
const (
	maxShown = 64 << 10 // of one text
	maxPage  = 16 << 20 // of all texts of the calls
)

// Detail is a rollout with all that its page shows, but the tokens.
type Detail struct {
	Row
	Rewards    map[string]float64 `json:"rewards,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
	Separation string             `json:"separation,omitempty"`
	Exit       string             `json:"exit,omitempty"`
	Stage      string             `json:"stage,omitempty"` // of the fault
	Who        string             `json:"who,omitempty"`   // can mend it
	Version    string             `json:"agent_version,omitempty"`
	Notes      []string           `json:"notes"`
	Phases     []Phase            `json:"phases"`
	Files      []string           `json:"files"`
	Commands   []string           `json:"commands"`

	Calls    []Call    `json:"calls"`
	Rows     []RowInfo `json:"rows"`
	Tokens   string    `json:"tokens,omitempty"` // how many are trained, and why not the others
	Findings []string  `json:"findings"`
	Missing  string    `json:"missing,omitempty"` // the reason for which there are no calls
	Live     bool      `json:"live,omitempty"`    // its events can be heard
	Closed   string    `json:"closed,omitempty"`  // the reason for which there are no rows and files
}

// Phase is a stage of the rollout.
type Phase struct {
	Name   string `json:"name"`
	Start  int64  `json:"start"` // Unix ms
	MS     int64  `json:"ms"`
	Exit   string `json:"exit,omitempty"`
	Output string `json:"output,omitempty"`
}

// Call is a model call.
type Call struct {
	Number   int                  `json:"number"`
	Parent   int                  `json:"parent,omitempty"`
	Role     string               `json:"role"`
	Model    string               `json:"model,omitempty"`
	Merge    string               `json:"merge"`
	At       int64                `json:"at,omitempty"` // Unix ms
	MS       int64                `json:"ms"`
	Wait     int64                `json:"wait_ms,omitempty"` // from the end of the call before to this one
	Prompt   int64                `json:"prompt"`            // tokens
	Sampled  int64                `json:"completion"`        // tokens
	Finish   string               `json:"finish,omitempty"`
	Fault    string               `json:"fault,omitempty"`
	Break    string               `json:"break,omitempty"` // the reason for which a row begins here
	Trained  int                  `json:"trained"`         // tokens
	Reason   string               `json:"untrained,omitempty"`
	Versions []schema.VersionSpan `json:"versions,omitempty"`
	New      []Turn               `json:"new"` // messages that the calls before did not have
	Answer   *Turn                `json:"answer,omitempty"`
}

// Turn is a message.
type Turn struct {
	Role      string    `json:"role"`
	Text      string    `json:"text,omitempty"`
	Reasoning string    `json:"reasoning,omitempty"`
	Tools     []ToolUse `json:"tools,omitempty"`
	Pictures  []Picture `json:"pictures,omitempty"`
	For       string    `json:"for,omitempty"`  // the ToolUse that it answers
	Same      int       `json:"same,omitempty"` // the call whose answer it is, unchanged; it has no texts then
	Cut       int       `json:"cut,omitempty"`  // bytes of its texts that are left out
}

// ToolUse is a call of a tool.
type ToolUse struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// RowInfo is a training row without its tokens.
type RowInfo struct {
	Row     int    `json:"row"`
	Role    string `json:"role"`
	Length  int    `json:"length"`
	Trained int    `json:"trained"`
	Calls   []int  `json:"calls"`
}

// Row of tokens; each list has a value per token.
type tokenRow struct {
	IDs      []int32           `json:"ids"`
	Mask     []int8            `json:"mask"`
	Logprobs []float32         `json:"logprobs"`
	Texts    []string          `json:"texts,omitempty"` // with a tokenizer
	Calls    []trajectory.Span `json:"calls"`
}

// look returns the rollout of a request, or an error with its HTTP status. With
// http.StatusBadGateway a later request may succeed.
func (s *Server) look(r *http.Request) (found *recorded.Rollout, status int, err error) {
	id, err := schema.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, http.StatusBadRequest, err
	}
	found, err = s.config.Source.Rollout(r.Context(), id)
	if errors.Is(err, recorded.ErrNotFound) && s.player != nil {
		if q := s.player.queued(id); q != nil { // an operator may not read the queue
			found, err = q, nil
		}
	}
	switch {
	case err == nil:
		return found, http.StatusOK, nil
	case errors.Is(err, recorded.ErrNotFound):
		return nil, http.StatusNotFound, errNotKnown
	default:
		return nil, http.StatusBadGateway, err
	}
}

var errNotKnown = errors.New("the rollout is not known here: a running system forgets rollouts after their retention")

// find returns the rollout of a request, or answers it with an error.
func (s *Server) find(w http.ResponseWriter, r *http.Request) *recorded.Rollout {
	found, status, err := s.look(r)
	if err != nil {
		http.Error(w, plain.Line(err.Error(), maxFault), status)
	}
	return found
}

func (s *Server) detail(w http.ResponseWriter, r *http.Request) {
	found := s.find(w, r)
	if found == nil {
		return
	}
	d := detailOf(found)
	_, d.Live = s.config.Source.(Live)
	t, err := s.read(r.Context(), found)
	switch {
	case recorded.MayPass(err):
		http.Error(w, plain.Line(err.Error(), maxFault), http.StatusBadGateway)
		return
	case err != nil:
		d.Missing = plain.Line(err.Error(), maxFault)
	default:
		d.addCalls(t)
	}
	flags := s.config.Source.Flags(found.ID.Trainer())
	if s.config.Source.Files() == nil {
		d.Files = append(d.Files, found.Files()...)
		slices.Sort(d.Files)
	} else if found.Result != nil {
		d.Closed = "Training rows and files are for the trainer " + cell(found.ID.Trainer()) + ". These commands show them with its credentials."
		d.Commands = append(d.Commands, "turngate console "+flags)
	}
	if d.Closed != "" || s.config.Source.Files() == nil {
		d.Commands = append(d.Commands, commands(found, t != nil || d.Closed != "" && found.Result.Transcript != "", flags)...)
	}
	writeJSON(w, d)
}

// read reads the transcript. A large one takes a lot of memory, so few are read at once.
func (s *Server) read(ctx context.Context, r *recorded.Rollout) (*trajectory.Rollout, error) {
	if err := s.config.Source.Files(); err != nil {
		return nil, err
	}
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return r.Read(ctx, trajectory.Options{Messages: true})
}

func detailOf(r *recorded.Rollout) *Detail {
	d := &Detail{Row: rowOf(r), Notes: []string{}, Phases: []Phase{}, Files: []string{}, Commands: []string{}, Calls: []Call{}, Rows: []RowInfo{}, Findings: []string{}}
	q := r.Result
	if q == nil {
		return d
	}
	d.Rewards, d.Metrics, d.Separation, d.Version = numbers(q.Rewards), numbers(q.Metrics), q.Separation, cell(q.AgentVersion)
	if q.Exit != nil {
		d.Exit = cell(q.Exit.String())
	}
	if q.Fault != nil {
		d.Stage, d.Who = cell(q.Fault.Stage), cell(q.Fault.Who)
	}
	for _, n := range q.Notes {
		d.Notes = append(d.Notes, plain.Line(n, maxFault))
	}
	for _, p := range q.Phases {
		phase := Phase{Name: cell(p.Name), Start: p.Start, MS: p.MS}
		if p.Exit != nil {
			phase.Exit = cell(p.Exit.String())
		}
		phase.Output, _ = shown(p.Output, maxShown)
		d.Phases = append(d.Phases, phase)
	}
	return d
}

// numbers leaves out values that JSON does not have.
func numbers(of map[string]float64) map[string]float64 {
	out := make(map[string]float64, len(of))
	for k, v := range of {
		if inJSON(v) {
			out[cell(k)] = v
		}
	}
	return out
}

func inJSON(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// shown makes text safe and returns its beginning of at most limit bytes, and the
// number of bytes behind it.
func shown(text string, limit int) (string, int) {
	cut := max(len(text)-max(limit, 0), 0)
	return plain.Text(text[:len(text)-cut]), cut
}

func (d *Detail) addCalls(t *trajectory.Rollout) {
	left := maxPage
	breaks := map[int]string{}
	for _, b := range t.Breaks {
		breaks[b.Call] = plain.Line(cmp.Or(b.Text, b.Reason), maxFault)
	}
	var ended int64
	known := trajectory.Answers{}
	for _, c := range t.Calls {
		v := Call{
			Number: c.Number, Parent: c.Parent, Role: cell(c.Role), Model: cell(c.Model), Merge: c.Merge, At: c.At, MS: c.MS, Finish: cell(c.FinishReason),
			Prompt: max(int64(c.Prompt), c.Usage.PromptTokens), Sampled: max(int64(c.Completion), c.Usage.CompletionTokens),
			Break: breaks[c.Number], Trained: c.TrainedOn, Reason: cell(c.Untrained), New: turnsOf(c.Messages, known, &left),
		}
		for _, s := range c.Versions {
			v.Versions = append(v.Versions, schema.VersionSpan{Version: cell(s.Version), Start: s.Start, End: s.End})
		}
		if ended > 0 && c.At > ended && c.MS > 0 { // without a duration, At is the end of the call
			v.Wait = c.At - ended
		}
		ended = c.At + c.MS
		if c.Fault != nil {
			v.Fault = plain.Line(c.Fault.Error(), maxFault)
		}
		if c.Message != nil {
			answer := turnOf(c.Message, nil, &left)
			v.Answer = &answer
			known.Add(c.Number, c.Message)
		}
		d.Calls = append(d.Calls, v)
	}
	for row := range t.Rows() {
		info := RowInfo{Row: row.Row, Role: cell(row.Role), Length: len(row.InputIDs), Calls: []int{}}
		for _, m := range row.LossMask {
			info.Trained += int(m)
		}
		for _, span := range row.Calls {
			info.Calls = append(info.Calls, span.Call)
		}
		d.Rows = append(d.Rows, info)
	}
	if t.Tokens.Sampled > 0 {
		d.Tokens = plain.Line(t.Tokens.String(), maxFault)
	}
	for _, f := range t.Findings {
		d.Findings = append(d.Findings, plain.Line(f.String(), maxFault))
	}
}

// turnSize is the room that a Turn or a ToolUse takes beside its texts, in bytes: a message
// of 15 bytes has one, too.
const turnSize = 200

// turnsOf reads messages; left is the number of bytes that there is room for. The messages
// behind it are left out: one Turn has their number of bytes.
func turnsOf(list []json.RawMessage, known trajectory.Answers, left *int) []Turn {
	out := []Turn{}
	for i, m := range list {
		if *left <= 0 {
			rest := Turn{Role: "more"}
			for _, m := range list[i:] {
				rest.Cut += len(m)
			}
			return append(out, rest)
		}
		out = append(out, turnOf(m, known, left))
	}
	return out
}

// turnOf reads a message; left is the number of bytes that there is room for. The texts of
// one of the known trajectory.Answers are left out.
func turnOf(raw json.RawMessage, known trajectory.Answers, left *int) Turn {
	var t Turn
	*left -= turnSize
	take := func(text string) string {
		text = trajectory.WithoutData(text)
		out, cut := shown(text, min(maxShown, *left))
		*left -= len(text) - cut
		t.Cut += cut
		return out
	}
	if t.Same = known.Of(raw); t.Same > 0 {
		t.Role = "assistant"
		return t
	}
	m, err := trainer.ParseMessage(raw)
	if err != nil {
		t.Role, t.Text = "unreadable", take(string(raw))
		return t
	}
	t.Role, t.Text, t.Reasoning, t.For = cell(m.Role), take(m.Content), take(m.Reasoning), cell(m.ToolCallID)
	t.Pictures = picturesOf(raw, left)
	for _, u := range m.ToolCalls {
		if *left -= turnSize + min(len(u.ID), maxCell) + min(len(u.Name), maxCell); *left <= 0 {
			t.Cut += len(u.Arguments)
			continue
		}
		t.Tools = append(t.Tools, ToolUse{cell(u.ID), cell(u.Name), take(u.Arguments)})
	}
	return t
}

// tokens answers with the tokens of a training row.
func (s *Server) tokens(w http.ResponseWriter, r *http.Request) {
	found := s.find(w, r)
	if found == nil {
		return
	}
	n, err := strconv.Atoi(r.PathValue("row"))
	var t *trajectory.Rollout
	if err == nil {
		t, err = s.read(r.Context(), found)
	}
	if err != nil {
		http.Error(w, plain.Line(err.Error(), maxFault), http.StatusBadRequest)
		return
	}
	for row := range t.Rows() {
		if row.Row == n {
			writeJSON(w, tokensOf(row, s.config.Tokenizer))
			return
		}
	}
	http.Error(w, fmt.Sprintf("the rollout has no training row %d", n), http.StatusNotFound)
}

// tokensOf returns a row's tokens, with their texts unless the vocabulary is nil.
func tokensOf(row *trajectory.Row, v *vocabulary.Vocabulary) tokenRow {
	for i, p := range row.Logprobs { // JSON has no infinity
		if v := float64(p); math.IsNaN(v) || math.IsInf(v, 0) {
			row.Logprobs[i] = -math.MaxFloat32
		}
	}
	for i := range row.Calls {
		c := &row.Calls[i]
		c.Gen, c.FinishReason = cell(c.Gen), cell(c.FinishReason)
	}
	out := tokenRow{IDs: row.InputIDs, Mask: row.LossMask, Logprobs: row.Logprobs, Calls: row.Calls}
	if v != nil {
		out.Texts = v.Texts(row.InputIDs)
		for i, text := range out.Texts {
			out.Texts[i], _ = shown(text, maxCell)
		}
	}
	return out
}

// download sends a file of a rollout. A browser stores it and never shows it as a page.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	found := s.find(w, r)
	if found == nil {
		return
	}
	name := r.PathValue("name")
	err := s.config.Source.Files()
	var f io.ReadCloser
	if err == nil {
		f, err = found.Open(r.Context(), name)
	}
	if err != nil {
		http.Error(w, plain.Line(err.Error(), maxFault), http.StatusNotFound)
		return
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment; filename="+strconv.QuoteToASCII(fileName(name)))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	_, _ = io.Copy(w, f) // a browser that is gone
}

// fileName is the last part of a file's path, in letters that every system has.
func fileName(name string) string {
	out := []rune{}
	for _, c := range path.Base(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_' {
			out = append(out, c)
		} else {
			out = append(out, '_')
		}
	}
	return string(out)
}

// commands returns the commands that a user runs next on a rollout, which work for this one.
func commands(r *recorded.Rollout, transcript bool, flags string) []string {
	var out []string
	for _, c := range []struct {
		what  string
		works bool
	}{
		{"show", true},
		{"replay", transcript && r.Plan != nil && !r.Plan.Harbor}, // an agent of Harbor's is not turngate's
		{"export --format atif", transcript},
		{"logs", slices.ContainsFunc(r.Files(), isLog)},
	} {
		if c.works {
			out = append(out, "turngate rollout "+c.what+" "+flags+" "+string(r.ID))
		}
	}
	return out
}

// isLog tells whether `rollout logs` prints a file.
func isLog(name string) bool {
	return name == "agent.stdout.log" || name == "agent/agent.log" || name == "agent/oracle.txt"
}
