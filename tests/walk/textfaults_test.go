package walk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

// spins is a chat template that never ends for requests that select it.
const spins = `{%- if 'spin' in messages[-1].content %}{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}{% endfor %}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// An endless template, a client that does not read, a thousand clients that disconnect, and a text server that dies
// while its gateway drains affect no other client.
func TestVllmTextFaults(t *testing.T) {
	template := filepath.Join(t.TempDir(), "template.jinja")
	require.NoError(t, os.WriteFile(template, []byte(spins), 0o600))
	w := startTalkingWith(t, harness.Pods(1), []string{"--chat-template", template}, "greeting=Hello there, you!", "list=words:200")
	w.keep(t, 1)
	pid, err := w.AwaitText(t.Context(), 0)
	require.NoError(t, err)
	fine := func(t *testing.T) {
		t.Helper()
		text, err := w.chat(t.Context(), "greeting", false, nil)
		require.NoError(t, err)
		require.Equal(t, w.answers["greeting"], text)
	}
	fine(t)
	idle := idlePages(t, w.World)
	atRest := func(t *testing.T) {
		t.Helper()
		require.Eventually(t, func() bool { return freePages(t, w.World) == idle }, worlds.Hang, 100*time.Millisecond, "%d pages free while idle", idle)
	}

	t.Run("template loops", func(t *testing.T) {
		stream := w.begin(t)
		spun := make(chan error, 1)
		go func() {
			_, err := w.chat(t.Context(), "spin", false, nil)
			spun <- err
		}()
		for code := 0; code != http.StatusServiceUnavailable; { // the kubelet's query; it may be handled after this one
			code = w.textz(t)
		}
		require.NoError(t, <-stream.ended, "a stream that was begun goes on")
		require.Equal(t, w.answers["list"], stream.text)
		require.NoError(t, w.ids(t.Context()))
		killed, err := w.KillText()
		require.NoError(t, err)
		require.ErrorContains(t, <-spun, "HTTP 503: ", "killed in a render")
		pid, err = w.AwaitText(t.Context(), killed)
		require.NoError(t, err)
		fine(t)
	})

	t.Run("client does not read", func(t *testing.T) {
		body, err := json.Marshal(map[string]any{"model": w.Model(), "stream": true, "temperature": 0, "n": 8, "logprobs": true, "top_logprobs": 20,
			"messages": []any{map[string]any{"role": "user", "content": "please say the list for me"}}})
		require.NoError(t, err)
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.URL(), "http://")) //nolint:noctx // of this machine
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
		_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		require.NoError(t, err)
		var streams []*begun
		for range 4 {
			streams = append(streams, w.begin(t))
		}
		for _, s := range streams {
			require.NoError(t, <-s.ended)
			require.Equal(t, w.answers["list"], s.text)
		}
		require.NoError(t, conn.Close())
		atRest(t)
	})

	t.Run("thousand clients leave", func(t *testing.T) {
		room := make(chan struct{}, 24)
		var wait sync.WaitGroup
		errs := make(chan error, 1000)
		for i := range 1000 {
			room <- struct{}{}
			wait.Go(func() {
				defer func() { <-room }()
				ctx, leave := context.WithCancel(t.Context())
				if i%2 == 0 { // at any time; the others at their first token
					go leave()
				}
				_, err := w.chat(ctx, "list", true, leave)
				leave()
				errs <- err
			})
		}
		wait.Wait()
		for range 1000 {
			require.ErrorIs(t, <-errs, context.Canceled)
		}
		atRest(t)
		fine(t)
		is, err := w.AwaitText(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, pid, is, "the text server lives")
	})

	t.Run("text server dies while its gateway drains", func(t *testing.T) {
		var streams []*begun
		for range 4 {
			streams = append(streams, w.begin(t))
		}
		ended := w.EndGateway()
		_, err := w.KillText()
		require.NoError(t, err)
		for _, s := range streams {
			require.ErrorContains(t, <-s.ended, "is unresponsive", "its client is told")
		}
		select {
		case <-ended:
		case <-time.After(worlds.Hang):
			t.Fatal("the gateway does not end")
		}
	})
}

// begun is a stream of the list after its first piece.
type begun struct {
	ended chan error
	text  string // after it ended
}

func (w *talks) begin(t *testing.T) *begun {
	t.Helper()
	s := &begun{ended: make(chan error, 1)}
	first := make(chan struct{})
	var once sync.Once
	came := func() { once.Do(func() { close(first) }) }
	go func() {
		text, err := w.chat(t.Context(), "list", true, came)
		s.text = text
		s.ended <- err
		came()
	}()
	<-first
	return s
}

// textz sends the kubelet's query.
func (w *talks) textz(t *testing.T) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(w.MetricsURL(), "/metrics")+"/textz", nil)
	require.NoError(t, err)
	reply, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	return reply.StatusCode
}

// ids requests an answer to token ids.
func (w *talks) ids(ctx context.Context) error {
	body := fmt.Sprintf(`{"model":%q,"prompt":[9707,11],"max_tokens":20,"temperature":0}`, w.Model())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(reply.Body)
	if reply.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("HTTP %d: %s", reply.StatusCode, text))
	}
	return errors.Join(err, reply.Body.Close())
}
