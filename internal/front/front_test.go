package front

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TestAGroupFromSubmitToResult runs a group through the whole API.
func TestAGroupFromSubmitToResult(t *testing.T) {
	b := newBench(t)
	q := plainRequest()
	q.Labels = map[string]string{"run": "r1"}
	var group submitted
	b.call("POST", "/v1/groups", groupSubmission{Group: "g 1", N: 2, Request: q}, 202, &group)
	if len(group.IDs) != 2 || group.Known != 0 || group.Group != "g 1" {
		t.Fatalf("submitted: %+v", group)
	}
	var again submitted
	b.call("POST", "/v1/groups", groupSubmission{Group: "g 1", N: 2, Request: q}, 202, &again)
	if again.Known != 2 || again.IDs[0] != group.IDs[0] {
		t.Errorf("submitted again: %+v", again)
	}
	q.Task.Instruction = "do another thing"
	b.call("POST", "/v1/groups", groupSubmission{Group: "g 1", N: 2, Request: q}, 409, nil)

	var list page
	b.call("GET", "/v1/rollouts?status=queued&group=g+1&label=run%3Dr1", nil, 200, &list)
	if len(list.Rollouts) != 2 || list.Rollouts[0].ID != group.IDs[0] || list.Rollouts[0].Reward != nil {
		t.Errorf("the list: %+v", list)
	}
	b.call("GET", "/v1/rollouts?group=other", nil, 200, &list)
	if len(list.Rollouts) != 0 {
		t.Errorf("another group: %+v", list)
	}
	var one detail
	b.call("GET", "/v1/rollouts/"+string(group.IDs[1]), nil, 200, &one)
	if one.Status != schema.StatusQueued || one.Request == nil || one.Index != 1 || one.Waits == "" {
		t.Errorf("a queued rollout: %+v", one)
	}

	ended := b.finish(0.5)
	var results resultPage
	b.call("GET", "/v1/results?wait=20", nil, 200, &results)
	if len(results.Results) != 1 || results.Results[0].ID != ended || *results.Results[0].Reward != 0.5 {
		t.Fatalf("results: %+v", results)
	}
	first := results.Next
	second := make(chan resultPage, 1)
	go func() {
		var results resultPage
		b.call("GET", "/v1/results?wait=60&after="+first, nil, 200, &results)
		second <- results
	}()
	other := b.finish(1)
	if got := <-second; len(got.Results) != 1 || got.Results[0].ID != other {
		t.Errorf("the second answer: %+v", got)
	}
	b.call("GET", "/v1/results?after=end", nil, 200, &results)
	if len(results.Results) != 0 {
		t.Errorf("behind the end: %+v", results)
	}
	b.call("GET", "/v1/rollouts/"+string(ended), nil, 200, &one)
	if one.Status != schema.StatusDone || one.Result == nil || one.Result.Group != "g 1" {
		t.Errorf("an ended rollout: %+v", one)
	}
	b.call("POST", "/v1/groups", groupSubmission{Group: "g 1", N: 2, Request: q}, 409, nil)

	var retried submitted
	r := b.request("POST", "/v1/rollouts/"+string(ended)+"/retry", alphaToken, nil)
	r.Header.Set("Idempotency-Key", "k")
	b.do(r, 202, &retried)
	r = b.request("POST", "/v1/rollouts/"+string(ended)+"/retry", alphaToken, nil)
	r.Header.Set("Idempotency-Key", "k")
	b.do(r, 202, &again)
	if retried.Known != 0 || again.Known != 1 || retried.IDs[0] != again.IDs[0] || retried.IDs[0] == ended {
		t.Errorf("retried: %+v, again: %+v", retried, again)
	}
	b.call("POST", "/v1/rollouts/"+string(retried.IDs[0])+"/retry", nil, 409, nil)
}

// TestARolloutThatWasCancelledUnclaimedIsRetried: its request is kept. Without one, the answer
// has the reason.
func TestARolloutThatWasCancelledUnclaimedIsRetried(t *testing.T) {
	b := newBench(t)
	long := 60_000
	var group, retried submitted
	b.call("POST", "/v1/groups", groupSubmission{Group: "g", N: 2, Request: plainRequest()}, 202, &group)
	b.call("POST", "/v1/cancel", cancellation{Group: "g", WaitMS: &long}, 200, nil)
	b.call("POST", "/v1/rollouts/"+string(group.IDs[0])+"/retry", nil, 202, &retried)
	if len(retried.IDs) != 1 || retried.IDs[0] == group.IDs[0] {
		t.Errorf("retried: %+v", retried)
	}
	b.ForgetRequest(t, group.IDs[1])
	var p problem
	b.call("POST", "/v1/rollouts/"+string(group.IDs[1])+"/retry", nil, 409, &p)
	if !strings.Contains(p.Detail, "its request was not kept") {
		t.Errorf("without a request: %+v", p)
	}
}

// TestAListHasThePagesOfTheQueue: a filter finds a rollout at the end of the queue, in as many
// pages as are needed, and the rollouts with a state come after the queued ones.
func TestAListHasThePagesOfTheQueue(t *testing.T) {
	b := newBench(t)
	var many, last submitted
	b.call("POST", "/v1/groups", groupSubmission{Group: "many", N: 60, Request: plainRequest()}, 202, &many)
	b.call("POST", "/v1/groups", groupSubmission{Group: "last", N: 2, Request: plainRequest()}, 202, &last)
	ended := b.finish(1)
	pages := func(query string) (ids []schema.ID, pages int) {
		t.Helper()
		for cursor := ""; pages == 0 || cursor != ""; pages++ {
			var list page
			path := "/v1/rollouts?" + query
			if cursor != "" {
				path += "&cursor=" + cursor
			}
			b.call("GET", path, nil, 200, &list)
			for _, e := range list.Rollouts {
				ids = append(ids, e.ID)
			}
			cursor = list.Next
		}
		return ids, pages
	}
	if ids, _ := pages("status=queued&group=last&limit=1"); !slices.Equal(ids, last.IDs) {
		t.Errorf("at the end of the queue: %v", ids)
	}
	all := append(slices.DeleteFunc(slices.Concat(many.IDs, last.IDs), func(id schema.ID) bool { return id == ended }), ended)
	if ids, n := pages("limit=7"); !slices.Equal(ids, all) || n < 9 {
		t.Errorf("all, in %d pages: %v", n, ids)
	}
	if ids, _ := pages("status=done"); !slices.Equal(ids, []schema.ID{ended}) {
		t.Errorf("ended ones: %v", ids)
	}
}

// TestARepeatedSubmitIsOne: requests with a key, and those with ids of their own.
func TestARepeatedSubmitIsOne(t *testing.T) {
	b := newBench(t)
	submit := func(key string, status int, requests ...schema.Request) (out submitted) {
		t.Helper()
		r := b.request("POST", "/v1/rollouts", alphaToken, submission{Requests: requests})
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		b.do(r, status, &out)
		return out
	}
	one := submit("k1", 202, plainRequest(), plainRequest())
	if two := submit("k1", 202, plainRequest(), plainRequest()); two.Known != 2 || two.IDs[0] != one.IDs[0] || two.IDs[1] != one.IDs[1] || one.IDs[0] == one.IDs[1] {
		t.Errorf("first %+v, second %+v", one, two)
	}
	if three := submit("k2", 202, plainRequest()); three.IDs[0] == one.IDs[0] {
		t.Errorf("another key: %+v", three)
	}
	named := plainRequest()
	named.ID = "alpha-mine"
	submit("", 202, named)
	if again := submit("", 202, named); again.Known != 1 {
		t.Errorf("an id of its own: %+v", again)
	}
	named.MaxAttempts = 7
	submit("", 409, named)
	b.finish(1)
	b.finish(1)
	if late := submit("k1", 202, plainRequest(), plainRequest()); late.Known != 2 {
		t.Errorf("after the end: %+v", late)
	}
	if random := submit("", 202, plainRequest()); random.Known != 0 {
		t.Errorf("without a key: %+v", random)
	}
}

// TestAKeyIsOfOneNumberAndLane: another number or lane of rollouts under the same key is a
// conflict and submits nothing, also after they have ended.
func TestAKeyIsOfOneNumberAndLane(t *testing.T) {
	b := newBench(t)
	submit := func(path string, body any, status int) (out submitted) {
		t.Helper()
		r := b.request("POST", path, alphaToken, body)
		r.Header.Set("Idempotency-Key", "k")
		b.do(r, status, &out)
		return out
	}
	q := plainRequest()
	two := []schema.Request{q, q}
	for _, when := range []string{"while they wait", "after their end"} {
		group := submit("/v1/groups", groupSubmission{N: 2, Request: q}, 202)
		list := submit("/v1/rollouts", submission{Requests: two}, 202)
		if len(group.IDs) != 2 || len(list.IDs) != 2 {
			t.Errorf("%s: %+v, %+v", when, group, list)
		}
		for _, n := range []int{1, 3} {
			submit("/v1/groups", groupSubmission{N: n, Request: q}, 409)
			submit("/v1/rollouts", submission{Requests: slices.Repeat([]schema.Request{q}, n)}, 409)
		}
		submit("/v1/groups", groupSubmission{N: 2, Request: q, Lane: new(0)}, 409)
		submit("/v1/rollouts", submission{Requests: two, Lane: new(0)}, 409)
		submit("/v1/groups", groupSubmission{N: 2, Request: q, Lane: new(subjects.DefaultLane)}, 202)
		for range 4 {
			if when == "while they wait" {
				b.finish(1)
			}
		}
	}
	var list page
	if b.call("GET", "/v1/rollouts?limit=100", nil, 200, &list); len(list.Rollouts) != 4 {
		t.Errorf("%d rollouts", len(list.Rollouts))
	}
	b.call("POST", "/v1/groups", groupSubmission{Group: "named", N: 2, Request: q}, 202, nil)
	var more submitted
	if b.call("POST", "/v1/groups", groupSubmission{Group: "named", N: 3, Request: q}, 202, &more); more.Known != 2 {
		t.Errorf("a group with a name: %+v", more)
	}
}

// TestALargeGroupIsSubmittedInParts: the bytes of one submit are bounded, so that a request of
// a megabyte takes no gigabyte. As many as the error says are queued, and more of them with
// the name of the group.
func TestALargeGroupIsSubmittedInParts(t *testing.T) {
	b := newBench(t)
	q := plainRequest()
	q.Task.Instruction = strings.Repeat("x", 1_000_000)
	var refused problem
	b.call("POST", "/v1/groups", groupSubmission{Group: "large", N: 1000, Request: q}, 400, &refused)
	var most int
	if _, err := fmt.Sscanf(refused.Detail, `n: "1000" is not valid: want at most %d rollouts of a request of 1000`, &most); err != nil || most < 10 || most > 33 {
		t.Fatalf("%+v: %v", refused, err)
	}
	for part := range 2 {
		var out submitted
		tries := 0
		harness.Eventually(t, "the group", 5*time.Minute, func() bool { // on a busy machine the server may not answer in time
			tries++
			status, data := b.send(b.request("POST", "/v1/groups", alphaToken, groupSubmission{Group: "large", N: most * (part + 1), Request: q}))
			if status == 503 {
				return false
			}
			if status != 202 {
				t.Fatalf("part %d: status %d: %s", part, status, data)
			}
			harness.Must(t, json.Unmarshal(data, &out))
			return true
		})
		if tries == 1 && out.Known != most*part || len(out.IDs) != most*(part+1) {
			t.Errorf("part %d: %d ids, %d known", part, len(out.IDs), out.Known)
		}
	}
	b.call("POST", "/v1/groups", groupSubmission{Group: "large", N: most*3 + 1, Request: q}, 400, nil)
}

// TestTwoSubmitsAtOnce: of two requests with one key and other content, through two fronts
// at the same time, one is refused.
func TestTwoSubmitsAtOnce(t *testing.T) {
	b := newBench(t)
	other, _ := b.start()
	for _, path := range []string{"/v1/rollouts", "/v1/groups"} {
		for i := range 4 {
			statuses := make(chan int, 2)
			for j, url := range []string{b.url, other} {
				q := plainRequest()
				q.Task.Instruction = fmt.Sprint("of front ", j)
				var body any = submission{Requests: []schema.Request{q}}
				if path == "/v1/groups" {
					body = groupSubmission{N: 3, Request: q}
				}
				r := b.request("POST", path, alphaToken, body)
				r.URL.Host = strings.TrimPrefix(url, "http://")
				r.Header.Set("Idempotency-Key", fmt.Sprint("k", i))
				go func() {
					res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
					if err != nil {
						statuses <- 0
						return
					}
					_ = res.Body.Close()
					statuses <- res.StatusCode
				}()
			}
			if one, two := <-statuses, <-statuses; one+two != 202+409 {
				t.Errorf("%s: %d and %d", path, one, two)
			}
		}
	}
}

// TestTheQueueHasAnotherRequest: it came between the look for an id and the submit.
func TestTheQueueHasAnotherRequest(t *testing.T) {
	b := newBench(t)
	one := newTenant("alpha", b.Server.TrainerCreds("alpha"), b.Server.URL(), zerolog.Nop())
	t.Cleanup(one.close)
	l, err := one.dial(t.Context())
	harness.Must(t, err)
	first := []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2")}
	second := []schema.Request{first[0], first[1]}
	second[1].Task.Instruction = "another thing"
	for _, requests := range [][]schema.Request{first, first, second} {
		seqs, err := l.queue.Submit(t.Context(), 2, requests)
		harness.Must(t, err)
		var p *problem
		if err := l.confirm(t.Context(), requests, seqs, lookedAt); errors.As(err, &p) != (requests[1].Task.Instruction == "another thing") || p == nil && err != nil {
			t.Errorf("%+v: %v", requests[1].Task, err)
		}
	}
}

// TestCancel cancels by id, a group, and all.
func TestCancel(t *testing.T) {
	b := newBench(t)
	var group, loose submitted
	b.call("POST", "/v1/groups", groupSubmission{Group: "g", N: 2, Request: plainRequest()}, 202, &group)
	b.call("POST", "/v1/rollouts", submission{Requests: []schema.Request{plainRequest(), plainRequest()}}, 202, &loose)
	var out cancelled
	none := 0
	b.call("POST", "/v1/cancel", cancellation{Group: "g", WaitMS: &none}, 202, &out)
	if len(out.Open) != 2 {
		t.Errorf("a group without a wait: %+v", out)
	}
	long := 30_000
	b.call("POST", "/v1/cancel", cancellation{Group: "g", Reason: "not wanted", WaitMS: &long}, 200, &out)
	var one detail
	b.call("GET", "/v1/rollouts/"+string(group.IDs[0]), nil, 200, &one)
	if one.Status != schema.StatusCancelled || one.Fault == nil || one.Fault.Code != schema.CodeCancelled {
		t.Errorf("a cancelled rollout: %+v", one)
	}
	b.call("POST", "/v1/cancel", cancellation{IDs: loose.IDs[:1], WaitMS: &long}, 200, &out)
	if len(out.Ended) != 1 || out.Ended[0] != loose.IDs[0] {
		t.Errorf("by id: %+v", out)
	}
	b.call("POST", "/v1/cancel", cancellation{IDs: []schema.ID{loose.IDs[0], group.IDs[0], loose.IDs[0]}, WaitMS: &long}, 200, &out)
	if len(out.Ended) != 2 || len(out.Open) != 0 {
		t.Errorf("two that had ended: %+v", out)
	}
	b.call("POST", "/v1/cancel", cancellation{All: true, WaitMS: &long}, 200, &out)
	if len(out.Ended) != 1 || out.Ended[0] != loose.IDs[1] {
		t.Errorf("all: %+v", out)
	}
	b.call("POST", "/v1/cancel", cancellation{IDs: []schema.ID{"alpha-unknown"}}, 404, nil)
	b.call("POST", "/v1/cancel", cancellation{}, 400, nil)
	b.call("POST", "/v1/cancel", cancellation{All: true, Group: "g"}, 400, nil)
}

// TestTrainersDoNotMeet: the token of another trainer neither sees nor touches a rollout,
// and learns as little as about one that does not exist.
func TestTrainersDoNotMeet(t *testing.T) {
	b := newBench(t)
	var mine submitted
	b.call("POST", "/v1/rollouts", submission{Requests: []schema.Request{plainRequest(), plainRequest()}}, 202, &mine)
	ended := b.finish(1)
	b.Take(t)
	type answer struct{ Code, Detail string }
	for _, id := range append(mine.IDs, "alpha-unknown", "beta-unknown", "no id") {
		for _, what := range []string{"", "/events", "/files/transcript.jsonl.zst"} {
			var got answer
			b.do(b.request("GET", "/v1/rollouts/"+url.PathEscape(string(id))+what, betaToken, nil), 404, &got)
			if want := fmt.Sprintf("there is no rollout %q", id); got.Detail != want || got.Code != codeNotFound {
				t.Errorf("%s: %+v, want %q", what, got, want)
			}
		}
		b.do(b.request("POST", "/v1/rollouts/"+url.PathEscape(string(id))+"/retry", betaToken, nil), 404, nil)
		b.do(b.request("POST", "/v1/cancel", betaToken, cancellation{IDs: []schema.ID{id}}), 404, nil)
	}
	var list page
	b.do(b.request("GET", "/v1/rollouts", betaToken, nil), 200, &list)
	var results resultPage
	b.do(b.request("GET", "/v1/results", betaToken, nil), 200, &results)
	if len(list.Rollouts)+len(results.Results) != 0 {
		t.Errorf("beta sees %+v and %+v", list, results)
	}
	none := 0
	b.do(b.request("POST", "/v1/cancel", betaToken, cancellation{All: true, WaitMS: &none}), 200, nil)
	theirs := plainRequest()
	theirs.ID = "alpha-stolen"
	b.do(b.request("POST", "/v1/rollouts", betaToken, submission{Requests: []schema.Request{theirs}}), 400, nil)
	theirs.ID, theirs.Trainer = "", "alpha"
	b.do(b.request("POST", "/v1/rollouts", betaToken, submission{Requests: []schema.Request{theirs}}), 400, nil)
	var foreign submitted // the same key of another trainer is another one
	for _, token := range []string{alphaToken, betaToken} {
		r := b.request("POST", "/v1/rollouts", token, submission{Requests: []schema.Request{plainRequest()}})
		r.Header.Set("Idempotency-Key", "shared")
		b.do(r, 202, &foreign)
		if foreign.Known != 0 {
			t.Errorf("the key of %s: %+v", token, foreign)
		}
	}
	var one detail
	b.call("GET", "/v1/rollouts/"+string(mine.IDs[1]), nil, 200, &one)
	if one.Status != schema.StatusRunning || ended != mine.IDs[0] {
		t.Errorf("alpha's rollout: %+v", one)
	}
}

// TestOnlyTokensAreAdmitted asks each route without a token and with wrong ones.
func TestOnlyTokensAreAdmitted(t *testing.T) {
	b := newBench(t)
	for _, route := range new(Server).routes() {
		path := strings.NewReplacer("{id}", "alpha-1", "{name...}", "x").Replace(route.path)
		for _, header := range []string{"", "Bearer ", "Bearer wrong", "Basic " + alphaToken, alphaToken, "bearer" + alphaToken} {
			r := b.request(route.method, path, "", nil)
			r.Header.Set("Authorization", header)
			b.do(r, 401, nil)
		}
		r := b.request(route.method, path+"?token="+alphaToken+"&access_token="+alphaToken, "", nil)
		r.Header.Del("Authorization")
		b.do(r, 401, nil)
	}
	for _, path := range []string{"/livez", "/readyz", "/openapi.json"} {
		r := b.request("GET", path, "", nil)
		r.Header.Del("Authorization")
		b.do(r, 200, nil)
	}
	b.call("GET", "/v2/rollouts", nil, 404, nil)
	b.call("DELETE", "/v1/rollouts", nil, 405, nil)
}

// TestWrongRequests: each gets an error that names the field.
func TestWrongRequests(t *testing.T) {
	b := newBench(t)
	post := func(path, body string) (p problem) {
		t.Helper()
		r := b.request("POST", path, alphaToken, nil)
		r.Body = io.NopCloser(strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		b.do(r, 400, &p)
		return p
	}
	valid := `"task":{"name":"t","instruction":"x"},"agent":{"name":"mini"},"sandbox":{"backend":"dummy","container":{}}`
	for _, c := range []struct{ path, body, field string }{
		{"/v1/rollouts", `{"requests":[{` + valid + `,"limits":{"agent_ms":-1}}]}`, "requests[0].limits.agent_ms"},
		{"/v1/rollouts", `{"requests":[{` + valid + `},{` + valid + `,"limits":{"agnt_ms":1}}]}`, "requests[1].limits.agnt_ms"},
		{"/v1/rollouts", `{"requests":[{` + valid + `,"index":"0"}]}`, "requests[0].index"},
		{"/v1/rollouts", `{"requests":[{` + valid + `,"index":0,"index":1}]}`, "requests[0].index"},
		{"/v1/rollouts", `{"requests":[]}`, "requests"},
		{"/v1/rollouts", `{"requests":[{` + valid + `}],"lane":9}`, "lane"},
		{"/v1/rollouts", `{"requests":[{` + valid + `,"id":"alpha-1"},{` + valid + `,"id":"alpha-1"}]}`, "requests[1].id"},
		{"/v1/rollouts", `{"requests":`, "requests"},
		{"/v1/groups", `{"n":0,"request":{` + valid + `}}`, "n"},
		{"/v1/groups", `{"n":1001,"request":{` + valid + `}}`, "n"},
		{"/v1/groups", `{"n":1,"request":{` + valid + `,"group":"g"}}`, "request.group"},
		{"/v1/groups", `{"n":1,"request":{"task":{"name":"t"}}}`, "request.agent.name"},
		{"/v1/cancel", `{"all":true,"wait_ms":60001}`, "wait_ms"},
	} {
		if p := post(c.path, c.body); p.Field != c.field || p.Code != schema.CodeInvalid || p.Status != 400 || p.Title == "" || !strings.Contains(p.Detail, c.field) {
			t.Errorf("%s %s: %+v, want the field %s", c.path, c.body, p, c.field)
		}
	}
	for query, field := range map[string]string{"limit=0": "limit", "limit=201": "limit", "status=open": "status", "label=x": "label", "cursor=-": "cursor", "cursor=q": "cursor", "cursor=s_": "cursor", "stauts=done": "stauts"} {
		var p problem
		b.call("GET", "/v1/rollouts?"+query, nil, 400, &p)
		if p.Field != field {
			t.Errorf("%s: %+v", query, p)
		}
	}
	b.call("GET", "/v1/results?after=x", nil, 400, nil)
	r := b.request("POST", "/v1/rollouts", alphaToken, nil)
	r.Body = io.NopCloser(io.LimitReader(endless('['), maxJSON+1))
	r.Header.Set("Content-Type", "application/json")
	b.do(r, 413, nil)
	r = b.request("POST", "/v1/rollouts", alphaToken, submission{})
	r.Header.Set("Content-Type", "text/plain") // as the form of a page of another origin
	b.do(r, 415, nil)
}

// endless reads as one byte, without an end.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

// sse reads server-sent events until the stream ends.
type sse struct{ id, name, data string }

// follow opens a stream. Its events come until it ends, or stop is called.
func (b *bench) follow(path, last string) (events <-chan sse, stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	r := b.request("GET", path, alphaToken, nil).WithContext(ctx)
	r.Header.Set("Accept", "text/event-stream")
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r) //nolint:bodyclose // the goroutine below closes it
	harness.Must(b.t, err)
	if kind := res.Header.Get("Content-Type"); res.StatusCode != 200 || kind != "text/event-stream" {
		b.t.Fatalf("status %d, %s", res.StatusCode, kind)
	}
	out := make(chan sse, 100)
	go func() {
		defer close(out)
		defer res.Body.Close()
		var e sse
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				e.data = value
			case "":
				if e.data != "" {
					out <- e
				}
				e = sse{}
			}
		}
	}()
	return out, cancel
}

// next returns the next event of a stream.
func next(t *testing.T, events <-chan sse) sse {
	t.Helper()
	select {
	case e, ok := <-events:
		if !ok {
			t.Fatal("the stream has ended")
		}
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("no event came")
		return sse{}
	}
}

// TestStreamsGoOnInAnotherFront: events and results have the same places in each front, so
// a client goes on in another one, and misses and repeats nothing.
func TestStreamsGoOnInAnotherFront(t *testing.T) {
	b := newBench(t)
	var out submitted
	b.call("POST", "/v1/rollouts", submission{Requests: []schema.Request{plainRequest(), plainRequest()}}, 202, &out)
	log := func(text string) {
		b.Broker.Events.Emit(&schema.Event{Type: schema.EventLog, Rollout: out.IDs[0], Attempt: 1, Log: &schema.LogEvent{Source: "agent", Text: text}})
	}
	log("one")
	path := "/v1/rollouts/" + string(out.IDs[0]) + "/events"
	events, stop := b.follow(path, "")
	first := next(t, events)
	if first.name != "log" || !strings.Contains(first.data, `"one"`) || first.id == "" {
		t.Fatalf("the first event: %+v", first)
	}
	stop()
	log("two")
	b.url, _ = b.start()
	events, _ = b.follow(path, first.id)
	if e := next(t, events); !strings.Contains(e.data, `"two"`) {
		t.Errorf("after the first event: %+v", e)
	}
	b.Broker.Events.Emit(&schema.Event{Type: schema.EventResult, Rollout: out.IDs[0], Attempt: 1, Result: &schema.Result{ID: out.IDs[0]}})
	if e := next(t, events); e.name != "result" {
		t.Errorf("the last event: %+v", e)
	}
	if e, more := <-events; more {
		t.Errorf("after the result: %+v", e)
	}

	results, stop := b.follow("/v1/results", "")
	one := b.finish(1)
	at := next(t, results)
	if at.name != "result" || !strings.Contains(at.data, string(one)) {
		t.Errorf("the first result: %+v", at)
	}
	stop()
	two := b.finish(1)
	var stopFront func()
	b.url, stopFront = b.start()
	results, _ = b.follow("/v1/results", at.id)
	if e := next(t, results); !strings.Contains(e.data, string(two)) {
		t.Errorf("the second result: %+v", e)
	}
	stopFront()
	if e, more := <-results; more {
		t.Errorf("after the end of the front: %+v", e)
	}
}

// TestEventsEndWithoutAnEventOfTheResult: the stored result ends the stream of a rollout
// that has no event of it, such as one that was cancelled.
func TestEventsEndWithoutAnEventOfTheResult(t *testing.T) {
	b := newBench(t)
	var out submitted
	b.call("POST", "/v1/rollouts", submission{Requests: []schema.Request{plainRequest()}}, 202, &out)
	id := out.IDs[0]
	b.Broker.Events.Emit(&schema.Event{Type: schema.EventLog, Rollout: id, Attempt: 1, Log: &schema.LogEvent{Source: "agent", Text: "one"}})
	for _, open := range []bool{true, false} {
		events, _ := b.follow("/v1/rollouts/"+string(id)+"/events", "")
		if e := next(t, events); e.name != "log" || e.id == "" {
			t.Errorf("the first event: %+v", e)
		}
		if open {
			b.finish(1)
		}
		if e := next(t, events); e.name != "result" || e.id != "" || !strings.Contains(e.data, string(id)) {
			t.Errorf("the last event: %+v", e)
		}
		if e, more := <-events; more {
			t.Errorf("after the last event: %+v", e)
		}
	}
}

// TestFiles stores a bundle, and reads a file of a rollout.
func TestFiles(t *testing.T) {
	b := newBench(t)
	r := b.request("POST", "/v1/bundles", alphaToken, nil)
	r.Body = io.NopCloser(strings.NewReader("a bundle"))
	r.Header.Set("Content-Type", "application/zstd")
	var bundle stored
	b.do(r, 201, &bundle)
	if err := schema.CheckSHA256("sha256", bundle.SHA256); err != nil {
		t.Error(err)
	}
	q := plainRequest()
	q.ID = "alpha-files"
	b.call("POST", "/v1/rollouts", submission{Requests: []schema.Request{q}}, 202, nil)
	j := b.Take(t)
	b.call("GET", "/v1/rollouts/alpha-files/files/logs/a.txt", nil, 409, nil)
	a, err := j.KeepArtifact(t.Context(), "logs/a.txt", broker.FileOf([]byte("<script>")))
	harness.Must(t, err)
	harness.Must(t, j.Done(t.Context(), schema.Result{ID: q.ID, Trainer: "alpha", Status: schema.StatusDone, Worker: "w1", Artifacts: []schema.Artifact{a}}))
	r = b.request("GET", "/v1/rollouts/alpha-files/files/logs/a.txt", alphaToken, nil)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	harness.Must(t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	h := res.Header
	if err != nil || string(data) != "<script>" || h.Get("Content-Disposition") != "attachment" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%v, %q, %v", err, data, h)
	}
	b.call("GET", "/v1/rollouts/alpha-files/files/logs/b.txt", nil, 404, nil)
	b.do(b.request("GET", "/v1/rollouts/alpha-files/files/logs/a.txt", betaToken, nil), 404, nil)
}

// TestWorkers lists the workers.
func TestWorkers(t *testing.T) {
	b := newBench(t)
	harness.Eventually(t, "a worker", 20*time.Second, func() bool {
		var fleet schema.Fleet
		b.call("GET", "/v1/workers", nil, 200, &fleet)
		return len(fleet.Workers) == 1
	})
}

// TestWhatNoWorkerOffersIsRefused: a submit for an agent or a kind of sandbox that no worker has
// names it and those that there are. One that was queued before is known, and what was offered
// once waits while no worker is there.
func TestWhatNoWorkerOffersIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	offer := schema.Offer{Backends: []string{"dummy"}, Agents: []string{"mini"}}
	_, leave := b.StartWorker(t, "w2", func(c *queue.WorkerConfig) { c.Offer = func() schema.Offer { return offer } })
	sees := func(n int) {
		t.Helper()
		harness.Eventually(t, "the workers", time.Minute, func() bool {
			var fleet schema.Fleet
			b.call("GET", "/v1/workers", nil, 200, &fleet)
			return len(fleet.Workers) == n && (n == 0 || len(fleet.Workers[0].Offer.Agents) == 1)
		})
	}
	sees(1)
	agent, sandbox := plainRequest(), plainRequest()
	agent.Agent.Name, sandbox.Sandbox.Backend = "pi", "modal"
	refused := func(path, field, value, there string, body any) {
		t.Helper()
		var p problem
		b.call("POST", path, body, 400, &p)
		if p.Code != schema.CodeInvalid || p.Field != field || !strings.Contains(p.Detail, value) || !strings.Contains(p.Detail, "that is there: "+there) {
			t.Errorf("%s: got %+v", path, p)
		}
	}
	refused("/v1/rollouts", "requests[1].agent.name", `"pi"`, "mini", submission{Requests: []schema.Request{plainRequest(), agent}})
	refused("/v1/rollouts", "requests[0].sandbox.backend", `"modal"`, "dummy", submission{Requests: []schema.Request{sandbox}})
	refused("/v1/groups", "request.agent.name", `"pi"`, "mini", groupSubmission{N: 2, Request: agent})
	refused("/v1/groups", "request.sandbox.backend", `"modal"`, "dummy", groupSubmission{Group: "g1", N: 2, Request: sandbox})
	var none page
	if b.call("GET", "/v1/rollouts", nil, 200, &none); len(none.Rollouts) > 0 {
		t.Errorf("of refused submits %v are there", none.Rollouts)
	}
	b.call("POST", "/v1/rollouts", submission{Requests: []schema.Request{plainRequest()}}, 202, nil)
	leave()
	sees(0)
	var group submitted
	b.call("POST", "/v1/groups", groupSubmission{Group: "g2", N: 1, Request: agent}, 202, &group)
	b.StartWorker(t, "w3", func(c *queue.WorkerConfig) { c.Offer = func() schema.Offer { return offer } })
	sees(1)
	if b.call("POST", "/v1/groups", groupSubmission{Group: "g2", N: 1, Request: agent}, 202, &group); group.Known != 1 {
		t.Errorf("a group that waits: %+v", group)
	}
}
