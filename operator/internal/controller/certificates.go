package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/world"

	api "tangram.dev/api/v1alpha1"
)

// Keys of the Secrets, by the names that agents and engines are told.
const (
	keyCA         = "ca.crt"
	keyCAKey      = "ca.key"
	keyAgentCert  = "agent.crt"
	keyAgentKey   = "agent.key"
	keyEngineCert = "engine.crt"
	keyEngineKey  = "engine.key"
	keyCert       = "tls.crt"
	keyKey        = "tls.key"
)

func secret(d *api.MoEDeployment, name, component string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: d.Namespace, Labels: labels(d, component)}, Type: corev1.SecretTypeOpaque}
}

// authority of the world, made at the first call and kept for as long as the MoEDeployment is.
func (r *Reconciler) authority(ctx context.Context, d *api.MoEDeployment) (*pki.Authority, error) {
	s := secret(d, authorityName(d), "authority")
	err := r.createOnce(ctx, d, s, func() error {
		made, err := pki.NewAuthority(worldName(d))
		if err != nil {
			return err
		}
		key, err := made.KeyPEM()
		s.Data = map[string][]byte{keyCA: made.CertPEM(), keyCAKey: key}
		return err
	})
	if err != nil {
		return nil, err
	}
	a, err := pki.ParseAuthority(worldName(d), s.Data[keyCA], s.Data[keyCAKey])
	if err != nil {
		return nil, fmt.Errorf("Secret %s: %w", s.Name, err) //nolint:staticcheck // a kind's name
	}
	return a, nil
}

// podCertificates of a pod that is about to be made. They name the pod, not its address, so
// that one that is left over from a pod of the same name serves as well.
func (r *Reconciler) podCertificates(ctx context.Context, d *api.MoEDeployment, a *pki.Authority, pod string) error {
	s := secret(d, podTLSName(pod), api.ComponentRank)
	// Live: the one of an earlier pod of this name may just have been removed.
	err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(s), s)
	if err == nil {
		return r.checkOwned(d, s)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	return r.createNew(ctx, d, s, func() error {
		agent, agentKey, err := a.IssuePEM("agent/"+pod, nil)
		if err != nil {
			return err
		}
		engine, engineKey, err := a.IssuePEM("engine/"+pod, nil)
		s.Data = map[string][]byte{keyCA: a.CertPEM(), keyAgentCert: agent, keyAgentKey: agentKey, keyEngineCert: engine, keyEngineKey: engineKey}
		return err
	})
}

// pruneCertificates of pods that somebody else deleted. It gives when to look again, if some
// are too young to be told from those of a pod that is about to be made.
func (r *Reconciler) pruneCertificates(ctx context.Context, d *api.MoEDeployment, pods []corev1.Pod) (time.Duration, error) {
	var list corev1.SecretList
	if err := r.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingFields{byWorld: d.Name}, client.MatchingLabels(selector(d, api.ComponentRank))); err != nil {
		return 0, err
	}
	var again time.Duration
	for i := range list.Items {
		s := &list.Items[i]
		pod := strings.TrimSuffix(s.Name, podTLSName(""))
		if !metav1.IsControlledBy(s, d) || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == pod }) {
			continue
		}
		if time.Since(s.CreationTimestamp.Time) < r.KeepEnded {
			again = r.KeepEnded
			continue
		}
		// Live: a pod that was just made may not be in the cache yet.
		err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: pod}, &corev1.Pod{})
		if apierrors.IsNotFound(err) {
			err = r.remove(ctx, s)
		}
		if err != nil {
			return 0, fmt.Errorf("secret of pod %s, which is gone: %w", pod, err)
		}
	}
	return again, nil
}

func (r *Reconciler) gatewayCertificate(ctx context.Context, d *api.MoEDeployment, a *pki.Authority) error {
	s := secret(d, gatewayTLSName(d), api.ComponentGateway)
	return r.createOnce(ctx, d, s, func() error {
		cert, key, err := a.IssuePEM("gateway", nil)
		s.Data = map[string][]byte{keyCA: a.CertPEM(), keyCert: cert, keyKey: key}
		return err
	})
}

// dialer to the world's agents, as their driver.
func dialer(d *api.MoEDeployment, a *pki.Authority) (world.Dialer, error) {
	cert, key, err := a.IssuePEM("driver", nil)
	if err != nil {
		return nil, err
	}
	config, err := pki.ClientFromPEM(a.CertPEM(), cert, key, worldName(d), "agent/")
	if err != nil {
		return nil, err
	}
	return func(address string) (world.Agent, error) { return agentclient.Dial(address, config) }, nil
}
