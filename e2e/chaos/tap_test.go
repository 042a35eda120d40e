package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// tap subscribes to every message of the workers' account. It keeps a summary of them, so
// its memory grows with the number of rollouts and not of messages.
type tap struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	sub *nats.Subscription

	mu       sync.Mutex
	changed  chan struct{}         // closed and replaced after each message about a fence
	claims   map[string]claim      // that are not confirmed yet, by reply subject
	owner    map[run]string        // inbox token of the worker instance that has claimed the attempt
	fences   map[run]*fence        // attempts with a worker that knew of a later attempt
	renewals map[string]int        // of leases, by inbox token
	kept     map[schema.ID]bool    // rollouts with a state
	late     []string              // messages after a fence
	foreign  map[string]int        // subjects that the protocol does not have
	heard    map[string]int        // messages by kind
	copies   [keptCopies]*nats.Msg // acks and results, to send them again
	next     int
	ctx      context.Context
	stop     context.CancelFunc
}

const keptCopies = 256

// run is one attempt of a rollout.
type run struct {
	id      schema.ID
	attempt int
}

// claim is a state that names a worker instance.
type claim struct {
	run
	owner string
}

// fence is the moment at which a worker learned that its attempt is over.
type fence struct {
	renewals int // of its lease until then
	messages int // of the attempt, after the worker must have acted
}

// fenceRenewals is the number of confirmed renewals of its lease after which a
// worker must have acted on an answer of the server: it handles the answer before
// the confirmation of the first, and renews once per interval. Renewals are events
// of that worker, so a worker that is suspended or slow has the time it needs.
const fenceRenewals = 3

// openTap starts a tap, which runs until the test ends.
func openTap(t testing.TB, b *bench) *tap {
	t.Helper()
	seed, err := nats.NkeyOptionFromSeed(b.adminCreds())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(b.url(), seed, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.CustomInboxPrefix("_INBOX.chaostap"))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{
		nc: nc, js: js, changed: make(chan struct{}), claims: map[string]claim{}, owner: map[run]string{}, fences: map[run]*fence{}, renewals: map[string]int{},
		kept: map[schema.ID]bool{}, foreign: map[string]int{}, heard: map[string]int{},
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	if p.sub, err = nc.Subscribe(">", p.hear); err != nil {
		t.Fatal(err)
	}
	if err := p.sub.SetPendingLimits(1<<20, 256<<20); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.stop()
		p.nc.Close()
	})
	return p
}

// adminCreds is the credential that may do everything in the workers' account.
func (b *bench) adminCreds() string { return b.creds("admin") }

// workerNames are the workers that get a credential.
func workerNames() string {
	var out []string
	for i := range 64 {
		out = append(out, fmt.Sprintf("w%d", i))
	}
	return strings.Join(out, ",")
}

// kinds of subjects of the protocol and of the server. The first that matches
// counts.
var kinds = []struct { //nolint:gochecknoglobals // a constant table
	name string
	is   *regexp.Regexp
}{
	{"event", regexp.MustCompile(`^rollout\.[\w-]+\.events\.[a-z]+$`)},
	{"live", regexp.MustCompile(`^rollout\.[\w-]+\.live\.\d+$`)},
	{"call", regexp.MustCompile(`^rollout\.[\w-]+\.(llm|tool|verify)\.[a-z0-9_]+\.[\w-]+\.\d+\.\d+$`)},
	{"request", regexp.MustCompile(`^(rollout\.requests(\.p[0-3]\.[a-z0-9_]+)?|parked\.[a-z0-9_]+\.p[0-3]\.[a-z0-9]+\.[\w-]+)$`)},
	{"state", regexp.MustCompile(recordSubject + `state$`)},
	{"result", regexp.MustCompile(recordSubject + `result$`)},
	{"request copy", regexp.MustCompile(recordSubject + `request$`)},
	{"frame", regexp.MustCompile(`^_INBOX\.gate\.`)},
	{"lease", regexp.MustCompile(`^\$KV\.lease\.[\w-]+\.[\w-]+$`)},
	{"janitor", regexp.MustCompile(`^\$KV\.lease\.janitor$`)},
	{"presence", regexp.MustCompile(`^(\$KV\.workers\.[\w-]+\.[\w-]+|worker\.[\w-]+\.status)$`)},
	{"control", regexp.MustCompile(`^worker\.([\w-]+\.control|trainers)$`)},
	{"from trainer", regexp.MustCompile(`^trainer\.[a-z0-9_]+\.(cancel|hold|fleet|open|attach)$`)},
	{"hold", regexp.MustCompile(`^\$KV\.control\.hold\.[a-z0-9_]+$`)},
	{"process", regexp.MustCompile(`^\$KV\.control\.process\.[a-z0-9_]+\.[\w-]+$`)},
	{"to trainer", regexp.MustCompile(`^trainer\.[a-z0-9_]+\.(results|events)$`)},
	{"file", regexp.MustCompile(`^\$O\.`)},
	{"dead", regexp.MustCompile(`^dead\.[a-z]+\.`)},
	{"ack", regexp.MustCompile(`^\$JS\.ACK\.`)},
	{"api", regexp.MustCompile(`^\$JS\.(API|EVENT)\.`)},
	{"reply", regexp.MustCompile(`^(_INBOX\.(worker|trainer|ops|chaostap)\.|_R_\.)`)},
	{"server", regexp.MustCompile(`^(\$SYS\.|_GR_\.|\$G|\$JSC\.|\$NRG\.)`)},
}

func (p *tap) hear(m *nats.Msg) {
	kind := ""
	for _, k := range kinds {
		if k.is.MatchString(m.Subject) {
			kind = k.name
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard[kind]++
	switch kind {
	case "":
		if len(p.foreign) < 100 {
			p.foreign[m.Subject]++
		}
	case "event":
		var e schema.Event
		if schema.Decode(m.Data, &e) == nil {
			p.said(run{rolloutOf(m.Subject), e.Attempt}, kind+" "+string(e.Type))
		}
	case "live":
		attempt, _ := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		p.said(run{rolloutOf(m.Subject), attempt}, kind)
	case "call":
		if t := strings.Split(m.Subject, "."); m.Header.Get(subjects.HeaderKind) != subjects.KindCancel {
			attempt, _ := strconv.Atoi(t[len(t)-2])
			p.said(run{rolloutOf(m.Subject), attempt}, kind)
		}
	case "state":
		var s schema.State
		if schema.Decode(m.Data, &s) == nil {
			p.kept[s.ID] = true
			if s.Status == schema.StatusRunning && m.Reply != "" {
				p.claims[m.Reply] = claim{run{s.ID, s.Attempt}, inboxOf(s.Worker, s.Instance)}
			}
		}
	case "lease":
		if t := strings.Split(m.Subject, "."); string(m.Data) == "alive" {
			p.renewals[inboxOf(t[2], t[3])]++
		}
	case "reply":
		p.answered(m)
	case "result":
		p.keep(m)
	case "ack":
		p.keep(m)
	}
}

// inboxOf is the part of an instance's inboxes that names it.
func inboxOf(worker, instance string) string { return worker + "." + instance }

func rolloutOf(subject string) schema.ID {
	_, rest, _ := strings.Cut(subject, ".")
	id, _, _ := strings.Cut(rest, ".")
	return schema.ID(id)
}

// said handles a message of an attempt. The caller holds the lock.
func (p *tap) said(r run, what string) {
	f := p.fences[r]
	if f == nil || p.renewals[p.owner[r]] < f.renewals+fenceRenewals {
		return
	}
	if f.messages++; f.messages == 1 {
		p.late = append(p.late, fmt.Sprintf("%s attempt %d: a message (%s) although %s knew of a later attempt and has renewed its lease %d times since", r.id, r.attempt, what, p.owner[r], fenceRenewals))
	}
	p.wake()
}

// wake wakes the waiters. The caller holds the lock.
func (p *tap) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// answered looks for a state record in the server's answer to a worker. An answer
// with a later attempt is the fence of the worker's own. The caller holds the
// lock.
func (p *tap) answered(m *nats.Msg) {
	if c, ok := p.claims[m.Subject]; ok {
		delete(p.claims, m.Subject)
		var ack jetstream.PubAck
		if json.Unmarshal(m.Data, &ack) == nil && ack.Sequence > 0 {
			p.owner[c.run] = c.owner
		}
		return
	}
	rest, ok := strings.CutPrefix(m.Subject, "_INBOX.worker.")
	if !ok || !strings.Contains(string(m.Data[:min(len(m.Data), 100)]), "stream_msg_get_response") {
		return
	}
	token := ""
	if t := strings.SplitN(rest, ".", 3); len(t) == 3 {
		token = inboxOf(t[0], t[1])
	}
	var got struct {
		Message struct {
			Subject string `json:"subject"`
			Data    []byte `json:"data"`
		} `json:"message"`
	}
	var s schema.State
	if json.Unmarshal(m.Data, &got) != nil || !strings.HasSuffix(got.Message.Subject, ".state") || schema.Decode(got.Message.Data, &s) != nil {
		return
	}
	if s.Owned() {
		p.owner[run{s.ID, s.Attempt}] = inboxOf(s.Worker, s.Instance)
	}
	for attempt := s.Attempt - 1; attempt > 0; attempt-- {
		if r := (run{s.ID, attempt}); p.owner[r] == token && p.fences[r] == nil {
			p.fences[r] = &fence{renewals: p.renewals[token]}
			p.wake()
		}
	}
}

// keep keeps a copy of an ack or a result for a while. The caller holds the lock.
func (p *tap) keep(m *nats.Msg) {
	p.copies[p.next%keptCopies] = &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
	p.next++
}

// until waits until a condition on the tap holds, which its messages change.
func (p *tap) until(t testing.TB, what string, limit time.Duration, holds func() bool) {
	t.Helper()
	over := time.After(limit)
	for {
		p.mu.Lock()
		ok, changed := holds(), p.changed
		p.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-time.After(100 * time.Millisecond): // messages about leases do not signal changed
		case <-over:
			t.Fatalf("not seen within %s: %s", limit, what)
		}
	}
}

// dropped returns the number of messages that the tap has missed.
func (p *tap) dropped() int {
	n, err := p.sub.Dropped()
	if err != nil {
		return -1
	}
	return n
}

// known returns rollouts with a state, at most n.
func (p *tap) known(n int) []schema.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []schema.ID
	for id := range p.kept {
		if out = append(out, id); len(out) == n {
			break
		}
	}
	return out
}

// copyOf returns the copy of a request that its worker kept.
func (p *tap) copyOf(id schema.ID) ([]byte, error) {
	op, cancel := context.WithTimeout(p.ctx, time.Second)
	defer cancel()
	s, err := p.js.Stream(op, subjects.Records(id.Trainer()))
	if err != nil {
		return nil, err
	}
	m, err := s.GetLastMsgForSubject(op, subjects.RequestCopy(id))
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

// version is one stored version of a record.
type version struct {
	seq    uint64
	state  *schema.State // or
	result *schema.Result
}

// versions reads every stored version of the states and results of a trainer's
// rollouts, in their order.
func (p *tap) versions(trainer string) (map[schema.ID][]version, error) {
	op, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	stream, err := p.js.Stream(op, subjects.Records(trainer))
	if err != nil {
		return nil, err
	}
	if most := stream.CachedInfo().Config.MaxMsgsPerSubject; most > 0 && most < 1000 {
		return nil, fmt.Errorf("%s keeps only %d versions of a record", subjects.Records(trainer), most)
	}
	consumer, err := stream.OrderedConsumer(op, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return nil, err
	}
	out := map[schema.ID][]version{}
	for left := stream.CachedInfo().State.Msgs; left > 0; {
		batch, err := consumer.Fetch(int(min(left, 500)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return nil, err
		}
		n := uint64(0)
		for m := range batch.Messages() {
			n++
			meta, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			id, ok := subjects.ParseRecord(m.Subject())
			if !ok {
				return nil, fmt.Errorf("%s is no record", m.Subject())
			}
			if id.Trainer() != trainer {
				continue
			}
			v := version{seq: meta.Sequence.Stream}
			switch {
			case strings.HasSuffix(m.Subject(), ".state"):
				v.state = &schema.State{}
				err = schema.Decode(m.Data(), v.state)
			case strings.HasSuffix(m.Subject(), ".result"):
				v.result = &schema.Result{}
				err = schema.Decode(m.Data(), v.result)
			default:
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("version %d of %s: %w", v.seq, m.Subject(), err)
			}
			out[id] = append(out[id], v)
		}
		if err := batch.Error(); err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, errors.New("the server has stopped to send records")
		}
		left -= min(n, left)
	}
	return out, nil
}

// subscriptions returns the subscriptions of a client's connections, by the
// server.
func (b *bench) subscriptions(client string) ([]string, error) {
	seed, err := nats.NkeyOptionFromSeed(b.creds("sys"))
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(b.url(), seed)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	m, err := nc.Request("$SYS.REQ.SERVER.PING.CONNZ", []byte(`{"subscriptions":true,"limit":10000}`), 10*time.Second)
	if err != nil {
		return nil, err
	}
	var got struct {
		Data struct {
			Connections []struct {
				Name          string   `json:"name"`
				Subscriptions []string `json:"subscriptions_list"`
			} `json:"connections"`
		} `json:"data"`
	}
	if err := json.Unmarshal(m.Data, &got); err != nil {
		return nil, err
	}
	var out []string
	for _, c := range got.Data.Connections {
		if strings.HasPrefix(c.Name, client+" ") {
			out = append(out, c.Subscriptions...)
		}
	}
	// The inbox for replies to requests belongs to the connection.
	return slices.DeleteFunc(out, func(s string) bool { return strings.HasPrefix(s, "_INBOX.worker.") && strings.HasSuffix(s, ".*") }), nil
}
