package front

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// Bounds of the results of one answer.
const (
	resultsLimit   = 50
	maxResults     = 200
	maxResultBytes = 16 << 20        // as they are stored; the last one may be beyond
	maxWait        = 60              // seconds
	lookEvery      = 5 * time.Second // for results with a lost hint
	lookAgain      = 50 * time.Millisecond
)

// resultPage is an answer to GET /v1/results.
type resultPage struct {
	Results []schema.Result `json:"results"`
	Next    string          `json:"next"` // cursor behind the last of them
}

// cursorEnd is the cursor of the end: only later results are wanted.
const cursorEnd = "end"

// cursorOf writes a place in the records of a trainer.
func cursorOf(p broker.Place) string {
	return strconv.FormatInt(p.Stream, 36) + "." + strconv.FormatUint(p.Seq, 36)
}

// placeOf reads a cursor; the empty one is the beginning.
func placeOf(field, text string) (p broker.Place, err error) {
	if text == "" {
		return p, nil
	}
	stream, seq, ok := strings.Cut(text, ".")
	p.Stream, err = strconv.ParseInt(stream, 36, 64)
	if err == nil {
		p.Seq, err = strconv.ParseUint(seq, 36, 64)
	}
	if err != nil || !ok {
		return p, invalidField(field, text, "want next of an earlier answer, or "+cursorEnd)
	}
	return p, nil
}

// results gives the results behind a cursor: as JSON, after up to wait seconds, or as
// server-sent events until the client leaves.
func (s *Server) results(w http.ResponseWriter, r *http.Request, t *tenant) error {
	q := r.URL.Query()
	wait, err := numberOf(q, "wait", 0, 0, maxWait)
	if err != nil {
		return err
	}
	limit, err := numberOf(q, "limit", resultsLimit, 1, maxResults)
	if err != nil {
		return err
	}
	field, cursor := "after", q.Get("after")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		field, cursor = "Last-Event-ID", last
	}
	l, err := t.dial(r.Context())
	if err != nil {
		return err
	}
	var at broker.Place
	if cursor == cursorEnd {
		at, err = l.b.Records.End(r.Context(), t.name)
	} else {
		at, err = placeOf(field, cursor)
	}
	if err != nil {
		return err
	}
	news := make(chan struct{}, 1)
	stop, err := l.queue.Results.Hints(func(schema.Hint) {
		select {
		case news <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	f := &follower{line: l, trainer: t.name, at: at, news: news}
	if wantsFeed(r) {
		return f.stream(r.Context(), newFeed(w))
	}
	out := resultPage{Results: []schema.Result{}}
	err = f.poll(r.Context(), time.Duration(wait)*time.Second, limit, &out)
	if err != nil {
		return err
	}
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	return reply(w, http.StatusOK, &out)
}

// follower reads the results of a trainer in the order of their commits.
type follower struct {
	line    *line
	trainer string
	at      broker.Place
	news    <-chan struct{} // has a value after a result was committed
}

// poll waits for results until there is one, or for a time.
func (f *follower) poll(ctx context.Context, wait time.Duration, limit int, out *resultPage) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.NewTimer(wait)
	defer late.Stop()
	size := 0
	for {
		next, err := f.line.b.Records.ResultsAfter(ctx, f.trainer, f.at, func(_ broker.Place, r *schema.Result, n int) bool {
			out.Results = append(out.Results, *r)
			size += n
			return len(out.Results) < limit && size < maxResultBytes
		})
		if err != nil {
			return err
		}
		f.at, out.Next = next, cursorOf(next)
		if len(out.Results) > 0 {
			return nil
		}
		select {
		case <-late.C:
			return nil
		case <-ctx.Done():
			return nil // the front ends, or the client has left
		case <-f.news:
			f.pause(ctx)
		case <-time.After(lookEvery):
		}
	}
}

// pause lets several results arrive together.
func (f *follower) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(lookAgain):
	}
}

// stream writes each result until the context ends.
func (f *follower) stream(ctx context.Context, to *feed) error {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for ctx.Err() == nil {
		var werr error
		next, err := f.line.b.Records.ResultsAfter(ctx, f.trainer, f.at, func(at broker.Place, r *schema.Result, _ int) bool {
			werr = to.send("result", cursorOf(at), r)
			return werr == nil
		})
		if werr != nil || ctx.Err() != nil {
			return nil // the client has left
		}
		f.at = next
		if err != nil { // it goes on when NATS can be reached
			f.line.b.Log().Debug().Err(err).Msg("results cannot be read at this moment")
		}
		select {
		case <-ctx.Done():
		case <-f.news:
			f.pause(ctx)
		case <-beat.C:
			if to.beat() != nil {
				return nil
			}
		case <-time.After(lookEvery):
		}
	}
	return nil
}
