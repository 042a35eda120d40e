package console

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/turngate/turngate/trajectory"
)

// maskedText replaces a text that looks like a credential.
const maskedText = "[masked]"

// shortestValue is the length from which the value of a variable is masked; shorter ones
// are words of many texts.
const shortestValue = 8

// credential is a form of credentials. The groups of its expression are kept around the
// masked text: the first one before it, the second one behind it.
type credential struct {
	name string
	form *regexp.Regexp
}

// masker masks probable credentials in texts, and counts them.
type masker struct {
	forms  []credential
	values []string // of variables with names of credentials, in all forms of encodings
	found  map[string]int
}

// variable is the name of a variable with a credential.
const variable = `(?i)(^|[_.-])(api_?key|access_?key|private_?key|key|token|secret|password|passwd|credentials?)($|[_.-])`

// newMasker returns a masker that knows the credentials of variables (NAME=VALUE), too.
func newMasker(variables []string) *masker {
	m := &masker{found: map[string]int{}}
	for _, f := range [][2]string{
		{"private key", `()-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)()`},
		{"key of a model's API", `()\b(?:sk-[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,})()`},
		{"token of a code host", `()\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,})()`},
		{"key of a cloud", `()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b()`},
		{"token of a chat", `()\bxox[abposr]-[A-Za-z0-9-]{10,}()`},
		{"JSON web token", `()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*()`},
		{"seed of NATS", `()\bS[ACNOUX][A-Z2-7]{56}\b()`},
		{"HTTP authorization", `(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{16,}()`},
		{"password of a URL", `(://[^\s/:@"']*:)[^\s/@"']{3,}(@)`},
		{"value of a variable", `(?i)(\b[A-Za-z0-9_.-]*(?:api_?key|access_?key|private_?key|token|secret|password|passwd|credentials?)["'\\]*\s*[:=]\s*["'\\]*)[A-Za-z0-9_+/=.~!@#%^-]{12,}()`},
	} {
		m.forms = append(m.forms, credential{f[0], regexp.MustCompile(f[1])})
	}
	name := regexp.MustCompile(variable)
	for _, v := range variables {
		if key, value, ok := strings.Cut(v, "="); ok && len(value) >= shortestValue && name.MatchString(key) {
			m.values = append(m.values, encodings(value)...)
		}
	}
	slices.SortFunc(m.values, func(a, b string) int { return cmp.Compare(len(b), len(a)) }) // one may be part of another
	return m
}

// encodings returns the forms that a text has in JSON, also in JSON that is a text of JSON,
// in a word of a shell, in a URL, in HTML, in base64 and in hexadecimal digits.
func encodings(text string) []string {
	quoted := func(s string, html, ascii bool) string {
		var out strings.Builder
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(html)
		_ = e.Encode(s) // a text has a form
		inner := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(out.String(), "\n"), `"`), `"`)
		if ascii {
			q := strconv.QuoteToASCII(s)
			inner = q[1 : len(q)-1]
		}
		return inner
	}
	forms := []string{
		text, strings.ReplaceAll(text, `'`, `'\''`), strings.ReplaceAll(text, `'`, `'"'"'`), url.QueryEscape(text), url.PathEscape(text), html.EscapeString(text),
		base64.StdEncoding.EncodeToString([]byte(text)), base64.URLEncoding.EncodeToString([]byte(text)), hex.EncodeToString([]byte(text)),
	}
	const levels = 3 // arguments of a tool are JSON in JSON, and may have a body of JSON
	for range levels {
		for _, f := range slices.Clone(forms) {
			for _, q := range []string{quoted(f, false, false), quoted(f, true, false), quoted(f, false, true)} {
				if !slices.Contains(forms, q) {
					forms = append(forms, q)
				}
			}
		}
	}
	return forms
}

// text masks a text.
func (m *masker) text(s string) string {
	for _, v := range m.values {
		if n := strings.Count(s, v); n > 0 {
			m.found["value of a variable"] += n
			s = strings.ReplaceAll(s, v, maskedText)
		}
	}
	for _, f := range m.forms {
		if !f.form.MatchString(s) {
			continue
		}
		s = f.form.ReplaceAllStringFunc(s, func(found string) string {
			part := f.form.FindStringSubmatchIndex(found)
			before, behind := found[part[2]:part[3]], found[part[4]:part[5]]
			value := found[part[3]:part[4]]
			if f.name == "value of a variable" && !mixed(value) || strings.HasPrefix(value, maskedText) {
				return found
			}
			m.found[f.name]++
			return before + maskedText + behind
		})
	}
	return s
}

// hides reports whether messages of a rollout have a text that is masked.
func (m *masker) hides(t *trajectory.Rollout) bool {
	look := &masker{forms: m.forms, values: m.values, found: map[string]int{}}
	message := func(raw json.RawMessage) {
		var v any
		if json.Unmarshal(raw, &v) != nil {
			v = string(raw)
		}
		look.value(v)
	}
	for _, c := range t.Calls {
		for _, raw := range c.Messages {
			message(raw)
		}
		message(c.Message)
	}
	return len(look.found) > 0
}

// mixed reports whether a value has letters and digits, as random ones have.
func mixed(value string) bool {
	return strings.ContainsAny(value, "0123456789") && strings.ContainsFunc(value, func(r rune) bool { return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' })
}

// value masks all texts of a decoded value of JSON.
func (m *masker) value(v any) any {
	switch v := v.(type) {
	case string:
		return m.text(v)
	case []any:
		for i := range v {
			v[i] = m.value(v[i])
		}
		return v
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, inner := range v {
			out[m.text(k)] = m.value(inner)
		}
		return out
	default:
		return v
	}
}
