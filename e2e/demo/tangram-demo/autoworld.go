package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"tangram.dev/e2e/harness"
	"tangram.dev/operator/pkg/adviser"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	lookAtLoad = time.Second // as in the operator
	mostWait   = time.Minute // between two attempts of a transition
)

// autoWorld is a local world with a fixed shape, or with mode and number of ranks chosen by the operator's adviser from
// the gateway's reports, once a second.
type autoWorld struct {
	w        *harness.World
	ranks    int // of its running pods
	kv       uint64
	memory   costmodel.Memory
	view     *geometry.View
	rates    costmodel.Rates
	epoch    uint64
	shape    kernels.Shape
	advice   *adviser.Adviser // nil: the shape is fixed
	widens   bool
	decided  []*switched
	readings []reading
}

// switched is a decision and the time when its layout became active.
type switched struct {
	at, inForce time.Time
	from, to    kernels.Shape
	why         string
	again       int // number of failed attempts
}

// reading is a sample of the gateway, for a plot and the evaluation.
type reading struct {
	at                time.Time
	shape             kernels.Shape
	busy              bool
	running, decoding int
	waiting, context  int
	paced, overruns   uint64            // counters
	steps             []telemetry.Steps // of the active layout, since the previous reading
}

func modeOf(s kernels.Shape) string {
	if s == kernels.Tensor(s.Ranks) && s.Ranks > 1 {
		return "TensorParallel"
	}
	return "ExpertParallel"
}

// gatewayTells connects to a world's gateway like its operator.
func gatewayTells(w *harness.World) (*grpc.ClientConn, error) {
	at := func(name string) string { return filepath.Join(w.CertificateDir(), name) }
	pair, err := tls.LoadX509KeyPair(at("driver.crt"), at("driver.key"))
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(at("ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, errors.New("ca.crt holds no certificate")
	}
	return grpc.NewClient(w.TelemetryAddress(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: "gateway." + w.Model()})))
}

// begin applies a shape, without an adviser.
func (a *autoWorld) begin(ctx context.Context, s kernels.Shape) error {
	a.advice, a.widens, a.decided, a.readings = nil, false, nil, nil
	record, err := a.w.Apply(ctx, s.Ranks, modeOf(s), nil, nil)
	if err != nil {
		return fmt.Errorf("%w: %s", err, a.w.Died())
	}
	status, err := a.w.Status(ctx)
	if err != nil {
		return err
	}
	a.shape, a.epoch, a.rates = s, record.Epoch, costmodel.Rates{BytesPerSecond: 1e9, FlipSeconds: .1, Hidden: .8}
	a.view, err = geometry.New(status[0].Geometry)
	return err
}

type outcome struct {
	record *harness.Record
	err    error
	again  int // number of rejections by the planner or an agent
}

// follow applies the decisions until stop, one transition at a time, as in the operator.
func (a *autoWorld) follow(ctx context.Context, stop <-chan struct{}) error {
	conn, err := gatewayTells(a.w)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client, merger, born := tangramv1.NewTelemetryClient(conn), telemetry.NewMerger(a.w.Model()), time.Now()
	var running chan outcome
	tick := time.NewTicker(lookAtLoad)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			if running != nil {
				return a.ended(<-running)
			}
			return nil
		case o := <-running:
			running = nil
			if err := a.ended(o); err != nil {
				return err
			}
		case <-tick.C:
			looking, done := context.WithTimeout(ctx, 5*time.Second)
			report, err := client.Read(looking, &tangramv1.TelemetryRequest{World: a.w.Model()})
			done()
			s, err := merger.Take(time.Since(born).Seconds(), []telemetry.Read{{Gateway: "the gateway", Report: report, Err: err}})
			if err != nil {
				return err
			}
			g, c := &s.Gauges, &s.Total
			a.readings = append(a.readings, reading{time.Now(), a.shape, running != nil, g.Running, g.Decoding, g.Waiting + g.Homeless, g.ContextTokens, c.PacedSteps, c.Overruns, a.stepsOf(s)})
			if d := a.ask(s, running != nil); d != nil && running == nil {
				running = a.take(ctx, d)
			}
		}
	}
}

// stepsOf returns the steps of a reading that belong to the active layout.
func (a *autoWorld) stepsOf(s *telemetry.Sample) []telemetry.Steps {
	var out []telemetry.Steps
	for k, x := range s.Steps {
		if k.Epoch == a.epoch && x.Steps > 0 {
			out = append(out, x)
		}
	}
	return out
}

// take applies a decision.
func (a *autoWorld) take(ctx context.Context, d *policy.Decision) chan outcome {
	say("%s -> %s: %s", a.shape, d.To, d.Why.Text)
	a.decided = append(a.decided, &switched{at: time.Now(), from: a.shape, to: d.To, why: d.Why.Text})
	a.shape = d.To
	out := make(chan outcome, 1)
	go func() {
		var o outcome
		for wait := time.Second; ; wait *= 2 { // like the operator: new requests may have to end first
			if o.record, o.err = a.w.Apply(ctx, d.To.Ranks, modeOf(d.To), nil, nil); o.err == nil || wait > mostWait || a.w.Died() != "" {
				break
			}
			o.again++
			if err := sleep(ctx, wait); err != nil {
				break
			}
		}
		out <- o
	}()
	return out
}

func (a *autoWorld) ended(o outcome) error {
	last := a.decided[len(a.decided)-1]
	if o.err != nil {
		return fmt.Errorf("%s -> %s: %w: %s", last.from, last.to, o.err, a.w.Died())
	}
	last.inForce, last.again, a.epoch = time.Now(), o.again, o.record.Epoch
	// The rates that the operator gets from the agents.
	if b := o.record.Bytes; o.record.Seconds.Stage > 0 && o.record.PlannedFlips > 0 {
		moved := float64(b.Local+b.Shared+b.TCP+b.Wire+b.Checkpoint) / float64(last.to.Ranks)
		a.rates = costmodel.Rates{BytesPerSecond: max(moved/o.record.Seconds.Stage, 1), FlipSeconds: o.record.Seconds.Flip / float64(o.record.PlannedFlips), Hidden: .8}
	}
	return nil
}

// ask queries the adviser; nil: nothing to do. The number of ranks comes first, and only one of mode and number changes
// at a time.
func (a *autoWorld) ask(s *telemetry.Sample, busy bool) *policy.Decision {
	if a.advice == nil {
		return nil
	}
	w := adviser.World{View: a.view, Shape: a.shape, Epoch: a.epoch, Busy: busy, KVBytes: a.kv, Rates: a.rates, Pods: policy.Pods{Ready: a.ranks, Startup: 1},
		Price: func(from, to kernels.Shape) (costmodel.Transition, error) {
			return simulator.Price(a.view, from, to, a.memory)
		}}
	if a.widens {
		if d := a.advice.Widen(s, w); d.Switch {
			return &d
		}
	}
	if d := a.advice.Advise(s, w); d.Switch {
		return &d
	}
	return nil
}
