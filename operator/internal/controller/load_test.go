package controller

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/gateway"
	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/readings"
	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// gatewayPod is the pod of a real gateway, without an engine behind it.
func (b *bed) gatewayPod(d *api.MoEDeployment) (pool *gateway.Pool, stop func()) {
	b.t.Helper()
	l, config := b.gatewayListens(d)
	pool = gateway.NewPool(gateway.Options{World: worldName(d), Gateway: "g", Log: slog.New(slog.DiscardHandler), Metrics: gateway.NewMetrics(prometheus.NewRegistry(), "m")})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- pool.ServeTelemetry(ctx, l, config) }()
	stop = func() {
		cancel()
		require.NoError(b.t, <-done)
		pool.Close()
	}
	b.gatewayRuns(d, l.Addr())
	return pool, stop
}

var gatewaysSoFar atomic.Int32

// gatewayListens listens on the operator's telemetry port at a new address, with the world's gateway certificate.
func (b *bed) gatewayListens(d *api.MoEDeployment) (net.Listener, *tls.Config) {
	b.t.Helper()
	folder := b.t.TempDir()
	secret := b.secret(gatewayTLSName(d))
	files := pki.Files{CA: filepath.Join(folder, keyCA), Cert: filepath.Join(folder, keyCert), Key: filepath.Join(folder, keyKey)}
	for path, key := range map[string]string{files.CA: keyCA, files.Cert: keyCert, files.Key: keyKey} {
		require.NoError(b.t, os.WriteFile(path, secret.Data[key], 0o600))
	}
	config, err := pki.Server(files, worldName(d), "driver")
	require.NoError(b.t, err)
	l, err := (&net.ListenConfig{}).Listen(b.t.Context(), "tcp", fmt.Sprintf("127.%d.%d.%d:%d", 8+gatewaysSoFar.Add(1), os.Getpid()>>8&0xff, os.Getpid()&0xff, portGatewayTelemetry))
	require.NoError(b.t, err)
	return l, config
}

// gatewayRuns creates the pod as the gateways' Deployment would.
func (b *bed) gatewayRuns(d *api.MoEDeployment, at net.Addr) {
	b.t.Helper()
	ip, _, err := net.SplitHostPort(at.String())
	require.NoError(b.t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "w-gateway-1", Namespace: b.namespace, Labels: labels(d, api.ComponentGateway)},
		Spec: must(b.r.gatewayDeployment(d, "10.0.0.1")).Spec.Template.Spec}
	require.NoError(b.t, b.c.Create(b.t.Context(), pod))
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	require.NoError(b.t, b.c.Status().Update(b.t.Context(), pod))
}

// The status shows the gateways' reports, and says so when none arrive.
func TestStatusReportsLoad(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 1)
	require.Nil(t, d.Status.Load, "there is no gateway to ask")
	pool, stop := b.gatewayPod(d)
	waiting, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		left <- pool.Run(waiting, &tangramv1.Submit{Request: "r", Prompt: []uint32{1}, MaxTokens: 1}, func(*tangramv1.Token) error { return nil }, time.Hour, nil)
	}()
	b.change(`{"metadata":{"annotations":{"look":"again"}}}`)
	d = b.until("w", "told of the load", func(d *api.MoEDeployment) bool { return d.Status.Load != nil })
	leave()
	require.Error(t, <-left)
	require.WithinDuration(t, time.Now(), d.Status.Load.Time.Time, wait)
	require.Empty(t, d.Status.Load.Problem)
	require.Zero(t, d.Status.Load.Running)
	require.Equal(t, len(b.metrics.world.figures), testutil.CollectAndCount(b.metrics.world), "exported once, though nothing runs")

	found, there := b.r.readers.Load(d.UID)
	require.True(t, there)
	reader := found.(*readings.Reader)
	again, after := nextLoad(d.Status.Load, reader, true)
	require.Nil(t, again, "not so soon")
	require.LessOrEqual(t, after, loadEvery)
	b.anotherOperatorKnows(d)
	old := d.Status.Load.DeepCopy()
	old.Time = metav1.NewTime(time.Now().Add(-2 * loadEvery))
	stop()
	require.Eventually(t, func() bool {
		again, _ = nextLoad(old, reader, true)
		return again != nil && again.Problem != ""
	}, wait, tick)
	require.Zero(t, testutil.CollectAndCount(b.metrics.world), "the load is unknown")
	require.Equal(t, old.Time, again.Time, "what it tells is as old as it was")
	require.Contains(t, again.Problem, "no report was read for")
	same, _ := nextLoad(again, reader, true)
	require.Equal(t, again, same, "the text does not change at every look")
	none, after := nextLoad(nil, nil, false)
	require.Nil(t, none)
	require.Zero(t, after)
	stale, after := nextLoad(old, nil, false)
	require.Equal(t, "No gateway is running, so the load is unknown.", stale.Problem, "figures of gateways that are gone are marked")
	require.Equal(t, old.Time, stale.Time)
	require.Zero(t, after)
	same, _ = nextLoad(stale, nil, false)
	require.Nil(t, same)
}

// anotherOperatorKnows checks that an operator that does not lead reads the load itself, while it is queried.
func (b *bed) anotherOperatorKnows(d *api.MoEDeployment) {
	b.t.Helper()
	key := client.ObjectKeyFromObject(d)
	leads, err := b.r.Load(b.t.Context(), key, time.Minute)
	require.NoError(b.t, err)
	require.WithinDuration(b.t, time.Now(), leads.At, wait)
	require.Empty(b.t, b.r.asked.by, "who leads has a reader already")
	other := &Reconciler{Client: b.r.Client, Log: slog.New(slog.DiscardHandler)}
	require.Eventually(b.t, func() bool {
		reading, err := other.Load(b.t.Context(), key, time.Minute)
		return err == nil && reading.Sample.Whole
	}, wait, tick)
	require.Len(b.t, other.asked.by, 1)
	names, err := other.Find(b.t.Context(), b.namespace, k8slabels.Everything())
	require.NoError(b.t, err)
	require.Equal(b.t, []types.NamespacedName{key}, names)
	_, err = other.Load(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "none"}, time.Minute)
	require.True(b.t, apierrors.IsNotFound(err))
	ends, end := context.WithCancel(b.t.Context())
	end()
	require.NoError(b.t, other.endAsked(ends))
	require.Empty(b.t, other.asked.by)
}

func TestLoadStatus(t *testing.T) {
	answers := telemetry.Latencies{}
	for range 100 {
		answers.Note(telemetry.Bound(0), telemetry.Bound(-24)*9, 10)
	}
	s := &telemetry.Sample{Whole: true, Gauges: telemetry.Gauges{Running: 5, Waiting: 2, Homeless: 1, QueueAge: 1.5, KVPages: 200, KVFree: 50, Ranks: 2}}
	w := &telemetry.Window{Seconds: 10, Grown: telemetry.Counters{Written: 1234}, Answers: answers}
	require.Equal(t, &api.LoadStatus{Running: 5, Waiting: 3, QueueAge: metav1.Duration{Duration: 1500 * time.Millisecond}, KVUsedPercent: 75, TokensPerSecond: 123,
		TTFTP99: &metav1.Duration{Duration: time.Second}, TPOTP99: &metav1.Duration{Duration: 125 * time.Millisecond}}, loadStatus(s, w))
	s.Whole, s.Gauges.Silent = false, 1
	require.Equal(t, "1 of 2 ranks sent no load report.", loadStatus(s, w).Problem)
	s.Problems = []telemetry.Problem{{Source: "10.0.0.1:8082", Why: "down"}}
	require.Equal(t, "10.0.0.1:8082: down", loadStatus(s, w).Problem)
	w.Answers = telemetry.Latencies{}
	require.Nil(t, loadStatus(s, w).TTFTP99)
}
