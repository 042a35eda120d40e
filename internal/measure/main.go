// Command measure prints measures of the shape of the code: the widest types, the
// exported names of packages that others can import, the files that write the fields of
// a result, and the calls between files of a rollout that go back up.
package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	m, err := load(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
	m.print(os.Stdout)
}

func (m *module) print(w io.Writer) {
	fmt.Fprintln(w, "methods  exported  type, with the methods of embedded types")
	widths := m.widths()
	for _, t := range widths[:min(12, len(widths))] {
		fmt.Fprintf(w, "%7d  %8d  %s\n", t.methods, t.exported, t.name)
	}

	fmt.Fprintln(w, "\nexported names  public package")
	all := 0
	counts := m.exported()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(w, "%14d  %s\n", counts[name], name)
		all += counts[name]
	}
	fmt.Fprintf(w, "%14d  all\n", all)

	fmt.Fprintln(w, "\nplaces  file that sets fields of schema.Result")
	writes := m.writes("schema.Result")
	for _, file := range slices.Sorted(maps.Keys(writes)) {
		fmt.Fprintf(w, "%6d  %s\n", writes[file], file)
	}

	fmt.Fprintln(w, "\narrows  back up  between files, inside the packages below")
	for _, folder := range []string{"internal/worker", "internal/rollout"} {
		arrows, back := backUp(m.arrows(folder))
		fmt.Fprintf(w, "%6d  %7d  %s\n", arrows, back, folder)
	}
}
