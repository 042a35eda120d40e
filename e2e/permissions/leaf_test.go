package permissions_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

// leafWorld is a world with an address for leaf nodes, and the credential of the site paris.
type leafWorld struct {
	*world
	leaves, seed string
}

// newLeafWorld starts a nats-server. edit changes the text of its file.
func newLeafWorld(t *testing.T, edit func(string) string) leafWorld {
	t.Helper()
	keys := keyring(t, "alpha", "beta")
	harness.Must(t, keys.AddLeaf("paris", ""))
	listen, leaves := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	file := configFile(t, keys, broker.ServerFile{Listen: listen, LeafListen: leaves, Store: filepath.Join(t.TempDir(), "js")}, "nats.conf")
	text, err := os.ReadFile(file)
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(file, []byte(edit(string(text))), 0o600))
	startServer(t, testenv.NATSServer(t), file)
	awaitServer(t, "nats://"+listen, keys.AdminCreds())
	return leafWorld{newWorld(t, "nats://"+listen, keys), leaves, filepath.Join(keys.Dir(), "leaf-paris.nk")}
}

// publish sends a message as a hostile leaf node does, which speaks the protocol of
// servers and keeps none of their rules. It returns the server's refusal.
func (w leafWorld) publish(t *testing.T, subject, body string) (refusal string) {
	t.Helper()
	conn, err := net.Dial("tcp", w.leaves)
	harness.Must(t, err)
	defer conn.Close()
	harness.Must(t, conn.SetDeadline(time.Now().Add(5*time.Minute)))
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	harness.Must(t, err)
	var info struct{ Nonce string }
	harness.Must(t, json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info))
	seed, err := os.ReadFile(w.seed)
	harness.Must(t, err)
	pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	harness.Must(t, err)
	public, err := pair.PublicKey()
	harness.Must(t, err)
	proof, err := pair.Sign([]byte(info.Nonce))
	harness.Must(t, err)
	connect, err := json.Marshal(map[string]any{"nkey": public, "sig": base64.RawURLEncoding.EncodeToString(proof), "server_id": "HOSTILE", "name": "paris", "version": "2.15.2"})
	harness.Must(t, err)
	_, err = fmt.Fprintf(conn, "CONNECT %s\r\nPING\r\nLMSG %s %d\r\n%s\r\nPING\r\n", connect, subject, len(body), body)
	harness.Must(t, err)
	for pongs := 0; pongs < 2; {
		line, err := in.ReadString('\n')
		if strings.HasPrefix(line, "-ERR") {
			return strings.TrimSpace(line)
		}
		harness.Must(t, err)
		if strings.HasPrefix(line, "PONG") {
			pongs++
		}
	}
	return ""
}

// TestASiteHasTheRightsOfAWorker lets the holder of a site's credential publish as a worker
// of any name, and on subjects of other roles. The messages of the latter do not arrive; one
// of the admin's does.
func TestASiteHasTheRightsOfAWorker(t *testing.T) {
	w := newLeafWorld(t, func(text string) string { return text })
	for _, c := range []struct {
		subject string
		arrives bool
	}{
		{subjects.Lease("w1", "i1"), true}, {subjects.WorkerStatus("w9"), true}, {subjects.TrainerResults("beta"), true}, {"machine.m1.down.1-a.w9.x", true},
		{"machine.m1.down.1-a.@admin.x", false},
		{subjects.TrainerCancel("alpha"), false}, {subjects.TrainerHold("alpha"), false}, {subjects.TrainerOpen("alpha"), false}, {subjects.TrainerAttach("alpha"), false},
		{subjects.GateInbox("alpha", "w1", "i1", [16]byte{4}), false}, {"_INBOX.worker.w1.x", false}, {subjects.ShellDown("w1", "x"), false},
		{"$JS.API.STREAM.DELETE.NONE", false}, {"$JS.API.STREAM.SNAPSHOT.NONE", false}, {"$JS.API.DIRECT.GET." + subjects.StreamEvents, false}, {"anything.else", false},
	} {
		t.Run(c.subject, func(t *testing.T) {
			heard := w.listen(t, c.subject)
			refusal := w.publish(t, c.subject, "forged")
			if arrives := refusal == ""; arrives != c.arrives {
				t.Errorf("the server says %q", refusal)
			}
			if c.arrives {
				heard.await(t, "forged")
				return
			}
			harness.Must(t, w.admin.Publish(c.subject, []byte(control)))
			heard.await(t, control)
			for _, m := range heard.list() {
				if m != control {
					t.Errorf("%q arrived", m)
				}
			}
		})
	}
}

// TestASiteSettlesRequestsWithoutTheRight pins a limit of nats-server: it asks for no right
// when a leaf node acknowledges a message, not even one that is denied. If this fails,
// take $JS.ACK from leafRights where a site does not need it, and claim that in
// docs/security.md.
func TestASiteSettlesRequestsWithoutTheRight(t *testing.T) {
	w := newLeafWorld(t, func(text string) string {
		before, after, ok := strings.Cut(text, "deny: [") // of the site alone
		if !ok || !strings.HasPrefix(after, `"`+subjects.MachineDownFrom(subjects.AdminClient)) {
			t.Fatalf("the file has another form:\n%s", text)
		}
		return before + `deny: ["$JS.ACK.>", ` + after
	})
	if a := put(t, w.as(t, role{"trainer", "beta"}), message(subjects.Request(2, "beta"), "x")); a.Error != nil {
		t.Fatalf("%+v", a.Error)
	}
	next := "$JS.API.CONSUMER.MSG.NEXT." + subjects.Queue("beta") + "." + subjects.ConsumerOf(2)
	taken, err := w.as(t, role{"worker", "w1"}).Request(next, []byte(`{"batch":1}`), time.Minute)
	harness.Must(t, err)
	if n := w.messages(t, subjects.Queue("beta")); n != 1 || !strings.HasPrefix(taken.Reply, "$JS.ACK.") {
		t.Fatalf("the queue has %d requests, and w1 has %q", n, taken.Reply)
	}
	if refusal := w.publish(t, taken.Reply, "+ACK"); refusal != "" {
		t.Fatalf("the server says %q", refusal)
	}
	harness.Eventually(t, "the end of the request", 5*time.Minute, func() bool { return w.messages(t, subjects.Queue("beta")) == 0 })
	if refusal := w.publish(t, "$JS.API.STREAM.DELETE.NONE", ""); refusal == "" {
		t.Error("the control failed: the server refuses the site nothing")
	}
}
