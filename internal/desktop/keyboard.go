package desktop

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jezek/xgb/xproto"
)

// keyboard types symbols. A symbol that no key of the display has gets a key that has none.
// Such a key keeps its symbol, since programs read the change when they handle it: the
// oldest one is used again when no other is left.
type keyboard struct{ bound []bound }

// bound is a key that has got a symbol.
type bound struct {
	code   xproto.Keycode
	symbol symbol
}

// key is a key of a display, which may need shift for a symbol.
type key struct {
	code  xproto.Keycode
	shift bool
}

// layout has the symbols of the keys of a display.
type layout struct {
	first   xproto.Keycode
	each    int // symbols of a key
	symbols []xproto.Keysym
}

func (d *display) layout() (layout, error) {
	first, last := d.setup.MinKeycode, d.setup.MaxKeycode
	got, err := xproto.GetKeyboardMapping(d.conn, first, byte(last-first+1)).Reply()
	if err != nil {
		return layout{}, fmt.Errorf("read the keys of the display: %w", explain(err))
	}
	if got.KeysymsPerKeycode < 1 {
		return layout{}, errors.New("the display has no keyboard")
	}
	return layout{first, int(got.KeysymsPerKeycode), got.Keysyms}, nil
}

// of returns the symbols of the key n.
func (l *layout) of(n int) []xproto.Keysym { return l.symbols[n*l.each : (n+1)*l.each] }

// has reports whether a key that has got a symbol still has this one and no other.
func (l *layout) has(b bound) bool {
	n := int(b.code) - int(l.first)
	if n < 0 || n >= len(l.symbols)/l.each {
		return false
	}
	all := l.of(n)
	return symbol(all[0]) == b.symbol && !slices.ContainsFunc(all, func(s xproto.Keysym) bool { return s != 0 && symbol(s) != b.symbol })
}

// find returns the key of a symbol.
func (l *layout) find(s symbol) (key, bool) {
	for level := range min(l.each, 2) {
		for n := range len(l.symbols) / l.each {
			if symbol(l.of(n)[level]) == s {
				return key{l.first + xproto.Keycode(n), level == 1}, true
			}
		}
	}
	return key{}, false
}

// errNoKeys means that too many characters of one text have no key.
var errNoKeys = errors.New("the keyboard of the display has no free keys for so many characters that it lacks: type fewer at once")

// keys returns the keys of symbols.
func (k *keyboard) keys(d *display, list []symbol) (map[symbol]key, error) {
	l, err := d.layout()
	if err != nil {
		return nil, err
	}
	found, lacks := map[symbol]key{}, []symbol(nil)
	used := map[xproto.Keycode]bool{}
	for _, s := range list {
		if at, ok := l.find(s); ok {
			found[s] = at
			used[at.code] = true
		} else if !slices.Contains(lacks, s) {
			lacks = append(lacks, s)
		}
	}
	var free []xproto.Keycode
	for n := range len(l.symbols) / l.each {
		if !slices.ContainsFunc(l.of(n), func(s xproto.Keysym) bool { return s != 0 }) {
			free = append(free, l.first+xproto.Keycode(n))
		}
	}
	k.bound = slices.DeleteFunc(k.bound, func(b bound) bool { return !l.has(b) }) // another program has changed it
	for _, b := range k.bound {
		if !used[b.code] && !slices.Contains(free, b.code) {
			free = append(free, b.code)
		}
	}
	if len(lacks) > len(free) {
		return nil, errNoKeys
	}
	for i, s := range lacks {
		code := free[i]
		if err := xproto.ChangeKeyboardMappingChecked(d.conn, 1, code, 2, []xproto.Keysym{xproto.Keysym(s), xproto.Keysym(s)}).Check(); err != nil {
			return nil, fmt.Errorf("give a character a key: %w", explain(err))
		}
		k.bound = append(slices.DeleteFunc(k.bound, func(b bound) bool { return b.code == code }), bound{code, s})
		found[s] = key{code, false}
	}
	return found, nil
}

const shift symbol = 0xffe1

// typeText types symbols one after another.
func (k *keyboard) typeText(d *display, list []symbol) error {
	keys, err := k.keys(d, append(slices.Clone(list), shift))
	if err != nil {
		return err
	}
	for _, s := range list {
		if err := hold(d, keys, []symbol{s}); err != nil {
			return err
		}
	}
	return nil
}

// chord presses symbols in their order and releases them.
func (k *keyboard) chord(d *display, list []symbol) error {
	keys, err := k.keys(d, append(slices.Clone(list), shift))
	if err != nil {
		return err
	}
	return hold(d, keys, list)
}

// hold presses keys, and releases them in the opposite order.
func hold(d *display, keys map[symbol]key, list []symbol) error {
	var codes []xproto.Keycode
	for _, s := range list {
		if keys[s].shift && !slices.Contains(codes, keys[shift].code) {
			codes = append(codes, keys[shift].code)
		}
		codes = append(codes, keys[s].code)
	}
	var events []event
	for _, code := range codes {
		events = append(events, event{kind: xproto.KeyPress, detail: byte(code)})
	}
	for _, code := range slices.Backward(codes) {
		events = append(events, event{kind: xproto.KeyRelease, detail: byte(code)})
	}
	return d.fake(events...)
}
