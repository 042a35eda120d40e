package front

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
)

// TestATrainerHasABoundOfConnections: with all of its connections open it gets no other one,
// and another trainer does. A client without a token keeps none.
func TestATrainerHasABoundOfConnections(t *testing.T) {
	b := newBench(t)
	type answer struct {
		conn   net.Conn
		status int
		last   bool // the front closes the connection
		after  string
	}
	ask := func(token, path string) answer {
		t.Helper()
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
		harness.Must(t, err)
		t.Cleanup(func() { conn.Close() })
		_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: front\r\nAuthorization: Bearer %s\r\n\r\n", path, token)
		harness.Must(t, err)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		harness.Must(t, err)
		res.Body.Close()
		return answer{conn, res.StatusCode, res.Close, res.Header.Get("Retry-After")}
	}
	const invalid = "/v1/results?after=x" // its answer needs no NATS
	var one net.Conn
	for range maxLines {
		a := ask(alphaToken, invalid)
		if one = a.conn; a.status != http.StatusBadRequest || a.last {
			t.Fatalf("a connection: %+v", a)
		}
	}
	if a := ask(alphaToken, invalid); a.status != http.StatusTooManyRequests || !a.last || a.after == "" {
		t.Errorf("one too many: %+v", a)
	}
	if a := ask(betaToken, invalid); a.status != http.StatusBadRequest {
		t.Errorf("of another trainer: %+v", a)
	}
	one.Close()
	harness.Eventually(t, "a connection in place of another", 20*time.Second, func() bool {
		return ask(alphaToken, invalid).status == http.StatusBadRequest
	})
	for _, path := range []string{"/livez", "/openapi.json", "/v1/workers"} {
		if !ask("wrong", path).last {
			t.Errorf("%s keeps the connection of a stranger", path)
		}
	}
}
