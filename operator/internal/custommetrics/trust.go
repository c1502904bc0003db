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

// APIService is the object that the chart creates; its caBundle says which authority the API server trusts.
const APIService = "v1beta2.custom.metrics.k8s.io"

const (
	// lookEvery is the interval between checks of Secret, APIService and certificate. It must be shorter than Load.
	lookEvery = time.Minute
	lookAgain = 2 * time.Second // after an error
	// FieldManager of the APIService's caBundle.
	FieldManager = "tangram-custom-metrics"
	// authority is used as the world name that pki needs.
	authority  = "custom-metrics"
	keyCA      = "ca.crt"
	keyCAKey   = "ca.key"
	keyCANext  = "next.key"
	settledKey = "serving.tangram.dev/settled"
)

// Trust lets the cluster's API server authenticate the operators: they share an authority in a Secret, which the
// APIService names, and each signs its own certificate. All are renewed in time, the authority in three steps.
type Trust struct {
	Client    client.Client // live
	Namespace string
	Secret    string // created empty by the chart
	Host      string // the Service's name as the API server uses it
	Validity  pki.Validity
	Load      time.Duration // time until all operators and API servers have loaded a change; 0: 5 minutes

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

// await waits for the first certificate.
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

// keep renews the certificate and the authority until the context ends.
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

// look checks Secret, APIService and certificate once, and takes all steps that are due.
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

// authority returns the authority in the Secret, and creates it if there is none.
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

// write uses the version that was read: of several operators one wins, and the others read its result.
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

// show makes sure that the server presents a valid certificate of the authority.
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

// tell writes the trusted authorities into the APIService. True: they changed.
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

// advance takes the next step of the authority's replacement, if all had time to load the result of the last one.
func (t *Trust) advance(ctx context.Context, s *corev1.Secret, a *pki.Authority, changed bool) error {
	load := cmp.Or(t.Load, 5*time.Minute)
	settled, _ := time.Parse(time.RFC3339Nano, s.Annotations[settledKey]) // missing or unreadable: not settled
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
