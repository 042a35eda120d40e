package desktop

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// symbol is a keysym: the meaning of a key on a display.
type symbol uint32

// symbolOf returns the symbol of a character.
func symbolOf(r rune) symbol {
	switch {
	case r == '\n':
		return 0xff0d // Return
	case r == '\t':
		return 0xff09 // Tab
	case r < 0x100:
		return symbol(r)
	default:
		return 0x01000000 | symbol(r)
	}
}

// symbolsOf returns the symbols of a text.
func symbolsOf(text string) ([]symbol, error) {
	if !utf8.ValidString(text) {
		return nil, &InvalidError{"text", strings.ToValidUTF8(text, "?"), "text in UTF-8"}
	}
	var list []symbol
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return nil, &InvalidError{"text", fmt.Sprintf("%+q", r), "characters that can be typed; use the operation key for other keys"}
		}
		list = append(list, symbolOf(r))
	}
	return list, nil
}

// named returns the symbols of keys with a name, in lower case.
func named() map[string]symbol {
	list := map[string]symbol{
		"ctrl": 0xffe3, "control": 0xffe3, "shift": 0xffe1, "alt": 0xffe9, "super": 0xffeb, "meta": 0xffeb,
		"return": 0xff0d, "enter": 0xff0d, "tab": 0xff09, "escape": 0xff1b, "esc": 0xff1b, "backspace": 0xff08, "delete": 0xffff, "insert": 0xff63,
		"home": 0xff50, "left": 0xff51, "up": 0xff52, "right": 0xff53, "down": 0xff54, "pageup": 0xff55, "pagedown": 0xff56, "end": 0xff57,
		"space": ' ', "plus": '+', "minus": '-', "menu": 0xff67, "print": 0xff61, "pause": 0xff13,
	}
	for n := range 12 {
		list[fmt.Sprintf("f%d", n+1)] = 0xffbe + symbol(n)
	}
	return list
}

// chordOf returns the symbols of keys that are down at once, such as ctrl+c, in their order.
func chordOf(keys string) ([]symbol, error) {
	wrong := func() error {
		return &InvalidError{"keys", keys, "characters or names with + between them, such as ctrl+c, alt+F4, Return or plus"}
	}
	parts := strings.Split(keys, "+")
	if len(parts) > 5 {
		return nil, wrong()
	}
	names := named()
	var list []symbol
	for _, part := range parts {
		r, size := utf8.DecodeRuneInString(part)
		s, ok := names[strings.ToLower(strings.ReplaceAll(part, "_", ""))]
		switch {
		case ok:
			list = append(list, s)
		case size > 0 && size == len(part) && r != utf8.RuneError && unicode.IsPrint(r):
			list = append(list, symbolOf(r))
		default:
			return nil, wrong()
		}
	}
	return list, nil
}
