package walk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/clients"
	"tangram.dev/tests/internal/worlds"
)

// talks is a world of vLLM engines with a text server and a model with scripted answers.
type talks struct {
	*harness.World
	answers map[string]string // by the selecting word
	keeper  *harness.Keeper
}

func startTalking(t *testing.T, pods []int, scripts ...string) *talks {
	t.Helper()
	return startTalkingWith(t, pods, nil, scripts...)
}

// startTalkingWith starts the world with additional flags of the text server.
func startTalkingWith(t *testing.T, pods []int, flags []string, scripts ...string) *talks {
	t.Helper()
	root, err := filepath.Abs(worlds.Root)
	require.NoError(t, err)
	o := harness.Options{Root: root, Pods: pods, MaxTokens: 1024, Restart: true, Granule: 16, EngineFlags: []string{"--max-batch-tokens", "256", "--max-running", "64"},
		Text: append([]string{"--enable-auto-tool-choice", "--tool-call-parser", clients.ToolParser}, flags...)}
	w := &talks{}
	o.Checkpoint, w.answers, err = harness.Scripted(t.Context(), root, "qwen3", scripts...)
	require.NoError(t, err)
	o.VLLM()
	w.World = worlds.Start(t, o)
	return w
}

// keep sets the number of ranks, or a hybrid, and waits until the world has it.
func (w *talks) keep(t *testing.T, ranks int, layers ...string) {
	t.Helper()
	if w.keeper != nil {
		w.keeper.Kill()
	}
	var err error
	if len(layers) > 0 {
		w.keeper, err = w.KeepHybrid(ranks, layers, tell(t))
	} else {
		w.keeper, err = w.Keep(ranks, "ExpertParallel", tell(t))
	}
	require.NoError(t, err)
	t.Cleanup(w.keeper.Kill)
	w.await(t, "the layout", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" })
}

func (w *talks) await(t *testing.T, what string, is func(harness.Did) bool) {
	t.Helper()
	a := &alive{World: w.World, keeper: w.keeper}
	a.await(t, what, is)
}

// chat requests the answer to a word and returns its text: streamed, or as a whole. `each` is called for every piece.
func (w *talks) chat(ctx context.Context, word string, stream bool, each func()) (string, error) {
	body, err := json.Marshal(map[string]any{"model": w.Model(), "stream": stream, "temperature": 0, "messages": []any{
		map[string]any{"role": "user", "content": "please say the " + word + " for me"}}})
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL()+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = reply.Body.Close() }()
	if reply.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(reply.Body)
		return "", fmt.Errorf("HTTP %d: %s", reply.StatusCode, text)
	}
	var out strings.Builder
	var event struct {
		Choices []struct {
			Delta, Message struct{ Content string }
		} `json:"choices"`
		Error *struct{ Message string } `json:"error"`
	}
	if !stream {
		if err := json.NewDecoder(reply.Body).Decode(&event); err != nil {
			return "", err
		}
		return event.Choices[0].Message.Content, nil
	}
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is {
			continue
		}
		if data == "[DONE]" {
			return out.String(), nil
		}
		event.Choices = nil
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return "", fmt.Errorf("%w: %s", err, data)
		}
		if event.Error != nil {
			return "", fmt.Errorf("in the stream: %s", event.Error.Message)
		}
		for _, c := range event.Choices {
			out.WriteString(c.Delta.Content)
		}
		each()
	}
	return "", errors.Join(lines.Err(), fmt.Errorf("the stream ended after %q", out.String()))
}

// Popular clients chat, stream, stop and call a tool while the world grows and shrinks: OpenAI's for Python and Node,
// litellm, and Anthropic's.
func TestVllmChat(t *testing.T) {
	w := startTalking(t, harness.Pods(2), clients.Scripts...)
	w.keep(t, 1)
	_, err := w.AwaitText(t.Context(), 0)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for ranks := 2; ctx.Err() == nil; ranks = 3 - ranks {
			w.keep(t, ranks)
		}
	}()
	for range 2 {
		for _, client := range clients.All {
			require.NoError(t, clients.Run(t.Context(), worlds.Root, client, w.URL(), w.Model()))
		}
	}
	cancel()
	<-moved
	require.Empty(t, w.Died())
}

// 200 streams through a growth, two changes of shape and a death: their texts equal those of undisturbed runs.
func TestVllmTextFollows(t *testing.T) {
	w := startTalking(t, []int{2, 1}, "colours=words:120", "animals=words:120", "flowers=words:120")
	w.keep(t, 2)
	_, err := w.AwaitText(t.Context(), 0)
	require.NoError(t, err)
	words := []string{"colours", "animals", "flowers"}
	for _, word := range words {
		text, err := w.chat(t.Context(), word, false, nil)
		require.NoError(t, err)
		require.Equal(t, w.answers[word], text, "at rest")
	}
	const streams, atATime = 200, 24
	var pieces, running atomic.Int64
	errs := make(chan error, streams)
	room := make(chan struct{}, atATime)
	var wait sync.WaitGroup
	wait.Go(func() {
		for i := range streams {
			room <- struct{}{}
			wait.Go(func() {
				defer func() { <-room }()
				running.Add(1)
				defer running.Add(-1)
				word := words[i%len(words)]
				text, err := w.chat(t.Context(), word, true, func() { pieces.Add(1) })
				if err == nil && text != w.answers[word] {
					err = fmt.Errorf("stream %d of %s: %q, want %q", i, word, text, w.answers[word])
				}
				errs <- err
			})
		}
	})
	// Each event happens while streams run, and the next one after they have continued.
	under := func(what string, do func()) {
		from := pieces.Load()
		require.Eventually(t, func() bool { return pieces.Load() > from+200 && running.Load() >= 4 }, worlds.Hang, 10*time.Millisecond, "four streams at "+what)
		t.Logf("%s: %d streams run", what, running.Load())
		do()
	}
	under("growth", func() { w.keep(t, 3) })
	under("a switch of shape", func() { w.keep(t, 3, "0-1=3/1") })
	under("a switch back", func() { w.keep(t, 3) })
	under("a death", func() {
		w.KillPod(1) // one rank of three
		w.await(t, "a repair", repaired)
	})
	wait.Wait()
	for range streams {
		require.NoError(t, <-errs)
	}
	require.Empty(t, w.Died())
}

// A killed text server is replaced, and requests with token ids are unaffected.
func TestVllmTextServerDies(t *testing.T) {
	w := startTalking(t, harness.Pods(1), "greeting=Hello there, you!", "list=words:200")
	w.keep(t, 1)
	pid, err := w.AwaitText(t.Context(), 0)
	require.NoError(t, err)
	ids := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if err := w.ids(t.Context()); err != nil {
				ids <- err
				return
			}
		}
		ids <- nil
	}()
	for range 3 {
		stream := w.begin(t)
		killed, err := w.KillText()
		require.NoError(t, err)
		require.Equal(t, pid, killed)
		require.ErrorContains(t, <-stream.ended, "is unresponsive", "its client is told")
		at := time.Now()
		pid, err = w.AwaitText(t.Context(), killed)
		require.NoError(t, err)
		text, err := w.chat(t.Context(), "greeting", false, nil)
		require.NoError(t, err)
		require.Equal(t, w.answers["greeting"], text)
		t.Logf("the next answer came %.1f s after the kill", time.Since(at).Seconds())
	}
	cancel()
	require.NoError(t, <-ids)
}
