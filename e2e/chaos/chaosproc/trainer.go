package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// runTrainer submits groups of four until a file tells it to stop submitting,
// answers every call, and ends when no rollout is open. After a restart it goes on
// where it was.
func runTrainer(ctx context.Context, o options, log zerolog.Logger) error {
	b, err := dial(ctx, o, broker.InboxFor("trainer", o.name), log)
	if err != nil {
		return err
	}
	defer b.Close()
	rec, err := openRecord(filepath.Join(o.dir, "trainer-"+o.name+".jsonl"))
	if err != nil {
		return err
	}
	var t *trainer.Trainer
	for {
		t, err = trainer.Dial(ctx, trainer.Config{
			Broker: b, Name: o.name, State: filepath.Join(o.dir, "ledger-"+o.name+".jsonl"), AuditEvery: 5 * time.Minute / time.Duration(o.speed), Log: log,
		})
		if err == nil {
			break
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return err
		}
	}
	defer t.Close()
	fmt.Println(history.Ready)
	var bg sync.WaitGroup
	defer bg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	bg.Go(func() {
		for {
			p, err := t.Next(ctx)
			if err != nil {
				return
			}
			bg.Go(func() { answer(ctx, o, p, rec, log) })
		}
	})
	n, err := submitBegun(ctx, o, t, rec) // before a result of these can be handed out
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	bg.Go(func() { submitFrom(ctx, n, o, t, rec) })
	bg.Go(func() { cancelSome(ctx, o, t) })
	for {
		wait, stop := context.WithTimeout(ctx, 200*time.Millisecond)
		r, err := t.NextResult(wait)
		stop()
		switch {
		case err == nil:
			rec.write(history.Trained{Op: "result", ID: r.ID, Attempt: r.Attempt, Status: r.Status, Generations: generations(&r)})
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, context.DeadlineExceeded) && exists(filepath.Join(o.dir, "enough")) && exists(filepath.Join(o.dir, "submitted-"+o.name)) && t.Outstanding() == 0:
			return nil
		}
	}
}

func generations(r *schema.Result) []string {
	var out []string
	for _, c := range r.Committed {
		out = append(out, fmt.Sprintf("%d/%s", c.Call, c.Gen))
	}
	return out
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// submitBegun submits again the group that an earlier process was submitting when it ended,
// except the rollouts with results there: a rollout that is submitted again gives its result
// again. It does so even if enough were submitted, since the process may have died before the
// trainer knew of the group. It returns the number of the next rollout.
func submitBegun(ctx context.Context, o options, t *trainer.Trainer, rec *record) (int, error) {
	n := 0
	if data, err := os.ReadFile(progress(o)); err == nil {
		_, _ = fmt.Sscan(string(data), &n)
	}
	begun, ended, err := before(filepath.Join(o.dir, "trainer-"+o.name+".jsonl"))
	if err != nil || !begun[request(o, n, "").ID] {
		return n, err
	}
	return n + 4, submitGroup(ctx, o, t, rec, n, ended)
}

// submitFrom submits groups from the rollout with number n on.
func submitFrom(ctx context.Context, n int, o options, t *trainer.Trainer, rec *record) {
	for ; n < o.rollouts && !exists(filepath.Join(o.dir, "enough")); n += 4 {
		if o.wave > 0 && n > 0 && n%o.wave == 0 && !endWave(ctx, o, t, n/o.wave) {
			return
		}
		if submitGroup(ctx, o, t, rec, n, nil) != nil {
			return
		}
		if o.wave == 0 && !sleep(ctx, 350*time.Millisecond) {
			return
		}
	}
	if err := os.WriteFile(filepath.Join(o.dir, "submitted-"+o.name), nil, 0o600); err != nil {
		panic(err)
	}
}

// submitGroup submits four rollouts from number n on, except the ended ones, and records the
// progress.
func submitGroup(ctx context.Context, o options, t *trainer.Trainer, rec *record, n int, ended map[schema.ID]bool) error {
	var group []schema.Request
	for i := range 4 {
		r := request(o, n+i, fmt.Sprintf("g%d", n/4))
		if ended[r.ID] {
			continue
		}
		group = append(group, r)
		rec.write(history.Trained{Op: "submit", ID: r.ID, Max: r.MaxAttempts})
	}
	if len(group) > 0 {
		if err := t.Submit(ctx, group); err != nil {
			return err
		}
	}
	if err := os.WriteFile(progress(o)+".new", fmt.Appendf(nil, "%d", n+4), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(progress(o)+".new", progress(o)); err != nil {
		panic(err)
	}
	return nil
}

// progress is the file with the number of the next rollout.
func progress(o options) string { return filepath.Join(o.dir, "progress-"+o.name) }

// before returns the rollouts that earlier processes have begun to submit, and the ones with
// results there, from their records.
func before(path string) (begun, ended map[schema.ID]bool, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	begun, ended = map[schema.ID]bool{}, map[schema.ID]bool{}
	for line := range strings.Lines(string(data)) {
		var l history.Trained
		if json.Unmarshal([]byte(line), &l) != nil {
			continue // a kill has cut the line off
		}
		switch l.Op {
		case "submit":
			begun[l.ID] = true
		case "result":
			ended[l.ID] = true
		}
	}
	return begun, ended, nil
}

// endWave waits until every rollout of a wave has its result, reports the end of
// the wave, and waits until the run asks for the next one.
func endWave(ctx context.Context, o options, t *trainer.Trainer, n int) bool {
	for t.Outstanding() > 0 {
		if !sleep(ctx, 10*time.Millisecond) {
			return false
		}
	}
	fmt.Println(history.Wave, n)
	for !exists(filepath.Join(o.dir, fmt.Sprintf("wave-%d", n))) {
		if !sleep(ctx, 10*time.Millisecond) {
			return false
		}
	}
	return true
}

// cancelSome cancels a group that was submitted a moment ago, now and then.
func cancelSome(ctx context.Context, o options, t *trainer.Trainer) {
	if o.cancelAfter > 0 {
		if sleep(ctx, o.cancelAfter) {
			_ = t.CancelAll("chaos") // it is repeated
		}
		return
	}
	for n := 5; sleep(ctx, 3*time.Second); n += 9 {
		_ = t.CancelGroup(fmt.Sprintf("g%d", n), "chaos") // it is repeated
	}
}

// answer answers a call, whole or in pieces, with a new generation. It records
// the generation before it sends any part of it.
func answer(ctx context.Context, o options, p *trainer.Pending, rec *record, log zerolog.Logger) {
	random := make([]byte, 6)
	_, _ = rand.Read(random)
	gen := hex.EncodeToString(random)
	pieces := []string{"gen:" + gen}
	if p.Call.Stream {
		pieces = nil
		for i := range 5 {
			pieces = append(pieces, fmt.Sprintf("gen:%s piece %d. ", gen, i))
		}
	}
	text := strings.Join(pieces, "")
	rec.write(history.Trained{Op: "generate", Key: p.Call.Key, Gen: gen, Name: p.Call.Gen, Text: text})
	if o.slow > 0 && random[0]%2 == 0 {
		if random[1]%2 == 0 {
			_ = p.Fault(&schema.Fault{Code: "busy", Message: "not now", Status: 503}) // asked again
			return
		}
		if !sleep(ctx, o.slow) {
			return
		}
	}
	if !sleep(ctx, 50*time.Millisecond) {
		return
	}
	stream := p.Stream()
	if p.Call.Stream {
		for _, piece := range pieces {
			if err := stream.Delta(&schema.Delta{Delta: mustRaw(map[string]string{"content": piece})}); err != nil {
				return
			}
			if !sleep(ctx, 60*time.Millisecond) {
				return
			}
		}
	}
	reply := &schema.Reply{Message: mustRaw(map[string]string{"role": "assistant", "content": text}), FinishReason: "stop"}
	if err := stream.Final(reply); err != nil && !errors.Is(err, trainer.ErrOver) {
		log.Warn().Err(err).Msg("a call was not answered")
	}
}

func mustRaw(v any) json.RawMessage { return mustJSON(v) }
