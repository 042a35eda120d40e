package permissions_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// TestForgeryVectors is the control of TestForgeries for each call. With all rights
// of the workers' account the call does reach a target. The role itself gets the
// answer to each call that it may use, on an inbox of its own, and no answer to the
// others. So no row of the table is empty because the call is wrong.
func TestForgeryVectors(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		harness.Must(t, w.fill(t))
		for _, c := range []struct {
			who  role
			apis []api
		}{
			{role{"trainer", "alpha"}, trainerAPIs()},
			{role{"ops", "ops"}, opsAPIs()},
		} {
			for _, a := range c.apis {
				t.Run(c.who.kind+"/"+a.name, func(t *testing.T) {
					w.reaches(t, a, subjects.WorkerControl("w1"))
					if !a.direct && !a.traced { // a role may publish on no inbox of its own
						w.answers(t, c.who, a)
					}
				})
			}
		}
	})
}

// reaches checks that the call arrives on a target when the admin makes it.
func (w *world) reaches(t *testing.T, a api, target string) {
	t.Helper()
	heard := w.listen(t, target)
	harness.Must(t, w.admin.PublishMsg(a.message(target)))
	for _, m := range heard.first(t) {
		if strings.Contains(m, `"error":{`) {
			t.Errorf("%s is refused to the admin, too: %.300s", a.name, m)
		}
	}
	if a.pushed {
		harness.Must(t, w.js.DeleteConsumer(t.Context(), strings.Split(a.subject, ".")[4], "c"))
	}
	w.makeVictim(t)
}

// answers checks that a role gets answers to a call on its own inbox, unless the
// call is refused.
func (w *world) answers(t *testing.T, who role, a api) {
	t.Helper()
	nc := w.as(t, who)
	inbox := nc.NewInbox()
	heard, m := listenAs(t, nc, inbox), a.message(inbox)
	m.Reply = inbox
	harness.Must(t, nc.PublishMsg(m))
	if a.refused {
		w.handled(t, nc, who)
		if got := heard.list(); len(got) > 0 {
			t.Errorf("%s may use it: %.300q", who, got)
		}
		return
	}
	for _, m := range heard.first(t) {
		if strings.Contains(m, `"error":{`) {
			t.Errorf("%s: %s is answered with an error: %.300s", who, a.name, m)
		}
	}
}

// first waits for the first messages.
func (e *ear) first(t *testing.T) []string {
	t.Helper()
	if !e.within(10 * time.Second) {
		t.Fatal("nothing was heard: the call has no effect")
	}
	return e.list()
}

// within waits for the first messages, at most for a time, and reports whether there are
// some.
func (e *ear) within(most time.Duration) bool {
	late := time.After(most)
	for len(e.list()) == 0 {
		select {
		case <-e.news:
		case <-late:
			return false
		}
	}
	return true
}

// makeVictim makes the stream that attackers would delete, if it is gone or empty.
func (w *world) makeVictim(t *testing.T) {
	t.Helper()
	_, err := w.js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "VICTIM", Subjects: []string{"victim"}, MaxMsgs: 1})
	harness.Must(t, err)
	_, err = w.js.PublishMsg(t.Context(), &nats.Msg{Subject: "victim", Data: []byte("x")})
	harness.Must(t, err)
}
