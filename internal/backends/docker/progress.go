package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// progressMessage is one message of the engine's progress.
type progressMessage struct {
	Stream string `json:"stream"`
	Status string `json:"status"`
	ID     string `json:"id"`
	Detail struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
	Error       string `json:"error"`
	ErrorDetail struct {
		Message string `json:"message"`
	} `json:"errorDetail"`
}

// readProgress reads the engine's progress messages to the end. A failure of
// the operation is one of these messages.
func readProgress(r io.Reader, each func(*progressMessage)) error {
	for dec := json.NewDecoder(r); ; {
		var m progressMessage
		err := dec.Decode(&m)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: read its answer: %w", errEngine, err)
		case m.ErrorDetail.Message != "":
			return errors.New(m.ErrorDetail.Message)
		case m.Error != "":
			return errors.New(m.Error)
		}
		each(&m)
	}
}

// pullProgress reports the progress of a pull, at most once a second.
type pullProgress struct {
	ref  string
	say  func(string)
	last time.Time

	layers map[string]*layer
}

type layer struct {
	current, total int64
	done           bool
}

func (p *pullProgress) add(m *progressMessage) {
	if m.ID != "" {
		l := p.layers[m.ID]
		switch m.Status {
		case "Pulling fs layer", "Waiting":
			if l == nil {
				p.layers[m.ID] = &layer{}
			}
		case "Downloading":
			if l != nil {
				l.current, l.total = m.Detail.Current, m.Detail.Total
			}
		case "Download complete", "Pull complete", "Already exists":
			if l == nil {
				l = &layer{}
				p.layers[m.ID] = l
			}
			l.current, l.done = l.total, m.Status != "Download complete"
		}
	}
	if now := time.Now(); now.Sub(p.last) >= time.Second {
		p.last = now
		p.report()
	}
}

func (p *pullProgress) report() {
	done := 0
	var current, total int64
	for _, l := range p.layers {
		current, total = current+l.current, total+l.total
		if l.done {
			done++
		}
	}
	if len(p.layers) == 0 {
		p.say("pulling " + p.ref)
		return
	}
	p.say(fmt.Sprintf("pulling %s: %d of %d layers, %.1f of %.1f MB", p.ref, done, len(p.layers), float64(current)/1e6, float64(total)/1e6))
}
