package main

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"tangram.dev/e2e/load"
)

// arrivals are open-loop requests: they arrive at random at a set rate, whatever the world's speed.
type arrivals struct {
	seed           uint64
	prompt, answer float64 // mean number of tokens
	perSecond      atomic.Uint64
}

const (
	longestPrompt, longestAnswer = 300, 200
	beat                         = 10 * time.Millisecond
)

func (a *arrivals) rate(perSecond float64) { a.perSecond.Store(math.Float64bits(perSecond)) }

// at returns request i: the same seed gives the same requests, independent of their arrival times.
func (a *arrivals) at(i int) load.Request {
	random := rand.New(rand.NewPCG(a.seed, uint64(i)))
	length := func(mean float64, least, most int) int {
		sigma := math.Sqrt(math.Log(2)) // the same spread as in the simulator
		return min(max(int(mean*math.Exp(sigma*random.NormFloat64()-sigma*sigma/2)), least), most)
	}
	r := load.Request{Index: i, Prompt: make([]uint32, length(a.prompt, 1, longestPrompt)), MaxTokens: length(a.answer, 2, longestAnswer), Temperature: 1, TopP: 1, Seed: a.seed + uint64(i)}
	for j := range r.Prompt {
		r.Prompt[j] = uint32(1 + random.IntN(250))
	}
	return r
}

// random returns the source of the arrival times.
func (a *arrivals) random() *rand.Rand {
	return rand.New(rand.NewPCG(a.seed, 1<<40))
}

// play sends requests until stop, and waits for those in progress.
func (a *arrivals) play(ctx context.Context, c *load.Client, stop <-chan struct{}) []*load.Result {
	random := a.random()
	var results []*load.Result
	var mu sync.Mutex
	var wait sync.WaitGroup
	defer wait.Wait()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	last, due := time.Now(), random.ExpFloat64()
	for {
		select {
		case <-stop:
			wait.Wait()
			return results
		case <-ctx.Done():
			wait.Wait()
			return results
		case now := <-tick.C:
			due -= math.Float64frombits(a.perSecond.Load()) * now.Sub(last).Seconds()
			last = now
			for ; due <= 0; due += random.ExpFloat64() {
				i := len(results)
				mu.Lock()
				results = append(results, nil)
				mu.Unlock()
				wait.Go(func() {
					r := c.Do(ctx, a.at(i))
					mu.Lock()
					results[i] = r
					mu.Unlock()
				})
			}
		}
	}
}
