package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

const (
	interferenceStreams = 6
	interferencePrompt  = 16
	interferenceAnswer  = 480
	interferenceUnit    = 3 * 48 * 512 * 2        // bytes of a granule of the checkpoint's experts
	quietSpan           = 1500 * time.Millisecond // before each resize; its rate is the reference
	tailSpan            = 300 * time.Millisecond  // after it: old banks are freed, sources closed
)

// interference bench: requests decode continuously while the world is resized between 3 and 4 ranks, until the moved
// bytes would have taken this many seconds to copy. The result is the tokens that clients lost, over those served in
// the time of the copies: 1 means that serving lost as much as by a stop for a copy at full speed. Once with bytes over
// TLS, as between nodes, and once with agents that map each other's memory.
func interference(ctx context.Context, o options) error {
	lines := json.NewEncoder(os.Stdout)
	found := map[string]any{}
	var tls float64
	floors, err := floorsOfMachine(ctx, o)
	if err != nil {
		return err
	}
	for _, oneNode := range []bool{false, true} {
		resizes, tokens, err := resizesUnderLoad(ctx, o, oneNode, floors.copy, lines)
		if err != nil {
			return err
		}
		fabric, floor := "tls", floors.tls
		if oneNode {
			fabric, floor = "one_node", floors.oneNode
		}
		ratio, low, high := lostOverCopied(resizes)
		agents, engines, copied := 0.0, 0.0, 0.0
		for _, r := range resizes {
			agents, engines, copied = agents+r.Agents, engines+r.Engines, copied+r.Copy
		}
		for name, value := range map[string]any{"floor": floor, "over_floor": ratio / floor, "ratio": ratio, "low_95": low, "high_95": high, "resizes": len(resizes), "tokens": tokens,
			"agents_over_copied": agents / copied, "engines_over_copied": engines / copied} {
			found[fabric+"_"+name] = value
		}
		if !oneNode {
			tls = ratio
		}
	}
	found["streams"] = interferenceStreams
	return lines.Encode(map[string]any{"bench": "interference", "value": tls, "unit": "tokens that clients did not get while the world was resized, over those that it serves in the time of a plain copy of the bytes",
		"ceiling": 1, "ratio": tls, "metrics": found, "env": map[string]any{"cpus": runtime.NumCPU()}})
}

// machineFloors are the costs of moving bytes on this machine without our code, over a plain copy: all cores together.
type machineFloors struct {
	copy    float64 // GB/s between two processes with the best number of threads, without serving
	tls     float64 // a plain sender with the same cipher and hash, with its best number of connections
	oneNode float64 // the copy, and pages mapped and unmapped three times: for the source, the rank, its engine
}

func floorsOfMachine(ctx context.Context, o options) (machineFloors, error) {
	copies, err := measureCopy(ctx, o, false, strconv.Itoa(interferenceUnit))
	if err != nil {
		return machineFloors{}, err
	}
	wire := exec.CommandContext(ctx, filepath.Join(o.root, "build/cxx/agent/mover/tangram-transport"))
	wire.Env = append(os.Environ(), "QUICK=1")
	told, err := wire.Output()
	if err != nil {
		return machineFloors{}, fmt.Errorf("%s: %w", wire.Path, err)
	}
	told = bytes.TrimSpace(told)
	var summary struct {
		Metrics struct {
			TLS float64 `json:"tls_ceiling_gb_per_s"`
		} `json:"metrics"`
	}
	if err := json.Unmarshal(told[bytes.LastIndexByte(told, '\n')+1:], &summary); err != nil {
		return machineFloors{}, fmt.Errorf("%s: %w", wire.Path, err)
	}
	pages := 3 * (1/copies.Map + 1/copies.Unmap) / float64(runtime.NumCPU())
	floors := machineFloors{copy: copies.Copy, tls: copies.Copy / summary.Metrics.TLS, oneNode: 1 + copies.Copy*pages}
	say("a copy %.1f GB/s; a plain sender with the same cipher %.2f, %.1f copies; pages entered at %.1f by a core and taken away at %.1f, with the copy %.1f copies",
		copies.Copy, summary.Metrics.TLS, floors.tls, copies.Map, copies.Unmap, floors.oneNode)
	return floors, nil
}

// resizesUnderLoad returns the resizes of one world, and the tokens that it served.
func resizesUnderLoad(ctx context.Context, o options, oneNode bool, copyRate float64, lines *json.Encoder) ([]resizeCost, int64, error) {
	copying := 2.0 // seconds
	if os.Getenv("QUICK") != "" {
		copying = 0.15
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: o.checkpoint, Pods: []int{1, 1, 1, 1},
		Granule: 48, Memory: 1 << 30, KV: 64 << 20, SpareBanks: 6, OneNode: oneNode})
	if err != nil {
		return nil, 0, err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, 3, "ExpertParallel", nil, nil); err != nil {
		return nil, 0, err
	}
	served, end := decode(ctx, w)
	defer func() { _ = end() }() // stops the streams after an error
	if err := sleep(ctx, 2*time.Second); err != nil {
		return nil, 0, err
	}
	var resizes []resizeCost
	for ranks, total := 4, 0.0; total < copying; ranks = 7 - ranks {
		cost, err := resizeUnderLoad(ctx, w, ranks, served, copyRate)
		if err != nil {
			return nil, 0, err
		}
		cost.OneNode = oneNode
		total += cost.Copy
		resizes = append(resizes, cost)
		if err := lines.Encode(cost); err != nil {
			return nil, 0, err
		}
		say("to %d ranks in %.2f s: %s would copy in %.3f s, serving lost %.3f s; agents took %.2f s of processors, engines %.2f s more than usual",
			ranks, cost.Seconds, mib(cost.Bytes), cost.Copy, cost.Lost, cost.Agents, cost.Engines)
	}
	return resizes, served.Now().Tokens, end()
}

// resizeCost has the costs of one transition under load; times in seconds.
type resizeCost struct {
	OneNode bool    `json:"one_node"`
	Ranks   int     `json:"ranks"`
	Bytes   uint64  `json:"bytes"`   // fetched by agents
	Copy    float64 `json:"copy"`    // of these bytes between two processes, without serving
	Seconds float64 `json:"seconds"` // from the driver's start to its end
	Before  float64 `json:"before"`  // tokens per second
	After   float64 `json:"after"`
	Lost    float64 `json:"lost"` // relative to the rates before the last flip and after it
	// Processor seconds, all cores together: of agents, and of engines beyond their usual time for as many tokens.
	Agents  float64 `json:"agents"`
	Engines float64 `json:"engines"`
}

// span has the figures between two samples.
type span struct{ seconds, tokens, agents, engines float64 }

func (s span) rate() float64 { return s.tokens / s.seconds }

// serving returns a function that reports the figures since this call.
func serving(w *harness.World, served *load.Counters) (func() (span, error), error) {
	start, tokens := time.Now(), served.Now().Tokens
	agents, engines, err := w.ProcessorTime()
	return func() (span, error) {
		a, e, err := w.ProcessorTime()
		return span{time.Since(start).Seconds(), float64(served.Now().Tokens - tokens), (a - agents).Seconds(), (e - engines).Seconds()}, err
	}, err
}

func quiet(ctx context.Context, w *harness.World, served *load.Counters) (span, error) {
	look, err := serving(w, served)
	if err != nil {
		return span{}, err
	}
	if err := sleep(ctx, quietSpan); err != nil {
		return span{}, err
	}
	return look()
}

func resizeUnderLoad(ctx context.Context, w *harness.World, ranks int, served *load.Counters, copyRate float64) (resizeCost, error) {
	before, err := quiet(ctx, w, served)
	if err != nil {
		return resizeCost{}, err
	}
	start, flip := time.Now(), time.Time{}
	look, err := serving(w, served)
	if err != nil {
		return resizeCost{}, err
	}
	record, err := w.Apply(ctx, ranks, "ExpertParallel", nil, func(e harness.Event) {
		if e.Phase == "flip" {
			flip = time.Now()
		}
	})
	if err != nil {
		return resizeCost{}, err
	}
	ended := time.Now()
	if err := sleep(ctx, tailSpan); err != nil {
		return resizeCost{}, err
	}
	during, err := look()
	if err != nil {
		return resizeCost{}, err
	}
	after, err := quiet(ctx, w, served)
	if err != nil {
		return resizeCost{}, err
	}
	if before.tokens == 0 || after.tokens == 0 || flip.IsZero() {
		return resizeCost{}, fmt.Errorf("to %d ranks: %.0f tokens/s before, %.0f after, flip seen: %t", ranks, before.rate(), after.rate(), !flip.IsZero())
	}
	until := flip.Sub(start).Seconds()
	expected := before.rate()*until + after.rate()*(during.seconds-until)
	usual := (before.engines/before.tokens + after.engines/after.tokens) / 2 // per token
	idle := (before.agents + after.agents) / (before.seconds + after.seconds)
	brought := record.Bytes.Shared + record.Bytes.TCP + record.Bytes.Local + record.Bytes.KV
	return resizeCost{Ranks: ranks, Bytes: brought, Copy: float64(brought) / copyRate / 1e9, Seconds: ended.Sub(start).Seconds(), Before: before.rate(), After: after.rate(),
		Lost:   (expected - during.tokens) / ((before.rate() + after.rate()) / 2),
		Agents: during.agents - idle*during.seconds, Engines: during.engines - usual*during.tokens}, nil
}

// lostOverCopied returns the ratio over all resizes, and a 95 % interval by bootstrap over the resizes (fixed seed).
func lostOverCopied(resizes []resizeCost) (ratio, low, high float64) {
	of := func(pick func(i int) resizeCost) float64 {
		lost, copied := 0.0, 0.0
		for i := range resizes {
			lost += pick(i).Lost
			copied += pick(i).Copy
		}
		return lost / copied
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same draws each time
	drawn := make([]float64, 2000)
	for i := range drawn {
		drawn[i] = of(func(int) resizeCost { return resizes[random.IntN(len(resizes))] })
	}
	slices.Sort(drawn)
	at := func(q float64) float64 { return drawn[int(math.Round(q*float64(len(drawn)-1)))] }
	return of(func(i int) resizeCost { return resizes[i] }), at(0.025), at(0.975)
}

var errStreamsEnded = errors.New("the load was ended")

// decode keeps streams running until `end`, which returns the error of the first lost one.
func decode(ctx context.Context, w *harness.World) (served *load.Counters, end func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	served = &load.Counters{}
	var wait sync.WaitGroup
	failed := make(chan error, interferenceStreams)
	for i := range interferenceStreams {
		wait.Go(func() {
			c := client(w)
			c.Counters = served
			// The first answers have different lengths, so that streams do not end together.
			for n, answer := 0, interferenceAnswer*(i+1)/interferenceStreams; ctx.Err() == nil; n, answer = n+1, interferenceAnswer {
				prompt := make([]uint32, interferencePrompt)
				for j := range prompt {
					prompt[j] = uint32(1 + (i*31+n*17+j*7)%250)
				}
				if r := c.Do(ctx, load.Request{Prompt: prompt, MaxTokens: answer, TopP: 1}); r.Err != nil && ctx.Err() == nil {
					failed <- r.Err
					return
				}
			}
		})
	}
	return served, func() error {
		cancel(errStreamsEnded)
		wait.Wait()
		select {
		case err := <-failed:
			return fmt.Errorf("a stream was lost: %w", err)
		default:
			return nil
		}
	}
}
