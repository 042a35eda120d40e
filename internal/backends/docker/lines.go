package docker

import "strings"

// maxLine is the maximum length of an output line in bytes; longer lines are
// cut into several.
const maxLine = 64 << 10

// lines cuts a stream of text into lines.
type lines struct {
	say  func(string)
	rest []byte // the unfinished line
}

func (l *lines) add(text string) {
	for text != "" {
		line, after, ended := strings.Cut(text, "\n")
		if room := maxLine - len(l.rest); len(line) > room {
			line, after, ended = text[:room], text[room:], true
		}
		l.rest, text = append(l.rest, line...), after
		if ended {
			l.say(strings.TrimRight(string(l.rest), "\r"))
			l.rest = l.rest[:0]
		}
	}
}

func (l *lines) end() {
	if len(l.rest) > 0 {
		l.say(string(l.rest))
		l.rest = nil
	}
}
