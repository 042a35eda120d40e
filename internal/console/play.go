package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// PlayShard is the shard of the rollouts that consoles run. One console at a time has the
// one of a trainer.
const PlayShard = "console"

// Bounds of the questions to a person.
const (
	maxAsked     = 1 << 20 // bytes of the messages and the tools of a Question
	maxQuestions = 16      // of a rollout that a page shows at once, the first ones
	maxFields    = 100     // of a tool's form
)

// Play lets people run rollouts from a page, and answer their calls.
type Play struct {
	Name string // of the trainer that submits
	// Dial connects as the trainer that submits, with PlayShard. It is called when a browser
	// first needs it.
	Dial func(ctx context.Context) (*trainer.Trainer, error)
	// Load reads the folder of a task.
	Load func(dir string) (q schema.Request, bundle []byte, err error)
	// Answerer opens an answerer by its name, such as upstream:URL.
	Answerer func(name, model string) (trainer.Answerer, error)
	Tasks    []string // folders of tasks that the page offers
}

// player runs the rollouts of a console.
type player struct {
	play *Play
	log  zerolog.Logger

	dialing sync.Mutex
	running sync.WaitGroup

	mu      sync.Mutex
	trainer *trainer.Trainer // nil: it is not connected
	closed  bool
	games   map[schema.ID]*game
	changed chan struct{} // is closed at the next change of the questions
}

// game is a rollout that the console has submitted or adopted, without a result.
type game struct {
	asked     *schema.Request  // nil: an earlier process submitted it
	answer    trainer.Answerer // nil: a person answers
	questions []*question
}

// question is a call that waits for a person.
type question struct {
	shown Question
	tools []string // names
	reply chan *schema.Reply
}

// Question is a call that waits for a person, as the page shows it.
type Question struct {
	Key      string `json:"key"`
	Gen      string `json:"gen"`
	Number   int    `json:"number"`
	Since    int64  `json:"since"`    // Unix ms
	Messages []Turn `json:"messages"` // the last ones, if there is no room for all
	Tools    []Form `json:"tools"`
}

// Form is a tool that the call offers.
type Form struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Fields are its arguments; null: its schema tells of none, so they are one JSON object.
	Fields []Field `json:"fields"`
}

// Field is an argument of a tool.
type Field struct {
	Name     string `json:"name"`
	About    string `json:"about,omitempty"`
	Kind     string `json:"kind"` // string, integer, number, boolean or json
	Required bool   `json:"required,omitempty"`
	// Choices are the values that are allowed, as JSON; empty: all of the kind.
	Choices []string `json:"choices,omitempty"`
}

// Reply is the answer of a person.
type Reply struct {
	Gen   string    `json:"gen"`
	Text  string    `json:"text"`
	Tools []ToolArg `json:"tools"`
}

// ToolArg is a tool call of a person.
type ToolArg struct {
	Tool      int             `json:"tool"` // its place among the tools of the Question
	Arguments json.RawMessage `json:"arguments"`
}

func newPlayer(p *Play, log zerolog.Logger) *player {
	return &player{play: p, log: log, games: map[schema.ID]*game{}, changed: make(chan struct{})}
}

// open returns the connected trainer. life is the context of the server.
func (p *player) open(life context.Context) (*trainer.Trainer, error) {
	p.dialing.Lock()
	defer p.dialing.Unlock()
	p.mu.Lock()
	t, closed := p.trainer, p.closed
	p.mu.Unlock()
	if t != nil {
		return t, nil
	}
	if closed {
		return nil, errors.New("the console ends")
	}
	ctx, cancel := context.WithTimeout(life, 40*time.Second) // a new trainer's streams are made first
	defer cancel()
	t, err := p.play.Dial(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		t.Close()
		return nil, errors.New("the console ends")
	}
	p.trainer = t
	p.running.Go(func() { p.serve(life, t) })
	return t, nil
}

// serve answers calls and takes results until the server ends or the trainer is lost.
func (p *player) serve(life context.Context, t *trainer.Trainer) {
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() {
		defer cancel()
		if err := t.Serve(ctx, p.answer); ctx.Err() == nil {
			p.log.Warn().Err(err).Msg("the console answers no calls any more")
		}
	})
	both.Go(func() {
		defer cancel()
		for {
			r, err := t.NextResult(ctx)
			if err != nil {
				return
			}
			p.mu.Lock()
			delete(p.games, r.ID)
			p.mu.Unlock()
		}
	})
	both.Go(func() {
		<-ctx.Done()
		t.Close() // it ends the open answers; the next console gets their calls
	})
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trainer = nil
}

// close waits for the end of the trainer, after the end of its context.
func (p *player) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.running.Wait()
}

// queued returns a rollout that was submitted and that the source does not know yet.
func (p *player) queued(id schema.ID) *recorded.Rollout {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.games[id]
	if g == nil || g.asked == nil {
		return nil
	}
	return &recorded.Rollout{ID: id, Asked: g.asked, State: &schema.State{V: schema.Version, ID: id, Trainer: id.Trainer(), Status: schema.StatusQueued}}
}

// submit runs a request with an answerer; nil: a person.
func (p *player) submit(ctx context.Context, t *trainer.Trainer, q schema.Request, bundle []byte, answer trainer.Answerer) (schema.ID, error) {
	name, group := p.play.Name, jobs.NewGroup()
	id, err := jobs.RolloutID(name, group)
	if err != nil {
		return "", err
	}
	q.V, q.ID, q.Trainer, q.Shard, q.Group = schema.Version, id, name, PlayShard, group
	if err := schema.Validate(&q); err != nil {
		return "", err
	}
	if len(bundle) > 0 {
		if q.Task.Bundle, err = t.PutBundle(ctx, bundle); err != nil {
			return "", err
		}
	}
	p.mu.Lock()
	p.games[id] = &game{asked: &q, answer: answer}
	p.mu.Unlock()
	if err := t.Submit(ctx, []schema.Request{q}); err != nil && !errors.Is(err, trainer.ErrUnsure) {
		p.mu.Lock()
		delete(p.games, id)
		p.mu.Unlock()
		return "", err
	}
	return id, nil
}

// answer is the Answerer of all rollouts of the console.
func (p *player) answer(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
	key, err := schema.ParseKey(c.Key)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	g := p.games[key.Rollout]
	if g == nil { // an earlier process submitted it
		g = &game{}
		p.games[key.Rollout] = g
	}
	with := g.answer
	p.mu.Unlock()
	if with != nil {
		return with(ctx, c)
	}
	q := &question{shown: questionOf(key, c), reply: make(chan *schema.Reply, 1)}
	for _, tool := range toolsOf(c.Tools) {
		q.tools = append(q.tools, tool.Function.Name)
	}
	p.mu.Lock()
	g.questions = append(g.questions, q)
	p.wake()
	p.mu.Unlock()
	select {
	case r := <-q.reply:
		return r, nil
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		p.drop(g, q)
		return nil, context.Cause(ctx)
	}
}

// drop removes a question that waits no more. The caller has the lock.
func (p *player) drop(g *game, q *question) {
	g.questions = slices.DeleteFunc(g.questions, func(other *question) bool { return other == q })
	p.wake()
}

// wake tells the pages that questions have changed. The caller has the lock.
func (p *player) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// questions returns the open questions of a rollout, and a channel that is closed at the
// next change.
func (p *player) questions(id schema.ID) (list []Question, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list = []Question{}
	if g := p.games[id]; g != nil {
		for _, q := range g.questions[:min(len(g.questions), maxQuestions)] {
			list = append(list, q.shown)
		}
	}
	return list, p.changed
}

// errAnswered means that a question does not wait any more.
var errAnswered = errors.New("this call waits for no answer any more")

// reply answers a question, once.
func (p *player) reply(id schema.ID, call int, r Reply) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var q *question
	g := p.games[id]
	if g != nil {
		for _, open := range g.questions {
			if open.shown.Number == call && open.shown.Gen == r.Gen {
				q = open
			}
		}
	}
	if q == nil {
		return errAnswered
	}
	m := trainer.Message{Role: "assistant", Content: r.Text}
	for i, u := range r.Tools {
		if u.Tool < 0 || u.Tool >= len(q.tools) {
			return fmt.Errorf("tools[%d].tool: %d is not valid: the call has %d tools", i, u.Tool, len(q.tools))
		}
		var arguments map[string]json.RawMessage
		if err := json.Unmarshal(u.Arguments, &arguments); err != nil || arguments == nil {
			return fmt.Errorf("tools[%d].arguments: want a JSON object, such as {\"command\": \"ls\"}", i)
		}
		m.ToolCalls = append(m.ToolCalls, trainer.ToolUse{ID: fmt.Sprintf("call_%d_%d", q.shown.Number, i+1), Name: q.tools[u.Tool], Arguments: string(u.Arguments)})
	}
	if r.Text == "" && len(m.ToolCalls) == 0 {
		return errors.New("text: want a text or a tool call")
	}
	reply, err := trainer.NewReply(m, trainer.Sample{})
	if err == nil {
		err = schema.Validate(reply)
	}
	if err != nil {
		return err
	}
	q.reply <- reply // it has room for the only one
	p.drop(g, q)
	return nil
}

// tool is a tool in a call.
type tool struct {
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// toolsOf reads the functions among the tools of a call.
func toolsOf(raw json.RawMessage) []tool {
	var all, out []tool
	if len(raw) > 0 && json.Unmarshal(raw, &all) != nil {
		return nil
	}
	for _, t := range all {
		if t.Function.Name != "" {
			out = append(out, t)
		}
	}
	return out
}

func questionOf(key schema.Key, c *trainer.Call) Question {
	left := maxAsked
	newest := slices.Clone(c.Messages) // first
	slices.Reverse(newest)
	q := Question{Key: c.Key, Gen: c.Gen, Number: key.Call, Since: time.Now().UnixMilli(), Messages: turnsOf(newest, nil, &left), Tools: []Form{}}
	slices.Reverse(q.Messages)
	left = maxAsked
	for _, t := range toolsOf(c.Tools) {
		form := Form{Name: cell(t.Function.Name)}
		var cut int
		form.Description, cut = shown(t.Function.Description, min(4096, max(left, 0)))
		left -= len(t.Function.Description) - cut
		if size := len(t.Function.Parameters); size <= left {
			form.Fields = fieldsOf(t.Function.Parameters)
			left -= size
		}
		q.Tools = append(q.Tools, form)
	}
	return q
}

// argument is the schema of a tool's argument.
type argument struct {
	Type        json.RawMessage   `json:"type"` // a name, or a list of names
	Description string            `json:"description"`
	Enum        []json.RawMessage `json:"enum"`
}

// fieldsOf reads the arguments of a tool from its schema, the required ones first; nil: it
// tells of none, or of too many.
func fieldsOf(schema json.RawMessage) []Field {
	var of struct {
		Properties map[string]argument `json:"properties"`
		Required   []string            `json:"required"`
	}
	if json.Unmarshal(schema, &of) != nil || of.Properties == nil || len(of.Properties) > maxFields {
		return nil
	}
	rank := map[string]int{} // of the required ones, below 0
	for i, name := range of.Required {
		rank[name] = i - len(of.Required)
	}
	out := []Field{}
	for name, a := range of.Properties {
		if plain.Line(name, maxCell) != name { // a person would give another argument
			return nil
		}
		f := Field{Name: name, About: plain.Line(a.Description, maxFault), Kind: kindOf(a.Type), Required: rank[name] < 0}
		for _, v := range a.Enum[:min(len(a.Enum), maxNames)] {
			if text := string(v); plain.Line(text, maxFault) == text {
				f.Choices = append(f.Choices, text)
			}
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Field) int {
		return cmp.Or(cmp.Compare(rank[a.Name], rank[b.Name]), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// kindOf returns the kind of a Field with the type of its schema.
func kindOf(raw json.RawMessage) string {
	var names []string
	if json.Unmarshal(raw, &names) != nil {
		names = make([]string, 1)
		_ = json.Unmarshal(raw, &names[0]) // any other form has no name
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "null" })
	if len(names) == 1 && slices.Contains([]string{"string", "integer", "number", "boolean"}, names[0]) {
		return names[0]
	}
	return "json"
}
