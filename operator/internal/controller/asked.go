package controller

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/readings"

	api "tangram.dev/api/v1alpha2"
)

const (
	// askedFor is how long a reader stays open after its last query.
	askedFor = 5 * time.Minute
	// firstReadings is how long a new reader may take until its first result.
	firstReadings = 3 * time.Second
)

// askers are readers of worlds that this operator does not lead: the Service sends queries to any operator. Autoscalers
// query four times a minute, so readers stay open.
type askers struct {
	mu sync.Mutex
	by map[types.UID]*asker
}

type asker struct {
	*readings.Reader
	identity identity
	last     time.Time
}

// Find returns the worlds of a namespace that match a selector (custommetrics.Worlds).
func (r *Reconciler) Find(ctx context.Context, namespace string, s k8slabels.Selector) ([]types.NamespacedName, error) {
	var list api.MoEDeploymentList
	if err := r.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: s}); err != nil {
		return nil, err
	}
	var out []types.NamespacedName
	for i := range list.Items {
		out = append(out, client.ObjectKeyFromObject(&list.Items[i]))
	}
	return out, nil
}

// Load returns a world's load over a window, also for a world that another operator leads (custommetrics.Worlds).
func (r *Reconciler) Load(ctx context.Context, key types.NamespacedName, window time.Duration) (readings.Reading, error) {
	d := &api.MoEDeployment{}
	if err := r.Get(ctx, key, d); err != nil {
		return readings.Reading{}, err
	}
	if found, there := r.readers.Load(d.UID); there {
		return found.(*readings.Reader).Reading(window) //nolint:forcetypeassert // nothing else is stored
	}
	reader, err := r.ask(ctx, d)
	if err != nil {
		return readings.Reading{}, err
	}
	for end := time.Now().Add(firstReadings); ; {
		reading, err := reader.Reading(window)
		if err == nil || time.Now().After(end) {
			return reading, err
		}
		select {
		case <-ctx.Done():
			return readings.Reading{}, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ask returns a reader of the gateways of a world that this operator does not lead.
func (r *Reconciler) ask(ctx context.Context, d *api.MoEDeployment) (*readings.Reader, error) {
	addresses, err := r.gatewayAddresses(ctx, d)
	if err != nil {
		return nil, err
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("no gateway is running yet")
	}
	s := &corev1.Secret{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: authorityName(d)}, s); err != nil {
		return nil, err
	}
	a, err := pki.ParseAuthority(worldName(d), r.Certificates.Validity, s.Data[keyCA], s.Data[keyCAKey], s.Data[keyCANext])
	if err != nil {
		return nil, err
	}
	r.asked.mu.Lock()
	defer r.asked.mu.Unlock()
	if r.asked.by == nil {
		r.asked.by = map[types.UID]*asker{}
	}
	found := r.asked.by[d.UID]
	if found == nil {
		found = &asker{}
	}
	if good, _ := a.Good(found.identity.cert); !bytes.Equal(found.identity.bundle, a.BundlePEM()) || !time.Now().Before(good) {
		cert, key, err := a.IssuePEM("driver", nil)
		if err != nil {
			return nil, err
		}
		found.identity.bundle, found.identity.cert = a.BundlePEM(), cert
		if err := found.identity.Set(found.identity.bundle, cert, key); err != nil {
			return nil, err
		}
	}
	if found.Reader == nil {
		if found.Reader, err = readings.Open(readings.Options{World: worldName(d), TLS: found.identity.Client(worldName(d), "gateway"), Log: r.Log}); err != nil {
			return nil, err
		}
		r.asked.by[d.UID] = found
	}
	found.last = time.Now()
	found.SetGateways(addresses)
	return found.Reader, nil
}

// endAsked closes readers that are no longer queried, and all of them when the operator ends.
func (r *Reconciler) endAsked(ctx context.Context) error {
	for {
		ended := false
		select {
		case <-ctx.Done():
			ended = true
		case <-time.After(askedFor / 10):
		}
		r.asked.mu.Lock()
		for uid, a := range r.asked.by {
			if _, leads := r.readers.Load(uid); ended || leads || time.Since(a.last) > askedFor {
				go a.Close()
				delete(r.asked.by, uid)
			}
		}
		r.asked.mu.Unlock()
		if ended {
			return nil
		}
	}
}

// beside runs in all operators, not only in the leader.
type beside func(context.Context) error

// Start implements manager.Runnable.
func (b beside) Start(ctx context.Context) error { return b(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (b beside) NeedLeaderElection() bool { return false }
