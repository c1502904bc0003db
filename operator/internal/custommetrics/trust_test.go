package custommetrics

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"tangram.dev/operator/internal/pki"
)

func service(host string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": APIService},
		"spec": map[string]any{"service": map[string]any{"namespace": "system", "name": host}}}}
}

func trusts(t *testing.T, c client.Client, load time.Duration, v pki.Validity) *Trust {
	t.Helper()
	return &Trust{Client: c, Namespace: "system", Secret: "s", Host: "metrics.system.svc", Load: load, Validity: v}
}

func newClient(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

// bundle returns the authorities that the API server trusts now.
func bundle(t *testing.T, c client.Client) []byte {
	t.Helper()
	s := service("")
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: APIService}, s))
	text, _, err := unstructured.NestedString(s.Object, "spec", "caBundle")
	require.NoError(t, err)
	out, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	return out
}

// requireTrusted checks that the API server would trust the certificate of `of`.
func requireTrusted(t *testing.T, bundle []byte, of *Trust) {
	t.Helper()
	cert, key := of.CurrentCertKeyContent()
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(bundle))
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "metrics.system.svc", KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	require.NoError(t, err)
}

// While a shared authority is replaced, the API server trusts the certificates of both operators.
func TestTrustReplacesAuthorityInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, service("metrics"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "s"}})
		validity := pki.Validity{Authority: 3 * time.Second, Certificate: time.Hour}
		one, two := trusts(t, c, 50*time.Millisecond, validity), trusts(t, c, 50*time.Millisecond, validity)
		seen := map[string]bool{}
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			require.NoError(t, one.look(t.Context()))
			require.NoError(t, two.look(t.Context()))
			now := bundle(t, c)
			seen[string(now)] = true
			requireTrusted(t, now, one)
			requireTrusted(t, now, two)
		}
		require.GreaterOrEqual(t, len(seen), 4, "alone, with the next one, in the other order, alone")
		s := &corev1.Secret{}
		require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "system", Name: "s"}, s))
		require.NotEmpty(t, s.Data[keyCAKey])
	})
}

func TestTrust_WhenObjectsAreMissingOrForeign(t *testing.T) {
	empty := func() *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "s"}}
	}
	require.ErrorContains(t, trusts(t, newClient(t, service("metrics")), 0, pki.Validity{}).look(t.Context()), `"s" not found`)
	require.ErrorContains(t, trusts(t, newClient(t, empty()), 0, pki.Validity{}).look(t.Context()), `"`+APIService+`" not found`)
	other := newClient(t, empty(), service("prometheus-adapter"))
	require.ErrorContains(t, trusts(t, other, 0, pki.Validity{}).look(t.Context()), "is already served by system/prometheus-adapter; set customMetrics.enabled to false")
	require.Empty(t, bundle(t, other), "what is another's stays as it is")
	broken := empty()
	broken.Data = map[string][]byte{keyCA: []byte("x")}
	require.ErrorContains(t, trusts(t, newClient(t, broken, service("metrics")), 0, pki.Validity{}).look(t.Context()), "Secret s: pki: read the authority")
}
