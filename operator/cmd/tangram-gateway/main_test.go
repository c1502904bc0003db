package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/pki"
)

const wait = 4 * time.Minute // only a hang takes this long

// started is a gateway in this process, with the addresses of its clients and its operations, and its exit code.
func started(t *testing.T, flags ...string) (clients, operations string, code <-chan int) {
	t.Helper()
	folder, err := pki.OpenFolder(t.TempDir(), "w")
	require.NoError(t, err)
	tls, err := folder.Issue("gateway", "gateway", nil)
	require.NoError(t, err)
	ready := filepath.Join(t.TempDir(), "ready")
	args := os.Args
	t.Cleanup(func() { os.Args = args })
	os.Args = append([]string{"tangram-gateway", "--world=w", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--seed=127.0.0.1:1", "--log-level=error",
		"--tls-ca=" + tls.CA, "--tls-cert=" + tls.Cert, "--tls-key=" + tls.Key, "--ready-file=" + ready}, flags...)
	ended := make(chan int, 1)
	go func() { ended <- run() }()
	var at struct{ Address, Metrics string }
	require.Eventually(t, func() bool {
		wire, err := os.ReadFile(ready)
		return err == nil && json.Unmarshal(wire, &at) == nil
	}, wait, 10*time.Millisecond)
	return at.Address, at.Metrics, ended
}

// get reads a page, or its beginning.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+url, http.NoBody)
	require.NoError(t, err)
	reply, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, reply.Body.Close()) }()
	text := make([]byte, 100)
	n, _ := reply.Body.Read(text)
	return reply.StatusCode, string(text[:n])
}

// untilItEnds waits until the gateway is unready because it is ending.
func untilItEnds(t *testing.T, operations string, code <-chan int) {
	t.Helper()
	require.Eventually(t, func() bool {
		if len(code) > 0 {
			return true
		}
		_, text := get(t, operations+"/readyz")
		return text == "this gateway is shutting down\n"
	}, wait, time.Millisecond)
	require.Empty(t, code, "it has ended")
}

// SIGTERM makes the gateway unready. It answers the requests in progress, and exits with code 0.
func TestSIGTERMDrains(t *testing.T) {
	clients, operations, code := started(t, "--grace=1h", "--read-timeout=1h")
	_, text := get(t, operations+"/readyz")
	require.Equal(t, "no rank accepts requests\n", text)
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", clients)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	answers := bufio.NewReader(c)
	// A request without its body: until the body arrives, it is in progress.
	_, err = io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: w\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(t, err)
	reply, err := http.ReadResponse(answers, nil)
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	require.Equal(t, http.StatusContinue, reply.StatusCode)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	untilItEnds(t, operations, code)
	_, err = io.WriteString(c, "{x")
	require.NoError(t, err)
	reply, err = http.ReadResponse(answers, nil)
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	require.Equal(t, http.StatusBadRequest, reply.StatusCode, "it is read, and is no JSON")
	require.Zero(t, <-code)
}

// A lame-duck gateway also answers new connections.
func TestRealTime_LameDuckAnswers(t *testing.T) {
	clients, operations, code := started(t, "--lame-duck=5s")
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	untilItEnds(t, operations, code)
	status, _ := get(t, clients+"/v1/models")
	require.Equal(t, http.StatusOK, status)
	require.Zero(t, <-code)
}
