package console

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// maxSessions is the number of browsers that are remembered.
const maxSessions = 64

// access admits browsers. A token in a URL works once and gives the browser a session
// in a cookie.
type access struct {
	hosts  []string // values of Host that name this server
	cookie string   // name of the cookie: browsers send it to every port of the host

	mu       sync.Mutex
	token    string
	sessions []string
}

// newAccess returns the access to a server that listens on a host and a port.
func newAccess(host, port string) *access {
	var hosts []string
	for _, h := range []string{"127.0.0.1", "localhost", "::1", host} {
		at := net.JoinHostPort(h, port)
		hosts = append(hosts, at)
		if port == "80" { // browsers leave it out
			hosts = append(hosts, strings.TrimSuffix(at, ":80"))
		}
	}
	return &access{
		hosts:  hosts,
		cookie: "turngate_" + port,
		token:  rand.Text(),
	}
}

// link returns the next token.
func (a *access) link() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token
}

// enter exchanges the token for a session.
func (a *access) enter(token string) (session string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !same(token, a.token) {
		return "", false
	}
	a.token, session = rand.Text(), rand.Text()
	if len(a.sessions) == maxSessions {
		a.sessions = a.sessions[1:]
	}
	a.sessions = append(a.sessions, session)
	return session, true
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func (a *access) has(session string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.sessions, func(s string) bool { return same(s, session) })
}

// policy lets pages load only this server's own files, and run no script of a page's
// text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard lets only requests of admitted browsers through to next. entered is called
// after a token was used.
func (a *access) guard(next http.Handler, entered func()) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch token := r.URL.Query().Get("token"); {
		case !slices.Contains(a.hosts, r.Host): // a name that an attacker's DNS server points here
			http.Error(w, "this is the console of another host name", http.StatusForbidden)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the console only reads", http.StatusMethodNotAllowed)
		case token != "" && r.URL.Path == "/" && r.Method == http.MethodGet:
			a.admit(w, token, entered)
		case !a.admitted(r):
			http.Error(w, "Open the URL that turngate printed last. Each URL works once.", http.StatusUnauthorized)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// admit gives a browser its session. A redirect would not do: a browser that comes from
// another page sends no cookie with SameSite=Strict after it.
func (a *access) admit(w http.ResponseWriter, token string, entered func()) {
	session, ok := a.enter(token)
	if !ok {
		http.Error(w, "This URL was used already, or is of an earlier console. Open the URL that turngate printed last.", http.StatusUnauthorized)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: a.cookie, Value: session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, `<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>turngate</title>`)
	entered()
}

// admitted reports whether a request is of a browser with a session. Pages of other
// ports of this host send the cookie, too, so their requests are refused.
func (a *access) admitted(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return false
	}
	c, err := r.Cookie(a.cookie)
	return err == nil && a.has(c.Value)
}
