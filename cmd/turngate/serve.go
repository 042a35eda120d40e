package main

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/front"
	"github.com/turngate/turngate/internal/telemetry"
)

// serveFlags are the flags of a front.
type serveFlags struct {
	tokens, events, listen string
	tlsCert, tlsKey        string // files
	monitor                metricsFlags
}

func (f *serveFlags) check() error {
	var wrong []error
	if f.tokens == "" {
		wrong = append(wrong, errors.New("--tokens: it needs a file of tokens"))
	}
	err := telemetry.CheckAddress(f.listen)
	wrong = append(wrong, flagOf("listen", err))
	switch {
	case (f.tlsCert == "") != (f.tlsKey == ""):
		wrong = append(wrong, errors.New("--tls-cert, --tls-key: want both, or none"))
	case err == nil && f.tlsCert == "" && !telemetry.Loopback(f.listen):
		wrong = append(wrong, fmt.Errorf("--listen: %s is reached from other hosts, which would send their tokens without TLS: want --tls-cert and --tls-key, or a loopback address", f.listen))
	}
	return usageOf(append(wrong, f.monitor.check("metrics"))...)
}

// tls returns the configuration of TLS; nil: none.
func (f *serveFlags) tls() (*tls.Config, error) {
	if f.tlsCert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(f.tlsCert, f.tlsKey)
	if err != nil {
		return nil, usage("--tls-cert, --tls-key: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, nil
}

func serveCommand() *cobra.Command {
	var nf natsFlags
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve HTTP and JSON to trainers that have no client of NATS",
		Long: "Serve HTTP and JSON to trainers that have no client of NATS, until SIGTERM: to submit, list and cancel rollouts, to read their results, files and events, and to answer their model calls, run their tools and verify over a WebSocket.\n\n" +
			"--tokens names a file with the trainers that are admitted: a YAML list of trainer, sha256 (of the bearer token, in hex) and creds (the file with the trainer's credential). A front acts with the credential of the token's trainer, so the NATS server bounds what it can do. " +
			"It keeps no state: several fronts may run behind a balancer.",
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return f.check() },
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := newLogger(cmd, zerolog.InfoLevel)
			c := front.Config{URL: nf.url, Listen: f.listen, Log: log}
			var err error
			if c.Tokens, err = front.ReadTokens(f.tokens); err != nil {
				return usage("--tokens: %w", err)
			}
			if c.TLS, err = f.tls(); err != nil {
				return err
			}
			m, err := f.monitor.begin(log)
			if err != nil {
				return err
			}
			defer m.close()
			c.HTTP = m.http()
			if f.events != "" {
				nf.creds = f.events
				role := broker.RoleOps
				if known, _ := broker.RoleOf(f.events); known == broker.RoleAdmin {
					role = broker.RoleAdmin
				}
				if c.Events, err = nf.dial(cmd.Context(), role, role, log); err != nil {
					return err
				}
				defer c.Events.Close()
			}
			s, err := front.Listen(cmd.Context(), c)
			if err != nil {
				return err
			}
			m.ready(until(cmd.Context(), s.Ready))
			log.Info().Str("address", s.Address()).Bool("tls", c.TLS != nil).Msg("serving trainers")
			return s.Run(cmd.Context())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&nf.url, "nats", defaultURL, "URL of the NATS server")
	fl.StringVar(&f.tokens, "tokens", "", "file with the tokens of the trainers")
	fl.StringVar(&f.events, "events", "", "file with the credential of an operator (ops.nk), to show trainers the events of their rollouts (default: none are shown)")
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8420", "address and port; port 0 is a free one; one that is not of the loopback needs TLS")
	fl.StringVar(&f.tlsCert, "tls-cert", "", "file with the certificate of the front (PEM)")
	fl.StringVar(&f.tlsKey, "tls-key", "", "file with the key of the certificate (PEM)")
	f.monitor.add(fl)
	return cmd
}
