package modelcall

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Server receives the calls to one trainer and answers them.
type Server struct {
	*packer
	b   *broker.Broker
	tid string
}

// NewServer returns the server for a trainer. Errors are an *schema.InvalidError for
// the name.
func NewServer(b *broker.Broker, tid string) (*Server, error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return nil, err
	}
	p, err := newPacker(b)
	if err != nil {
		return nil, err
	}
	return &Server{packer: p, b: b, tid: tid}, nil
}

// IncomingCall is a model call or a tool call from a worker, or a request to cancel a
// call.
type IncomingCall struct {
	Key    schema.Key
	Shard  string
	Tool   bool   // a tool call instead of a model call
	Verify bool   // a verification instead of a model call
	Body   []byte // a schema.Call, ToolCall or Verification; empty for a cancel
	Cancel bool
	// Reject is the worker's reason for refusing the generation ResumeGen, which
	// it asks for again; nil: the message is none.
	Reject *schema.Fault

	// ResumeGen is the generation of which the worker has deltas already; empty:
	// none.
	ResumeGen string
	Resume    int // number of deltas of ResumeGen that the worker has

	Trace trace.SpanContext // of the call in its worker; not valid: none

	// Answered has the numbers of earlier calls of this attempt. The worker has
	// their answers.
	Answered []int

	reply string
	nc    *nats.Conn
}

// Listen calls handle for every model call to a shard of this trainer, or to all
// its shards if shard is empty, until stop is called. handle runs on several
// goroutines at once and may take any time, so a cancel may arrive before the
// call that it ends. A cancel that arrives while the body of its call is read from
// the object store ends the read, and the call is not handled.
func (s *Server) Listen(shard string, handle func(IncomingCall)) (stop func(), err error) {
	return s.listen(subjects.CallsOf(s.tid, shard), subjects.ParseCall, IncomingCall{}, handle)
}

// ListenTools is Listen for tool calls.
func (s *Server) ListenTools(shard string, handle func(IncomingCall)) (stop func(), err error) {
	return s.listen(subjects.ToolsOf(s.tid, shard), subjects.ParseTool, IncomingCall{Tool: true}, handle)
}

func (s *Server) listen(subject string, parse func(string) (schema.Key, string, bool), as IncomingCall, handle func(IncomingCall)) (stop func(), err error) {
	sub, err := s.b.CallConn().SubscribeSync(subject)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	if stop, err = wire.Bounded(s.b.CallConn(), sub); err != nil {
		return nil, err
	}
	log := s.b.Log()
	var reading reads
	all := &handlerPool{sub: sub, handle: func(m *nats.Msg) {
		key, shard, ok := parse(m.Subject)
		if !ok {
			return
		}
		a := as
		a.Key, a.Shard, a.nc = key, shard, s.b.CallConn()
		switch m.Header.Get(subjects.HeaderKind) {
		case subjects.KindCancel:
			a.Cancel = true
			reading.cancel(m.Subject)
			handle(a)
			return
		case subjects.KindReject:
			a.Reject, a.ResumeGen = s.reject(context.Background(), m), m.Header.Get(subjects.HeaderGen)
			handle(a)
			return
		}
		if !subjects.IsGateInbox(m.Reply, s.tid) {
			log.Warn().Str("call", key.String()).Msg("a call with a foreign reply subject was dropped")
			return
		}
		a.reply, a.Trace = m.Reply, traces.Of(m.Header)
		if a.ResumeGen = m.Header.Get(subjects.HeaderGen); a.ResumeGen != "" {
			a.Resume, _ = strconv.Atoi(m.Header.Get(subjects.HeaderResume))
		}
		a.Answered = parseAnswered(m.Header.Get(subjects.HeaderSettled))
		body, wanted, err := s.body(&reading, m)
		if !wanted {
			return
		}
		if err != nil {
			log.Warn().Err(err).Str("call", key.String()).Msg("a call cannot be unpacked; its worker asks again")
			return
		}
		a.Body = body
		handle(a)
	}}
	go all.run()
	return stop, nil
}

// Frame is one message of a trainer's answer to a call.
type Frame struct {
	Kind schema.FrameKind
	Gen  string
	Seq  int  // of a delta; of a final: the number of deltas
	Held bool // of accept and beat
	Body Packed
}

// EncodeFrame encodes a body for a frame. It compresses a large body, and stores
// it in the object store if it still does not fit into a message. Errors are those
// of schema.Encode and of the object store, and a *broker.TooLargeError above
// schema.MaxBody.
func (s *Server) EncodeFrame(ctx context.Context, m schema.Message) (Packed, error) {
	data, err := schema.Encode(m)
	if err != nil {
		return Packed{}, err
	}
	return s.pack(ctx, "a trainer's frame", subjects.TasksBucket(s.tid), data)
}

// Send publishes one frame of the answer.
func (a IncomingCall) Send(f Frame) error {
	values := [...]string{string(f.Kind), f.Gen, "1", strconv.Itoa(f.Seq)}
	h := nats.Header{subjects.HeaderKind: values[0:1:1]}
	if f.Gen != "" {
		h[subjects.HeaderGen] = values[1:2:2]
	}
	if f.Held {
		h[subjects.HeaderHeld] = values[2:3:3]
	}
	if f.Kind == schema.FrameDelta || f.Kind == schema.FrameFinal {
		h[subjects.HeaderSeq] = values[3:4:4]
	}
	maps.Copy(h, f.Body.header)
	return a.nc.PublishMsg(&nats.Msg{Subject: a.reply, Header: h, Data: f.Body.data})
}

// reject reads a worker's message that it refused an answer.
func (s *Server) reject(ctx context.Context, m *nats.Msg) *schema.Fault {
	f := &schema.Fault{}
	data, err := s.unpack(ctx, subjects.ArtifactsBucket(s.tid), m.Header, m.Data)
	if err == nil {
		err = schema.Decode(data, f)
	}
	if err != nil {
		f = schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "an answer was refused; the reason cannot be read: %v", err)
	}
	return f
}
