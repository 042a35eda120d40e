package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/rawjson"
)

// The client has no functions for snapshots. The requests are part of the server's API; `nats
// stream backup` sends the same ones.

const (
	chunkBytes = 128 << 10
	// chunkWithin bounds the time until the next chunk, or its confirmation.
	chunkWithin = time.Minute
	// unpackWithin bounds the time in which the server unpacks a snapshot, after the last
	// chunk.
	unpackWithin = 30 * time.Minute
)

// apiError is the error in an answer of the server's API.
type apiError struct {
	Error *jetstream.APIError `json:"error"`
}

// ask sends a request of the API and decodes the answer.
func (l *link) ask(ctx context.Context, subject string, request, answer any) error {
	data, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	m, err := l.bulk.RequestWithContext(op, subject, data)
	if err != nil {
		return Reach(err)
	}
	return answered(m.Data, answer)
}

func answered(data []byte, into any) error {
	var failed apiError
	if err := json.Unmarshal(data, &failed); err != nil {
		return fmt.Errorf("read the server's answer: %w", rawjson.Plain(err))
	}
	if failed.Error != nil {
		return failed.Error
	}
	return rawjson.Plain(json.Unmarshal(data, into))
}

// snapshot writes the snapshot of a stream, and fills in its configuration and state. It
// returns the number of bytes.
func (l *link) snapshot(ctx context.Context, s *SavedStream, w io.Writer) (n int64, err error) {
	inbox := l.bulk.NewInbox()
	sub, err := l.bulk.SubscribeSync(inbox)
	if err != nil {
		return 0, fmt.Errorf("subscribe to its chunks: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := sub.SetPendingLimits(-1, 64<<20); err != nil { // the server has at most 8 MiB on the way
		return 0, fmt.Errorf("bound its chunks: %w", err)
	}
	var answer struct {
		Config json.RawMessage `json:"config"`
		State  json.RawMessage `json:"state"`
	}
	request := map[string]any{"deliver_subject": inbox, "chunk_size": chunkBytes, "jsck": true}
	if err := l.ask(ctx, "$JS.API.STREAM.SNAPSHOT."+s.Name, request, &answer); err != nil {
		return 0, err
	}
	s.Config, s.State = answer.Config, answer.State
	for {
		m, err := l.chunk(ctx, sub)
		if err != nil {
			return n, err
		}
		if len(m.Data) == 0 {
			if status := m.Header.Get("Status"); status != "" && status != "204" {
				return n, fmt.Errorf("the server ended the snapshot: %s %s", status, m.Header.Get("Description"))
			}
			return n, nil
		}
		if _, err := w.Write(m.Data); err != nil {
			return n, err
		}
		n += int64(len(m.Data))
		if m.Reply == "" { // the last chunk
			continue
		}
		if err := m.Respond(nil); err != nil {
			return n, fmt.Errorf("confirm a chunk: %w", Reach(err))
		}
	}
}

func (l *link) chunk(ctx context.Context, sub *nats.Subscription) (*nats.Msg, error) {
	op, cancel := context.WithTimeout(ctx, chunkWithin)
	defer cancel()
	m, err := sub.NextMsgWithContext(op)
	if err != nil {
		return nil, fmt.Errorf("wait for a chunk: %w", Reach(err))
	}
	return m, nil
}

// unpackSnapshot makes a stream of its snapshot.
func (l *link) unpackSnapshot(ctx context.Context, s *SavedStream, r io.Reader) error {
	var answer struct {
		Deliver string `json:"deliver_subject"`
	}
	request := map[string]json.RawMessage{"config": s.Config, "state": s.State}
	if err := l.ask(ctx, "$JS.API.STREAM.RESTORE."+s.Name, request, &answer); err != nil {
		return err
	}
	if answer.Deliver == "" {
		return errors.New("the server names no subject for its chunks")
	}
	put := func(data []byte, within time.Duration) ([]byte, error) {
		op, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		m, err := l.bulk.RequestWithContext(op, answer.Deliver, data)
		if err != nil {
			return nil, Reach(err)
		}
		return m.Data, nil
	}
	chunk := make([]byte, chunkBytes)
	for {
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			said, perr := put(chunk[:n], chunkWithin)
			if perr == nil && len(said) > 0 {
				perr = answered(said, &struct{}{})
			}
			if perr != nil {
				return fmt.Errorf("send a chunk: %w", perr)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	said, err := put(nil, unpackWithin)
	if err != nil {
		return err
	}
	return answered(said, &struct{}{})
}
