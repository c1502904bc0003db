package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	frontStreams = 64
	frontPreset  = "tiny" // the text server reads only its sizes
	frontTokens  = 32768  // per request; none gets this far
)

// The generated text: words in several scripts, some tokens of which are parts of characters.
const frontText = "The quick brown fox jumps over the lazy dog, and nobody minds. Zażółć gęślą jaźń; 今日は良い天気ですね。 Привет, мир! def f(x): return {x: 2.5} 👩‍👩‍👧‍👦\n"

func frontDoorCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "front-door", Short: "Benchmark front-door: processor time per token, compared with a reverse proxy, and restart time of a killed text server", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return frontDoor(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/front-door", "folder for logs")
	o.rootFlag(c)
	return c
}

// frontProxyCommand is the plain reverse proxy, as a process whose processor time can be measured.
func frontProxyCommand() *cobra.Command {
	return &cobra.Command{Use: "front-door-proxy URL", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		to, err := url.Parse(args[0])
		if err != nil {
			return err
		}
		l, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Println("http://" + l.Addr().String())
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }}}
		stop := context.AfterFunc(cmd.Context(), func() { _ = server.Close() })
		defer stop()
		return server.Serve(l)
	}}
}

// frontWay is a path of tokens to a client.
type frontWay struct {
	name, url string
	body      map[string]any
	said      *atomic.Int64
	used      func() (gateway, text time.Duration, err error) // so far
}

// frontDoor bench: 64 streams get a token each 20 ms, through a plain reverse proxy, through the gateway as token ids,
// and through gateway and text server as chats. Windows alternate; the processor time between rank and client is
// divided by the tokens of the window.
func frontDoor(ctx context.Context, o options) (err error) {
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	rounds, window, kills := 4, 10*time.Second, 5
	if os.Getenv("QUICK") == "1" {
		rounds, window, kills = 1, 5*time.Second, 3
	}
	w, ranks, stop, err := startFront(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	proxy, err := startProxy(ctx)
	if err != nil {
		return err
	}
	defer proxy.stop()
	ways := []*frontWay{proxy.way(), {name: "token ids", url: w.URL() + "/v1/completions", said: &ranks.said, used: w.FrontTime,
		body: map[string]any{"prompt": []int{1, 2, 3, 4}, "stream": true, "max_tokens": frontTokens - 64}},
		{name: "chat", url: w.URL() + "/v1/chat/completions", said: &ranks.said, used: w.FrontTime,
			body: map[string]any{"messages": []any{map[string]any{"role": "user", "content": "Go on."}}, "ignore_eos": true, "stream": true, "max_tokens": frontTokens - 64}}}
	lines := json.NewEncoder(os.Stdout)
	found, tokens := map[string][]float64{}, int64(0)
	for range rounds {
		for _, way := range ways {
			m, err := way.measure(ctx, window)
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			if err := lines.Encode(m); err != nil {
				return err
			}
			tokens += m.Tokens
			found[way.name] = append(found[way.name], m.Gateway+m.Text)
			found[way.name+" gateway"] = append(found[way.name+" gateway"], m.Gateway)
			found[way.name+" text"] = append(found[way.name+" text"], m.Text)
		}
	}
	var ratios, idRatios []float64
	for i, base := range found["proxy"] {
		ratios, idRatios = append(ratios, found["chat"][i]/base), append(idRatios, found["token ids"][i]/base)
	}
	restarts, cold, err := frontRestarts(ctx, w, kills)
	if err != nil {
		return err
	}
	ratio := median(ratios)
	return lines.Encode(map[string]any{"bench": "front-door", "value": ratio, "unit": "processor time per token of gateway and text server over a plain reverse proxy's", "ceiling": 1, "ratio": ratio,
		"metrics": map[string]any{"proxy_us": median(found["proxy"]), "ids_us": median(found["token ids"]), "ids_over_proxy": median(idRatios), "chat_gateway_us": median(found["chat gateway"]),
			"chat_text_us": median(found["chat text"]), "tokens": tokens, "restart_seconds": median(restarts), "restarts": restarts, "cold_seconds": cold},
		"env": map[string]any{"cpus": runtime.NumCPU(), "go": runtime.Version(), "streams": frontStreams, "tokens_per_second": frontStreams / pacedBeat.Seconds()}})
}

// startFront starts a gateway and its text server in front of a paced rank.
func startFront(ctx context.Context, o options) (w *harness.World, r *pacedRank, stop func(), err error) {
	checkpoint, err := harness.WithTokenizer(ctx, o.root, frontPreset, vllmTokenizer)
	if err != nil {
		return nil, nil, nil, err
	}
	wire, err := os.ReadFile(filepath.Join(checkpoint, "config.json"))
	if err != nil {
		return nil, nil, nil, err
	}
	var config struct {
		Vocabulary uint32 `json:"vocab_size"`
	}
	if err := json.Unmarshal(wire, &config); err != nil {
		return nil, nil, nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, nil, err
	}
	w, err = harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint, Frontends: []string{l.Addr().String()}, Text: []string{}})
	if err != nil {
		return nil, nil, nil, errors.Join(err, l.Close())
	}
	defer func() {
		if err != nil {
			w.Stop()
		}
	}()
	if err := w.Certificates(ctx, w.CertificateDir(), "engine/p0"); err != nil {
		return nil, nil, nil, err
	}
	r, end, err := servePaced(l, w.CertificateDir(), &tangramv1.World{World: w.Model(), Epoch: 1, MaxTokens: frontTokens, Vocabulary: config.Vocabulary}, []uint32{1})
	if err != nil {
		return nil, nil, nil, err
	}
	if _, err := w.AwaitText(ctx, 0); err != nil {
		end()
		return nil, nil, nil, err
	}
	var encoded struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := post(ctx, w.URL()+"/tokenize", map[string]any{"prompt": frontText}, &encoded); err != nil {
		end()
		return nil, nil, nil, err
	}
	r.tokens = encoded.Tokens
	return w, r, func() { end(); w.Stop() }, nil
}

// frontProxy is a plain reverse proxy in front of an event server.
type frontProxy struct {
	cmd  *exec.Cmd
	url  string
	from *httptest.Server
	said atomic.Int64
}

func startProxy(ctx context.Context) (*frontProxy, error) {
	p := &frontProxy{}
	event := fmt.Sprintf("data: %s\n\n", `{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"demo","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}]}`)
	p.from = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(pacedBeat)
		defer tick.Stop()
		for {
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
			}
			if _, err := io.WriteString(out, event); err != nil || http.NewResponseController(out).Flush() != nil {
				return
			}
			p.said.Add(1)
		}
	}))
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p.cmd = exec.CommandContext(ctx, self, "front-door-proxy", p.from.URL)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	p.url = strings.TrimSpace(line)
	return p, err
}

func (p *frontProxy) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	p.from.Close()
}

func (p *frontProxy) way() *frontWay {
	return &frontWay{name: "proxy", url: p.url, body: map[string]any{}, said: &p.said, used: func() (time.Duration, time.Duration, error) {
		used, err := harness.ProcessorTimeOf(p.cmd.Process.Pid)
		return used, 0, err
	}}
}

// frontMeasured has microseconds of processor time per token.
type frontMeasured struct {
	Way     string  `json:"way"`
	Tokens  int64   `json:"tokens"`
	Gateway float64 `json:"gateway_us"`
	Text    float64 `json:"text_us"`
}

// measure measures a window in which all streams run.
func (f *frontWay) measure(ctx context.Context, window time.Duration) (*frontMeasured, error) {
	running, end := context.WithCancel(ctx)
	defer end()
	var wait, first sync.WaitGroup
	errs := make(chan error, frontStreams)
	first.Add(frontStreams)
	for range frontStreams {
		wait.Go(func() {
			var once sync.Once
			err := readEvents(running, f.url, f.body, func() { once.Do(first.Done) })
			once.Do(first.Done)
			if running.Err() == nil {
				errs <- err
				end()
			}
		})
	}
	first.Wait()
	if err := sleep(running, time.Second); err != nil {
		return nil, errors.Join(err, <-errs)
	}
	said := f.said.Load()
	gateway, text, err := f.used()
	if err != nil {
		return nil, err
	}
	if err := sleep(running, window); err != nil {
		return nil, errors.Join(err, <-errs)
	}
	gatewayThen, textThen, err := f.used()
	if err != nil {
		return nil, err
	}
	tokens := f.said.Load() - said
	end()
	wait.Wait()
	per := func(used time.Duration) float64 { return used.Seconds() * 1e6 / float64(max(tokens, 1)) }
	return &frontMeasured{f.name, tokens, per(gatewayThen - gateway), per(textThen - text)}, nil
}

// readEvents reads a stream that does not end by itself.
func readEvents(ctx context.Context, url string, body map[string]any, came func()) error {
	reply, err := ask(ctx, url, body)
	if err != nil {
		return err
	}
	defer func() { _ = reply.Body.Close() }()
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte(`data: {"error"`)) {
			return errors.New(lines.Text())
		}
		came()
	}
	return errors.Join(errors.New("the stream ended"), lines.Err())
}

// ask sends a POST request. A response other than 200 is an error.
func ask(ctx context.Context, url string, body any) (*http.Response, error) {
	wire, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(wire))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	if reply.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(reply.Body)
		return nil, errors.Join(fmt.Errorf("%s: HTTP %d: %s", url, reply.StatusCode, text), reply.Body.Close())
	}
	return reply, nil
}

// post sends a POST request and decodes the response.
func post(ctx context.Context, url string, body, into any) error {
	reply, err := ask(ctx, url, body)
	if err != nil {
		return err
	}
	return errors.Join(json.NewDecoder(reply.Body).Decode(into), reply.Body.Close())
}

// frontRestarts returns the seconds from kill -9 of the text server to its next answer, and those of a start with all
// imports.
func frontRestarts(ctx context.Context, w *harness.World, kills int) (restarts []float64, cold float64, err error) {
	answered := func(began time.Time) (float64, error) {
		var answer map[string]any
		for {
			err := post(ctx, w.URL()+"/v1/chat/completions", map[string]any{"messages": []any{map[string]any{"role": "user", "content": "Hi"}}, "max_tokens": 1}, &answer)
			if err == nil {
				return time.Since(began).Seconds(), nil
			}
			if err := errors.Join(sleep(ctx, look), ctx.Err()); err != nil {
				return 0, err
			}
		}
	}
	for range kills {
		began := time.Now()
		if _, err := w.KillText(); err != nil {
			return nil, 0, err
		}
		took, err := answered(began)
		if err != nil {
			return nil, 0, err
		}
		restarts = append(restarts, took)
	}
	began := time.Now()
	if err := w.RestartText(); err != nil {
		return nil, 0, err
	}
	cold, err = answered(began)
	return restarts, cold, err
}
