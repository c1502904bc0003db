package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// stock is stock vLLM in a separate process (agent/vllm/tests/stock.py), without any of our code.
type stock struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	Ready struct {
		Import float64 `json:"import_seconds"`
		Start  float64 `json:"start_seconds"`
	}
}

// startStock starts it on a processor with the resources of a rank: one thread, the same bytes of KV.
func startStock(ctx context.Context, o options, checkpoint, dtype, core, kv string, more ...string) (*stock, error) {
	python := filepath.Join(o.root, "build/vllm/bin/python")
	if _, err := os.Stat(python); err != nil {
		return nil, fmt.Errorf("%w: make vllm-setup", err)
	}
	log, err := os.CreateTemp(o.out, "stock-*.log")
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process keeps it open
	arguments := []string{filepath.Join(o.root, "agent/vllm/tests/stock.py"), checkpoint, "--dtype", dtype, "--core", core, "--kv-bytes", kv}
	s := &stock{cmd: exec.CommandContext(ctx, python, append(arguments, more...)...)}
	s.cmd.Stderr = log
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.read(&s.Ready); err != nil {
		s.stop()
		return nil, fmt.Errorf("stock vLLM did not start (%s): %w", log.Name(), err)
	}
	return s, nil
}

func (s *stock) read(into any) error {
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, into)
}

// ask requests this many greedy tokens for each prompt, concurrently.
func (s *stock) ask(prompts [][]uint32, tokens int) (answers, error) {
	var out answers
	asked, err := json.Marshal(map[string]any{"prompts": prompts, "tokens": tokens})
	if err != nil {
		return out, err
	}
	if _, err := s.in.Write(append(asked, '\n')); err != nil {
		return out, err
	}
	return out, s.read(&out)
}

// stocks are ranks of data parallelism, each with a part of the experts, or one rank.
type stocks []*stock

// startStocks starts this many ranks: one on a fixed processor, several on any.
func startStocks(ctx context.Context, o options, checkpoint, dtype, kv string, ranks int) (stocks, error) {
	if ranks == 1 {
		s, err := startStock(ctx, o, checkpoint, dtype, "0", kv)
		return stocks{s}, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(free.Addr().String())
	if err := errors.Join(err, free.Close()); err != nil {
		return nil, err
	}
	out, errs := make(stocks, ranks), make([]error, ranks)
	var all sync.WaitGroup
	for rank := range ranks { // each waits for the others to start
		all.Go(func() {
			out[rank], errs[rank] = startStock(ctx, o, checkpoint, dtype, "", kv, "--ranks", strconv.Itoa(ranks), "--rank", strconv.Itoa(rank), "--port", port)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		out.stop()
		return nil, err
	}
	return out, nil
}

// ask distributes the prompts round robin; the seconds are the slowest rank's.
func (s stocks) ask(prompts [][]uint32, tokens int) (answers, error) {
	parts, got, errs := make([][][]uint32, len(s)), make([]answers, len(s)), make([]error, len(s))
	for i, prompt := range prompts {
		parts[i%len(s)] = append(parts[i%len(s)], prompt)
	}
	var all sync.WaitGroup
	for rank, one := range s {
		all.Go(func() { got[rank], errs[rank] = one.ask(parts[rank], tokens) })
	}
	all.Wait()
	out := answers{Tokens: make([][]uint32, len(prompts))}
	if err := errors.Join(errs...); err != nil {
		return out, err
	}
	for i := range prompts {
		out.Tokens[i] = got[i%len(s)].Tokens[i/len(s)]
	}
	for _, one := range got {
		out.Seconds = max(out.Seconds, one.Seconds)
	}
	return out, nil
}

func (s stocks) stop() {
	for _, one := range s {
		if one != nil {
			_ = one.in.Close() // all first, because they end together
		}
	}
	for _, one := range s {
		if one != nil {
			one.stop()
		}
	}
}

func (s *stock) stop() {
	_ = s.in.Close()
	_ = s.cmd.Wait() // the process has ended, whatever its exit code
}

// answers has the tokens of the prompts, and the seconds from the request to the last token.
type answers struct {
	Seconds float64    `json:"seconds"`
	Tokens  [][]uint32 `json:"tokens"`
}

// askWorld is stock.ask through the gateway.
func askWorld(ctx context.Context, w *harness.World, prompts [][]uint32, tokens int) (answers, error) {
	client := &load.Client{URL: w.URL(), Model: w.Model(), HTTP: http.DefaultClient}
	results := make([]*load.Result, len(prompts))
	var all sync.WaitGroup
	begin := time.Now()
	for i, prompt := range prompts {
		all.Go(func() {
			results[i] = client.Do(ctx, load.Request{Index: i, Prompt: prompt, MaxTokens: tokens, TopP: 1})
		})
	}
	all.Wait()
	var out answers
	for i, r := range results {
		if r.Err != nil || len(r.Tokens) != tokens {
			return out, fmt.Errorf("request %d: %d of %d tokens: %w", i, len(r.Tokens), tokens, r.Err)
		}
		ids := make([]uint32, tokens)
		for k, token := range r.Tokens {
			ids[k] = token.ID
		}
		out.Tokens = append(out.Tokens, ids)
		out.Seconds = max(out.Seconds, r.Tokens[tokens-1].At.Sub(begin).Seconds())
	}
	return out, nil
}

// vllmOn selects vLLM engines for worlds of processes; `cores`: their processors, empty: all.
func vllmOn(h *harness.Options, cores string) error {
	root, err := filepath.Abs(h.Root)
	if err != nil {
		return err
	}
	h.Root = root
	h.VLLM()
	h.EngineFlags = vllmFlags
	if cores != "" {
		h.Engine = append([]string{"taskset", "--cpu-list", cores}, h.Engine...)
	}
	return nil
}
