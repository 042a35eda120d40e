package broker_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

func TestBundlesAndArtifacts(t *testing.T) {
	b := testenv.StartPool(t)
	data := bytes.Repeat([]byte("bundle "), 400_000) // several chunks
	sha, err := b.Trainer.PutBundle(t.Context(), data)
	harness.Must(t, err)
	again, err := b.Trainer.PutBundle(t.Context(), data)
	harness.Must(t, err)
	got, err := b.Broker.Objects.Bundle(t.Context(), "alpha", sha)
	harness.Must(t, err)
	if again != sha || !bytes.Equal(got, data) {
		t.Fatal("the bundle changed on the way")
	}
	a, err := b.Broker.Objects.PutArtifact(t.Context(), "alpha", "agent.log", broker.FileOf([]byte("log")), 0)
	harness.Must(t, err)
	if got, err := b.Trainer.Artifact(t.Context(), a.SHA256); err != nil || string(got) != "log" {
		t.Fatalf("got %q, %v", got, err)
	}
	store, err := b.JetStream(t).ObjectStore(t.Context(), subjects.TasksBucket("alpha"))
	harness.Must(t, err)
	if theirs, err := store.GetBytes(t.Context(), sha); err != nil || !bytes.Equal(theirs, data) { // which checks size and digest
		t.Fatalf("the usual client cannot read it: %v", err)
	}
	if _, err := b.Broker.Objects.Bundle(t.Context(), "alpha", strings.Repeat("0", 64)); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
}

// TestAFileThatCannotBeReadIsNotStored: the server has none of its chunks, and no reader
// sees it.
func TestAFileThatCannotBeReadIsNotStored(t *testing.T) {
	b := testenv.StartPool(t)
	data := harness.Noise(3 << 20)
	broken := errors.New("input/output error")
	reads := 0
	file := broker.File{Size: int64(len(data)), Open: func() io.Reader {
		if reads++; reads == 1 {
			return bytes.NewReader(data)
		}
		return io.MultiReader(bytes.NewReader(data[:2<<20]), iotest.ErrReader(broken))
	}}
	if _, err := b.Broker.Objects.PutArtifact(t.Context(), "alpha", "log", file, 0); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	sum := sha256.Sum256(data)
	if _, err := b.Trainer.Artifact(t.Context(), hex.EncodeToString(sum[:])); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	stream, err := b.JetStream(t).Stream(t.Context(), subjects.ObjectStream(subjects.ArtifactsBucket("alpha")))
	harness.Must(t, err)
	if n := stream.CachedInfo().State.Msgs; n != 0 {
		t.Errorf("%d messages are left", n)
	}
	reads, file.Size = 0, file.Size+1
	if _, err := b.Broker.Objects.PutArtifact(t.Context(), "alpha", "log", file, 0); err == nil {
		t.Error("a file with another size was stored")
	}
}

// The server must delete an artifact after the rollouts that have it, not
// before. The header of each message has the time until its deletion.
func TestArtifactsAreKeptAsLongAsTheirRollouts(t *testing.T) {
	b := testenv.StartPool(t)
	stream, err := b.JetStream(t).Stream(t.Context(), subjects.ObjectStream(subjects.ArtifactsBucket("alpha")))
	harness.Must(t, err)
	// lives returns the TTL of each message from a sequence on; "": for ever.
	lives := func(from uint64) (found []string) {
		info, err := stream.Info(t.Context())
		harness.Must(t, err)
		for seq := from; seq <= info.State.LastSeq; seq++ {
			m, err := stream.GetMsg(t.Context(), seq)
			harness.Must(t, err)
			found = append(found, m.Header.Get("Nats-TTL"))
		}
		return found
	}
	next := func() uint64 {
		info, err := stream.Info(t.Context())
		harness.Must(t, err)
		return info.State.LastSeq + 1
	}
	const day, week, always = 24 * time.Hour, 7 * 24 * time.Hour, 0
	for _, tt := range []struct {
		what string
		keep time.Duration
		want []string // TTLs of the new messages
	}{
		{"a piece and its name", day, []string{"49h0m0s", "49h0m0s"}},
		{"it is there for long enough", day, nil},
		{"it is not there for long enough", week, []string{"337h0m0s", "337h0m0s"}},
		{"it is there for longer", day, nil},
		{"for ever", always, []string{"", ""}},
		{"it is there for ever", week, nil},
	} {
		from := next()
		a, err := b.Broker.Objects.PutArtifact(t.Context(), "alpha", "log", broker.FileOf([]byte("the same")), tt.keep)
		harness.Must(t, err)
		if got := lives(from); !slices.Equal(got, tt.want) {
			t.Errorf("%s: messages were written that are kept for %q, want %q", tt.what, got, tt.want)
		}
		if got, err := b.Trainer.Artifact(t.Context(), a.SHA256); err != nil || string(got) != "the same" {
			t.Errorf("%s: got %q, %v", tt.what, got, err)
		}
	}
}

func TestABundleWithAWrongDigest(t *testing.T) {
	b := testenv.StartPool(t)
	js, err := jetstream.New(testenv.Raw(t, b.Server.URL(), b.Server.AdminCreds(), "_INBOX.test"))
	harness.Must(t, err)
	store, err := js.ObjectStore(t.Context(), subjects.TasksBucket("alpha"))
	harness.Must(t, err)
	sha := strings.Repeat("a", 64)
	_, err = store.PutString(t.Context(), sha, "something else")
	harness.Must(t, err)
	if _, err := b.Broker.Objects.Bundle(t.Context(), "alpha", sha); !errors.Is(err, broker.ErrDigest) {
		t.Fatalf("got %v", err)
	}
}

// TestBrokenChunksOfAnObject stores objects as a hostile trainer can: with chunks
// that are missing, repeated, in another order, too long, or too many.
func TestBrokenChunksOfAnObject(t *testing.T) {
	b := testenv.StartPool(t)
	bucket := subjects.TasksBucket("alpha")
	first, second := bytes.Repeat([]byte("a"), 4096), bytes.Repeat([]byte("b"), 4096)
	whole := slices.Concat(first, second)
	sum := sha256.Sum256(whole)
	sha := hex.EncodeToString(sum[:])
	size := strconv.Itoa(len(whole))
	tiny := [][]byte{nil}
	for c := range slices.Chunk(whole, 16) {
		tiny = append(tiny, c)
	}
	for name, tt := range map[string]struct {
		chunks [][]byte
		meta   string // %s: the id of the chunks
		want   error
	}{
		"whole":             {[][]byte{first, second}, `{"nuid":"%s","size":` + size + `}`, nil},
		"missing":           {[][]byte{second}, `{"nuid":"%s","size":` + size + `}`, broker.ErrNotFound},
		"none":              {nil, `{"nuid":"%s","size":` + size + `}`, broker.ErrNotFound},
		"in another order":  {[][]byte{second, first}, `{"nuid":"%s","size":` + size + `}`, broker.ErrDigest},
		"repeated":          {[][]byte{first, first, second}, `{"nuid":"%s","size":` + size + `}`, broker.ErrDigest},
		"too long":          {[][]byte{first, append(slices.Clone(second), 'x')}, `{"nuid":"%s","size":` + size + `}`, broker.ErrDigest},
		"too many":          {tiny, `{"nuid":"%s","size":` + size + `}`, broker.ErrDigest},
		"a smaller size":    {[][]byte{first, second}, `{"nuid":"%s","size":5000}`, broker.ErrDigest},
		"every chunk":       {[][]byte{first, second}, `{"nuid":">","size":` + size + `,"was":"%s"}`, broker.ErrDigest},
		"no subject":        {[][]byte{first, second}, `{"nuid":"a b","size":` + size + `,"was":"%s"}`, broker.ErrDigest},
		"without an id":     {[][]byte{first, second}, `{"size":` + size + `,"was":"%s"}`, broker.ErrDigest},
		"no description":    {nil, `{"nuid":"%s","size":-1}`, broker.ErrDigest},
		"not even JSON":     {nil, `%s`, broker.ErrDigest},
		"an enormous size":  {nil, `{"nuid":"%s","size":18446744073709551615}`, &broker.TooLargeError{}},
		"a size, no chunks": {nil, `{"nuid":"%s","size":0}`, broker.ErrDigest},
	} {
		t.Run(name, func(t *testing.T) {
			id := nuid.Next()
			for _, c := range tt.chunks {
				_, err := b.JetStream(t).Publish(t.Context(), subjects.ObjectChunks(bucket, id), c)
				harness.Must(t, err)
			}
			_, err := b.JetStream(t).Publish(t.Context(), subjects.ObjectMeta(bucket, sha), fmt.Appendf(nil, tt.meta, id))
			harness.Must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			got, err := b.Broker.Objects.Bundle(ctx, "alpha", sha)
			var large *broker.TooLargeError
			switch {
			case tt.want == nil && (err != nil || !bytes.Equal(got, whole)):
				t.Errorf("got %d bytes, %v", len(got), err)
			case errors.As(tt.want, &large):
				if !errors.As(err, &large) || !strings.Contains(err.Error(), " has 18446744073709551615 bytes, the limit is 2147483648") {
					t.Errorf("got %v", err)
				}
			case tt.want != nil && (!errors.Is(err, tt.want) || !strings.Contains(err.Error(), sha)):
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestABrokenDescriptionIsReplaced uploads a bundle with a broken description.
func TestABrokenDescriptionIsReplaced(t *testing.T) {
	b := testenv.StartPool(t)
	data := []byte("bundle")
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	for _, meta := range []string{"{", `{"nuid":"abc","size":5}`, `{"nuid":"abc","size":0}`, `{"nuid":"abc","size":18446744073709551615}`, `{"nuid":">","size":6}`, `{"size":6}`} {
		_, err := b.JetStream(t).Publish(t.Context(), subjects.ObjectMeta(subjects.TasksBucket("alpha"), sha), []byte(meta))
		harness.Must(t, err)
		_, err = b.Trainer.PutBundle(t.Context(), data)
		harness.Must(t, err)
		if got, err := b.Broker.Objects.Bundle(t.Context(), "alpha", sha); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: got %q, %v", meta, got, err)
		}
	}
}
