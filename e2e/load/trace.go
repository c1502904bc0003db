// Package load makes streaming requests from a trace and records all of their tokens.
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

// The scale from the trace to the demo model.
const (
	promptDivisor, promptCap = 32, 96
	answerDivisor, answerCap = 3, 160
	blockBytes               = 512 / promptDivisor // of one hash id
)

// Request is a request of the load; the same (seed, index) always gives the same request.
type Request struct {
	Index       int
	Arrival     time.Duration // after the start
	Prompt      []uint32
	Chat        string // the user's text, instead of a prompt of token ids
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

// Trace is an endless list of requests by index: it repeats the slice with other sampling seeds.
type Trace struct {
	// MaxAnswer is a further limit of an answer's tokens; 0: none. Longer answers get varied lengths from half of it
	// on, so that concurrent requests do not end together: otherwise the world would at times have no KV.
	MaxAnswer int
	// Greedy disables sampling.
	Greedy bool
	// Chat uses words instead of token ids.
	Chat bool

	seed  uint64
	lines []traceLine
	span  time.Duration // of one round
	hot   atomic.Bool
}

// said are the words of chats, in several scripts: most tokenizers split them into whole words, parts of words and
// single bytes.
var said = []string{"the", "quick", "brown", "fox", "sieben", "Übergänge", "zażółć", "łódź", "привет", "мир", "今日は", "天気", "한국어", "नमस्ते", "سلام", "👩‍👩‍👧‍👦",
	"🏳️‍🌈", "42", "3.14", "def f(x):", "{}", "e\u0301", "—", "\n"}

const mostWords = 32

// words converts the ids of a prompt to words.
func words(prompt []uint32) string {
	var out []string
	for _, id := range prompt[:min(len(prompt), mostWords)] {
		out = append(out, said[int(id)%len(said)])
	}
	return strings.Join(out, " ")
}

// hotToken is the only token of all prompts while the load is hot.
const hotToken = 42

// Heat switches hot prompts on or off. They repeat one token, so that the same few experts are needed all the time.
// Requests depend on the time of the call: to repeat them, use the requests that were sent.
func (t *Trace) Heat(on bool) { t.hot.Store(on) }

// NewTrace makes a trace in which one round of the slice arrives within span.
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

// Keep removes unwanted requests of a round from all rounds. It is an error if none is left.
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

// Round is the number of requests in a round.
func (t *Trace) Round() int { return len(t.lines) }

// At returns request i.
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
	for len(r.Prompt) < length { // a trace line may have fewer blocks than its length needs
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
	if i%2 == 1 && !t.Greedy { // every other request is sampled
		r.Temperature, r.TopP = 0.8, 0.95
	}
	return r
}
