package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// A day fails if a rollout has no result, or two.
func TestALedgerFindsLostAndDoubleResults(t *testing.T) {
	t.Parallel()
	group := []schema.Request{request(0), request(1)}
	for name, tt := range map[string]struct {
		results []schema.ID
		open    int
		ok      bool
	}{
		"one each":     {[]schema.ID{group[0].ID, group[1].ID}, 0, true},
		"one is lost":  {[]schema.ID{group[0].ID}, 1, false},
		"one has two":  {[]schema.ID{group[0].ID, group[1].ID, group[0].ID}, 0, false},
		"another's id": {[]schema.ID{group[0].ID, group[1].ID, "other-r0"}, 0, true},
	} {
		l := newLedger()
		l.submit(group)
		l.began(group[0].ID, 1)
		l.lost(group[0].ID)
		l.began(group[0].ID, 2)
		for _, id := range tt.results {
			l.ended(id)
		}
		r := l.report()
		if l.open() != tt.open || (r.err == nil) != tt.ok || !strings.Contains(r.text, "1 attempts after a first one, at most 2") {
			t.Errorf("%s: %d open, %v, %s", name, l.open(), r.err, r.text)
		}
	}
}

// Rows without a wait leave gaps in the numbers and the plot.
func TestThePlotOfADay(t *testing.T) {
	t.Parallel()
	rows := []row{{hour: 0, wanted: 10, p50: math.NaN(), p99: math.NaN()}, {hour: 12, queued: 5, wanted: 10, running: 10, p50: 1, p99: 2}}
	picture := string(plot(rows, []float64{4}))
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, picture)
		}
	}
	if strings.Contains(picture, "NaN") || strings.Count(picture, "<polyline") != 6 {
		t.Errorf("got %s", picture)
	}
	file := filepath.Join(t.TempDir(), "day.csv")
	harness.Must(t, writeCSV(file, rows))
	data, err := os.ReadFile(file)
	harness.Must(t, err)
	if lines := strings.Split(strings.TrimSpace(string(data)), "\n"); len(lines) != 3 || lines[1] != "0.000,0,0,0,0,10,0,0,0,," || !strings.HasSuffix(lines[2], ",1.000,2.000") {
		t.Errorf("got %q", lines)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	good := options{servers: 3, rollouts: 1, workers: 1, slots: 1, speed: 1, length: time.Minute, busy: time.Second}
	harness.Must(t, good.check())
	for flag, change := range map[string]func(*options){
		"-servers": func(o *options) { o.servers = 2 }, "-workers": func(o *options) { o.workers = 0 },
		"-length": func(o *options) { o.length = time.Second }, "-loss": func(o *options) { o.loss = 1 },
	} {
		bad := good
		change(&bad)
		if err := bad.check(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
