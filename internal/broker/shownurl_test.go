package broker_test

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
)

func TestNoPasswordIsShown(t *testing.T) {
	for given, want := range map[string]string{
		"":                                "",
		"nats://127.0.0.1:4222":           "nats://127.0.0.1:4222",
		"nats://me:secret@host:4222":      "nats://host:4222",
		"nats://secret@host":              "nats://host", // a token
		"me:secret@host:4222":             "host:4222",
		"tls://a, nats://me:sec@ret@b/":   "tls://a,nats://b/",
		"ws://me:sec/ret@a,wss://secret@": "ws://a,wss://",
	} {
		if got := broker.ShownURL(given); got != want {
			t.Errorf("%s: got %q", given, got)
		}
	}
}

// TestAnErrorOfAConnectionHasNoPassword: the errors of net/url have the URL, or a part of it.
func TestAnErrorOfAConnectionHasNoPassword(t *testing.T) {
	for _, url := range []string{"nats://me:secret@127.0.0.1:1", "nats://me:secret%zz@127.0.0.1:1", "nats://me:secret/secret@127.0.0.1:1", "nats://me:secret secret@127.0.0.1:1"} {
		_, err := broker.Dial(t.Context(), broker.Config{URL: url, Log: zerolog.Nop()})
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "nats://127.0.0.1:1") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
