// tangram-gateway serves /v1/completions in front of a world of engines.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"tangram.dev/operator/internal/gateway"
	"tangram.dev/operator/internal/pki"
)

type flags struct {
	world, model, listen, operations, telemetry, name, readyFile, logLevel string
	seeds, discover                                                        []string
	tls                                                                    pki.Files
	lostAfter                                                              time.Duration
	byLoad                                                                 bool
	limits                                                                 gateway.Limits
	text, tokens, tokenizer                                                string
	drain                                                                  gateway.Drain
}

func main() { os.Exit(run()) }

// run returns the exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it immediately
	defer stop()
	var f flags
	root := &cobra.Command{Use: "tangram-gateway", Short: "Serve the OpenAI-compatible API of a world", Args: cobra.NoArgs,
		SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), f) }}
	p := root.Flags()
	p.StringVar(&f.world, "world", "", "name of the world")
	p.StringVar(&f.model, "model", "tangram", "model name in requests of clients")
	p.StringVar(&f.listen, "listen", "127.0.0.1:8080", "host:port of the client API")
	p.StringVar(&f.operations, "metrics-listen", "", "host:port of /metrics, /livez and /readyz; empty: not served")
	p.StringVar(&f.telemetry, "telemetry-listen", "", "host:port of the telemetry service for the operator (load and latencies), over mTLS; empty: not served")
	p.StringVar(&f.name, "name", uuid.NewString(), "name of this gateway; engines buffer its tokens under this name while it reconnects; default: random")
	p.StringSliceVar(&f.seeds, "seed", nil, "host:port of one or more engine frontends, from which the other frontends are discovered")
	p.StringSliceVar(&f.discover, "discover", nil, "host:port of a Service in front of the engines, used only for discovery")
	p.StringVar(&f.tls.CA, "tls-ca", "", "file with the CA certificate, in PEM format")
	p.StringVar(&f.tls.Cert, "tls-cert", "", "file with the certificate of this gateway, in PEM format")
	p.StringVar(&f.tls.Key, "tls-key", "", "file with the private key of this gateway, in PEM format")
	p.StringVar(&f.readyFile, "ready-file", "", "file to write the listening addresses to, as JSON; empty: not written")
	p.StringVar(&f.logLevel, "log-level", "info", "log level: debug, info, warn or error")
	p.DurationVar(&f.lostAfter, "lost-after", 10*time.Second, "time after which a disconnected session is lost")
	p.BoolVar(&f.byLoad, "place-by-load", false, "choose ranks for requests only by load, without regard to cached prompt prefixes")
	p.DurationVar(&f.drain.LameDuck, "lame-duck", 0, "drain period after SIGTERM, in which the gateway is unready but accepts requests")
	p.DurationVar(&f.drain.Grace, "grace", 5*time.Second, "time for in-flight requests to finish after the drain period")
	p.Int64Var(&f.limits.Body, "max-body-bytes", 16<<20, "maximum size of a request body, in bytes")
	p.Int64Var(&f.limits.Bodies, "max-bodies-bytes", 64<<20, "maximum total size of request bodies that are read concurrently, in bytes")
	p.Int64Var(&f.limits.Answers, "max-held-bytes", 1<<30, "maximum memory of in-flight requests, in bytes: prompts, responses and tokens that clients have not received")
	p.IntVar(&f.limits.Connections, "max-connections", 16384, "maximum number of client connections; further connections wait")
	p.DurationVar(&f.limits.Read, "read-timeout", 30*time.Second, "maximum time to receive a request")
	p.DurationVar(&f.limits.Write, "write-timeout", 30*time.Second, "maximum time for a client to receive sent data")
	p.DurationVar(&f.limits.Idle, "idle-timeout", 2*time.Minute, "maximum idle time of a connection between two requests")
	p.DurationVar(&f.limits.Quiet, "keep-alive", 15*time.Second, "time without a token after which a stream gets a comment line")
	p.StringVar(&f.text, "text-socket", "", "UNIX socket of the text server, which serves requests that need a tokenizer; empty: no text server")
	p.StringVar(&f.tokens, "tokens-socket", "", "UNIX socket on which this gateway serves tokens to the text server")
	p.StringVar(&f.tokenizer, "tokenizer", "none", "tokenizer without a text server: none (clients send token ids) or bytes (each byte is a token, for test models with 256 tokens)")
	root.MarkFlagsMutuallyExclusive("tokenizer", "text-socket")
	root.MarkFlagsRequiredTogether("text-socket", "tokens-socket")
	for _, name := range []string{"world", "tls-ca", "tls-cert", "tls-key"} {
		if err := root.MarkFlagRequired(name); err != nil {
			panic(err) // not a flag: a bug of this file
		}
	}
	root.MarkFlagsOneRequired("seed", "discover")
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tangram-gateway:", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, f flags) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	config, err := pki.Client(f.tls, f.world, "engine/")
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	pool := gateway.NewPool(gateway.Options{World: f.world, Gateway: f.name, Seeds: f.seeds, Discover: f.discover, TLS: config,
		LostAfter: f.lostAfter, ByLoadAlone: f.byLoad, Log: log, Metrics: gateway.NewMetrics(registry, f.model)})
	defer pool.Close()
	registry.MustRegister(gateway.NewRequestMetrics(pool, f.model))
	clients, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	var operations net.Listener
	if f.operations != "" {
		if operations, err = (&net.ListenConfig{}).Listen(ctx, "tcp", f.operations); err != nil {
			return fmt.Errorf("--metrics-listen: %w", err)
		}
	}
	told, err := tell(ctx, f, pool, log)
	if err != nil {
		return err
	}
	defer told.stop()
	if err := writeReady(f.readyFile, map[string]net.Listener{"address": clients, "metrics": operations, "telemetry": told.listener}); err != nil {
		return err
	}
	server := gateway.NewServer(pool, f.model, f.limits)
	switch f.tokenizer {
	case "none":
	case "bytes":
		server.UseBytes()
	default:
		return fmt.Errorf("--tokenizer is %q; want none or bytes", f.tokenizer)
	}
	stop, err := useText(ctx, f, server, log)
	if err != nil {
		return err
	}
	defer stop()
	log.Info("listening", "address", clients.Addr().String())
	return server.Serve(ctx, clients, operations, registry, f.drain)
}

// useText serves tokens to a text server until stop, because a draining gateway still has clients.
func useText(ctx context.Context, f flags, server *gateway.Server, log *slog.Logger) (stop func(), err error) {
	if f.text == "" {
		return func() {}, nil
	}
	if err := os.Remove(f.tokens); err != nil && !errors.Is(err, os.ErrNotExist) { // left by a killed gateway
		return nil, fmt.Errorf("--tokens-socket: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", f.tokens)
	if err != nil {
		return nil, fmt.Errorf("--tokens-socket: %w", err)
	}
	server.UseText(f.text)
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := server.ServeTokens(serving, l); err != nil {
			log.Error("token service for the text server failed", "error", err)
		}
	})
	return func() { cancel(); wait.Wait() }, nil
}

// telling is the service that the operator queries.
type telling struct {
	listener net.Listener // nil: no service
	stop     func()
}

// tell serves the operator until stop, because a draining gateway still has clients.
func tell(ctx context.Context, f flags, pool *gateway.Pool, log *slog.Logger) (*telling, error) {
	if f.telemetry == "" {
		return &telling{stop: func() {}}, nil
	}
	config, err := pki.Server(f.tls, f.world, "driver")
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.telemetry)
	if err != nil {
		return nil, fmt.Errorf("--telemetry-listen: %w", err)
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := pool.ServeTelemetry(serving, l, config); err != nil {
			log.Error("telemetry service failed", "error", err)
		}
	})
	return &telling{l, func() { cancel(); wait.Wait() }}, nil
}

// writeReady writes the file atomically: a reader sees all of it or none.
func writeReady(path string, listeners map[string]net.Listener) error {
	if path == "" {
		return nil
	}
	content := map[string]any{"pid": os.Getpid()}
	for name, l := range listeners {
		if l != nil {
			content[name] = l.Addr().String()
		}
	}
	wire, err := json.Marshal(content)
	if err != nil {
		return err
	}
	part := filepath.Clean(path) + ".part"
	if err := os.WriteFile(part, wire, 0o600); err != nil {
		return fmt.Errorf("--ready-file: %w", err)
	}
	return os.Rename(part, path)
}
