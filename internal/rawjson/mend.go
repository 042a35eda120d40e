package rawjson

import (
	"bytes"
	"unicode/utf8"
)

// Mend replaces invalid Unicode in a JSON text by U+FFFD: escapes of single
// surrogates, and bytes that are not UTF-8. replaced counts the replacements;
// if it is 0, mended is v itself. Mend does not check that v is JSON.
func Mend(v []byte) (mended []byte, replaced int) {
	var out []byte // the mended text of v[:from]; nil: no replacement yet
	from := 0
	replace := func(at, end int, by string) {
		if out == nil {
			out = make([]byte, 0, len(v)+16)
		}
		out = append(append(out, v[from:at]...), by...)
		from = end
		replaced++
	}
	for i := 0; i < len(v); {
		switch c := v[i]; {
		case c == '\\':
			unit, ok := surrogate(v[i:])
			if !ok {
				i = min(i+2, len(v))
				continue
			}
			if low, ok := surrogate(v[i+len(`\ud83d`):]); ok && unit < 0xdc00 && low >= 0xdc00 {
				i += 2 * len(`\ud83d`)
				continue
			}
			replace(i, i+len(`\ud83d`), `\ufffd`)
			i = from
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(v[i:])
			if i += n; r == utf8.RuneError && n == 1 {
				replace(i-1, i, "\ufffd")
			}
		default:
			i++
			i += plainRun(v[i:])
		}
	}
	if replaced == 0 {
		return v, 0
	}
	return append(out, v[from:]...), replaced
}

// plainRun counts the bytes in front of the next escape or byte beyond ASCII.
func plainRun(v []byte) int {
	if n := bytes.IndexByte(v, '\\'); n >= 0 {
		v = v[:n]
	}
	for i, c := range v {
		if c >= utf8.RuneSelf {
			return i
		}
	}
	return len(v)
}

// surrogate reads the escape of a surrogate at the beginning of v.
func surrogate(v []byte) (unit int, ok bool) {
	if len(v) < len(`\ud83d`) || v[0] != '\\' || v[1] != 'u' || v[2]|0x20 != 'd' {
		return 0, false
	}
	for _, h := range v[2:6] {
		switch {
		case '0' <= h && h <= '9':
			unit = unit<<4 | int(h-'0')
		case 'a' <= h|0x20 && h|0x20 <= 'f':
			unit = unit<<4 | int(h|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return unit, unit >= 0xd800 && unit < 0xe000
}
