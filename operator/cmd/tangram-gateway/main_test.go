package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/pki"
)

// SIGTERM makes it unready; it answers for the lame duck's time, and ends well.
func TestSIGTERMDrains(t *testing.T) {
	folder, err := pki.OpenFolder(t.TempDir(), "w")
	require.NoError(t, err)
	tls, err := folder.Issue("gateway", "gateway", nil)
	require.NoError(t, err)
	ready := filepath.Join(t.TempDir(), "ready")
	args := os.Args
	t.Cleanup(func() { os.Args = args })
	os.Args = []string{"tangram-gateway", "--world=w", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--seed=127.0.0.1:1", "--lame-duck=5s", "--log-level=error",
		"--tls-ca=" + tls.CA, "--tls-cert=" + tls.Cert, "--tls-key=" + tls.Key, "--ready-file=" + ready}
	code := make(chan int, 1)
	go func() { code <- run() }()
	var at struct{ Address, Metrics string }
	require.Eventually(t, func() bool {
		wire, err := os.ReadFile(ready)
		return err == nil && json.Unmarshal(wire, &at) == nil
	}, 30*time.Second, 10*time.Millisecond)
	says := func(url string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+url, http.NoBody)
		require.NoError(t, err)
		reply, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer func() { require.NoError(t, reply.Body.Close()) }()
		text := make([]byte, 100)
		n, _ := reply.Body.Read(text)
		return reply.StatusCode, string(text[:n])
	}
	_, text := says(at.Metrics + "/readyz")
	require.Equal(t, "no rank accepts requests\n", text)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	require.Eventually(t, func() bool {
		_, text := says(at.Metrics + "/readyz")
		return text == "this gateway ends\n"
	}, 30*time.Second, time.Millisecond)
	status, _ := says(at.Address + "/v1/models")
	require.Equal(t, http.StatusOK, status)
	require.Zero(t, <-code)
}
