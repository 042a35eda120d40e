package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"
)

// table writes rows in columns. On a terminal it fits them into the terminal's
// width: it leaves out the columns named in spare, in their order, and shortens
// cells of the columns named in cut at the end, of the ones in names in the middle.
type table struct {
	out   io.Writer
	width int        // of the terminal; 0: none
	rows  [][]string // the header first

	spare, cut, names []string
}

// minCell is the least width of a column with shortened cells.
const minCell = 8

func newTable(out io.Writer, header ...string) *table {
	t := &table{out: out, rows: [][]string{header}}
	if f, ok := out.(interface{ Fd() uintptr }); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil { // it fails for a stream that is no terminal
			t.width = width
		}
	}
	return t
}

// newList makes the table of a list: of the format wide it has its whole width.
func newList(out io.Writer, format string, header ...string) *table {
	t := newTable(out, header...)
	if format == formatWide {
		t.width = 0
	}
	return t
}

// row adds a row. Its cells are formatted as by fmt.Sprint.
func (t *table) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, row)
}

func (t *table) flush() error {
	if t.width > 0 {
		t.fit()
	}
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, r := range t.rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// shorten leaves out the last rows, so that at most limit lines are written, and tells
// their number.
func (t *table) shorten(limit int) {
	limit = max(limit, 2)
	if more := len(t.rows) - limit; more > 0 {
		last := make([]string, len(t.rows[0]))
		last[0] = fmt.Sprintf("%d more", more+1)
		t.rows = append(t.rows[:limit-1], last)
	}
}

func (t *table) fit() {
	for _, name := range t.spare {
		if t.over(t.widths()) <= 0 {
			return
		}
		if i := slices.Index(t.rows[0], name); i >= 0 {
			for j := range t.rows {
				t.rows[j] = slices.Delete(t.rows[j], i, i+1)
			}
		}
	}
	widths := t.widths()
	for over := t.over(widths); over > 0; over-- {
		widest := -1
		for i, name := range t.rows[0] {
			if (slices.Contains(t.cut, name) || slices.Contains(t.names, name)) && widths[i] > minCell && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	for _, r := range t.rows {
		for i := range r {
			if slices.Contains(t.names, t.rows[0][i]) {
				r[i] = shortName(r[i], widths[i])
			} else {
				r[i] = oneLine(r[i], widths[i])
			}
		}
	}
}

func (t *table) widths() []int {
	out := make([]int, len(t.rows[0]))
	for _, r := range t.rows {
		for i, cell := range r {
			out[i] = max(out[i], utf8.RuneCountInString(cell))
		}
	}
	return out
}

// over returns the number of columns by which the table is too wide.
func (t *table) over(widths []int) int {
	sum := 2 * (len(widths) - 1)
	for _, w := range widths {
		sum += w
	}
	return sum - t.width
}

// shows reports whether the last column has the text at full length.
func (t *table) shows(text string) bool {
	return slices.ContainsFunc(t.rows, func(r []string) bool { return r[len(r)-1] == text })
}

// shortName cuts a long name in the middle: paths differ at their end.
func shortName(name string, limit int) string {
	r := []rune(name)
	if len(r) <= limit {
		return name
	}
	front := (limit - 1) / 3
	return string(r[:front]) + "…" + string(r[len(r)-(limit-1-front):])
}
