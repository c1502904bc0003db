// Command probe is the workload of the tests: `serve` answers every request with its pod's name until SIGTERM; `get
// URL`, `cat FILE...` and `write FILE TEXT` are for exec, hooks and init containers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve()
	case len(args) == 2 && args[0] == "get":
		client := http.Client{Timeout: 3 * time.Second}
		response, err := client.Get(args[1])
		if err != nil {
			return err
		}
		_, err = io.Copy(os.Stdout, response.Body)
		return errors.Join(err, response.Body.Close())
	case len(args) > 1 && args[0] == "cat":
		for _, path := range args[1:] {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Println(string(text))
		}
		return nil
	case len(args) == 3 && args[0] == "write":
		return os.WriteFile(args[1], []byte(args[2]), 0o600)
	}
	return fmt.Errorf("unknown arguments %q", args)
}

func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "hello from", os.Getenv("POD_NAME"), "on", os.Getenv("NODE_NAME"))
	})}
	go func() {
		<-ctx.Done()
		fmt.Println("bye")
		_ = server.Close()
	}()
	fmt.Println("serving")
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
