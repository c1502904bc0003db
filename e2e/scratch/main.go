package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"tangram.dev/e2e/harness"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Second)
	defer cancel()
	w, err := harness.Start(ctx, harness.Options{Root: ".", Dir: "build/scratch", Pods: []int{2, 2, 2}})
	if err != nil {
		fmt.Println("start:", err)
		os.Exit(1)
	}
	defer w.Stop()
	ask := func() {
		body := `{"model":"demo","prompt":"Hello world, this is a test of the thing","max_tokens":24,"temperature":0,"return_logit_hash":true}`
		t := time.Now()
		r, err := http.Post(w.URL()+"/v1/completions", "application/json", bytes.NewBufferString(body))
		if err != nil {
			fmt.Println("post:", err)
			return
		}
		b, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if len(b) > 700 {
			b = b[:700]
		}
		fmt.Println(time.Since(t), r.StatusCode, string(b))
	}
	steps := []struct {
		n    int
		mode string
	}{{4, "Expert"}, {6, "Expert"}, {6, "Tensor"}, {6, "Expert"}, {4, "Expert"}}
	for _, s := range steps {
		t := time.Now()
		rec, err := w.Apply(ctx, s.n, s.mode, nil, func(e harness.Event) {})
		fmt.Printf("apply %v %v: %v err=%v\n%+v\n", s.n, s.mode, time.Since(t), err, rec)
		if err != nil || w.Died() != "" {
			fmt.Println(w.Died())
			break
		}
		ask()
		ask()
	}
}
