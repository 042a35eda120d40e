package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/plain"
)

// maxSessions is the number of browsers that are remembered.
const maxSessions = 64

// access admits browsers. A token in a URL works once and gives the browser a session
// in a cookie.
type access struct {
	hosts  []string // values of Host that name this server
	cookie string   // name of the cookie: browsers send it to every port of the host
	log    zerolog.Logger

	mu       sync.Mutex
	token    string
	begun    int // sessions
	sessions []session
}

// session is a browser that was admitted.
type session struct {
	number int    // 1, 2, ..., for the log
	cookie string // which the browser sends by itself
	token  string // which only the pages know, and send with each write
}

// newAccess returns the access to a server that listens on a host and a port.
func newAccess(host, port string, log zerolog.Logger) *access {
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
		log:    log,
	}
}

// link returns the next token.
func (a *access) link() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token
}

// enter exchanges the token for a session.
func (a *access) enter(token string) (cookie string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !same(token, a.token) {
		return "", false
	}
	a.token = rand.Text()
	if len(a.sessions) == maxSessions {
		a.sessions = a.sessions[1:]
	}
	a.begun++
	now := session{a.begun, rand.Text(), rand.Text()}
	a.sessions = append(a.sessions, now)
	return now.cookie, true
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// find returns the session of a cookie.
func (a *access) find(cookie string) (session, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.sessions {
		if same(s.cookie, cookie) {
			return s, true
		}
	}
	return session{}, false
}

// withSession is the key of the session in the context of a request.
type withSession struct{}

func sessionIn(r *http.Request) session {
	s, _ := r.Context().Value(withSession{}).(session)
	return s
}

// audit leaves a line in the log about a write of a session. refused is the reason for
// which it was not carried out; empty: it was. more adds fields.
func audit(log *zerolog.Logger, name string, by session, refused string, more func(*zerolog.Event)) {
	line := log.Log().Str("audit", name).Int("session", by.number)
	if refused == "" {
		line.Func(more).Msg("a write of the console")
		return
	}
	line.Str("refused", plain.Line(refused, maxFault)).Func(more).Msg("a write of the console was refused")
}

// policy lets pages load only this server's own files and the pictures that the data of pages
// has, and run no script of a page's text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// foreignWrite is the reason for which a write without the origin and the token is refused.
const foreignWrite = "this is no write of a page of this console"

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
		case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodPost:
			h.Set("Allow", "GET, HEAD, POST")
			http.Error(w, "the console has no such method", http.StatusMethodNotAllowed)
		case token != "" && r.URL.Path == "/" && r.Method == http.MethodGet:
			a.admit(w, token, entered)
		default:
			s, ok := a.admitted(r)
			switch {
			case !ok:
				http.Error(w, "Open the URL that turngate printed last. Each URL works once.", http.StatusUnauthorized)
			case r.Method == http.MethodPost && !mayWrite(r, s):
				audit(&a.log, plain.Line(r.URL.Path, maxCell), s, foreignWrite, func(*zerolog.Event) {})
				http.Error(w, foreignWrite, http.StatusForbidden)
			default:
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), withSession{}, s)))
			}
		}
	})
}

// admit gives a browser its session. A redirect would not do: a browser that comes from
// another page sends no cookie with SameSite=Strict after it.
func (a *access) admit(w http.ResponseWriter, token string, entered func()) {
	cookie, ok := a.enter(token)
	if !ok {
		http.Error(w, "This URL was used already, or is of an earlier console. Open the URL that turngate printed last.", http.StatusUnauthorized)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: a.cookie, Value: cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, `<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>turngate</title>`)
	entered()
}

// admitted returns the session of a request's browser. Pages of other ports of this host
// send the cookie, too, so their requests are refused.
func (a *access) admitted(r *http.Request) (session, bool) {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return session{}, false
	}
	c, err := r.Cookie(a.cookie)
	if err != nil {
		return session{}, false
	}
	return a.find(c.Value)
}

// tokenHeader has the token of the session. A page of another origin cannot set it.
const tokenHeader = "Turngate-Token"

// mayWrite reports whether a write comes from a page of this console: a browser tells the
// origin of each, and only the pages of this origin can read the token.
func mayWrite(r *http.Request, s session) bool {
	return r.Header.Get("Origin") == "http://"+r.Host && same(r.Header.Get(tokenHeader), s.token)
}
