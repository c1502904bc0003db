package main

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

const (
	scaleUpStreams = 6
	scaleUpPrompt  = 16
	scaleUpAnswer  = 24 // short, so that a new rank soon gets a request
)

// askers are streams of consecutive requests; their URLs may change at run time. A broken or rejected request is sent
// again.
type askers struct {
	mu      sync.Mutex
	urls    []string // round robin
	turn    int
	running map[string]int // requests by URL
	results []*asked
	stop    chan struct{}
	all     sync.WaitGroup
}

type asked struct {
	url string
	*load.Result
}

// startAskers starts the streams to the world of this URL.
func startAskers(ctx context.Context, model, url string) *askers {
	a := &askers{urls: []string{url}, running: map[string]int{}, stop: make(chan struct{})}
	for i := range scaleUpStreams {
		a.all.Go(func() { a.stream(ctx, model, i) })
	}
	return a
}

func (a *askers) to(urls ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.urls = urls
}

func (a *askers) stream(ctx context.Context, model string, i int) {
	// The first answers have different lengths, so that streams do not end together.
	for n, tokens := 0, scaleUpAnswer*(i+1)/scaleUpStreams; ctx.Err() == nil; n, tokens = n+1, scaleUpAnswer {
		select {
		case <-a.stop:
			return
		default:
		}
		request := load.Request{MaxTokens: tokens, TopP: 1}
		for j := range scaleUpPrompt {
			request.Prompt = append(request.Prompt, uint32(1+(i*31+n*17+j*7)%250))
		}
		a.mu.Lock()
		url := a.urls[a.turn%len(a.urls)]
		a.turn++
		a.running[url]++
		a.mu.Unlock()
		// Without patience, because rejections are counted here.
		client := &load.Client{URL: url, Model: model, HTTP: http.DefaultClient, Patience: time.Nanosecond}
		r := client.Do(ctx, request)
		a.mu.Lock()
		a.running[url]--
		a.results = append(a.results, &asked{url, r})
		a.mu.Unlock()
		if r.Err != nil {
			_ = sleep(ctx, 50*time.Millisecond) // the loop checks whether it ended
		}
	}
}

// left reports whether this world has no more requests.
func (a *askers) left(url string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running[url] == 0
}

// end lets the last requests finish, and returns all results.
func (a *askers) end() []*asked {
	close(a.stop)
	a.all.Wait()
	return a.results
}

// commanded has the times of a scale-up's command and of its completion.
type commanded struct {
	at, done time.Time
	url      string // of a new world; empty: the same world with a new rank
}

// see computes the clients' view.
func (s *scaled) see(c commanded, began time.Time, results []*asked) {
	var tokens []time.Time
	before := map[string]bool{} // ranks
	for _, r := range results {
		for _, t := range r.Tokens {
			tokens = append(tokens, t.At)
			if t.At.Before(c.at) {
				before[t.Rank] = true
			}
		}
	}
	slices.SortFunc(tokens, time.Time.Compare)
	first := time.Time{}
	for _, r := range results {
		for _, t := range r.Tokens {
			is := c.url == r.url
			if c.url == "" {
				is = t.At.After(c.at) && !before[t.Rank]
			}
			if is && (first.IsZero() || t.At.Before(first)) {
				first = t.At
			}
		}
		if r.Err != nil && r.Sent.Before(c.done) {
			if len(r.Tokens) > 0 {
				s.Broken++
			} else {
				s.Refused++
			}
		}
	}
	end := c.done
	if first.After(end) {
		end = first
	}
	begin := c.at.Add(-min(end.Sub(c.at), scaleUpBefore))
	if begin.Before(began) {
		begin = began
	}
	s.First, s.Settled = first.Sub(c.at).Seconds(), end.Sub(c.at).Seconds()
	if first.IsZero() {
		s.First = -1
	}
	s.Window = [2]float64{end.Sub(c.at).Seconds(), c.at.Sub(begin).Seconds()}
	s.Gap, s.Before = silence(tokens, c.at, end), silence(tokens, begin, c.at)
	s.Rates = [3]float64{tokenRate(tokens, begin, c.at), tokenRate(tokens, c.at, first), tokenRate(tokens, end, end.Add(2*time.Second))}
}

// silence is the longest time in the window without any token; gaps across the window's borders count in full.
func silence(tokens []time.Time, begin, end time.Time) float64 {
	longest := time.Duration(0)
	for i := 1; i < len(tokens); i++ {
		if tokens[i].After(begin) && tokens[i-1].Before(end) {
			longest = max(longest, tokens[i].Sub(tokens[i-1]))
		}
	}
	return longest.Seconds()
}

func tokenRate(tokens []time.Time, begin, end time.Time) float64 {
	n := 0
	for _, t := range tokens {
		if t.After(begin) && !t.After(end) {
			n++
		}
	}
	return float64(n) / end.Sub(begin).Seconds()
}

// stood is the longest time for which this process did not run since `watchClock`: a stopped or overloaded machine
// measures nothing.
type stood struct {
	stop chan struct{}
	done chan time.Duration
}

func watchClock() *stood {
	s := &stood{stop: make(chan struct{}), done: make(chan time.Duration, 1)}
	go func() {
		const every = 10 * time.Millisecond
		longest, last := time.Duration(0), time.Now()
		for {
			select {
			case <-s.stop:
				s.done <- longest
				return
			case <-time.After(every):
				longest, last = max(longest, time.Since(last)-every), time.Now()
			}
		}
	}()
	return s
}

func (s *stood) end() time.Duration {
	close(s.stop)
	return <-s.done
}

// watched is the memory of all descendants of this process.
type watched struct {
	stop    chan struct{}
	done    chan error
	peak    uint64
	samples int
}

func watchMemory() *watched {
	w := &watched{stop: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		for {
			now, err := harness.ResidentBelow()
			if err != nil {
				w.done <- err
				return
			}
			w.peak = max(w.peak, now.Others+now.Shared)
			w.samples++
			select {
			case <-w.stop:
				w.done <- nil
				return
			case <-time.After(scaleUpEvery):
			}
		}
	}()
	return w
}

func (w *watched) end() (peak uint64, samples int, err error) {
	close(w.stop)
	err = <-w.done
	return w.peak, w.samples, err
}
