// Package readings queries the gateways of a world for its load and keeps the last readings.
package readings

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"tangram.dev/operator/internal/tcp"
	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	// keep is the seconds of readings to keep.
	keep = 300
	// staleAfter is the age in seconds from which the last reading is outdated.
	staleAfter = 10
	// silent is the timeout of a connection on which nothing arrives.
	silent = 5 * time.Second
	// mostBytes of a report: 8,192 ranks with all kinds of steps.
	mostBytes = 64 << 20
)

// Options of a reader.
type Options struct {
	World string
	TLS   *tls.Config   // client side; gateways must accept it
	Every time.Duration // interval and timeout of the queries; 0: 1 s
	Log   *slog.Logger
	// Taken receives each reading, one after another; may be nil.
	Taken func(*telemetry.Sample)

	connect func(context.Context, string) (net.Conn, error) // dials a gateway, for tests; nil: TCP
}

// Reader of one world.
type Reader struct {
	o      Options
	cancel context.CancelFunc
	wait   sync.WaitGroup
	born   time.Time

	mu       sync.Mutex
	gateways map[string]*grpc.ClientConn // by address
	history  *telemetry.History
	err      error // of the last reading
}

// Open starts to read. It queries no gateway before SetGateways.
func Open(o Options) (*Reader, error) {
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.connect == nil {
		o.connect = tcp.Dialer(o.Every, silent)
	}
	history, err := telemetry.NewHistory(keep)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Reader{o: o, cancel: cancel, born: time.Now(), gateways: map[string]*grpc.ClientConn{}, history: history}
	r.wait.Go(func() { r.run(ctx) })
	return r, nil
}

// Close stops the reader.
func (r *Reader) Close() {
	r.cancel()
	r.wait.Wait()
	r.SetGateways(nil)
}

// SetGateways sets the gateways to query from now on, host:port.
func (r *Reader) SetGateways(addresses []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := map[string]bool{}
	for _, a := range addresses {
		wanted[a] = true
		if r.gateways[a] != nil {
			continue
		}
		conn, err := grpc.NewClient(a, grpc.WithTransportCredentials(credentials.NewTLS(r.o.TLS)), grpc.WithContextDialer(r.o.connect),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostBytes)))
		if err != nil {
			r.o.Log.Error("cannot query a gateway", "address", a, "error", err)
			continue
		}
		r.gateways[a] = conn
	}
	for a, conn := range r.gateways {
		if !wanted[a] {
			_ = conn.Close() // its pod no longer exists
			delete(r.gateways, a)
		}
	}
}

func (r *Reader) run(ctx context.Context) {
	merger := telemetry.NewMerger(r.o.World)
	tick := time.NewTicker(r.o.Every)
	defer tick.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		reads := r.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		sample, err := merger.Take(r.Now(), reads)
		r.mu.Lock()
		if err == nil {
			err = r.history.Add(sample)
		}
		r.err = err
		r.mu.Unlock()
		if err == nil && r.o.Taken != nil {
			r.o.Taken(sample)
		}
		now := fmt.Sprint(err)
		if err == nil && len(sample.Problems) > 0 {
			now = fmt.Sprint(sample.Problems)
		}
		if now != told && now != fmt.Sprint(nil) {
			r.o.Log.Warn("gateway reports are incomplete", "world", r.o.World, "error", now)
		}
		told = now
	}
}

// ask queries all gateways concurrently.
func (r *Reader) ask(ctx context.Context) []telemetry.Read {
	r.mu.Lock()
	gateways := make(map[string]*grpc.ClientConn, len(r.gateways))
	for a, conn := range r.gateways {
		gateways[a] = conn
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.o.Every)
	defer cancel()
	answers := make(chan telemetry.Read, len(gateways))
	for a, conn := range gateways {
		go func() {
			report, err := tangramv1.NewTelemetryClient(conn).Read(ctx, &tangramv1.TelemetryRequest{World: r.o.World})
			answers <- telemetry.Read{Gateway: a, Report: report, Err: err}
		}()
	}
	reads := make([]telemetry.Read, 0, len(gateways))
	for range gateways {
		reads = append(reads, <-answers)
	}
	return reads
}

// Now returns the time on the clock of the samples, in seconds.
func (r *Reader) Now() float64 { return time.Since(r.born).Seconds() }

// Last returns the newest sample and the window of the last `seconds`. The error says why there is no current data.
func (r *Reader) Last(seconds float64) (*telemetry.Sample, *telemetry.Window, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, err := r.history.Window(r.Now(), seconds, staleAfter)
	if err != nil {
		if r.err != nil {
			err = fmt.Errorf("%w; last reading: %w", err, r.err)
		}
		return nil, nil, err
	}
	return r.history.Last(), w, nil
}

// Between returns the window between two times; the error says that part of it is missing.
func (r *Reader) Between(from, to time.Time) (*telemetry.Window, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.Between(from.Sub(r.born).Seconds(), to.Sub(r.born).Seconds())
}

// Reading is the newest sample of the gateways, and the window that ends with it.
type Reading struct {
	At     time.Time
	Sample *telemetry.Sample
	Window *telemetry.Window
}

// Reading returns the newest sample and the window of the given length.
func (r *Reader) Reading(window time.Duration) (Reading, error) {
	sample, said, err := r.Last(window.Seconds())
	if err != nil {
		return Reading{}, err
	}
	return Reading{At: r.born.Add(time.Duration(sample.At * float64(time.Second))), Sample: sample, Window: said}, nil
}
