package analyze

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// command adds the effects of a command: its uses of the paths among its arguments,
// by the rules of its program. given is its input, if known.
func (s *shell) command(n syntax.Node, args []string, given string) {
	args = s.unwrap(args)
	if len(args) == 0 || args[0] == "" {
		return
	}
	name := path.Base(args[0])
	if len(s.out.programs) < maxUses {
		s.out.programs = append(s.out.programs, args[0])
	}
	if strings.Contains(args[0], "/") {
		s.read(n, args[0])
		s.script(s.files.get(s.dir, args[0]), name)
	}
	options, plain := split(args[1:])
	switch name {
	case "cd", "pushd":
		s.chdir(n, plain)
	case "echo", "printf", "true", "false", ":", "export", "set", "unset", "local", "return", "exit", "type", "which", "whereis", "man", "help", "apropos", "expr", "basename", "dirname", "alias", "trap", "kill", "sleep", "date", "seq":
	case "eval":
		s.run(strings.Join(args[1:], " "))
	case "sh", "bash", "dash", "ash", "zsh", "ksh":
		s.interpreter(n, args, given, "-c", s.run)
	case "source", ".":
		if len(plain) > 0 {
			s.read(n, plain[0])
			s.run(s.files.get(s.dir, plain[0]))
		}
	case "python", "python2", "python3", "pypy", "pypy3":
		s.interpreter(n, args, given, "-c", s.code)
	case "node", "nodejs", "deno", "bun", "perl", "ruby", "php":
		s.interpreter(n, args, given, "-e", s.code)
	case "apply_patch", "applypatch":
		s.patch(strings.Join(append(args[1:], given), "\n"))
	case "grep", "egrep", "fgrep", "rg", "ag", "ack", "sed", "gsed", "awk", "gawk", "mawk", "jq", "yq":
		s.filter(n, name, args[1:], plain)
	case "find", "fd", "fdfind":
		s.find(n, args[1:])
	case "locate", "mlocate", "plocate":
		for _, p := range plain {
			s.search(n, p)
		}
	case "git":
		if len(plain) > 0 && !slices.Contains([]string{"commit", "log", "tag", "grep", "notes", "config", "branch"}, plain[0]) {
			s.read(n, plain...)
		}
	case "cp", "mv", "ln", "install", "rsync", "scp":
		s.copies(n, name, options, plain)
	case "rm", "rmdir", "unlink", "shred", "truncate", "touch", "mkdir", "mkfifo", "chmod", "chown", "chgrp", "chattr", "tee", "mount", "mktemp":
		s.write(n, plain...)
	case "dd":
		for _, a := range plain {
			if to, ok := strings.CutPrefix(a, "of="); ok {
				s.write(n, to)
			} else if from, ok := strings.CutPrefix(a, "if="); ok {
				s.read(n, from)
			}
		}
	case "curl", "wget":
		s.download(n, args[1:], plain)
	default:
		s.read(n, plain...)
		for _, o := range options {
			if _, value, ok := strings.Cut(o, "="); ok {
				s.read(n, value)
			}
		}
	}
}

// split tells options from other arguments. After "--" there are no options.
func split(args []string) (options, plain []string) {
	for i, a := range args {
		switch {
		case a == "--":
			return options, append(plain, args[i+1:]...)
		case len(a) > 1 && a[0] == '-':
			options = append(options, a)
		default:
			plain = append(plain, a)
		}
	}
	return options, plain
}

// unwrap removes the programs before another one's name, such as sudo and timeout.
func (s *shell) unwrap(args []string) []string {
	for range 8 {
		if len(args) == 0 {
			return nil
		}
		rest := args[1:]
		switch path.Base(args[0]) {
		case "sudo", "doas", "nohup", "exec", "builtin", "time", "stdbuf", "setsid", "strace", "busybox", "ionice", "nice", "chrt", "xargs", "unbuffer":
		case "command":
			if len(rest) > 0 && (rest[0] == "-v" || rest[0] == "-V") {
				return nil
			}
		case "timeout":
			for len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
				rest = rest[1:]
			}
			if len(rest) > 0 {
				rest = rest[1:]
			}
		case "env":
			for len(rest) > 0 && (strings.HasPrefix(rest[0], "-") || strings.Contains(rest[0], "=")) {
				rest = rest[1:]
			}
		default:
			return args
		}
		for len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
			takes := slices.Contains([]string{"-n", "-u", "-I", "-P", "-L", "-o", "-e", "-d", "-c", "-g"}, rest[0])
			if rest = rest[1:]; takes && len(rest) > 1 {
				rest = rest[1:]
			}
		}
		args = rest
	}
	return args
}

func (s *shell) chdir(n syntax.Node, to []string) {
	if len(to) == 0 || to[0] == "" || to[0] == "-" {
		s.dir = ""
		return
	}
	s.read(n, to[0])
	s.dir = absolute(s.dir, to[0])
}

// run reads a script of a shell that a command runs.
func (s *shell) run(text string) {
	if text != "" {
		readShell(s.out, s.files, s.dir, text, s.depth+1)
	}
}

// code reads a program in a language other than the shell's.
func (s *shell) code(text string) {
	if text != "" {
		readCode(s.out, s.files, s.dir, text, s.depth+1)
	}
}

// script reads a file that the agent has written and now runs by its path.
func (s *shell) script(text, name string) {
	first, _, _ := strings.Cut(text, "\n")
	switch {
	case text == "":
	case strings.HasPrefix(first, "#!") && !strings.HasSuffix(first, "sh"), slices.Contains([]string{".py", ".js", ".pl", ".rb"}, path.Ext(name)):
		s.code(text)
	default:
		s.run(text)
	}
}

// interpreter reads the program that a command runs: the value of an option, a file,
// or its input.
func (s *shell) interpreter(n syntax.Node, args []string, given, option string, read func(string)) {
	for i := 1; i < len(args); i++ {
		a := args[i]
		switch {
		case len(a) > 1 && a[0] == '-' && a[1] != '-' && strings.HasSuffix(a, option[1:]):
			if i+1 < len(args) {
				read(args[i+1])
				s.read(n, args[i+2:]...)
			}
			return
		case a == "-m": // a module, such as pytest
			s.read(n, args[i+1:]...)
			return
		case a == "-" || a == "-s":
		case strings.HasPrefix(a, "-"):
		default:
			s.read(n, args[i:]...)
			read(s.files.get(s.dir, a))
			return
		}
	}
	read(given)
}

// filter adds the files of a command with a first argument that is a pattern or a
// program.
func (s *shell) filter(n syntax.Node, name string, args, plain []string) {
	if !slices.ContainsFunc(args, func(a string) bool {
		return a == "-e" || a == "-f" || strings.HasPrefix(a, "--regexp") || strings.HasPrefix(a, "--file") || strings.HasPrefix(a, "--expression")
	}) && len(plain) > 0 {
		plain = plain[1:]
	}
	inPlace := slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-i") || strings.HasPrefix(a, "--in-place") })
	if inPlace && strings.HasSuffix(name, "sed") {
		s.write(n, plain...)
	} else {
		s.read(n, plain...)
	}
}

// find adds the folders of a search, and its patterns if it searches all files.
func (s *shell) find(n syntax.Node, args []string) {
	first := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") || a == "(" || a == "!" })
	if first < 0 {
		first = len(args)
	}
	from, tests := args[:first], args[first:]
	if slices.Contains(tests, "-delete") {
		s.write(n, from...)
	} else {
		s.read(n, from...)
	}
	if i := slices.IndexFunc(tests, func(a string) bool { return a == "-exec" || a == "-execdir" }); i >= 0 {
		s.command(n, tests[i+1:], "")
	}
	if !slices.ContainsFunc(from, func(p string) bool { return absolute(s.dir, p) == "/" }) {
		return
	}
	for i, a := range tests {
		if slices.Contains([]string{"-name", "-iname", "-path", "-ipath", "-wholename", "-regex"}, a) && i+1 < len(tests) {
			s.search(n, tests[i+1])
		}
	}
}

func (s *shell) search(n syntax.Node, pattern string) {
	if len(s.out.searches) < maxUses {
		s.out.searches = append(s.out.searches, use{pattern, false, s.source(n)})
	}
}

func (s *shell) copies(n syntax.Node, name string, options, plain []string) {
	if len(plain) < 2 {
		s.read(n, plain...)
		return
	}
	from, to := plain[:len(plain)-1], plain[len(plain)-1]
	if slices.Contains(options, "-t") { // its value is the first argument here
		from, to = plain[1:], plain[0]
	}
	if name == "mv" {
		s.write(n, from...)
	} else {
		s.read(n, from...)
	}
	s.write(n, to)
	if len(from) == 1 {
		s.files.put(s.dir, to, s.files.get(s.dir, from[0]))
	}
}

func (s *shell) download(n syntax.Node, args, plain []string) {
	for i, a := range args {
		if (a == "-o" || a == "-O" || a == "--output") && i+1 < len(args) {
			s.write(n, args[i+1])
		}
	}
	for _, p := range plain {
		if rest, ok := strings.CutPrefix(p, "file://"); ok {
			s.read(n, rest)
		} else if rest, ok := strings.CutPrefix(p, "@"); ok {
			s.read(n, rest)
		}
	}
}

// patch adds the files of a patch in the form of the tool apply_patch.
func (s *shell) patch(text string) {
	for line := range strings.Lines(text) {
		for _, begin := range []string{"*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "} {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), begin); ok {
				s.out.use(use{absolute(s.dir, name), true, strings.TrimSpace(line)})
			}
		}
	}
}
