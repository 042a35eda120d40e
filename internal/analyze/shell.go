package analyze

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Bounds of a script of an agent.
const (
	maxScript = 256 << 10 // bytes
	maxDepth  = 4         // scripts that run scripts
	maxTexts  = 16        // values of a word, such as a{1,2}
	maxUses   = 1000
)

// effects are the uses and programs of a tool call, as far as its text tells.
type effects struct {
	uses     []use
	programs []string // that its commands start
	searches []use    // searches of all files: the path is the pattern
	unread   bool     // a script was too large
}

func (e *effects) use(u use) {
	if u.path != "" && len(e.uses) < maxUses {
		e.uses = append(e.uses, u)
	}
}

// shell reads scripts of a shell. It follows changes of the folder and variables with
// plain values; it runs nothing.
type shell struct {
	out   *effects
	files *files
	depth int
	state
	stdin map[*syntax.Stmt]string // text that a pipe brings, where it is known
	text  string
}

type state struct {
	dir  string // empty: not known
	vars map[string][]string
}

func (s state) copy() state {
	vars := make(map[string][]string, len(s.vars))
	for k, v := range s.vars {
		vars[k] = v
	}
	return state{s.dir, vars}
}

// readShell adds the effects of a script.
func readShell(out *effects, f *files, dir, text string, depth int) {
	if depth > maxDepth {
		return
	}
	if len(text) > maxScript || nests(text) {
		out.unread = true
		return
	}
	s := &shell{out: out, files: f, depth: depth, state: state{dir, map[string][]string{}}, stdin: map[*syntax.Stmt]string{}, text: text}
	// A shell runs the commands before a mistake, too. The parser may tell of a mistake
	// twice, so the loop does not end early.
	for stmt, err := range syntax.NewParser(syntax.Variant(syntax.LangBash)).StmtsSeq(strings.NewReader(text)) {
		if err == nil {
			s.walk(stmt)
		}
	}
}

// maxNested bounds the depth of a script's parts in each other: every part takes a
// byte or more, and the parser needs a few KB of stack for each.
const maxNested = 16 << 10

// nests reports whether a script may be too deep for the parser. Documents in it are
// flat, but for the commands in them.
func nests(text string) bool {
	if len(text) <= maxNested {
		return false
	}
	plain, until := 0, ""
	for line := range strings.Lines(text) {
		if until != "" {
			plain += strings.Count(line, "$") + strings.Count(line, "`")
			if strings.TrimSpace(line) == until {
				until = ""
			}
			continue
		}
		plain += len(line)
		if m := documents().FindStringSubmatch(line); m != nil {
			until = m[1]
		}
	}
	return plain > maxNested
}

// documents matches the begin of a document in a script.
func documents() *regexp.Regexp { return regexp.MustCompile(`<<-?\s*['"\\]?(\w+)`) }

func (s *shell) walk(root syntax.Node) {
	var before []*state // a copy for each subshell, which ends with its own changes
	syntax.Walk(root, func(n syntax.Node) bool {
		if n == nil {
			last := before[len(before)-1]
			if before = before[:len(before)-1]; last != nil {
				s.state = *last
			}
			return false
		}
		var kept *state
		switch n := n.(type) {
		case *syntax.Subshell, *syntax.CmdSubst, *syntax.ProcSubst:
			now := s.state
			kept, s.state = &now, s.copy()
		case *syntax.Stmt:
			s.stmt(n)
		case *syntax.BinaryCmd:
			s.pipe(n)
		case *syntax.ForClause:
			if loop, ok := n.Loop.(*syntax.WordIter); ok {
				s.vars[loop.Name.Value] = s.all(loop.Items)
			}
		case *syntax.DeclClause:
			s.assign(n.Args)
		case *syntax.UnaryTest:
			if w, ok := n.X.(*syntax.Word); ok && n.Op != syntax.TsEmpStr && n.Op != syntax.TsNempStr {
				s.read(n, s.texts(w)...)
			}
		}
		before = append(before, kept)
		return true
	})
}

// pipe notes a text that a command prints into a shell.
func (s *shell) pipe(n *syntax.BinaryCmd) {
	if n.Op != syntax.Pipe && n.Op != syntax.PipeAll {
		return
	}
	if call, ok := n.X.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 {
		switch args := s.all(call.Args); {
		case len(args) == 0:
		case slices.Contains([]string{"echo", "printf"}, args[0]):
			s.stdin[n.Y] = strings.Join(args[1:], " ")
		case args[0] == "cat":
			s.stdin[n.Y] = s.heredoc(n.X)
		}
	}
}

func (s *shell) assign(list []*syntax.Assign) {
	for _, a := range list {
		if a.Name != nil && a.Value != nil && !a.Append {
			s.vars[a.Name.Value] = s.texts(a.Value)
		}
	}
}

// heredoc returns the text that a statement has as its input.
func (s *shell) heredoc(n *syntax.Stmt) string {
	for _, r := range n.Redirs {
		switch {
		case r.Hdoc != nil:
			return s.source(r.Hdoc)
		case r.Op == syntax.WordHdoc:
			return strings.Join(s.texts(r.Word), " ")
		}
	}
	return s.stdin[n]
}

func (s *shell) stmt(n *syntax.Stmt) {
	var to []string
	for _, r := range n.Redirs {
		switch r.Op {
		case syntax.RdrOut, syntax.AppOut, syntax.RdrClob, syntax.RdrAll, syntax.AppAll, syntax.RdrInOut:
			to = append(to, s.texts(r.Word)...)
		case syntax.RdrIn:
			s.read(n, s.texts(r.Word)...)
		}
	}
	s.write(n, to...)
	call, ok := n.Cmd.(*syntax.CallExpr)
	if !ok {
		return
	}
	if len(call.Args) == 0 {
		s.assign(call.Assigns)
		return
	}
	given := s.heredoc(n)
	args := s.all(call.Args)
	if len(args) == 0 {
		return
	}
	s.command(n, args, given)
	switch path.Base(args[0]) {
	case "cat", "tee":
		if path.Base(args[0]) == "tee" {
			to = append(to, args[1:]...)
		}
		for _, at := range to {
			s.files.put(s.dir, at, given)
		}
	case "echo", "printf":
		for _, at := range to {
			s.files.put(s.dir, at, strings.Join(args[1:], " "))
		}
	}
}

// source returns the text of a node.
func (s *shell) source(n syntax.Node) string {
	from, to := int(n.Pos().Offset()), int(n.End().Offset())
	if from < 0 || to > len(s.text) || from > to {
		return ""
	}
	return s.text[from:to]
}

func (s *shell) read(n syntax.Node, paths ...string) {
	for _, p := range paths {
		s.out.use(use{absolute(s.dir, p), false, s.source(n)})
	}
}

func (s *shell) write(n syntax.Node, paths ...string) {
	for _, p := range paths {
		s.out.use(use{absolute(s.dir, p), true, s.source(n)})
	}
}

// unknown is the part of a word's value that is not known.
const unknown = "\x00"

// all returns the values of words.
func (s *shell) all(words []*syntax.Word) []string {
	var out []string
	for _, w := range words {
		out = append(out, s.texts(w)...)
	}
	return out
}

// texts returns the values of a word. A value ends before its first part that is not
// known, if that part does not begin it.
func (s *shell) texts(w *syntax.Word) []string {
	if w == nil {
		return nil
	}
	own := *w // a copy, which may have braces that syntax.Walk does not know
	syntax.SplitBraces(&own)
	out := s.join(own.Parts)
	for i, text := range out {
		out[i], _, _ = strings.Cut(text, unknown)
	}
	return out
}

func (s *shell) join(parts []syntax.WordPart) []string {
	out := []string{""}
	for _, p := range parts {
		var next []string
		for _, end := range s.part(p) {
			for _, begin := range out {
				if len(next) < maxTexts && len(begin)+len(end) <= maxScript {
					next = append(next, begin+end)
				}
			}
		}
		out = next
	}
	return out
}

func (s *shell) part(p syntax.WordPart) []string {
	switch p := p.(type) {
	case *syntax.Lit:
		return []string{unescape(p.Value)}
	case *syntax.SglQuoted:
		return []string{p.Value}
	case *syntax.DblQuoted:
		return s.join(p.Parts)
	case *syntax.ParamExp:
		if p.Param == nil || p.Excl || p.Length || p.Width || p.Index != nil || p.Slice != nil || p.Repl != nil || p.Exp != nil {
			return []string{unknown}
		}
		if p.Param.Value == "PWD" && s.dir != "" {
			return []string{s.dir}
		}
		if list := s.vars[p.Param.Value]; len(list) > 0 {
			return list
		}
	case *syntax.BraceExp:
		if p.Sequence {
			break
		}
		var out []string
		for _, w := range p.Elems {
			out = append(out, s.join(w.Parts)...)
		}
		return out[:min(len(out), maxTexts)]
	}
	return []string{unknown}
}

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			if i++; s[i] == '\n' {
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
