package broker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func TestATrainerMayActOnlyAsItself(t *testing.T) {
	b := testenv.StartPool(t)
	nc := testenv.Raw(t, b.Server.URL(), b.Server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"))
	for _, subject := range []string{
		subjects.Request(2, "beta"), subjects.Result("alpha-1"), subjects.State("alpha-1"), subjects.TrainerCancel("beta"),
		"_INBOX.gate.beta.w1.i1.00", subjects.Event("alpha-1", schema.EventLog), "$JS.API.STREAM.DELETE.REC_alpha", "$JS.API.CONSUMER.CREATE.OBJ_tasks_alpha.x", "$JS.API.STREAM.MSG.GET.REC_beta", "$O.tasks_beta.C.x", "$O.artifacts_alpha.C.x", "trainer.beta.open",
	} {
		if !denied(t, nc, func() error { return nc.Publish(subject, nil) }) {
			t.Errorf("alpha may publish %s", subject)
		}
	}
	for _, subject := range []string{subjects.CallsOf("beta", ""), "rollout.>", "_INBOX.>", subjects.TrainerResults("beta")} {
		if !denied(t, nc, func() error { _, err := nc.SubscribeSync(subject); return err }) {
			t.Errorf("alpha may hear %s", subject)
		}
	}
	if _, err := nats.Connect(b.Server.URL()); err == nil {
		t.Error("the server is open without authentication")
	}
}

func denied(t *testing.T, nc *nats.Conn, act func() error) bool {
	t.Helper()
	got := make(chan error, 8)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { got <- err })
	if err := act(); err != nil {
		t.Fatal(err)
	}
	harness.Must(t, nc.Flush())
	select {
	case err := <-got:
		return strings.Contains(strings.ToLower(err.Error()), "permissions violation")
	case <-time.After(time.Second):
		return false
	}
}

func TestCredentialsAreKeptFromOthers(t *testing.T) {
	b := testenv.StartPool(t)
	for _, f := range []string{b.Server.AdminCreds(), b.Server.SystemCreds(), b.Server.WorkerCreds("w1"), b.Server.OpsCreds(), b.Server.TrainerCreds("alpha")} {
		info, err := os.Stat(f)
		harness.Must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", f, info.Mode())
		}
	}
	dir, err := os.Stat(filepath.Dir(b.Server.OpsCreds()))
	harness.Must(t, err)
	if dir.Mode().Perm() != 0o700 {
		t.Errorf("the credentials' folder has mode %v", dir.Mode())
	}
}
