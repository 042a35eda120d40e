package main

import (
	"context"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/plain"
)

// statusEvery is the time between two looks at the state without a watchdog.
const statusEvery = 10 * time.Second

// underSystemd tells systemd that this service has started, and that it stops when the
// context ends or the returned function is called. Until the returned function is called it shows state in `systemctl
// status` (nil: ready) and renews the watchdog of the unit. A service that is not ready
// renews it too: systemd starts a service again only if the service can no longer read its
// state. Without Type=notify it does nothing.
func underSystemd(ctx context.Context, state func() error, log zerolog.Logger) (stop func()) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return func() {}
	}
	tell := func(text string) {
		if _, err := daemon.SdNotify(false, text); err != nil {
			log.Warn().Err(err).Msg("systemd cannot be told the state of this service")
		}
	}
	beats, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn().Err(err).Msg("the watchdog of systemd is not renewed")
	}
	every := statusEvery
	if beats > 0 {
		every = min(every, beats/2)
	}
	status := func() string {
		if err := state(); err != nil {
			return "STATUS=not ready: " + plain.Line(err.Error(), 200)
		}
		return "STATUS=ready"
	}
	tell(daemon.SdNotifyReady + "\n" + status())
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		stopping := ctx.Done()
		for {
			select {
			case <-quit:
				if stopping != nil {
					tell(daemon.SdNotifyStopping + "\n" + status())
				}
				return
			case <-stopping:
				stopping = nil
				tell(daemon.SdNotifyStopping + "\n" + status())
			case <-tick.C:
				tell(daemon.SdNotifyWatchdog + "\n" + status())
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}
