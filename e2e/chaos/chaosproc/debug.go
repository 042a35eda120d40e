package main

import (
	"fmt"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/turngate/turngate/e2e/chaos/clock"
	"github.com/turngate/turngate/e2e/chaos/history"
)

// debugServer answers the run's questions about this process.
type debugServer struct {
	closed, exit chan struct{}
}

// serveDebug listens on an abstract socket until the process ends.
func serveDebug(name string) (*debugServer, error) {
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		return nil, err
	}
	d := &debugServer{closed: make(chan struct{}), exit: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+history.PathGoroutines, func(w http.ResponseWriter, _ *http.Request) {
		_ = pprof.Lookup("goroutine").WriteTo(w, 2)
	})
	mux.HandleFunc("GET "+history.PathHeap, func(w http.ResponseWriter, _ *http.Request) {
		for range 3 { // pools are emptied by the second
			debug.FreeOSMemory() // collects, and then the resident memory has no free pages
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Fprint(w, m.HeapAlloc)
	})
	mux.HandleFunc("POST "+history.PathClock, func(w http.ResponseWriter, r *http.Request) {
		step, err := time.ParseDuration(r.URL.Query().Get("step"))
		if err == nil {
			err = clock.Step(step)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	for path, c := range map[string]chan struct{}{history.PathClose: d.closed, history.PathExit: d.exit} {
		var once sync.Once
		mux.HandleFunc("POST "+path, func(http.ResponseWriter, *http.Request) { once.Do(func() { close(c) }) })
	}
	go func() {
		if err := http.Serve(l, mux); err != nil { //nolint:gosec // the run alone asks
			panic(err)
		}
	}()
	return d, nil
}
