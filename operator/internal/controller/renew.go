package controller

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/pki"

	api "tangram.dev/api/v1alpha2"
)

// Certificates are the lifetimes of a world's certificates.
type Certificates struct {
	pki.Validity
	// Load is how long all processes may take to load a changed Secret: the kubelet's sync period and its cache, a
	// minute or two. 0: 5 minutes.
	Load time.Duration
}

// settledAnnotation on an authority's Secret is the time since which all Secrets of the world hold its current output.
const settledAnnotation = "serving.tangram.dev/settled"

// identity is the driver's identity for the agents of one world, with its certificate.
type identity struct {
	pki.Identity
	bundle, cert []byte
}

// driver returns the identity that the operator presents to agents. It is renewed in place, while connections are open.
func (r *Reconciler) driver(d *api.MoEDeployment, a *authority) (*pki.Identity, error) {
	found, _ := r.drivers.LoadOrStore(d.UID, &identity{})
	i := found.(*identity) //nolint:forcetypeassert // nothing else is stored
	if good, _ := a.Good(i.cert); bytes.Equal(i.bundle, a.BundlePEM()) && time.Now().Before(good) {
		return &i.Identity, nil
	}
	cert, key, err := a.IssuePEM("driver", nil)
	if err != nil {
		return nil, err
	}
	i.bundle, i.cert = a.BundlePEM(), cert
	return &i.Identity, i.Set(i.bundle, cert, key)
}

// renew renews certificates that are due, and the authority. It returns when the next one is due.
func (r *Reconciler) renew(ctx context.Context, d *api.MoEDeployment, a *authority, s *scene) (time.Duration, error) {
	var list corev1.SecretList
	if err := r.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingFields{byWorld: d.Name}); err != nil {
		return 0, err
	}
	next, changed := time.Time{}, false
	s.expires = a.Expires()
	for i := range list.Items {
		x := &list.Items[i]
		if !metav1.IsControlledBy(x, d) || x.DeletionTimestamp != nil {
			continue
		}
		var all []certificate
		switch {
		case x.Name == gatewayTLSName(d):
			all = gatewayCertificates()
		case x.Labels[api.ComponentLabel] == api.ComponentRank:
			all = podCertificates(strings.TrimSuffix(x.Name, podTLSName("")))
		default:
			continue
		}
		renewed, good, expires, err := r.renewSecret(ctx, a, x, all)
		if err != nil {
			return 0, err
		}
		changed = changed || renewed
		next, s.expires = earlier(next, good), earlier(s.expires, expires)
	}
	if good, expires := a.Good(r.driverCertificate(d)); !good.IsZero() {
		next, s.expires = earlier(next, good), earlier(s.expires, expires)
	}
	step, err := r.advance(ctx, a, changed)
	if d.Spec.Certificates.IssuerSecretName != "" {
		next = earlier(next, time.Now().Add(r.loadTime())) // to check for a new issuer
	}
	if err == nil && a.withoutIssuer != nil && a.Stage() == pki.Alone {
		err = a.withoutIssuer
	}
	return max(time.Until(earlier(next, step)), lookAgain), err
}

func (r *Reconciler) loadTime() time.Duration { return cmp.Or(r.Certificates.Load, 5*time.Minute) }

func (r *Reconciler) driverCertificate(d *api.MoEDeployment) []byte {
	if found, there := r.drivers.Load(d.UID); there {
		return found.(*identity).cert //nolint:forcetypeassert // nothing else is stored
	}
	return nil
}

// renewSecret renews a Secret if its authorities are not the current ones or a certificate is due.
func (r *Reconciler) renewSecret(ctx context.Context, a *authority, s *corev1.Secret, all []certificate) (renewed bool, good, expires time.Time, err error) {
	look := func() {
		good, expires = time.Time{}, time.Time{}
		for i, c := range all {
			g, e := a.Good(s.Data[c.cert])
			if i == 0 || g.Before(good) {
				good = g
			}
			expires = earlier(expires, e)
		}
	}
	look()
	if now := time.Now(); now.Before(good) || now.After(a.Expires()) { // an expired authority cannot sign
		if bytes.Equal(s.Data[keyCA], a.BundlePEM()) {
			return false, good, expires, nil
		}
		s.Data[keyCA] = a.BundlePEM()
	} else if err := a.fill(s, all); err != nil {
		return false, good, expires, err
	}
	// With the version that was read: a lagging cache overwrites nothing.
	if err := r.Update(ctx, s); err != nil {
		return false, good, expires, fmt.Errorf("renew Secret %s: %w", s.Name, err)
	}
	look()
	return true, good, expires, nil
}

// advance takes the next step of the authority's replacement, if all Secrets have its current output and processes had
// time to load it. It returns when to call it again; zero: another event triggers that.
func (r *Reconciler) advance(ctx context.Context, a *authority, changed bool) (time.Time, error) {
	load := r.loadTime()
	settled, _ := time.Parse(time.RFC3339Nano, a.secret.Annotations[settledAnnotation]) // missing, invalid: not settled
	if a.Stage() != pki.Alone && (changed || settled.IsZero()) {
		settled = time.Now()
		metav1.SetMetaDataAnnotation(&a.secret.ObjectMeta, settledAnnotation, settled.Format(time.RFC3339Nano))
		return a.NextStep(settled, load), r.Update(ctx, a.secret)
	}
	if a.Stage() == pki.Alone && a.withoutIssuer != nil {
		return time.Time{}, nil
	}
	advanced, err := a.Advance(time.Now(), settled, load)
	if err != nil || !advanced {
		return a.NextStep(settled, load), err
	}
	if a.secret.Data, err = authorityData(a.Authority); err != nil {
		return time.Time{}, err
	}
	delete(a.secret.Annotations, settledAnnotation)
	return time.Now(), r.Update(ctx, a.secret) // again immediately, to distribute the result
}

// earlier returns the earlier of two times; zero means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
