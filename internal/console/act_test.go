package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// record is a log that a test reads.
type record struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *record) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *record) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// desk is a console of a running system, and its browser.
type desk struct {
	site
	browser *http.Client
	log     *record
}

func newDesk(t *testing.T, b *broker.Broker, trainer string, change func(*console.Config)) *desk {
	t.Helper()
	d := &desk{log: &record{}}
	c := console.Config{Source: &console.Bus{System: recorded.On(b), Trainer: trainer}, System: operate.On(b, trainer), Log: zerolog.New(d.log).Level(zerolog.WarnLevel)}
	if change != nil {
		change(&c)
	}
	d.run(t, c)
	d.browser = d.site.browser(t)
	return d
}

// read reads a value as a page does.
func (d *desk) read(t *testing.T, path string, into any) {
	t.Helper()
	code, text := get(t, d.browser, d.base+path, nil)
	if code != http.StatusOK {
		t.Fatalf("%s: got %d %s", path, code, text)
	}
	harness.Must(t, json.Unmarshal([]byte(text), into))
}

func (d *desk) rights(t *testing.T) (r console.Rights) {
	t.Helper()
	d.read(t, "/api/rights", &r)
	return r
}

// post sends a write as a page does, with a change.
func (d *desk) post(t *testing.T, path, body string, change func(*http.Request)) (int, string) {
	t.Helper()
	token := d.rights(t).Token
	return get(t, d.browser, d.base+path, func(q *http.Request) {
		q.Method, q.Body, q.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader(body)), int64(len(body))
		q.Header.Set("Origin", d.base)
		q.Header.Set("Sec-Fetch-Site", "same-origin")
		q.Header.Set("Turngate-Token", token)
		if change != nil {
			change(q)
		}
	})
}

// outcome is post for a write that is carried out.
func (d *desk) outcome(t *testing.T, path string, order any) (o console.Outcome) {
	t.Helper()
	body, err := json.Marshal(order)
	harness.Must(t, err)
	code, text := d.post(t, path, string(body), nil)
	if code != http.StatusOK {
		t.Fatalf("%s: got %d %s", path, code, text)
	}
	harness.Must(t, json.Unmarshal([]byte(text), &o))
	return o
}

// A write needs the token of the session, a page of this origin, and a credential that
// may write.
func TestWritesAreRefused(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	testenv.DeadLetter(t, n.URL(), n.AdminCreds(), "alpha", []byte("garbage"))
	admin := n.Admin(t)
	d := newDesk(t, admin, "", nil)
	const order = `{"seqs":[1]}`
	writes := []string{"/api/cancel", "/api/retry", "/api/requeue", "/api/new", "/api/rollouts/alpha-1/calls/1/answer"} // all paths
	other := newDesk(t, admin, "", nil)
	for name, tt := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"no token":               {func(q *http.Request) { q.Header.Del("Turngate-Token") }, http.StatusForbidden},
		"a wrong token":          {func(q *http.Request) { q.Header.Set("Turngate-Token", strings.Repeat("A", 26)) }, http.StatusForbidden},
		"another session's":      {func(q *http.Request) { q.Header.Set("Turngate-Token", other.rights(t).Token) }, http.StatusForbidden},
		"no origin":              {func(q *http.Request) { q.Header.Del("Origin") }, http.StatusForbidden},
		"another origin":         {func(q *http.Request) { q.Header.Set("Origin", "http://127.0.0.1:1") }, http.StatusForbidden},
		"another host's origin":  {func(q *http.Request) { q.Header.Set("Origin", "http://evil.example") }, http.StatusForbidden},
		"a page of another port": {func(q *http.Request) { q.Header.Set("Sec-Fetch-Site", "same-site") }, http.StatusUnauthorized},
		"a GET":                  {func(q *http.Request) { q.Method = http.MethodGet }, http.StatusMethodNotAllowed},
		"a PUT":                  {func(q *http.Request) { q.Method = http.MethodPut }, http.StatusMethodNotAllowed},
	} {
		for _, path := range writes {
			want := tt.want
			if name == "a GET" && path == "/api/new" { // which has a page
				want = http.StatusNotFound
			}
			if code, text := d.post(t, path, order, tt.change); code != want {
				t.Errorf("%s, %s: got %d %s", path, name, code, text)
			}
		}
	}
	if line := `"audit":"/api/new","session":1,"refused":"this is no write of a page of this console"`; !strings.Contains(d.log.String(), line) {
		t.Errorf("the log has %s", d.log)
	}
	own := d.browser
	d.browser = &http.Client{Transport: &http.Transport{}}
	token := other.rights(t).Token
	code, text := get(t, d.browser, d.base+"/api/requeue", func(q *http.Request) {
		q.Method = http.MethodPost
		q.Header.Set("Origin", d.base)
		q.Header.Set("Turngate-Token", token)
	})
	if code != http.StatusUnauthorized {
		t.Errorf("no cookie: got %d %s", code, text)
	}
	d.browser.CloseIdleConnections()
	d.browser = own
	for body, want := range map[string]int{
		"": http.StatusBadRequest, "{}": http.StatusBadRequest, `{"seqs":[-1]}`: http.StatusBadRequest, `{"ids":["alpha-1"]}`: http.StatusBadRequest,
		`{"seqs":[` + strings.Repeat("1,", 10_000) + `1]}`: http.StatusBadRequest, `{"x":"` + strings.Repeat("x", 2<<20) + `"}`: http.StatusBadRequest,
	} {
		if code, text := d.post(t, "/api/requeue", body, nil); code != want {
			t.Errorf("%.40s: got %d %s", body, code, text)
		}
	}
	if code, text := d.post(t, "/api/cancel", `{"ids":["alpha-1","../x"]}`, nil); code != http.StatusBadRequest {
		t.Errorf("got %d %s", code, text)
	}

	for name, viewer := range map[string]*desk{
		"ops":       newDesk(t, n.Ops(t), "", nil),
		"read-only": newDesk(t, admin, "", func(c *console.Config) { c.ReadOnly, c.Play = true, &console.Play{Name: "alpha"} }),
		"a folder": newDesk(t, admin, "", func(c *console.Config) {
			c.System, c.Source = nil, &console.Folder{Dir: t.TempDir()}
		}),
		"a trainer": newDesk(t, n.Trainer(t, "alpha"), "alpha", nil),
	} {
		r := viewer.rights(t)
		want := "viewer"
		if name == "a trainer" { // which may cancel its rollouts
			want = "operator"
		}
		if r.Role != want || r.Requeue == "" || (r.Cancel == "") != (want == "operator") {
			t.Errorf("%s: got %+v", name, r)
		}
		if code, text := viewer.post(t, "/api/requeue", order, nil); code != http.StatusForbidden || text != r.Requeue+"\n" {
			t.Errorf("%s: got %d %s", name, code, text)
		}
		if !strings.Contains(viewer.log.String(), `"audit":"requeue","session":1,"refused":`) {
			t.Errorf("%s: the log has %s", name, viewer.log)
		}
		for _, path := range writes[3:] { // it has no trainer to submit as
			if code, text := viewer.post(t, path, "{}", nil); code != http.StatusNotFound {
				t.Errorf("%s: got %d %s", name, code, text)
			}
		}
		if !strings.Contains(viewer.log.String(), `"audit":"run","session":1,"refused":`) || !strings.Contains(viewer.log.String(), `"audit":"answer","session":1,"refused":`) {
			t.Errorf("%s: the log has %s", name, viewer.log)
		}
	}
	if list, err := admin.Dead.List(t.Context(), 10); err != nil || len(list) != 1 || list[0].Seq != 1 {
		t.Errorf("got %+v, %v", list, err)
	}

	if o := d.outcome(t, "/api/requeue", console.Order{Seqs: []uint64{1, 7}}); o.Done != 1 || o.Failed != 1 || !slices.Equal(o.Errors, []string{"dead request 7 is not there any more"}) {
		t.Errorf("got %+v", o)
	}
	if line := d.log.String(); !strings.Contains(line, `"audit":"requeue","session":1,"done":1,"failed":1`) || !strings.Contains(line, `"dead":[1,7]`) {
		t.Errorf("the log has %s", line)
	}
	if list, err := admin.Dead.List(t.Context(), 10); err != nil || len(list) != 0 {
		t.Errorf("got %+v, %v", list, err)
	}
}

// The pages of an operator have the texts of hostile requests, workers and trainers
// without control characters, and bodies of a bounded length.
func TestThePagesOfAnOperator(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	request := harness.Request("alpha-1")
	request.V, request.Task.Name = schema.Version, "\x1b[2J\u202etask"
	body, err := schema.Encode(&request)
	harness.Must(t, err)
	for _, data := range [][]byte{body, []byte("<script>text</script>"), []byte("\x00\xff\x1b[2J"), append(slices.Clone(body), make([]byte, 200_000)...)} {
		testenv.DeadLetter(t, n.URL(), n.AdminCreds(), "alpha", data)
	}
	d := newDesk(t, n.Ops(t), "", nil)
	var letters []console.Letter
	d.read(t, "/api/dead", &letters)
	if len(letters) != 4 || letters[3].Seq != 1 || letters[3].Subject != subjects.Request(2, "alpha") || letters[3].Why != "it is no message" || letters[3].Body != "" {
		t.Errorf("got %+v", letters)
	}
	for i, want := range []struct{ form, begin string }{{"fields", "{\n"}, {"text", "<script>text</script>"}, {"bytes", "00000000  00 ff 1b"}, {"bytes", "00000000"}} {
		var l console.Letter
		d.read(t, fmt.Sprintf("/api/dead/%d", i+1), &l)
		if l.Form != want.form || !strings.HasPrefix(l.Body, want.begin) || strings.ContainsAny(l.Body, "\x1b\u202e\x00") || len(l.Body) > 128<<10 || (l.Error == "") != (want.form == "fields") {
			t.Errorf("letter %d: got %.300q, %s, %s", i+1, l.Body, l.Form, l.Error)
		}
		if i == 0 && !strings.Contains(l.Body, `"id": "alpha-1"`) || i == 3 && l.Cut == 0 {
			t.Errorf("letter %d: got %s, %d", i+1, l.Body, l.Cut)
		}
	}
	for path, want := range map[string]int{"/api/dead/99": http.StatusNotFound, "/api/dead/x": http.StatusBadRequest} {
		if code, text := get(t, d.browser, d.base+path, nil); code != want {
			t.Errorf("%s: got %d %s", path, code, text)
		}
	}

	// A worker without agents, and a request for one.
	b := n.Worker(t, "w1")
	side, err := queue.NewWorker(b, queue.WorkerConfig{Worker: "w1", Instance: "i1", Version: "v\x1b[2J\u202e<b>", Slots: 3, Offer: func() schema.Offer {
		return schema.Offer{Backends: []string{"local"}, Images: slices.Repeat([]string{"<img src=x>"}, 300), CPUs: 2}
	}, Load: func() *schema.Load {
		return &schema.Load{CPUs: 4, Load: math.NaN(), MemoryBytes: 8 << 30, FreeMemoryBytes: 2 << 30, WorkerBytes: 1 << 20}
	}, Full: func() string { return "its load\x1b is 9" }, Timing: broker.DefaultTiming()})
	harness.Must(t, err)
	t.Cleanup(side.Close)
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	running.Go(func() { _ = side.Run(ctx) })
	running.Go(func() { _, _ = side.Take(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	alpha := n.Trainer(t, "alpha")
	trainerSide, err := queue.NewTrainer(alpha, "alpha")
	harness.Must(t, err)
	_, err = trainerSide.Submit(t.Context(), 1, []schema.Request{request})
	harness.Must(t, err)
	var workers []console.Worker
	harness.Eventually(t, "a worker that lacks an agent", 5*time.Minute, func() bool {
		d.read(t, "/api/workers", &workers)
		return len(workers) == 1 && len(workers[0].Lacks) == 1
	})
	if w := workers[0]; w.Name != "w1" || w.Version != "v [2J <b>" || w.Slots != 3 || w.Used != 0 || w.Full != "its load is 9" || len(w.Images) != 201 || w.Images[200] != "100 more" || !slices.Equal(w.Limits, []string{"2 cpus"}) ||
		w.Lacks[0].Lane != "p1" || w.Lacks[0].Waiting != 1 || !strings.Contains(w.Lacks[0].Why, "sandbox.backend") || *w.Load != (console.Load{CPUs: 4, Memory: 8 << 30, Free: 2 << 30, Worker: 1 << 20}) {
		t.Errorf("got %+v", w)
	}
	var q console.Queue
	d.read(t, "/api/queue", &q)
	if q.Dead != 4 || len(q.Parked) != 1 || q.Parked[0].Trainer != "alpha" || len(q.Parked[0].Reasons) != 1 || q.Parked[0].Reasons[0].Worker != "w1" || !strings.HasPrefix(q.Parked[0].Needs, "agent ") {
		t.Errorf("got %+v", q)
	}

	// A process of the trainer, and a hold.
	_, err = trainerSide.Processes.Attach(t.Context(), &schema.Attach{V: schema.Version, Process: schema.Process{V: schema.Version, Instance: "i7", Shard: "s1", Name: "<b>\u202etrain.py"}})
	harness.Must(t, err)
	harness.Must(t, trainerSide.Hold(&schema.Hold{V: schema.Version, Instance: "i7", Serial: 1, IDs: []schema.ID{"alpha-1"}}))
	var trainers []console.Trainer
	harness.Eventually(t, "a process and a hold", 5*time.Minute, func() bool {
		d.read(t, "/api/trainers", &trainers)
		return len(trainers) == 1 && len(trainers[0].Processes) == 1 && trainers[0].Hold != nil
	})
	if tr := trainers[0]; tr.Name != "alpha" || tr.Weight != 1 || tr.Processes[0].Shard != "s1" || tr.Processes[0].Name != "<b> train.py" || tr.Hold.All || !slices.Equal(tr.Hold.IDs, []string{"alpha-1"}) || tr.Bounds[0].Used != 1 || tr.Bounds[0].Limit != 1_000_000 {
		t.Errorf("got %+v", tr)
	}

	// A trainer may read none of it.
	own := newDesk(t, alpha, "alpha", nil)
	if r := own.rights(t); r.Read == "" || r.Cancel != "" || r.Retry != "" {
		t.Errorf("got %+v", r)
	}
}

// Rollouts are cancelled and submitted again by their trainer and by the admin, and each answer
// gives the outcome.
func TestRolloutsAreCancelledAndRetried(t *testing.T) {
	n := testenv.StartNATS(t, "alpha", "beta")
	worker := n.Worker(t, "w1")
	put := func(id schema.ID, status schema.Status) {
		t.Helper()
		_, err := worker.Messages.Put(t.Context(), subjects.State(id), &schema.State{V: schema.Version, ID: id, Trainer: id.Trainer(), Status: status, Attempt: 1}, 0)
		harness.Must(t, err)
		q := harness.Request(id)
		q.V = schema.Version
		_, err = worker.Messages.Put(t.Context(), subjects.RequestCopy(id), &q, 0)
		harness.Must(t, err)
	}
	put("alpha-done", schema.StatusDone)
	put("alpha-runs", schema.StatusRunning)
	put("beta-done", schema.StatusFailed)
	cancels := testenv.Hear(t, n.URL(), n.AdminCreds(), subjects.CancelFilter)

	for name, d := range map[string]*desk{"admin": newDesk(t, n.Admin(t), "", nil), "alpha": newDesk(t, n.Trainer(t, "alpha"), "alpha", nil)} {
		o := d.outcome(t, "/api/retry", console.Order{IDs: []string{"alpha-done", "alpha-runs", "beta-done", "alpha-none"}})
		done := map[string]int{"admin": 2, "alpha": 1}[name]
		if o.Done != done || o.Failed != 4-done || len(o.New) != done {
			t.Errorf("%s: got %+v", name, o)
		}
		o = d.outcome(t, "/api/cancel", console.Order{IDs: []string{"alpha-runs", "alpha-runs", "beta-done"}})
		if done := map[string]int{"admin": 2, "alpha": 1}[name]; o.Done != done || o.Failed != 2-done {
			t.Errorf("%s: got %+v", name, o)
		}
		var c schema.Cancel
		harness.Must(t, schema.Decode(<-cancels, &c))
		if !slices.Equal(c.IDs, []schema.ID{"alpha-runs"}) || c.Reason == "" {
			t.Errorf("%s: got %+v", name, c)
		}
		if name == "admin" {
			<-cancels // of beta
		}
		if line := d.log.String(); !strings.Contains(line, `"audit":"retry"`) || !strings.Contains(line, `"audit":"cancel"`) || !strings.Contains(line, `"rollouts":["alpha-runs"`) {
			t.Errorf("%s: the log has %s", name, line)
		}
	}
	// The requests are in the queues, with the label of the first rollout.
	admin := n.Admin(t)
	for tid, want := range map[string]int{"alpha": 2, "beta": 1} {
		var labels []string
		_, err := admin.Records.Waiting(t.Context(), tid, 0, 10, func(q *schema.Request) bool {
			labels = append(labels, q.Labels[operate.RetryLabel])
			return true
		})
		harness.Must(t, err)
		if len(labels) != want || labels[0] != tid+"-done" {
			t.Errorf("%s: got %v", tid, labels)
		}
	}
}
