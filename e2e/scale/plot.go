package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// writeCSV writes the rows of a day.
func writeCSV(path string, rows []row) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	_ = w.Write([]string{"hour", "submitted", "ended", "queued", "taken", "workers_wanted", "workers", "lost_workers", "later_attempts", "wait_p50_s", "wait_p99_s"}) // Error below
	for _, r := range rows {
		_ = w.Write([]string{
			number(r.hour), strconv.Itoa(r.submitted), strconv.Itoa(r.ended), strconv.FormatUint(r.queued, 10), strconv.FormatUint(r.taken, 10),
			strconv.Itoa(r.wanted), strconv.Itoa(r.running), strconv.Itoa(r.lost), strconv.Itoa(r.takeovers), number(r.p50), number(r.p99),
		})
	}
	w.Flush()
	if err := w.Error(); err != nil {
		return err
	}
	return f.Close()
}

// number writes a value; none is empty.
func number(v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// series is one line of a panel.
type series struct {
	name, colour string
	value        func(row) float64
}

// Sizes of the plot in pixels.
const (
	plotWidth, panelHeight = 860, 220
	left, top, between     = 60, 30, 50
)

// plot draws the rows of a day as SVG: rollouts, workers, and waits, with a line at each
// hour at which workers were lost.
func plot(rows []row, losses []float64) []byte {
	panels := []struct {
		title string
		lines []series
	}{
		{"rollouts", []series{
			{"queued", "#d55e00", func(r row) float64 { return float64(r.queued) }},
			{"taken by workers", "#0072b2", func(r row) float64 { return float64(r.taken) }},
		}},
		{"workers", []series{
			{"wanted by the autoscaler", "#999999", func(r row) float64 { return float64(r.wanted) }},
			{"running or starting", "#009e73", func(r row) float64 { return float64(r.running) }},
		}},
		{"wait for a worker, in seconds", []series{
			{"p99", "#cc79a7", func(r row) float64 { return r.p99 }},
			{"p50", "#0072b2", func(r row) float64 { return r.p50 }},
		}},
	}
	hours := 24.0
	for _, r := range rows {
		hours = max(hours, r.hour)
	}
	x := func(hour float64) float64 { return left + hour/hours*plotWidth }
	var b strings.Builder
	height := top + len(panels)*(panelHeight+between)
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n", left+plotWidth+20, height)
	for i, p := range panels {
		low := float64(top + i*(panelHeight+between) + panelHeight)
		largest := 1e-9
		for _, r := range rows {
			for _, s := range p.lines {
				if v := s.value(r); !math.IsNaN(v) {
					largest = max(largest, v)
				}
			}
		}
		y := func(v float64) float64 { return low - v/largest*panelHeight }
		fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#ccc\"/>\n", left, low-panelHeight, plotWidth, panelHeight)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%.0f\" font-weight=\"bold\">%s</text>\n", left, low-panelHeight-8, p.title)
		for _, share := range []float64{0, 0.5, 1} {
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">%.3g</text>\n", left-6, y(share*largest)+4, share*largest)
		}
		for hour := 0.0; hour <= hours; hour += 4 {
			fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%02.0f:00</text>\n", x(hour), low+16, hour)
		}
		for _, hour := range losses {
			fmt.Fprintf(&b, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\" stroke=\"#d00\" stroke-dasharray=\"4 3\"/>\n", x(hour), x(hour), low-panelHeight, low)
		}
		for n, s := range p.lines {
			var points []string
			for _, r := range rows {
				if v := s.value(r); !math.IsNaN(v) {
					points = append(points, fmt.Sprintf("%.1f,%.1f", x(r.hour), y(v)))
				}
			}
			fmt.Fprintf(&b, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"%s\"/>\n", s.colour, strings.Join(points, " "))
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\" fill=\"%s\">%s</text>\n", left+plotWidth-8, low-panelHeight+16+float64(16*n), s.colour, s.name)
		}
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}
