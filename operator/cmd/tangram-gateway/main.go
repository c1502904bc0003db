// tangram-gateway serves /v1/completions in front of a world of engines.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
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
	world, model, listen, name, readyFile, logLevel string
	seeds, discover                                 []string
	tls                                             pki.Files
	lostAfter                                       time.Duration
}

func main() { os.Exit(run()) }

// run gives the exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var f flags
	root := &cobra.Command{Use: "tangram-gateway", Short: "OpenAI-compatible completions in front of a world", Args: cobra.NoArgs,
		SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), f) }}
	p := root.Flags()
	p.StringVar(&f.world, "world", "", "name of the world")
	p.StringVar(&f.model, "model", "tangram", "name of the model, as clients give it")
	p.StringVar(&f.listen, "listen", "127.0.0.1:8080", "host:port")
	p.StringVar(&f.name, "name", uuid.NewString(), "of this gateway: engines keep its tokens under it while it reconnects")
	p.StringSliceVar(&f.seeds, "seed", nil, "frontends of engines, host:port; the others are learned from them")
	p.StringSliceVar(&f.discover, "discover", nil, "host:port of a Service in front of the world's engines: asked for the world, never sent requests")
	p.StringVar(&f.tls.CA, "tls-ca", "", "PEM of the CA")
	p.StringVar(&f.tls.Cert, "tls-cert", "", "PEM of this gateway's certificate")
	p.StringVar(&f.tls.Key, "tls-key", "", "PEM of its key")
	p.StringVar(&f.readyFile, "ready-file", "", "JSON with the real address")
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn, error")
	p.DurationVar(&f.lostAfter, "lost-after", 10*time.Second, "a session down for so long is lost")
	for _, name := range []string{"world", "tls-ca", "tls-cert", "tls-key"} {
		if err := root.MarkFlagRequired(name); err != nil {
			panic(err) // a name that is not a flag: a bug of this file
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
		LostAfter: f.lostAfter, Log: log, Metrics: gateway.NewMetrics(registry)})
	defer pool.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	handler := &gateway.Server{Pool: pool, Model: f.model, Gatherer: registry}
	server := &http.Server{Handler: handler.Handler(), ReadHeaderTimeout: 10 * time.Second}
	if err := writeReady(f.readyFile, listener.Addr().String()); err != nil {
		return err
	}
	log.Info("listening", "address", listener.Addr().String())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// writeReady so that a reader sees all of it or nothing.
func writeReady(path, address string) error {
	if path == "" {
		return nil
	}
	wire, err := json.Marshal(map[string]any{"address": address, "pid": os.Getpid()})
	if err != nil {
		return err
	}
	part := filepath.Clean(path) + ".part"
	if err := os.WriteFile(part, wire, 0o600); err != nil {
		return fmt.Errorf("--ready-file: %w", err)
	}
	return os.Rename(part, path)
}
