package programs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// process is an entry of /proc.
type process struct {
	pid, ppid, pgid, session int
	state, comm, args        string
	tty                      string
	uid                      int
	rssKB, vszKB             int64
	started                  time.Time
	cpu                      time.Duration
}

// column is a column of the output: its name for -o, and its header.
type column struct{ name, header string }

type psOptions struct {
	columns  []column
	all      bool
	pids     []int
	ppids    []int
	uid      int // -1: any
	noHeader bool
}

// PS prints processes in the form of ps(1) of procps. It has the options that CLI
// agents use: -A -e -a -x -u -f -w -o FORMAT -p LIST --ppid LIST --no-headers, and
// the forms without a dash such as aux. proc is the path of the proc file system.
// PS returns the exit status: 1 if no process was selected or an option is
// unknown.
func PS(proc string, args []string, out, errOut io.Writer) int {
	o, err := parsePS(args)
	if err != nil {
		fmt.Fprintln(errOut, "ps:", err)
		return 1
	}
	list, err := readProcesses(proc)
	if err != nil {
		fmt.Fprintln(errOut, "ps:", err)
		return 1
	}
	list = slices.DeleteFunc(list, func(p process) bool { return !o.selects(p) })
	printPS(out, o, list)
	if len(list) == 0 {
		return 1
	}
	return 0
}

func (o *psOptions) selects(p process) bool {
	if len(o.pids)+len(o.ppids) > 0 {
		return slices.Contains(o.pids, p.pid) || slices.Contains(o.ppids, p.ppid)
	}
	if o.uid >= 0 {
		return p.uid == o.uid
	}
	return o.all || p.uid == os.Geteuid()
}

// parsePS reads the options. It splits clusters such as -axo and aux.
func parsePS(args []string) (*psOptions, error) {
	o := &psOptions{uid: -1}
	short := []column{{"pid", "PID"}, {"tty", "TTY"}, {"time", "TIME"}, {"comm", "CMD"}}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "="); strings.HasPrefix(arg, "--") {
			if !ok && slices.Contains([]string{"pid", "ppid", "format"}, name) {
				if len(args) == 0 {
					return nil, fmt.Errorf("option %s needs a value", arg)
				}
				value, args = args[0], args[1:]
			}
			if err := o.long(name, value); err != nil {
				return nil, err
			}
			continue
		}
		cluster, dash := strings.CutPrefix(arg, "-")
		if n, err := numbers(arg); err == nil {
			o.pids = append(o.pids, n...)
			continue
		}
		for i, c := range cluster {
			takes := strings.ContainsRune("op", c) || c == 'u' && dash
			value := ""
			if takes {
				if value = cluster[i+1:]; value == "" && len(args) > 0 {
					value, args = args[0], args[1:]
				}
			}
			if err := o.short(c, value, dash); err != nil {
				return nil, err
			}
			if takes {
				break
			}
		}
	}
	if len(o.columns) == 0 {
		o.columns = short
	}
	return o, nil
}

func (o *psOptions) long(name, value string) (err error) {
	switch name {
	case "no-headers", "no-heading", "noheaders":
		o.noHeader = true
	case "pid":
		return o.add(&o.pids, value)
	case "ppid":
		return o.add(&o.ppids, value)
	case "format":
		return o.format(value)
	default:
		return fmt.Errorf("option --%s is not known", name)
	}
	return nil
}

func (o *psOptions) short(c rune, value string, dash bool) error {
	switch c {
	case 'A', 'e', 'a', 'x', 'd':
		o.all = true
	case 'w', 'h', 'c', 'l', 'j':
	case 'f':
		if len(o.columns) == 0 {
			o.columns = []column{{"user", "UID"}, {"pid", "PID"}, {"ppid", "PPID"}, {"stime", "STIME"}, {"tty", "TTY"}, {"time", "TIME"}, {"args", "CMD"}}
		}
	case 'u':
		if !dash {
			o.columns = []column{{"user", "USER"}, {"pid", "PID"}, {"pcpu", "%CPU"}, {"pmem", "%MEM"}, {"vsz", "VSZ"}, {"rss", "RSS"}, {"tty", "TTY"}, {"stat", "STAT"}, {"stime", "START"}, {"time", "TIME"}, {"args", "COMMAND"}}
			return nil
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("-u: %q is not a user id", value)
		}
		o.uid = n
	case 'p':
		return o.add(&o.pids, value)
	case 'o':
		return o.format(value)
	default:
		return fmt.Errorf("option %q is not known", string(c))
	}
	return nil
}

func (o *psOptions) add(to *[]int, value string) error {
	n, err := numbers(value)
	*to = append(*to, n...)
	return err
}

func numbers(list string) ([]int, error) {
	var out []int
	for _, f := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(f)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is not a process id", f)
		}
		out = append(out, n)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%q is not a list of process ids", list)
	}
	return out, nil
}

// headers maps the columns that -o accepts to their headers.
func headers() map[string]string {
	return map[string]string{
		"pid": "PID", "ppid": "PPID", "pgid": "PGID", "pgrp": "PGRP", "sid": "SID", "sess": "SESS", "comm": "COMMAND", "ucmd": "CMD", "args": "COMMAND", "command": "COMMAND", "cmd": "CMD",
		"stat": "STAT", "state": "S", "s": "S", "tty": "TT", "tt": "TT", "uid": "UID", "user": "USER", "euser": "EUSER", "rss": "RSS", "vsz": "VSZ", "time": "TIME", "etime": "ELAPSED",
		"lstart": "STARTED", "stime": "STIME", "pcpu": "%CPU", "%cpu": "%CPU", "pmem": "%MEM", "%mem": "%MEM", "pri": "PRI", "nice": "NI", "ni": "NI",
	}
}

// format reads a value of -o: names separated by commas or spaces, each with an
// optional header after =. A column with an empty header prints none.
func (o *psOptions) format(value string) error {
	known := headers()
	for _, f := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, header, own := strings.Cut(f, "=")
		if known[name] == "" {
			return fmt.Errorf("the column %q is not known", name)
		}
		if !own {
			header = known[name]
		}
		o.columns = append(o.columns, column{name, header})
	}
	return nil
}

func printPS(out io.Writer, o *psOptions, list []process) {
	rows := [][]string{}
	head := make([]string, len(o.columns))
	for i, c := range o.columns {
		head[i] = c.header
	}
	if !o.noHeader && strings.Join(head, "") != "" {
		rows = append(rows, head)
	}
	for _, p := range list {
		row := make([]string, len(o.columns))
		for i, c := range o.columns {
			row[i] = p.value(c.name)
		}
		rows = append(rows, row)
	}
	width := make([]int, len(o.columns))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			switch {
			case i == len(row)-1 && (leftAligned(o.columns[i].name) || len(row) == 1):
				line.WriteString(cell)
			case leftAligned(o.columns[i].name):
				fmt.Fprintf(&line, "%-*s ", width[i], cell)
			default:
				fmt.Fprintf(&line, "%*s ", width[i], cell)
			}
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
}

func leftAligned(column string) bool {
	return slices.Contains([]string{"comm", "ucmd", "args", "command", "cmd", "user", "euser", "tty", "tt", "stat", "state", "s", "lstart"}, column)
}

func (p process) value(column string) string {
	switch column {
	case "pid":
		return strconv.Itoa(p.pid)
	case "ppid":
		return strconv.Itoa(p.ppid)
	case "pgid", "pgrp":
		return strconv.Itoa(p.pgid)
	case "sid", "sess":
		return strconv.Itoa(p.session)
	case "comm", "ucmd":
		return p.comm
	case "args", "command", "cmd":
		return p.args
	case "stat":
		if p.pid == p.session {
			return p.state + "s"
		}
		return p.state
	case "state", "s":
		return p.state
	case "uid", "user", "euser":
		return strconv.Itoa(p.uid)
	case "rss":
		return strconv.FormatInt(p.rssKB, 10)
	case "vsz":
		return strconv.FormatInt(p.vszKB, 10)
	case "time":
		return clock(p.cpu, true)
	case "etime":
		return clock(time.Since(p.started), false)
	case "lstart":
		return p.started.Format("Mon Jan _2 15:04:05 2006")
	case "stime":
		return p.started.Format("15:04")
	case "pcpu", "%cpu", "pmem", "%mem":
		return "0.0"
	case "pri":
		return "19"
	case "nice", "ni":
		return "0"
	default:
		return "?"
	}
}

// clock formats a duration as [[DD-]HH:]MM:SS.
func clock(d time.Duration, hours bool) string {
	s := int64(max(d, 0) / time.Second)
	switch {
	case s >= 24*3600:
		return fmt.Sprintf("%d-%02d:%02d:%02d", s/86400, s/3600%24, s/60%60, s%60)
	case hours || s >= 3600:
		return fmt.Sprintf("%02d:%02d:%02d", s/3600, s/60%60, s%60)
	default:
		return fmt.Sprintf("%02d:%02d", s/60, s%60)
	}
}

func readProcesses(proc string) ([]process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	boot := bootTime(proc)
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(filepath.Join(proc, e.Name()), pid, boot); ok { // the process may have ended meanwhile
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b process) int { return a.pid - b.pid })
	return out, nil
}

// ticks is USER_HZ, which Linux fixes at 100 for everything in /proc.
const ticks = 100

func readProcess(dir string, pid int, boot time.Time) (process, bool) {
	data, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, false
	}
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return process{}, false
	}
	f := strings.Fields(string(data[end+1:])) // f[0] is field 3 of proc(5)
	if len(f) < 22 {
		return process{}, false
	}
	number := func(field int) int64 {
		n, _ := strconv.ParseInt(f[field-3], 10, 64) // 0 if the field is not a number
		return n
	}
	p := process{
		pid: pid, state: f[0], comm: string(data[open+1 : end]), ppid: int(number(4)), pgid: int(number(5)), session: int(number(6)), tty: "?",
		cpu: time.Duration(number(14)+number(15)) * time.Second / ticks, started: boot.Add(time.Duration(number(22)) * time.Second / ticks),
		vszKB: number(23) / 1024, rssKB: number(24) * int64(os.Getpagesize()) / 1024, uid: -1,
	}
	if tty := number(7); tty>>8 == 136 {
		p.tty = fmt.Sprintf("pts/%d", tty&0xff)
	}
	if info, err := os.Stat(dir); err == nil {
		p.uid = ownerOf(info)
	}
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if p.args = strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " ")); err != nil || p.args == "" {
		p.args = "[" + p.comm + "]"
	}
	return p, true
}

func bootTime(proc string) time.Time {
	data, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return time.Time{}
	}
	for line := range strings.Lines(string(data)) {
		if at, ok := strings.CutPrefix(line, "btime "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(at), 10, 64)
			return time.Unix(n, 0)
		}
	}
	return time.Time{}
}
