// Package load makes streaming requests from a trace and records every token of them.
package load

import (
	"bufio"
	"bytes"
	_ "embed" // the slice of the trace
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"
)

//go:embed conversation_slice.jsonl
var slice []byte

// Scale from the trace to the demo model.
const (
	promptDivisor, promptCap = 32, 96
	answerDivisor, answerCap = 3, 160
	blockBytes               = 512 / promptDivisor // of one hash id
)

// Request of the load; the same (seed, index) always gives the same one.
type Request struct {
	Index       int
	Arrival     time.Duration // after the start
	Prompt      []uint32
	Chat        string // what a user says, in place of a prompt of token ids
	MaxTokens   int
	Temperature float64 // 0: greedy
	TopP        float64
	Seed        uint64
}

type traceLine struct {
	Timestamp    int64   `json:"timestamp"` // ms
	InputLength  int     `json:"input_length"`
	OutputLength int     `json:"output_length"`
	HashIDs      []int64 `json:"hash_ids"`
}

// Trace gives requests by index without end: the slice again and again, each round with
// other sampling seeds.
type Trace struct {
	// MaxAnswer bounds the tokens of an answer further; 0: it does not. Longer ones get lengths from half of it on, so
	// that those which begin together do not end together: else there are moments without any KV.
	MaxAnswer int
	// Greedy: none is sampled.
	Greedy bool
	// Chat: a user says words in place of token ids.
	Chat bool

	seed  uint64
	lines []traceLine
	span  time.Duration // of one round
	hot   atomic.Bool
}

// said are the words of chats, of several scripts: most tokenizers make tokens of whole words, of parts and of single bytes of them.
var said = []string{"the", "quick", "brown", "fox", "sieben", "Übergänge", "zażółć", "łódź", "привет", "мир", "今日は", "天気", "한국어", "नमस्ते", "سلام", "👩‍👩‍👧‍👦",
	"🏳️‍🌈", "42", "3.14", "def f(x):", "{}", "e\u0301", "—", "\n"}

const mostWords = 32

// words by the ids of a prompt.
func words(prompt []uint32) string {
	var out []string
	for _, id := range prompt[:min(len(prompt), mostWords)] {
		out = append(out, said[int(id)%len(said)])
	}
	return strings.Join(out, " ")
}

// hotToken is what all prompts say while the load is hot.
const hotToken = 42

// Heat the load from now on, or no more: prompts say one thing over and over, so that the same few experts are asked
// for all the time. Requests depend on when it is called: to send them again, take those that were sent.
func (t *Trace) Heat(on bool) { t.hot.Store(on) }

// NewTrace lets one round of the slice arrive within span.
func NewTrace(seed uint64, span time.Duration) (*Trace, error) {
	t := &Trace{seed: seed, span: span}
	for scanner := bufio.NewScanner(bytes.NewReader(slice)); scanner.Scan(); {
		var line traceLine
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("load: line %d of the trace: %w", len(t.lines)+1, err)
		}
		t.lines = append(t.lines, line)
	}
	if len(t.lines) == 0 {
		return nil, fmt.Errorf("load: the trace is empty")
	}
	return t, nil
}

// Keep the requests of a round that are wanted; the others are left out of all rounds. With none left it is an error.
func (t *Trace) Keep(wanted func(Request) bool) error {
	var kept []traceLine
	for i, line := range t.lines {
		if wanted(t.At(i)) {
			kept = append(kept, line)
		}
	}
	if len(kept) == 0 {
		return fmt.Errorf("load: none of the %d requests of the trace is wanted", len(t.lines))
	}
	t.lines = kept
	return nil
}

// Round is the number of requests after which the trace starts again.
func (t *Trace) Round() int { return len(t.lines) }

// At gives request i.
func (t *Trace) At(i int) Request {
	n := len(t.lines)
	line, round := t.lines[i%n], i/n
	last := max(t.lines[n-1].Timestamp, 1)
	r := Request{Index: i, TopP: 1, Seed: t.seed<<20 + uint64(i),
		Arrival:   t.span*time.Duration(round) + time.Duration(float64(t.span)*float64(line.Timestamp)/float64(last+last/int64(n))),
		MaxTokens: min(max(line.OutputLength/answerDivisor, 2), answerCap)}
	if t.MaxAnswer > 0 && r.MaxTokens > t.MaxAnswer {
		r.MaxTokens = t.MaxAnswer - int(rand.New(rand.NewPCG(t.seed, uint64(i))).UintN(uint(t.MaxAnswer+1)/2))
	}
	length := min(max(line.InputLength/promptDivisor, 1), promptCap)
	for _, id := range line.HashIDs {
		block := rand.New(rand.NewPCG(t.seed, uint64(id)))
		for range blockBytes {
			r.Prompt = append(r.Prompt, uint32(block.UintN(256)))
		}
	}
	for len(r.Prompt) < length { // a trace line may name fewer blocks than it is long
		r.Prompt = append(r.Prompt, uint32(len(r.Prompt)%256))
	}
	r.Prompt = r.Prompt[:length]
	if t.hot.Load() {
		for j := range r.Prompt {
			r.Prompt[j] = hotToken
		}
	}
	if t.Chat {
		r.Prompt, r.Chat = nil, words(r.Prompt)
	}
	if i%2 == 1 && !t.Greedy { // every other one is sampled
		r.Temperature, r.TopP = 0.8, 0.95
	}
	return r
}
