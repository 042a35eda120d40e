package console

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
)

// Bounds of the pages of an operator.
const (
	maxLetters = 500 // dead requests in the list, the newest
	maxNames   = 200 // in a list, such as that of images
	maxRunning = 100 // rollouts of a worker
)

// operator has the contents of an operator's pages about a running system.
type operator struct {
	system   *operate.System
	workers  recent[[]Worker]
	queue    recent[Queue]
	letters  recent[[]Letter]
	trainers recent[[]Trainer]
	rights   recent[operate.Rights]
}

func newOperator(s *operate.System) *operator {
	o := &operator{system: s}
	o.workers = recent[[]Worker]{read: o.readWorkers, keep: time.Second}
	o.queue = recent[Queue]{read: o.readQueue, keep: time.Second}
	o.letters = recent[[]Letter]{read: o.readLetters, keep: 10 * time.Second}
	o.trainers = recent[[]Trainer]{read: o.readTrainers, keep: 2 * time.Second}
	o.rights = recent[operate.Rights]{read: s.Rights, keep: 10 * time.Second}
	return o
}

// operatorRoutes adds the pages about a running system, and the writes.
func (s *Server) operatorRoutes(mux *http.ServeMux, page http.HandlerFunc) {
	for _, path := range []string{"/workers", "/queue", "/trainers"} {
		mux.HandleFunc("GET "+path, page)
	}
	mux.HandleFunc("GET /api/rights", s.allowed)
	mux.HandleFunc("GET /api/workers", serveRecent(s, func(o *operator) *recent[[]Worker] { return &o.workers }))
	mux.HandleFunc("GET /api/queue", serveRecent(s, func(o *operator) *recent[Queue] { return &o.queue }))
	mux.HandleFunc("GET /api/trainers", serveRecent(s, func(o *operator) *recent[[]Trainer] { return &o.trainers }))
	mux.HandleFunc("GET /api/dead", serveRecent(s, func(o *operator) *recent[[]Letter] { return &o.letters }))
	mux.HandleFunc("GET /api/dead/{seq}", s.withSystem(s.letter))
	mux.HandleFunc("POST /api/cancel", s.write("cancel", func(r operate.Rights) error { return r.Cancel }, s.cancel))
	mux.HandleFunc("POST /api/retry", s.write("retry", func(r operate.Rights) error { return r.Retry }, s.retry))
	mux.HandleFunc("POST /api/requeue", s.write("requeue", func(r operate.Rights) error { return r.Requeue }, s.requeue))
}

// Worker is a live worker.
type Worker struct {
	Name     string   `json:"name"`
	Instance string   `json:"instance"` // two processes of a worker live during a hand-over
	Version  string   `json:"version,omitempty"`
	Slots    int      `json:"slots"`
	Draining bool     `json:"draining"`
	Full     string   `json:"full,omitempty"` // the reason for which it takes no rollout now, though slots may be free
	Running  []string `json:"running"`        // rollouts, the first ones
	Used     int      `json:"used"`           // slots
	Backends []string `json:"backends"`
	Agents   []string `json:"agents"`
	Networks []string `json:"networks"`
	Images   []string `json:"images"`
	Models   []string `json:"upstreams"`
	Limits   []string `json:"limits"` // of one rollout
	Lacks    []Lack   `json:"lacks"`
	Load     *Load    `json:"load,omitempty"` // nil: not known
}

// Load is the load of a worker's host, and memory in bytes. 0 means that a value is not
// known.
type Load struct {
	CPUs   int     `json:"cpus"`
	Load   float64 `json:"load"` // processes that run or want to
	Memory int64   `json:"memory"`
	Free   int64   `json:"free"`
	Worker int64   `json:"worker"` // of the worker's process
}

// Lack is a need of parked requests that a worker does not meet.
type Lack struct {
	Trainer string `json:"trainer"`
	Lane    string `json:"lane"`
	Waiting uint64 `json:"waiting"` // requests
	Why     string `json:"why"`
}

func (o *operator) readWorkers(ctx context.Context) ([]Worker, error) {
	all, err := o.system.Workers(ctx)
	if err != nil {
		return nil, err
	}
	queues, err := o.system.Queues(ctx)
	if err != nil {
		return nil, err
	}
	out := []Worker{}
	for i := range all {
		p := &all[i]
		w := Worker{
			Name: cell(p.Worker), Instance: cell(p.Instance), Version: cell(p.Version), Slots: p.Slots, Draining: p.Draining, Full: plain.Line(p.Full, maxFault), Used: len(p.Running), Running: []string{}, Lacks: []Lack{},
			Backends: names(p.Offer.Backends), Agents: names(p.Offer.Agents), Networks: append([]string{schema.NetworkNone}, names(p.Offer.Networks)...),
			Images: names(p.Offer.Images), Models: names(p.Offer.Upstreams), Limits: limits(&p.Offer),
		}
		if l := p.Load; l != nil {
			load := l.Load
			if !inJSON(load) {
				load = 0
			}
			w.Load = &Load{l.CPUs, load, l.MemoryBytes, l.FreeMemoryBytes, l.WorkerBytes}
		}
		for _, id := range p.Running[:min(len(p.Running), maxRunning)] {
			w.Running = append(w.Running, cell(string(id)))
		}
		for _, parked := range queues.Parked {
			if why := p.Offer.Meets(&parked.Needs); why != nil {
				w.Lacks = append(w.Lacks, Lack{cell(parked.Trainer), parked.Lane, parked.Waiting, plain.Line(why.Error(), maxFault)})
			}
		}
		out = append(out, w)
	}
	return out, nil
}

func names(list []string) []string {
	out := []string{}
	for _, name := range list[:min(len(list), maxNames)] {
		out = append(out, cell(name))
	}
	if more := len(list) - maxNames; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return out
}

// limits returns the limits of one rollout that are set, as text.
func limits(o *schema.Offer) []string {
	out := []string{}
	add := func(set bool, text string) {
		if set {
			out = append(out, text)
		}
	}
	add(o.GPUs > 0, fmt.Sprintf("%d GPUs", o.GPUs))
	add(o.CPUs > 0, fmt.Sprintf("%v cpus", o.CPUs))
	add(o.MemoryBytes > 0, fmt.Sprintf("%d MiB of memory", o.MemoryBytes>>20))
	add(o.DiskBytes > 0, fmt.Sprintf("%d MiB of disk", o.DiskBytes>>20))
	add(o.Pids > 0, fmt.Sprintf("%d processes", o.Pids))
	return out
}

// Queue has the content of all queues.
type Queue struct {
	Lanes  []Lane   `json:"lanes"`
	Parked []Parked `json:"parked"`
	Dead   uint64   `json:"dead"`
}

// Lane has the requests of one trainer in one lane.
type Lane struct {
	Trainer string `json:"trainer"` // empty: the plain lane
	Lane    string `json:"lane"`
	Queued  uint64 `json:"queued"`
	Taken   uint64 `json:"taken"`
	Oldest  int64  `json:"oldest,omitempty"` // Unix ms; 0: none is queued, or Ageless
	Ageless bool   `json:"ageless,omitempty"`
	Delayed uint64 `json:"delayed"`
	Unfit   uint64 `json:"unfit"`
}

// Parked are requests that no worker that looked could run.
type Parked struct {
	Trainer string   `json:"trainer"`
	Lane    string   `json:"lane"`
	Waiting uint64   `json:"waiting"`
	Needs   string   `json:"needs"`
	Reasons []Reason `json:"reasons"` // a worker each
	Able    []string `json:"able"`    // workers that can run them, and have no free slot
}

// Reason is a need that a worker does not meet, or tells that it is draining.
type Reason struct {
	Worker string `json:"worker"`
	Why    string `json:"why"`
}

func (o *operator) readQueue(ctx context.Context) (Queue, error) {
	out := Queue{Lanes: []Lane{}, Parked: []Parked{}}
	all, err := o.system.Queues(ctx)
	if err != nil {
		return out, err
	}
	var workers []schema.Presence
	if len(all.Parked) > 0 {
		if workers, err = o.system.Workers(ctx); err != nil {
			return out, err
		}
	}
	out.Dead = all.Dead
	for _, w := range all.Lanes {
		lane := Lane{Trainer: cell(w.Trainer), Lane: w.Lane, Queued: w.Queued, Taken: w.Taken, Ageless: w.Ageless, Delayed: w.Delayed, Unfit: w.Unfit}
		if !w.Oldest.IsZero() {
			lane.Oldest = w.Oldest.UnixMilli()
		}
		out.Lanes = append(out.Lanes, lane)
	}
	for _, p := range all.Parked {
		parked := Parked{Trainer: cell(p.Trainer), Lane: p.Lane, Waiting: p.Waiting, Needs: plain.Line(p.Needs.String(), maxFault), Reasons: []Reason{}, Able: []string{}}
		for _, w := range schema.FleetOf(workers).Workers {
			if why := w.Obstacle(&p.Needs); why != "" {
				parked.Reasons = append(parked.Reasons, Reason{cell(w.Worker), plain.Line(why, maxFault)})
			} else {
				parked.Able = append(parked.Able, cell(w.Worker))
			}
		}
		out.Parked = append(out.Parked, parked)
	}
	return out, nil
}

// Letter is a request that no worker could read.
type Letter struct {
	Seq     uint64 `json:"seq"`
	Reason  string `json:"reason"`
	Why     string `json:"why"`
	Subject string `json:"subject"`
	Size    int    `json:"size"` // bytes
	Body    string `json:"body,omitempty"`
	Cut     int    `json:"cut,omitempty"`   // bytes of the body that are left out
	Form    string `json:"form,omitempty"`  // of the body: fields, text or bytes
	Error   string `json:"error,omitempty"` // the reason for which the body is not shown as fields
}

func letterOf(d *operate.Dead) Letter {
	return Letter{Seq: d.Seq, Reason: cell(d.Reason), Why: plain.Line(d.Why, maxFault), Subject: cell(d.Subject), Size: d.Size}
}

func (o *operator) readLetters(ctx context.Context) ([]Letter, error) {
	all, err := o.system.Dead(ctx, maxLetters)
	if err != nil {
		return nil, err
	}
	out := []Letter{}
	for i := range all {
		out = append(out, letterOf(&all[len(all)-1-i]))
	}
	return out, nil
}

// letter answers with one of them and its body.
func (s *Server) letter(w http.ResponseWriter, r *http.Request) {
	seq, err := strconv.ParseUint(r.PathValue("seq"), 10, 64)
	if err != nil {
		http.Error(w, "the number of a dead request is a whole number", http.StatusBadRequest)
		return
	}
	d, err := s.operator.system.Letter(r.Context(), seq)
	if err != nil {
		status := http.StatusBadGateway
		if errors.Is(err, operate.ErrNotFound) {
			status = http.StatusNotFound
		}
		http.Error(w, plain.Line(err.Error(), maxFault), status)
		return
	}
	out := letterOf(&d)
	fields, err := schema.Readable(d.Data)
	switch text := string(d.Data); {
	case err == nil:
		out.Form = "fields"
		out.Body, out.Cut = shown(string(fields), maxShown)
	case plain.Text(text) == text:
		out.Form = "text"
		out.Body, out.Cut = shown(text, maxShown)
	default:
		out.Form = "bytes"
		out.Cut = max(len(d.Data)-maxBytesShown, 0)
		out.Body = hex.Dump(d.Data[:len(d.Data)-out.Cut])
	}
	if err != nil {
		out.Error = plain.Line(err.Error(), maxFault)
	}
	writeJSON(w, out)
}

// maxBytesShown is the number of bytes of a body that is no text.
const maxBytesShown = 8 << 10

// Trainer is a trainer of a running system.
type Trainer struct {
	Name      string    `json:"name"`
	Weight    int       `json:"weight"`
	Bounds    []Bound   `json:"bounds"`
	Processes []Process `json:"processes"`
	Hold      *Hold     `json:"hold,omitempty"`
}

// Bound is a limit of a trainer and the part that it uses.
type Bound struct {
	Name  string `json:"name"`
	Unit  string `json:"unit"` // requests or bytes
	Used  uint64 `json:"used"`
	Limit uint64 `json:"limit"` // 0: none
}

// Process is a process of a trainer that answers the calls of a shard.
type Process struct {
	Shard string `json:"shard"`
	Name  string `json:"name"`
	Since int64  `json:"since,omitempty"` // Unix ms, by its clock
	Heard int64  `json:"heard"`           // Unix ms, by the server's clock
}

// Hold tells of the rollouts that a trainer holds.
type Hold struct {
	All   bool     `json:"all"`
	IDs   []string `json:"ids"`
	Count int      `json:"count"`
	Heard int64    `json:"heard"` // Unix ms, by the server's clock
}

func (o *operator) readTrainers(ctx context.Context) ([]Trainer, error) {
	all, err := o.system.Trainers(ctx)
	if err != nil {
		return nil, err
	}
	out := []Trainer{}
	for _, from := range all {
		u, b := from.Use, from.Use.Bounds
		t := Trainer{Name: cell(from.Name), Weight: b.Weight, Processes: []Process{}, Bounds: []Bound{
			{"requests in the queue", "", u.Queue, limit(b.MaxQueue)},
			{"bytes of these requests", "bytes", u.QueueBytes, limit(b.MaxQueueBytes)},
			{"bundles and large answers", "bytes", u.BundleBytes, limit(b.MaxBundleBytes)},
			{"artifacts and large calls", "bytes", u.ArtifactBytes, limit(b.MaxArtifactBytes)},
			{"records", "bytes", u.RecordBytes, limit(b.MaxRecordBytes)},
		}}
		for _, c := range from.Processes {
			t.Processes = append(t.Processes, Process{cell(c.Process.Shard), cell(c.Process.Name), c.Process.Since, c.At.UnixMilli()})
		}
		if c := from.Hold; c != nil {
			t.Hold = &Hold{All: c.Hold.All, IDs: []string{}, Count: len(c.Hold.IDs), Heard: c.At.UnixMilli()}
			for _, id := range c.Hold.IDs[:min(len(c.Hold.IDs), maxRunning)] {
				t.Hold.IDs = append(t.Hold.IDs, cell(string(id)))
			}
		}
		out = append(out, t)
	}
	return out, nil
}

func limit(n int64) uint64 { return uint64(max(n, 0)) }

// serveRecent answers with a value of the system.
func serveRecent[T any](s *Server, of func(*operator) *recent[T]) http.HandlerFunc {
	return s.withSystem(func(w http.ResponseWriter, r *http.Request) {
		value, err := of(s.operator).get(r.Context())
		if err != nil {
			s.config.Log.Debug().Err(err).Msg("the console cannot read the system")
			http.Error(w, plain.Line(err.Error(), maxFault), http.StatusBadGateway)
			return
		}
		writeJSON(w, value)
	})
}

// withSystem refuses requests about a running system if there is none.
func (s *Server) withSystem(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.operator == nil {
			http.Error(w, errNoSystem.Error(), http.StatusNotFound)
			return
		}
		next(w, r)
	}
}

var errNoSystem = errors.New("this console shows a folder, and no running system")
