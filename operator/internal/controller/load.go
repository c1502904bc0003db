package controller

import (
	"context"
	"fmt"
	"math"
	"net"
	"reflect"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/readings"
	"tangram.dev/operator/pkg/telemetry"

	api "tangram.dev/api/v1alpha2"
)

const (
	// loadEvery is the shortest time between updates of the load in a status.
	loadEvery = 30 * time.Second
	// firstLoad is the expected time until the first reading.
	firstLoad = 2 * time.Second
	// loadWindow is the window of its rates, in seconds.
	loadWindow = 60
)

// loadOf returns the reader of a world's load, and whether there are gateways.
func (r *Reconciler) loadOf(ctx context.Context, d *api.MoEDeployment, i *pki.Identity) (*readings.Reader, bool, error) {
	addresses, err := r.gatewayAddresses(ctx, d)
	if err != nil {
		return nil, false, err
	}
	found, there := r.readers.Load(d.UID)
	if !there {
		if len(addresses) == 0 {
			return nil, false, nil
		}
		uid, key := d.UID, client.ObjectKeyFromObject(d)
		about, flapping := d.DeepCopy(), flaps{}
		// No race: only one worker at a time reconciles a MoEDeployment.
		reader, err := readings.Open(readings.Options{World: worldName(d), TLS: i.Client(worldName(d), "gateway"), Log: r.Log,
			Taken: func(s *telemetry.Sample) {
				r.flapping(about, flapping, s)
				r.advised(uid, key, s)
			}})
		if err != nil {
			return nil, false, err
		}
		found = reader
		r.readers.Store(d.UID, reader)
		r.metrics.world.readers.Store(key, reader)
	}
	reader := found.(*readings.Reader) //nolint:forcetypeassert // nothing else is stored
	reader.SetGateways(addresses)
	return reader, len(addresses) > 0, nil
}

// gatewayAddresses returns the telemetry addresses of a world's gateways.
func (r *Reconciler) gatewayAddresses(ctx context.Context, d *api.MoEDeployment) ([]string, error) {
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(d.Namespace), client.MatchingFields{byWorld: d.Name}, client.MatchingLabels(selector(d, api.ComponentGateway))); err != nil {
		return nil, err
	}
	var addresses []string
	for j := range pods.Items {
		if p := &pods.Items[j]; p.Status.PodIP != "" && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			addresses = append(addresses, net.JoinHostPort(p.Status.PodIP, strconv.Itoa(portGatewayTelemetry)))
		}
	}
	return addresses, nil
}

// endLoad closes the reader of a deleted world.
func (r *Reconciler) endLoad(uid types.UID) {
	if found, there := r.readers.LoadAndDelete(uid); there {
		go found.(*readings.Reader).Close() //nolint:forcetypeassert // nothing else is stored
	}
}

// endLoads closes all readers when the operator ends.
func (r *Reconciler) endLoads(ctx context.Context) error {
	<-ctx.Done()
	r.readers.Range(func(uid, _ any) bool {
		r.endLoad(uid.(types.UID)) //nolint:forcetypeassert // nothing else is stored
		return true
	})
	return nil
}

// nextLoad returns the load for the status if it changed and an update is due, and when to check again. 0: there are no
// gateways, and a status with values reports that.
func nextLoad(was *api.LoadStatus, reader *readings.Reader, gateways bool) (*api.LoadStatus, time.Duration) {
	if reader == nil || !gateways {
		if was == nil || was.Problem != "" {
			return nil, 0
		}
		now := was.DeepCopy()
		now.Problem = "No gateway is running, so the load is unknown."
		return now, 0
	}
	if was != nil {
		if left := loadEvery - time.Since(was.Time.Time); left > 0 {
			return nil, left
		}
	}
	sample, window, err := reader.Last(loadWindow)
	switch {
	case err != nil && was == nil:
		return nil, firstLoad
	case err != nil:
		now := was.DeepCopy()
		if now.Problem == "" { // once: the text contains a number of seconds
			now.Problem = clip(err.Error(), 1024)
		}
		return now, loadEvery
	}
	now := loadStatus(sample, window)
	if was != nil {
		if now.Time = was.Time; reflect.DeepEqual(now, was) {
			return nil, loadEvery
		}
	}
	now.Time = metav1.NewTime(time.Now().Truncate(time.Second))
	return now, loadEvery
}

func loadStatus(s *telemetry.Sample, w *telemetry.Window) *api.LoadStatus {
	out := &api.LoadStatus{Running: int64(s.Gauges.Running), Waiting: int64(s.Gauges.Waiting + s.Gauges.Homeless), QueueAge: *seconds(s.Gauges.QueueAge),
		TokensPerSecond: int64(math.Round(w.TokensPerSecond()))}
	if s.Gauges.KVPages > 0 {
		out.KVUsedPercent = int32(math.Round(100 * float64(s.Gauges.KVPages-s.Gauges.KVFree) / float64(s.Gauges.KVPages)))
	}
	if v, known := w.Answers.FirstToken(.99); known {
		out.TTFTP99 = seconds(v)
	}
	if v, known := w.Answers.BetweenTokens(.99); known {
		out.TPOTP99 = seconds(v)
	}
	if !s.Whole {
		out.Problem = fmt.Sprintf("%d of %d ranks sent no load report.", s.Gauges.Silent, s.Gauges.Ranks)
		if len(s.Problems) > 0 {
			out.Problem = clip(s.Problems[0].String(), 1024)
		}
	}
	return out
}

// seconds rounds to milliseconds for people.
func seconds(v float64) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(math.Round(v*1e3)) * time.Millisecond}
}
