package custommetrics

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/pki"
)

// APIService that the chart makes, and which is told whom to trust.
const APIService = "v1beta2.custom.metrics.k8s.io"

const (
	// lookEvery: how often what is trusted is looked at; less than the time that is left to whoever must follow (Load).
	lookEvery = time.Minute
	lookAgain = 2 * time.Second // after an error
	// FieldManager of the APIService's caBundle.
	FieldManager = "tangram-custom-metrics"
	// authority's name, as pki has names of worlds.
	authority  = "custom-metrics"
	keyCA      = "ca.crt"
	keyCAKey   = "ca.key"
	keyCANext  = "next.key"
	settledKey = "serving.tangram.dev/settled"
)

// Trust is how the cluster's API server knows that it speaks with an operator: an authority in a Secret, which all operators of a release share; the
// APIService names it; and each operator signs a certificate for itself. All is replaced in time, the authority in three steps.
type Trust struct {
	Client    client.Client // live
	Namespace string
	Secret    string // made by the chart, empty
	Host      string // of the Service, as the API server calls it
	Validity  pki.Validity
	Load      time.Duration // until all operators and API servers hold what changed; 0: 5 minutes

	mu        sync.Mutex
	cert, key []byte
	listeners []dynamiccertificates.Listener
}

var _ dynamiccertificates.CertKeyContentProvider = (*Trust)(nil)

// Name implements dynamiccertificates.CertKeyContentProvider.
func (t *Trust) Name() string { return "tangram-custom-metrics" }

// AddListener implements dynamiccertificates.Notifier.
func (t *Trust) AddListener(l dynamiccertificates.Listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listeners = append(t.listeners, l)
}

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (t *Trust) CurrentCertKeyContent() (cert, key []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cert, t.key
}

// await the first certificate.
func (t *Trust) await(ctx context.Context, log *slog.Logger) error {
	for {
		err := t.look(ctx)
		if cert, _ := t.CurrentCertKeyContent(); cert != nil {
			return nil
		}
		log.Warn("no certificate for custom metrics yet", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAgain):
		}
	}
}

// keep it good until the context ends.
func (t *Trust) keep(ctx context.Context, log *slog.Logger) {
	next := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		next = lookEvery
		if err := t.look(ctx); err != nil && !apierrors.IsConflict(err) {
			log.Warn("cannot register the certificate of custom metrics", "error", err)
			next = lookAgain
		} else if err != nil {
			next = lookAgain
		}
	}
}

// look at all of it once, and do what is due.
func (t *Trust) look(ctx context.Context) error {
	s := &corev1.Secret{}
	if err := t.Client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Secret}, s); err != nil {
		return err
	}
	a, err := t.authority(ctx, s)
	if err != nil {
		return err
	}
	if err := t.show(a); err != nil {
		return err
	}
	changed, err := t.tell(ctx, a.BundlePEM())
	if err != nil {
		return err
	}
	return t.advance(ctx, s, a, changed)
}

// authority in the Secret; made if there is none.
func (t *Trust) authority(ctx context.Context, s *corev1.Secret) (*pki.Authority, error) {
	if len(s.Data[keyCA]) > 0 {
		a, err := pki.ParseAuthority(authority, t.Validity, s.Data[keyCA], s.Data[keyCAKey], s.Data[keyCANext])
		if err != nil {
			return nil, fmt.Errorf("Secret %s: %w", s.Name, err) //nolint:staticcheck // a kind's name
		}
		return a, nil
	}
	a, err := pki.NewAuthority(authority, t.Validity)
	if err != nil {
		return nil, err
	}
	return a, t.write(ctx, s, a)
}

// write with the version that was read: of several operators one wins, and the others read what it wrote.
func (t *Trust) write(ctx context.Context, s *corev1.Secret, a *pki.Authority) error {
	key, err := a.KeyPEM()
	if err != nil {
		return err
	}
	next, err := a.NextKeyPEM()
	if err != nil {
		return err
	}
	s.Data = map[string][]byte{keyCA: a.BundlePEM(), keyCAKey: key}
	if next != nil {
		s.Data[keyCANext] = next
	}
	return t.Client.Update(ctx, s)
}

// show a certificate that the authority signed.
func (t *Trust) show(a *pki.Authority) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if good, _ := a.Good(t.cert); time.Now().Before(good) {
		return nil
	}
	cert, key, err := a.IssuePEM("driver", []string{t.Host})
	if err != nil {
		return err
	}
	t.cert, t.key = cert, key
	for _, l := range t.listeners {
		l.Enqueue()
	}
	return nil
}

// tell the cluster's API server whom to trust. True: it was told something new.
func (t *Trust) tell(ctx context.Context, bundle []byte) (bool, error) {
	service := &unstructured.Unstructured{}
	service.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	if err := t.Client.Get(ctx, client.ObjectKey{Name: APIService}, service); err != nil {
		return false, err
	}
	at, _, _ := unstructured.NestedString(service.Object, "spec", "service", "namespace")
	host, _, _ := unstructured.NestedString(service.Object, "spec", "service", "name")
	if host+"."+at+".svc" != t.Host {
		return false, fmt.Errorf("APIService %s is already served by %s/%s; set customMetrics.enabled to false in one of the two charts", APIService, at, host)
	}
	is, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle")
	want := base64.StdEncoding.EncodeToString(bundle)
	if is == want {
		return false, nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"caBundle": want}})
	if err != nil {
		return false, err
	}
	return true, t.Client.Patch(ctx, service, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager))
}

// advance the replacement of the authority, as far as all hold what it makes now and had time to load it.
func (t *Trust) advance(ctx context.Context, s *corev1.Secret, a *pki.Authority, changed bool) error {
	load := cmp.Or(t.Load, 5*time.Minute)
	settled, _ := time.Parse(time.RFC3339Nano, s.Annotations[settledKey]) // none, or not ours: not settled
	if a.Stage() != pki.Alone && (changed || settled.IsZero()) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, settledKey, time.Now().Format(time.RFC3339Nano))
		return t.Client.Update(ctx, s)
	}
	before := bytes.Clone(a.BundlePEM())
	advanced, err := a.Advance(time.Now(), settled, load)
	if err != nil || !advanced {
		return err
	}
	delete(s.Annotations, settledKey)
	if err := t.write(ctx, s, a); err != nil {
		return err
	}
	if bytes.Equal(before, a.BundlePEM()) {
		return nil
	}
	_, err = t.tell(ctx, a.BundlePEM())
	return err
}
