package modelcall

import (
	"context"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/subjects"
)

// reads are the bodies of calls that are read from the object store now.
type reads struct {
	mu  sync.Mutex
	now map[read]context.CancelFunc
}

// read is the read of one body.
type read struct{ sha, subject, reply string }

// begin notes a read, which end ends. It reports whether the same body is not read already.
func (r *reads) begin(of read, end context.CancelFunc) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now[of] != nil {
		return false
	}
	if r.now == nil {
		r.now = map[read]context.CancelFunc{}
	}
	r.now[of] = end
	return true
}

// over notes that a read has ended.
func (r *reads) over(of read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.now, of)
}

// cancel ends the reads for the call of a subject.
func (r *reads) cancel(subject string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for of, end := range r.now {
		if of.subject == subject {
			end()
		}
	}
}

// body returns the body of a call. wanted is false if its worker gave the call up during the
// read, or if the same body is read already.
func (s *Server) body(reading *reads, m *nats.Msg) (body []byte, wanted bool, err error) {
	ctx, bucket := context.Background(), subjects.ArtifactsBucket(s.tid)
	sha := m.Header.Get(subjects.HeaderClaim)
	if sha == "" {
		body, err = s.unpack(ctx, bucket, m.Header, m.Data)
		return body, true, err
	}
	// A body in the object store is read once at a time. The worker of a call that is not
	// accepted asks again each few seconds, and the reads of a large body would delay each
	// other without end.
	ctx, end := context.WithCancel(ctx)
	defer end()
	this := read{sha, m.Subject, m.Reply}
	if !reading.begin(this, end) {
		return nil, false, nil
	}
	body, err = s.unpack(ctx, bucket, m.Header, m.Data)
	reading.over(this)
	return body, ctx.Err() == nil, err
}
