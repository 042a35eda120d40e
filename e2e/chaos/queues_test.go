package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/subjects"
)

// queued counts the messages in the queues, and the unacknowledged ones of them.
func (p *tap) queued(trainers ...string) (waiting uint64, out int, err error) {
	op, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	for _, name := range queuesOf(trainers) {
		stream, err := p.js.Stream(op, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue // nothing was submitted
		}
		if err != nil {
			return 0, 0, err
		}
		consumers := stream.ListConsumers(op)
		for c := range consumers.Info() {
			out += c.NumAckPending
			waiting += c.NumPending
		}
		if err := consumers.Err(); err != nil {
			return 0, 0, err
		}
	}
	return waiting, out, nil
}

// left describes the queues that are not empty: their consumers and first
// messages.
func (p *tap) left(trainers ...string) (out []string) {
	op, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	for _, name := range queuesOf(trainers) {
		stream, err := p.js.Stream(op, name)
		if err != nil || stream.CachedInfo().State.Msgs == 0 {
			continue
		}
		s := stream.CachedInfo().State
		out = append(out, fmt.Sprintf("%s has %d messages from %d to %d", name, s.Msgs, s.FirstSeq, s.LastSeq))
		for c := range stream.ListConsumers(op).Info() {
			out = append(out, fmt.Sprintf("%s: pending %d, delivered %d, floor %d", c.Name, c.NumPending, c.Delivered.Stream, c.AckFloor.Stream))
		}
		if m, err := stream.GetMsg(op, s.FirstSeq); err == nil {
			out = append(out, fmt.Sprintf("the first is on %s with %d bytes, id %q", m.Subject, len(m.Data), m.Header.Get("Nats-Msg-Id")))
		}
	}
	return out
}

// leases lists the instances with a live lease.
func (p *tap) leases() ([]string, error) {
	op, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	stream, err := p.js.Stream(op, subjects.StreamLeases)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(op, jetstream.WithSubjectFilter(subjects.LeaseFilter))
	if err != nil {
		return nil, err
	}
	var out []string
	for subject := range info.State.Subjects {
		if subject == subjects.JanitorLease {
			continue
		}
		if m, err := stream.GetLastMsgForSubject(op, subject); err == nil && string(m.Data) == "alive" {
			out = append(out, subject)
		}
	}
	return out, nil
}
