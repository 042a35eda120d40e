// Package toy is the dialect that the contributing guide describes: texts with
// a speaker.
package toy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Dialect is the toy.
type Dialect struct{}

// Name implements dialect.Dialect.
func (Dialect) Name() string { return "toy" }

// Routes implements dialect.Dialect.
func (Dialect) Routes() []string { return []string{"POST /toy"} }

// ModelsRoutes implements dialect.Dialect.
func (Dialect) ModelsRoutes() []string { return []string{"GET /toy/models"} }

// Models implements dialect.Dialect.
func (Dialect) Models(name string) []byte { return rawjson.List([][]byte{Dialect{}.Model(name)}) }

// Model implements dialect.Dialect.
func (Dialect) Model(name string) []byte { return rawjson.Quote(name) }

// Sent implements dialect.Dialect.
func (Dialect) Sent(*http.Request) bool { return false }

// Fail implements dialect.Dialect.
func (Dialect) Fail(f dialect.Refusal) []byte {
	return rawjson.NewObject().Str("wrong", f.Message).Str("code", f.Code).Done()
}

// Decoder implements dialect.Dialect.
func (Dialect) Decoder() dialect.Decoder {
	return dialect.Decoder{
		Kind: "toy", Conversation: "talk", Messages: messages, Member: member, Tools: tools,
		Request: func(_ *http.Request, c dialect.Converted) dialect.Request {
			return dialect.Request{Call: c.Call, Encoding: encoding{}}
		},
	}
}

func messages(p dialect.Parts, i int) (dialect.Group, error) {
	var who string
	var says canonical.Content
	err := rawjson.EachField(p.Item(i), func(name string, v jsontext.Value) (err error) {
		switch name {
		case "who":
			who, err = rawjson.Unquote(v)
		case "says":
			if v, err = rawjson.Literal(v); err == nil {
				err = says.Text(v, nil)
			}
		}
		return err
	})
	if err != nil {
		return dialect.Group{}, fmt.Errorf("talk.%d: %w", i, err)
	}
	return dialect.Group{Messages: []json.RawMessage{canonical.Message(who, &says)}}, nil
}

func member(m *dialect.Members, name string, value jsontext.Value) (err error) {
	switch name {
	case "talk":
		return fmt.Errorf("talk: want a list")
	case "model":
		m.Model, err = rawjson.Unquote(value)
	case "stream":
		m.Stream, err = rawjson.IsTrue(value)
	default:
		m.Params[name] = json.RawMessage(value)
	}
	return err
}

// tools converts a list of names.
func tools(value jsontext.Value) (dialect.Tools, error) {
	var all [][]byte
	err := rawjson.EachElement(value, func(v jsontext.Value) error {
		name, err := rawjson.Unquote(v)
		all = append(all, canonical.Function(name, nil, nil, nil, nil))
		return err
	})
	if len(all) == 0 {
		return dialect.Tools{}, err
	}
	return dialect.Tools{List: rawjson.List(all)}, err
}

type encoding struct{}

// Encode implements dialect.Encoding.
func (encoding) Encode(m dialect.Meta, r *schema.Reply) ([]byte, error) {
	a, err := canonical.ReadAnswer(r.Message)
	if err != nil {
		return nil, err
	}
	return whole(m, a.Content, a.ToolCalls, r), nil
}

func whole(m dialect.Meta, says canonical.Text, calls []canonical.ToolCall, r *schema.Reply) []byte {
	var all [][]byte
	for i := range calls {
		c := &calls[i]
		all = append(all, rawjson.NewObject().Str("tool", c.Name()).Raw("with", canonical.ObjectOr(c.Input())).Done())
	}
	o := rawjson.NewObject().Str("id", m.ID).Raw("calls", rawjson.List(all)).Str("end", r.FinishReason)
	if !says.Empty() {
		o.Raw("says", says)
	}
	return o.Raw("tokens", strconv.AppendInt(nil, r.Usage.PromptTokens+r.Usage.CompletionTokens, 10)).Done()
}

// Stream implements dialect.Encoding.
func (encoding) Stream(m dialect.Meta) dialect.Stream { return &stream{meta: m} }

type stream struct {
	meta  dialect.Meta
	begun bool
}

func (*stream) ContentType() string { return dialect.EventStream }

func (*stream) KeepAlive() []byte { return dialect.AppendEvent(nil, "alive", []byte("{}")) }

func (s *stream) Delta(d *schema.Delta) ([]byte, error) {
	a, err := canonical.ReadAnswer(d.Delta)
	if err != nil {
		return nil, err
	}
	s.begun = true
	if a.Content.Empty() {
		return nil, nil
	}
	return dialect.AppendEvent(nil, "piece", rawjson.NewObject().Raw("says", a.Content).Done()), nil
}

func (s *stream) Final(r *schema.Reply) ([]byte, error) {
	a, err := canonical.ReadAnswer(r.Message)
	if err != nil {
		return nil, err
	}
	if s.begun {
		a.Content = nil
	}
	return dialect.AppendEvent(nil, "end", whole(s.meta, a.Content, a.ToolCalls, r)), nil
}

func (s *stream) Fail(f dialect.Refusal) []byte {
	return dialect.AppendEvent(nil, "wrong", Dialect{}.Fail(f))
}
