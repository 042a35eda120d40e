package box

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
)

// carried returns the address of a socket in the sandbox. Its connections are
// carried over a session to a server for h.
func carried(t *testing.T, h http.Handler, headers time.Duration) string {
	t.Helper()
	worker, sandbox := pair(t)
	near, err := yamux.Client(worker, muxConfig())
	if err != nil {
		t.Fatal(err)
	}
	far, err := yamux.Server(sandbox, muxConfig())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const port = 1
	board := &switchboard{session: near, ports: map[int]*portListener{}}
	srv := serveForward(board.listen(port), h, headers)
	go board.run()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go (&server{session: far}).carry(c, forwarded{port})
		}
	}()
	t.Cleanup(func() {
		l.Close()
		near.Close()
		far.Close()
		srv.Close()
	})
	return l.Addr().String()
}

func dial(t *testing.T, address, sent string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, sent); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAHeaderThatDoesNotEnd closes its connection after a time. A request with a
// header in time keeps its connection, although its body takes longer.
func TestAHeaderThatDoesNotEnd(t *testing.T) {
	begun := make(chan struct{})
	address := carried(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v", body, err)
	}), 2*time.Second)
	whole := dial(t, address, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
	<-begun
	half := dial(t, address, "GET / HTTP/1.1\r\nHost: x\r\nX-Half: ")
	_ = half.SetReadDeadline(time.Now().Add(30 * time.Second))
	if got, err := io.ReadAll(half); err != nil || len(got) > 0 {
		t.Fatalf("half a header: %q, %v", got, err)
	}
	if _, err := io.WriteString(whole, "body"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(whole), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); err != nil || string(got) != "body <nil>" {
		t.Errorf("a whole header: %q, %v", got, err)
	}
}
