package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/turngate/turngate/e2e/chaos/history"
)

// tellFootprints tells what this process takes whenever it gets SIGUSR1.
func tellFootprints(ctx context.Context) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	defer signal.Stop(asked)
	for {
		select {
		case <-asked:
			tellFootprint()
		case <-ctx.Done():
			return
		}
	}
}

func tellFootprint() {
	for range 3 { // pools are emptied by the second
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	f := history.Footprint{Heap: int64(m.HeapAlloc), Goroutines: int64(runtime.NumGoroutine()), Files: int64(len(files))}
	fmt.Printf("%s%s\n", history.FootprintLine, mustJSON(f))
}
