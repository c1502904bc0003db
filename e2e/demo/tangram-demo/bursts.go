package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/kube"
	"tangram.dev/e2e/load"
)

const (
	burstsName   = "bursts"
	burstsObject = "moedeployment/" + burstsName
	burstsModel  = "tiny"
	burstsTitle  = "burst, with automatic mode and replicas"

	quietRate, burstRate = .5, 5.5 // requests per second
	meetRate             = 1.0
	meetFor              = 15 * time.Second
	waitChoice           = 2 * time.Minute
	quietBefore          = 10 * time.Second
	burstFor             = 55 * time.Second
	quietAfter           = 5 * time.Second
	waitReturn           = 5 * time.Minute // in addition to the burst
)

// bursts is the act of a world that chooses mode and number of ranks in a burst of requests, as in the report.
type bursts struct {
	Decisions []*decided `json:"decisions"`
	Felt      []felt     `json:"felt"`
	Requests  int        `json:"requests"`
	Tokens    int        `json:"tokens"`
	Lost      int        `json:"lost"`
	Different int        `json:"different"`
	Refused   int        `json:"refused"`
	Broken    []string   `json:"promises_broken"`

	k        *kube.Client
	arrivals arrivals
	counters load.Counters
	stop     chan struct{}
	played   chan []*load.Result

	mu                 sync.Mutex
	now                *v1alpha2.MoEDeployment
	began, ended, back time.Time // of the burst; when the world was as before
	before             shape     // active when the burst began
	results            []*load.Result
}

// shape is the active shape of the world.
type shape struct {
	Mode  v1alpha2.Mode `json:"mode"`
	Width int32         `json:"width"`
}

func (s shape) String() string {
	short := map[v1alpha2.Mode]string{v1alpha2.ModeExpert: "EP", v1alpha2.ModeTensor: "TP"}
	return fmt.Sprintf("%s, %d ranks", cmp.Or(short[s.Mode], string(s.Mode)), s.Width)
}

// decided is a decision of the operator, in seconds after the burst began. InForce: 0 if it never became active.
type decided struct {
	At      float64 `json:"at_seconds"`
	From    string  `json:"from"`
	To      string  `json:"to"`
	InForce float64 `json:"in_force_seconds"`
	Why     string  `json:"why"`

	at, inForce time.Time
	to          shape
	key         string
}

// meetBursts starts the world next to the demo's and sends its first requests: the policy scales down only after some
// minutes of known load.
func meetBursts(ctx context.Context, o options, k *kube.Client) (*bursts, error) {
	k.Said = func(line string) { say("$ %s", line) }
	b := &bursts{k: k, arrivals: arrivals{seed: o.seed, prompt: 100, answer: 30}, stop: make(chan struct{}), played: make(chan []*load.Result, 1)}
	if err := k.ApplyFile(ctx, filepath.Join(o.root, manifests, "bursts/30-bursts.yaml")); err != nil {
		return nil, err
	}
	if err := k.Wait(ctx, burstsObject, v1alpha2.ConditionReady, waitFirst); err != nil {
		return nil, err
	}
	url, err := k.AwaitGateway(ctx, burstsName)
	if err != nil {
		return nil, err
	}
	client := &load.Client{URL: url, Model: burstsName, HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}, Counters: &b.counters, Patience: waitReturn}
	go func() { b.played <- b.arrivals.play(ctx, client, b.stop) }()
	go b.watch(ctx)
	say("%s: %.0f requests per second for %.0f s, so that the policy knows its load", burstsName, meetRate, meetFor.Seconds())
	b.arrivals.rate(meetRate)
	defer b.arrivals.rate(0)
	return b, sleep(ctx, meetFor)
}

// watch records the operator's decisions and their times.
func (b *bursts) watch(ctx context.Context) {
	for ctx.Err() == nil { // after a broken connection the status still has the decisions made meanwhile
		_ = b.k.Watch(ctx, burstsName, b.see)
		_ = sleep(ctx, 200*time.Millisecond)
	}
}

func (b *bursts) see(d *v1alpha2.MoEDeployment) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = d
	if p := d.Status.Policy; p != nil {
		for _, x := range slices.Backward(p.Decisions) { // the newest is first
			b.heard(x, p.Replicas)
		}
	}
	in := shape{d.Status.Mode, d.Status.Ranks}
	for _, x := range b.Decisions {
		if x.inForce.IsZero() && x.to == in && meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha2.ConditionAvailable) {
			x.inForce = time.Now()
		}
	}
}

func (b *bursts) heard(x v1alpha2.PolicyDecision, replicas int32) {
	key := fmt.Sprint(x.Time.Unix(), x.From, x.To, x.FromReplicas, x.ToReplicas, x.Message)
	if slices.ContainsFunc(b.Decisions, func(d *decided) bool { return d.key == key }) {
		return
	}
	from, to := shape{x.From, replicas}, shape{x.To, replicas}
	if x.ToReplicas > 0 {
		from.Width, to.Width = x.FromReplicas, x.ToReplicas
	}
	b.Decisions = append(b.Decisions, &decided{at: time.Now(), to: to, key: key, From: from.String(), To: to.String(), Why: x.Message})
	say("%s: %s -> %s: %s", burstsName, from, to, x.Message)
}

// burst sends the burst; the world reacts to it.
func (b *bursts) burst(ctx context.Context, begin func(string)) error {
	begin(burstsTitle + ": before it")
	b.arrivals.rate(quietRate)
	if err := b.until(ctx, waitChoice, func() bool { return b.now.Status.Mode == v1alpha2.ModeTensor && b.atRest() }); err != nil {
		return err // mode TensorParallel serves few requests faster, which the world has to find out
	}
	if err := sleep(ctx, quietBefore); err != nil {
		return err
	}
	b.mu.Lock()
	b.began, b.before = time.Now(), b.inForce()
	b.mu.Unlock()
	begin(fmt.Sprintf("%s: %.1f requests per second", burstsTitle, burstRate))
	b.arrivals.rate(burstRate)
	if err := sleep(ctx, burstFor); err != nil {
		return err
	}
	b.arrivals.rate(quietRate)
	b.ended = time.Now()
	begin(burstsTitle + ": after it")
	if err := b.until(ctx, waitReturn, b.returned); err != nil {
		return err
	}
	b.back = time.Now()
	return sleep(ctx, quietAfter)
}

// until waits for the condition, for at most this duration; a condition that was not met is judged at the end.
func (b *bursts) until(ctx context.Context, most time.Duration, is func() bool) error {
	for begun := time.Now(); time.Since(begun) < most; {
		b.mu.Lock()
		so := b.now != nil && is()
		b.mu.Unlock()
		if so {
			return nil
		}
		if err := sleep(ctx, look); err != nil {
			return err
		}
	}
	return nil
}

// These functions require mu.
func (b *bursts) inForce() shape { return shape{b.now.Status.Mode, b.now.Status.Ranks} }

func (b *bursts) atRest() bool {
	return meta.IsStatusConditionTrue(b.now.Status.Conditions, v1alpha2.ConditionReady)
}

// returned reports whether the world changed in the burst and is as before it.
func (b *bursts) returned() bool {
	changed := slices.ContainsFunc(b.Decisions, func(d *decided) bool { return d.at.After(b.began) && !d.inForce.IsZero() })
	return changed && b.before == b.inForce() && b.atRest()
}

// playBursts runs the act, while the screen shows its world.
func playBursts(ctx context.Context, o options, b *bursts) error {
	d := newDisplay(&b.counters)
	shown, hide := context.WithCancel(ctx)
	hidden := make(chan struct{})
	go func() { defer close(hidden); d.run(shown, b.k, burstsName) }()
	err := b.burst(ctx, d.begin)
	hide()
	<-hidden
	if err != nil {
		return err
	}
	return b.finish(ctx, o)
}

// finish waits for the last answers, and repeats the requests on one unpaced rank.
func (b *bursts) finish(ctx context.Context, o options) error {
	close(b.stop)
	select {
	case b.results = <-b.played:
	case <-time.After(waitStep):
		return fmt.Errorf("%s: %d requests still wait", burstsTitle, b.counters.Now().Open)
	case <-ctx.Done():
		return ctx.Err()
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "bursts-one"), Checkpoint: filepath.Join(o.root, "build/models", burstsModel), Pods: []int{1}, Granule: 8, Rows: 256})
	if err != nil {
		return err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, 1, "ExpertParallel", nil, nil); err != nil {
		return fmt.Errorf("%s, one rank: %w", burstsTitle, err)
	}
	say("the same %d requests of %s on one rank", len(b.results), burstsName)
	return b.judge(repeatOnOneRank(ctx, o, client(w), b.results, 16))
}

func (b *bursts) judge(reference []*load.Result) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	broken := func(format string, args ...any) { b.Broken = append(b.Broken, fmt.Sprintf(format, args...)) }
	b.Requests = len(b.results)
	for i, r := range b.results {
		b.Tokens += len(r.Tokens)
		b.Refused += len(r.Refused)
		if r.Err != nil {
			b.Lost++
			say("lost: %s, request %d: %v", burstsName, i, r.Err)
			continue
		}
		if reference[i].Err != nil {
			return fmt.Errorf("request %d of %s failed on one rank: %w", i, burstsName, reference[i].Err)
		}
		if where := r.Differs(reference[i]); where != "" {
			b.Different++
			say("different from one rank: %s: %s", burstsName, where)
		}
	}
	grown := b.ended
	switched, wider := false, false
	for _, d := range b.Decisions {
		d.At = d.at.Sub(b.began).Seconds()
		if !d.inForce.IsZero() {
			d.InForce = d.inForce.Sub(b.began).Seconds()
		}
		if d.inForce.Before(b.began) || d.at.After(b.ended) {
			continue
		}
		switched = switched || d.to.Mode != b.before.Mode
		if d.to.Width > b.before.Width && d.inForce.Before(b.ended) {
			wider, grown = true, d.inForce
		}
	}
	if b.before != (shape{v1alpha2.ModeTensor, 4}) {
		broken("the world was %s before the burst: few requests are served faster in mode TensorParallel", b.before)
	}
	if !switched {
		broken("the world was in mode %s when a burst came, and did not switch", b.before.Mode)
	}
	if !wider {
		broken("the world did not become wider in the burst")
	}
	if !b.returned() {
		broken("the world is %s, and not %s again %s after the burst", b.inForce(), b.before, waitReturn)
	}
	if !b.now.IsAuto() || b.now.Spec.Replicas != 4 {
		broken("spec.parallelism.mode is %s and spec.replicas %d: another client changed them", b.now.SpecMode(), b.now.Spec.Replicas)
	}
	if b.Lost > 0 {
		broken("%d requests of %s were lost", b.Lost, burstsName)
	}
	if b.Different > 0 {
		broken("%d requests of %s differ from one rank", b.Different, burstsName)
	}
	b.Felt = []felt{
		feltIn("before the burst", b.results, b.began.Add(-quietBefore), b.began),
		feltIn("burst, before scale-up", b.results, b.began, grown),
		feltIn("burst, after scale-up", b.results, grown, b.ended),
		feltIn("after the burst, until scaled down", b.results, b.ended, b.back),
	}
	return nil
}

func (r *report) printBursts(out io.Writer) {
	b := r.Bursts
	if b == nil {
		return
	}
	w := tables(out)
	_, _ = fmt.Fprintln(w, "\nautomatic decisions: s after the burst began\tfrom\tto\tactive after s\t")
	for _, d := range b.Decisions {
		_, _ = fmt.Fprintf(w, "%.1f\t%s\t%s\t%.1f\t\n", d.At, d.From, d.To, d.InForce)
	}
	_ = w.Flush()
	for _, d := range b.Decisions {
		_, _ = fmt.Fprintf(out, "reason at %.1f s: %s\n", d.At, strings.TrimSpace(d.Why))
	}
	w = tables(out)
	_, _ = fmt.Fprintln(w, "\nclients in the burst\trequests\ttime to first token p50 ms\tp99 ms\ttime per output token p50 ms\tp99 ms\ttokens/s\t")
	for _, f := range b.Felt {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%.0f\t\n", f.Name, f.Requests, milliseconds(f.TTFT50), milliseconds(f.TTFT99), milliseconds(f.TPOT50), milliseconds(f.TPOT99), f.TokensPerSecond)
	}
	_ = w.Flush()
	_, _ = fmt.Fprintf(out, "\nthe burst lasted %.0f s; %s requests, %s tokens; HTTP 429 and 503, then sent again: %d; lost requests: %d; requests that differ from the one-rank run: %d\n", b.ended.Sub(b.began).Seconds(), thousands(b.Requests), thousands(b.Tokens), b.Refused, b.Lost, b.Different)
}
