package walk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// look is longer than processes need to notice replaced files (a second), for changes that cannot be queried.
const look = 5 * time.Second

// replaced replaces a file atomically, like kubelet.
func replaced(t *testing.T, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".next", content, 0o600))
	require.NoError(t, os.Rename(path+".next", path))
}

// known waits until every agent replies to the driver's certificate in dir with this code, over new connections.
func known(t *testing.T, w *harness.World, dir string, want codes.Code) {
	t.Helper()
	for pod := range w.Agents() {
		var err error
		require.Eventually(t, func() bool {
			_, err = dial(t, w, pod, dir, "driver").Status(t.Context(), &tangramv1.StatusRequest{World: "demo"})
			return grpcstatus.Code(err) == want
		}, 2*time.Minute, 200*time.Millisecond, "agent %d is to answer %v: %v", pod, want, err)
	}
}

// A world's authority is replaced in three steps while requests stream: all processes trust the next one, use
// certificates signed by it, and stop trusting the previous one. Later changes of the world, over new connections only,
// succeed.
func TestCertificatesAreReplacedUnderLoad(t *testing.T) {
	w := start(t, harness.Options{Pods: harness.Pods(3)})
	apply(t, w, 2, "ExpertParallel")
	trace := newTrace(t, 5, 20*time.Second)
	halt, played := make(chan struct{}), make(chan []*load.Result, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	go func() { played <- client(w).Play(ctx, trace, 4, halt) }()

	certs, next, before := w.CertificateDir(), filepath.Join(w.Dir(), "next"), filepath.Join(w.Dir(), "before")
	roles, files := []string{"driver", "gateway"}, []string{"driver", "gateway"}
	for i := range w.Agents() {
		roles = append(roles, fmt.Sprintf("agent/p%d", i), fmt.Sprintf("engine/p%d", i))
		files = append(files, fmt.Sprintf("agent-p%d", i), fmt.Sprintf("engine-p%d", i))
	}
	require.NoError(t, w.Certificates(t.Context(), next, roles...)) // by a separate authority
	require.NoError(t, os.CopyFS(before, os.DirFS(certs)))
	read := func(dir, name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return text
	}
	known(t, w, before, codes.OK)

	replaced(t, filepath.Join(certs, "ca.crt"), append(read(before, "ca.crt"), read(next, "ca.crt")...))
	known(t, w, next, codes.OK)
	time.Sleep(look)
	for _, name := range files {
		for _, kind := range []string{".key", ".crt"} {
			replaced(t, filepath.Join(certs, name+kind), read(next, name+kind))
		}
	}
	time.Sleep(look)
	replaced(t, filepath.Join(certs, "ca.crt"), read(next, "ca.crt"))
	known(t, w, next, codes.OK)
	known(t, w, before, codes.Unavailable)

	apply(t, w, 3, "TensorParallel") // a rank joins, experts and KV move
	apply(t, w, 2, "ExpertParallel")
	close(halt)
	walked := <-played
	require.NotEmpty(t, walked)
	audit(t, w, 2)
	// The same requests without transitions and renewals.
	w.Stop()
	one := start(t, harness.Options{Pods: harness.Pods(1)})
	apply(t, one, 1, "ExpertParallel")
	requireSame(t, walked, client(one).Repeat(t.Context(), trace, len(walked), 8))
}
