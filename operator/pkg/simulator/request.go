// Package simulator plays requests against a world that exists in numbers only: discrete events, continuous batching, chunked prompts, KV
// with a limit, shared prefixes; a step lasts what a table of truth says, a transition what the planner's bytes cost, and policies decide
// in the loop. The same input gives the same output. Pure: no I/O (readers take an io.Reader), no clock, no globals.
package simulator

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// BlockTokens is the tokens of a block whose hash tells of shared prefixes, as in Mooncake's traces.
const BlockTokens = 512

// Request of a trace.
type Request struct {
	At     float64 // seconds from the start
	Prompt int     // tokens
	Output int     // tokens, at least 1
	Blocks []int32 // ids of its whole and last blocks of BlockTokens; equal ids mean equal prefixes. None: nothing is shared
}

// Longest a prompt or an answer may be: far above what models take, and sums of them stay far below 2^63.
const longest = 1 << 24

func (r Request) check() error {
	if math.IsNaN(r.At) || math.IsInf(r.At, 0) || r.At < 0 {
		return fmt.Errorf("its time %v is no number of seconds", r.At)
	}
	if r.Prompt < 1 || r.Prompt > longest || r.Output < 1 || r.Output > longest {
		return fmt.Errorf("%d prompt and %d output tokens; both must be 1..%d", r.Prompt, r.Output, longest)
	}
	return nil
}

// ReadMooncake reads lines of {"timestamp": ms, "input_length", "output_length", "hash_ids"}
// (github.com/kvcache-ai/Mooncake, FAST25-release/traces). Requests without output tokens are left out and counted.
func ReadMooncake(r io.Reader) (out []Request, empty int, err error) {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, 16<<20)
	dense := map[int64]int32{}
	for n := 1; scan.Scan(); n++ {
		if len(scan.Bytes()) == 0 {
			continue
		}
		var line struct {
			Timestamp *float64 `json:"timestamp"`
			Input     *int     `json:"input_length"`
			Output    *int     `json:"output_length"`
			Hashes    []int64  `json:"hash_ids"`
		}
		if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", n, err)
		}
		if line.Timestamp == nil || line.Input == nil || line.Output == nil {
			return nil, 0, fmt.Errorf("line %d: timestamp, input_length or output_length is missing", n)
		}
		q := Request{At: *line.Timestamp / 1000, Prompt: *line.Input, Output: *line.Output}
		for _, h := range line.Hashes {
			id, ok := dense[h]
			if !ok {
				id = int32(len(dense))
				dense[h] = id
			}
			q.Blocks = append(q.Blocks, id)
		}
		if q.Output == 0 || q.Prompt == 0 {
			empty++
			continue
		}
		if err := q.check(); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", n, err)
		}
		out = append(out, q)
	}
	if err := scan.Err(); err != nil {
		return nil, 0, err
	}
	return ordered(out), empty, nil
}

// ReadAzure reads CSV lines TIMESTAMP,ContextTokens,GeneratedTokens (github.com/Azure/AzurePublicDataset, 2023 and 2024).
// The first request is at second 0.
func ReadAzure(r io.Reader) ([]Request, error) {
	in := csv.NewReader(r)
	head, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	at, prompt, output := slices.Index(head, "TIMESTAMP"), slices.Index(head, "ContextTokens"), slices.Index(head, "GeneratedTokens")
	if at < 0 || prompt < 0 || output < 0 {
		return nil, fmt.Errorf("header %q has no TIMESTAMP, ContextTokens, GeneratedTokens", head)
	}
	var out []Request
	var first time.Time
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		line, _ := in.FieldPos(0)
		when, err := time.Parse("2006-01-02 15:04:05.999999999", row[at])
		if err != nil {
			if when, err = time.Parse("2006-01-02 15:04:05.999999999Z07:00", row[at]); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
		}
		if first.IsZero() {
			first = when
		}
		q := Request{At: when.Sub(first).Seconds()}
		if q.Prompt, err = strconv.Atoi(row[prompt]); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if q.Output, err = strconv.Atoi(row[output]); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if err := q.check(); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		out = append(out, q)
	}
	return ordered(out), nil
}

// ReadRollout reads one sequence per line, "prompt output", all there at second 0.
func ReadRollout(r io.Reader) ([]Request, error) {
	scan := bufio.NewScanner(r)
	var out []Request
	for n := 1; scan.Scan(); n++ {
		var q Request
		if _, err := fmt.Sscan(scan.Text(), &q.Prompt, &q.Output); err != nil {
			return nil, fmt.Errorf("line %d: %q is not two numbers, prompt and output tokens", n, scan.Text())
		}
		if err := q.check(); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		out = append(out, q)
	}
	return out, scan.Err()
}

func ordered(requests []Request) []Request {
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return requests
}

// Times has each request so many times, the copies up to half a second later or earlier, drawn by seed, so that the shape of the
// traffic stays. Copies share no prefixes with the first, nor with each other.
func Times(requests []Request, copies int, seed uint64) []Request {
	random := rand.New(rand.NewPCG(seed, 1))
	var out []Request
	for c := range copies {
		for _, q := range requests {
			if c > 0 {
				q.At = max(0, q.At+random.Float64()-.5)
				q.Blocks = nil
			}
			out = append(out, q)
		}
	}
	return ordered(out)
}

// Rate is a part of a generated load.
type Rate struct{ Seconds, PerSecond float64 }

// Generate Poisson arrivals at rates that follow each other, with log-normal lengths of these means and a coefficient of
// variation of 1, by seed.
func Generate(rates []Rate, prompt, output float64, seed uint64) []Request {
	random := rand.New(rand.NewPCG(seed, 2))
	length := func(mean float64) int {
		sigma := math.Sqrt(math.Log(2))
		return min(max(1, int(mean*math.Exp(sigma*random.NormFloat64()-sigma*sigma/2))), longest)
	}
	var out []Request
	begin := 0.0
	for _, r := range rates {
		for at := begin + random.ExpFloat64()/r.PerSecond; at < begin+r.Seconds; at += random.ExpFloat64() / r.PerSecond {
			out = append(out, Request{At: at, Prompt: length(prompt), Output: length(output)})
		}
		begin += r.Seconds
	}
	return out
}

// LongTail are the lengths of a rollout's sequences: prompts of 256 to 767 tokens, answers log-normal.
type LongTail struct {
	Median, Sigma float64
	Most          int // tokens of an answer
}

// Tail that is taken if nothing is said.
func Tail() LongTail { return LongTail{Median: 1500, Sigma: 1.2, Most: 32768} }

// Rollout draws so many sequences that are all there at second 0, by seed.
func Rollout(n int, t LongTail, seed uint64) []Request {
	random := rand.New(rand.NewPCG(seed, 6))
	out := make([]Request, n)
	for i := range out {
		out[i] = Request{Prompt: 256 + random.IntN(512), Output: min(max(int(t.Median*math.Exp(t.Sigma*random.NormFloat64())), 16), t.Most)}
	}
	return out
}
