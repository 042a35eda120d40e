package docker_test

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/sandboxes"
)

// cacheEngine is an engine without containers that records its cache prunes.
type cacheEngine struct {
	kit    bool          // it has BuildKit
	broken bool          // its prunes fail
	begun  chan struct{} // if not nil, has a value for each prune, and no prune ends

	mu     sync.Mutex
	prunes []url.Values
}

func (e *cacheEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case path == "/grpc" && e.kit:
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"))
		conn.Close()
	case strings.HasSuffix(path, "/build/prune"):
		e.mu.Lock()
		e.prunes = append(e.prunes, r.URL.Query())
		e.mu.Unlock()
		if e.begun != nil {
			e.begun <- struct{}{}
			<-r.Context().Done()
			return
		}
		if e.broken {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write([]byte(`{"SpaceReclaimed": 1}`))
	case strings.HasSuffix(path, "/info"), strings.HasSuffix(path, "/version"): // of another host, of the same kind
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"Os": "linux", "Arch": "` + runtime.GOARCH + `"}`))
	case strings.HasSuffix(path, "/_ping"):
		w.Header().Set("Api-Version", "1.41")
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/json"), r.Method == http.MethodGet && strings.HasSuffix(path, "/networks"):
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("[]"))
	case r.Method == http.MethodGet && strings.HasSuffix(path, "/volumes"):
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	default:
		http.NotFound(w, r)
	}
}

// backend makes a backend of this engine that has these bounds.
func (e *cacheEngine) backend(t *testing.T, keep sandboxes.Keep) *docker.Backend {
	t.Helper()
	path := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: e}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	t.Setenv("DOCKER_HOST", "unix://"+path)
	b, err := docker.New(docker.Config{Host: sandboxes.Host{StateDir: t.TempDir(), Keep: keep}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// prune prunes with these bounds, and returns the prunes of the engine's cache.
func (e *cacheEngine) prune(t *testing.T, keep sandboxes.Keep) ([]url.Values, error) {
	t.Helper()
	err := e.backend(t, keep).Store().PruneCache(t.Context())
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.prunes), err
}

// TestTheCacheOfBuildsIsBounded: a prune has the bound, spares data that was used just now or
// is shared with an image, and needs an engine with BuildKit.
func TestTheCacheOfBuildsIsBounded(t *testing.T) {
	prunes, err := (&cacheEngine{kit: true}).prune(t, sandboxes.Keep{Cache: 5e9})
	if err != nil || len(prunes) != 1 {
		t.Fatalf("%d prunes, %v", len(prunes), err)
	}
	p := prunes[0]
	if p.Get("keep-storage") != "5000000000" || p.Has("all") || p.Get("filters") != `{"until":{"10m0s":true}}` {
		t.Errorf("got %v", p)
	}
	for name, c := range map[string]struct {
		engine *cacheEngine
		keep   sandboxes.Keep
	}{
		"no bound":          {&cacheEngine{kit: true}, sandboxes.Keep{}},
		"no BuildKit":       {&cacheEngine{}, sandboxes.Keep{Cache: 1}},
		"a bound of images": {&cacheEngine{kit: true}, sandboxes.Keep{Age: 1}},
	} {
		if prunes, err := c.engine.prune(t, c.keep); err != nil || len(prunes) > 0 {
			t.Errorf("%s: %d prunes, %v", name, len(prunes), err)
		}
	}
}

// TestASlowPruneOfTheCacheDelaysNothing: a sweep and the removal of images end
// during the prune, and the prune ends with its context, without an error.
func TestASlowPruneOfTheCacheDelaysNothing(t *testing.T) {
	e := &cacheEngine{kit: true, begun: make(chan struct{}, 10)}
	b := e.backend(t, sandboxes.Keep{Cache: 1, Images: 1})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.KeepCache(ctx, func(err error) { t.Errorf("got %v", err) })
	}()
	<-e.begun
	if _, err := b.Sweep(t.Context(), "nobody", nil); err != nil {
		t.Error(err)
	}
	if _, err := b.Store().PruneImages(t.Context(), sandboxes.Keep{Images: 1}); err != nil {
		t.Error(err)
	}
	cancel()
	<-ended
	if n := len(e.begun); n > 0 {
		t.Errorf("%d more prunes", n)
	}
}

func TestAPruneOfTheCacheThatFailsIsReported(t *testing.T) {
	e := &cacheEngine{kit: true, broken: true}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var failed []error
	e.backend(t, sandboxes.Keep{Cache: 1}).KeepCache(ctx, func(err error) {
		failed = append(failed, err)
		cancel()
	})
	if len(failed) != 1 || !strings.Contains(failed[0].Error(), "prune the cache of image builds") {
		t.Errorf("got %v", failed)
	}
}
