package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Token is a token as received by the client.
type Token struct {
	ID   uint32
	Hash string
	Rank string // member of the world that emitted it
	At   time.Time
}

// Result is the result of one request. Err: it was lost, or finally rejected.
type Result struct {
	Request Request
	Sent    time.Time
	Tokens  []Token
	Text    string // of a chat
	Finish  string
	Err     error
	Refused []Refusal // 429 or 503, before it was accepted or timed out
}

// Refusal is a rejection of a request, which is tried again.
type Refusal struct {
	Status int // HTTP status: 429 or 503
	At     time.Time
}

// LongestGap is the longest time between two tokens of the request.
func (r *Result) LongestGap() time.Duration {
	var longest time.Duration
	for i := 1; i < len(r.Tokens); i++ {
		longest = max(longest, r.Tokens[i].At.Sub(r.Tokens[i-1].At))
	}
	return longest
}

// Differs describes the first difference of two results of the same request; empty: none.
func (r *Result) Differs(other *Result) string {
	if len(r.Tokens) != len(other.Tokens) {
		return fmt.Sprintf("request %d: %d and %d tokens", r.Request.Index, len(r.Tokens), len(other.Tokens))
	}
	for i := range r.Tokens {
		if a, b := r.Tokens[i], other.Tokens[i]; a.ID != b.ID || a.Hash != b.Hash {
			return fmt.Sprintf("request %d, token %d: %d (%s) and %d (%s)", r.Request.Index, i, a.ID, a.Hash, b.ID, b.Hash)
		}
	}
	return ""
}

// Client is a client of a gateway.
type Client struct {
	URL      string // of the gateway, without path
	Model    string
	HTTP     *http.Client
	Counters *Counters // updated while requests run; may be nil
	// Patience limits the retries of a rejected request: this long after it was sent it fails with the last rejection;
	// 0: a minute.
	Patience time.Duration
}

type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason *string  `json:"finish_reason"`
		TokenIDs     []uint32 `json:"token_ids"`
		Tangram      []struct {
			LogitHash string `json:"logit_hash"`
			Rank      string `json:"rank"`
		} `json:"tangram"`
	} `json:"choices"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Do sends a request and reads its stream. 429 and 503 are recorded and retried after the requested delay, until
// Patience ends.
func (c *Client) Do(ctx context.Context, r Request) *Result {
	result := &Result{Request: r, Sent: time.Now()}
	c.Counters.begin()
	defer c.Counters.end(result)
	path, asked := "/v1/completions", map[string]any{"model": c.Model, "max_tokens": r.MaxTokens, "temperature": r.Temperature, "top_p": r.TopP, "seed": r.Seed, "stream": true}
	if r.Chat != "" { // an answer of fixed length, with token ids next to the text
		path = "/v1/chat/completions"
		asked["messages"] = []any{map[string]any{"role": "user", "content": r.Chat}}
		asked["ignore_eos"], asked["return_token_ids"] = true, true
	} else {
		asked["prompt"], asked["return_logit_hash"] = r.Prompt, true
	}
	body, err := json.Marshal(asked)
	if err != nil {
		result.Err = err
		return result
	}
	patience := c.Patience
	if patience == 0 {
		patience = time.Minute
	}
	for {
		again, err := c.once(ctx, path, body, result)
		if again && time.Since(result.Sent) > patience {
			again, err = false, fmt.Errorf("refused %d times in %s: %w", len(result.Refused), patience, err)
		}
		if !again {
			result.Err = err
			return result
		}
		select {
		case <-ctx.Done():
			result.Err = ctx.Err()
			return result
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *Client) once(ctx context.Context, path string, body []byte, result *Result) (again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	reply, err := c.HTTP.Do(request)
	if err != nil {
		return false, err
	}
	defer func() { _ = reply.Body.Close() }()
	if reply.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(reply.Body, 4096))
		busy := reply.StatusCode == http.StatusTooManyRequests || reply.StatusCode == http.StatusServiceUnavailable
		if busy {
			result.Refused = append(result.Refused, Refusal{reply.StatusCode, time.Now()})
		}
		return busy, fmt.Errorf("HTTP %d: %s", reply.StatusCode, text)
	}
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			if result.Finish == "" {
				return false, errors.New("the stream ended without a finish reason")
			}
			return false, nil
		}
		now := time.Now()
		var part chunk
		if err := json.Unmarshal([]byte(data), &part); err != nil {
			return false, fmt.Errorf("chunk %q: %w", data, err)
		}
		if part.Error != nil {
			return false, errors.New(part.Error.Message)
		}
		for _, choice := range part.Choices {
			chat := result.Request.Chat != ""
			if !chat && len(choice.TokenIDs) != len(choice.Tangram) {
				return false, fmt.Errorf("chunk with %d tokens and %d hashes", len(choice.TokenIDs), len(choice.Tangram))
			}
			for i, id := range choice.TokenIDs {
				token := Token{ID: id, At: now}
				if !chat {
					token.Hash, token.Rank = choice.Tangram[i].LogitHash, choice.Tangram[i].Rank
				}
				result.Tokens = append(result.Tokens, token)
			}
			result.Text += choice.Delta.Content
			c.Counters.took(result, len(choice.TokenIDs))
			if choice.FinishReason != nil {
				result.Finish = *choice.FinishReason
			}
		}
	}
	if err := lines.Err(); err != nil {
		return false, err
	}
	return false, errors.New("the stream broke off")
}

// Source is an endless list of requests by index.
type Source interface{ At(i int) Request }

// Play sends requests 0, 1, ... at their arrival times, at most `atOnce` concurrently, until stop closes, and waits for
// those in progress. Results are in order of index.
func (c *Client) Play(ctx context.Context, t Source, atOnce int, stop <-chan struct{}) []*Result {
	start := time.Now()
	slots := make(chan struct{}, atOnce)
	var wait sync.WaitGroup
	var results []*Result
	var mu sync.Mutex
	for i := 0; ; i++ {
		r := t.At(i)
		timer := time.NewTimer(time.Until(start.Add(r.Arrival)))
		select {
		case <-stop:
			timer.Stop()
			wait.Wait()
			return results
		case <-ctx.Done():
			timer.Stop()
			wait.Wait()
			return results
		case <-timer.C:
		}
		select {
		case <-stop:
			wait.Wait()
			return results
		case slots <- struct{}{}:
		}
		mu.Lock()
		results = append(results, nil)
		mu.Unlock()
		wait.Go(func() {
			defer func() { <-slots }()
			result := c.Do(ctx, r)
			mu.Lock()
			results[i] = result
			mu.Unlock()
		})
	}
}

// Repeat sends requests 0..n-1 as fast as possible, `atOnce` concurrently.
func (c *Client) Repeat(ctx context.Context, t *Trace, n, atOnce int) []*Result {
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = t.At(i)
	}
	return c.all(ctx, requests, atOnce)
}

// Again sends the requests of results in the same way; the new results are in the same order.
func (c *Client) Again(ctx context.Context, results []*Result, atOnce int) []*Result {
	requests := make([]Request, len(results))
	for i, r := range results {
		requests[i] = r.Request
	}
	return c.all(ctx, requests, atOnce)
}

func (c *Client) all(ctx context.Context, requests []Request, atOnce int) []*Result {
	results := make([]*Result, len(requests))
	slots := make(chan struct{}, atOnce)
	var wait sync.WaitGroup
	for i, r := range requests {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			results[i] = c.Do(ctx, r)
		})
	}
	wait.Wait()
	return results
}
