package controller

import (
	"context"
	"fmt"
	"maps"
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

	api "tangram.dev/api/v1alpha2"
)

// Keys of the Secrets; agents and engines get the same names.
const (
	keyCA         = "ca.crt"
	keyCAKey      = "ca.key"
	keyCANext     = "next.key" // of the authority that signs next
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

// authority returns the world's authority, and creates it at the first call; renew replaces it when it is due.
func (r *Reconciler) authority(ctx context.Context, d *api.MoEDeployment) (*authority, error) {
	s := secret(d, authorityName(d), "authority")
	issuer, withoutIssuer := r.issuer(ctx, d)
	err := r.createOnce(ctx, d, s, func() error {
		if withoutIssuer != nil {
			return withoutIssuer
		}
		made, err := pki.NewAuthority(worldName(d), r.Certificates.Validity)
		if issuer != nil {
			made, err = issuer.Authority(worldName(d), r.Certificates.Validity)
		}
		if err != nil {
			return err
		}
		s.Data, err = authorityData(made)
		return err
	})
	if err != nil {
		return nil, err
	}
	a, err := pki.ParseAuthority(worldName(d), r.Certificates.Validity, s.Data[keyCA], s.Data[keyCAKey], s.Data[keyCANext])
	if err != nil {
		return nil, fmt.Errorf("Secret %s: %w", s.Name, err) //nolint:staticcheck // a kind's name
	}
	a.Follow(issuer)
	return &authority{Authority: a, secret: s, withoutIssuer: withoutIssuer}, nil
}

// issuerError means that the user's issuer is unavailable.
type issuerError struct{ error }

func (e *issuerError) Unwrap() error { return e.error }

// issuer returns the issuer that the user named; nil: none. It is read live, because it does not have our labels.
func (r *Reconciler) issuer(ctx context.Context, d *api.MoEDeployment) (*pki.Issuer, error) {
	name := d.Spec.Certificates.IssuerSecretName
	if name == "" {
		return nil, nil
	}
	s := &corev1.Secret{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: name}, s)
	var i *pki.Issuer
	if err == nil {
		i, err = pki.ParseIssuer(s.Data[keyCert], s.Data[keyKey])
	}
	if err != nil {
		return nil, &issuerError{fmt.Errorf("spec.certificates.issuerSecretName: Secret %s: %w", name, err)}
	}
	return i, nil
}

// authority of a world, and the Secret that stores it.
type authority struct {
	*pki.Authority
	secret        *corev1.Secret
	withoutIssuer error // the user's issuer is unavailable: no new authority comes from it
}

func authorityData(a *pki.Authority) (map[string][]byte, error) {
	key, err := a.KeyPEM()
	if err != nil {
		return nil, err
	}
	next, err := a.NextKeyPEM()
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{keyCA: a.BundlePEM(), keyCAKey: key}
	if next != nil {
		data[keyCANext] = next
	}
	return data, nil
}

// podCertificates creates the certificates of a pod before the pod. They name the pod, not its address, so those of an
// earlier pod with the same name can be used again.
func (r *Reconciler) podCertificates(ctx context.Context, d *api.MoEDeployment, a *authority, pod string) error {
	s := secret(d, podTLSName(pod), api.ComponentRank)
	// Live: the Secret of an earlier pod with this name may just have been deleted.
	wanted := maps.Clone(s.Labels)
	err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(s), s)
	if err == nil {
		if err := r.checkOwned(d, s); err != nil {
			return err
		}
		return r.relabel(ctx, s, wanted)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	return r.createNew(ctx, d, s, func() error { return a.fill(s, podCertificates(pod)) })
}

// certificate in a Secret: its role, and its keys there.
type certificate struct{ role, cert, key string }

func podCertificates(pod string) []certificate {
	return []certificate{{"agent/" + pod, keyAgentCert, keyAgentKey}, {"engine/" + pod, keyEngineCert, keyEngineKey}}
}

func gatewayCertificates() []certificate { return []certificate{{"gateway", keyCert, keyKey}} }

// fill writes new certificates and the trusted authorities into a Secret.
func (a *authority) fill(s *corev1.Secret, all []certificate) error {
	s.Data = map[string][]byte{keyCA: a.BundlePEM()}
	for _, c := range all {
		cert, key, err := a.IssuePEM(c.role, nil)
		if err != nil {
			return err
		}
		s.Data[c.cert], s.Data[c.key] = cert, key
	}
	return nil
}

// keepCertificates creates missing Secrets of existing pods, and removes those of pods that another client deleted. It
// returns when to check again: a young Secret may belong to a pod that is about to be created.
func (r *Reconciler) keepCertificates(ctx context.Context, d *api.MoEDeployment, a *authority, pods []corev1.Pod) (time.Duration, error) {
	var list corev1.SecretList
	if err := r.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingFields{byWorld: d.Name}, client.MatchingLabels(selector(d, api.ComponentRank))); err != nil {
		return 0, err
	}
	for i := range pods {
		name := podTLSName(pods[i].Name)
		if slices.ContainsFunc(list.Items, func(s corev1.Secret) bool { return s.Name == name }) {
			continue
		}
		// Live: it may have been deleted just now, together with its Secret.
		live := &corev1.Pod{}
		if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(&pods[i]), live); apierrors.IsNotFound(err) || err == nil && (live.DeletionTimestamp != nil || live.UID != pods[i].UID) {
			continue
		} else if err != nil {
			return 0, err
		}
		if err := r.podCertificates(ctx, d, a, pods[i].Name); err != nil && !apierrors.IsAlreadyExists(err) {
			return 0, fmt.Errorf("secret of pod %s: %w", pods[i].Name, err)
		}
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
		// Live: a pod that was just created may not be in the cache yet.
		err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: pod}, &corev1.Pod{})
		if apierrors.IsNotFound(err) {
			err = r.remove(ctx, s)
		}
		if err != nil {
			return 0, fmt.Errorf("delete the secret of deleted pod %s: %w", pod, err)
		}
	}
	return again, nil
}

func (r *Reconciler) gatewayCertificate(ctx context.Context, d *api.MoEDeployment, a *authority) error {
	s := secret(d, gatewayTLSName(d), api.ComponentGateway)
	return r.createOnce(ctx, d, s, func() error { return a.fill(s, gatewayCertificates()) })
}

// dialer connects to the world's agents as their driver.
func dialer(d *api.MoEDeployment, i *pki.Identity) world.Dialer {
	config := i.Client(worldName(d), "agent/")
	return func(address string) (world.Agent, error) { return agentclient.Dial(address, config) }
}
