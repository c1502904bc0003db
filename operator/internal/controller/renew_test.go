package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"tangram.dev/operator/internal/pki"

	api "tangram.dev/api/v1alpha2"
)

// held is the material that the processes of world w have loaded from their Secrets at some time.
type held struct {
	at      time.Time
	agents  map[string]*pki.Identity
	engines map[string]*pki.Identity
	gateway *pki.Identity
	roots   int    // number of authorities in the bundle
	signer  string // serial number of the authority that signs
}

func (b *bed) secret(name string) *corev1.Secret {
	b.t.Helper()
	s := &corev1.Secret{}
	require.NoError(b.t, b.c.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: name}, s))
	return s
}

// load reads all Secrets, as kubelet and processes do.
func (b *bed) load() *held {
	b.t.Helper()
	h := &held{at: time.Now(), agents: map[string]*pki.Identity{}, engines: map[string]*pki.Identity{}, gateway: &pki.Identity{}}
	for _, pod := range []string{"w-0", "w-1"} {
		s := b.secret(pod + "-tls")
		h.agents[pod], h.engines[pod] = &pki.Identity{}, &pki.Identity{}
		require.NoError(b.t, h.agents[pod].Set(s.Data[keyCA], s.Data[keyAgentCert], s.Data[keyAgentKey]))
		require.NoError(b.t, h.engines[pod].Set(s.Data[keyCA], s.Data[keyEngineCert], s.Data[keyEngineKey]))
	}
	s := b.secret("w-gateway-tls")
	require.NoError(b.t, h.gateway.Set(s.Data[keyCA], s.Data[keyCert], s.Data[keyKey]))
	ca := b.secret("w-ca")
	roots := certificatesIn(b.t, ca.Data[keyCA])
	h.roots, h.signer = len(roots), roots[0].SerialNumber.String()
	for _, root := range roots {
		require.Greater(b.t, time.Until(root.NotAfter), time.Duration(0), "an authority that has ended")
	}
	return h
}

func certificatesIn(t *testing.T, text []byte) (all []*x509.Certificate) {
	t.Helper()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		all = append(all, c)
	}
	require.NotEmpty(t, all)
	return all
}

// trust checks that a client and a server accept each other now.
func trust(t *testing.T, client, server *tls.Config) {
	t.Helper()
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	served := make(chan error, 1)
	go func() { served <- tls.Server(far, server).Handshake() }()
	err := tls.Client(near, client).Handshake()
	require.NoError(t, near.Close()) // a rejecting server sends an alert, which the client does not read
	require.NoError(t, err)
	require.NoError(t, <-served)
}

// Authority and certificates are replaced again and again, and all processes always trust each other, even those that
// load Secrets as late as allowed. No pod is replaced and the layout stays. Expiry needs the real clock; the order of
// steps is tested without it by TestRotation_WhenProcessIsOneStepBehind of package pki.
func TestRealTime_CertificateRenewalKeepsServing(t *testing.T) {
	t.Parallel()
	validity := pki.Validity{Authority: 45 * time.Second, Certificate: 27 * time.Second}
	load := 3 * time.Second
	b := bedOf(t, interceptor.Funcs{}, Certificates{Validity: validity, Load: load})
	before := b.serve("w", 2)
	pods := b.uids()
	name := b.namespace + ".w"
	first := b.load()
	behind, seen := first, map[int]bool{}
	for began := time.Now(); ; {
		now := b.load()
		seen[now.roots] = true
		if time.Since(behind.at) < load { // as late as allowed; a machine that was paused is later
			for _, pair := range [][2]*held{{now, behind}, {behind, now}, {now, now}} {
				trust(t, b.driver.Load().Client(name, "agent/"), pair[0].agents["w-0"].Server(name, "driver"))
				trust(t, pair[0].gateway.Client(name, "engine/"), pair[1].engines["w-0"].Server(name, "gateway"))
				trust(t, pair[0].engines["w-0"].Client(name, "engine/"), pair[1].engines["w-1"].Server(name, "engine/"))
				trust(t, pair[0].agents["w-1"].Client(name, "agent/"), pair[1].agents["w-0"].Server(name, "agent/"))
			}
		}
		if time.Since(behind.at) > load*2/3 {
			behind = now
		}
		if now.signer != first.signer && now.roots == 1 {
			break
		}
		require.Less(t, time.Since(began), 5*time.Minute, "the authority is never replaced")
		select {
		case <-t.Context().Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	require.True(t, seen[2], "for a while, both are trusted")
	after := b.ready("w")
	require.Equal(t, pods, b.uids())
	require.Equal(t, before.Status.Epoch, after.Status.Epoch)
	require.True(t, has(after, api.ConditionCertificatesValid, metav1.ConditionTrue, api.ReasonValid))
	require.InDelta(t, time.Now().Add(validity.Certificate).Unix(), testutil.ToFloat64(b.metrics.certificates), time.Minute.Seconds())
	for _, s := range []string{"w-0-tls", "w-1-tls", "w-gateway-tls"} {
		data := b.secret(s).Data
		root := certificatesIn(t, b.secret("w-ca").Data[keyCA])[0]
		for key, text := range data {
			if key == keyAgentCert || key == keyEngineCert || key == keyCert {
				leaf := certificatesIn(t, text)[0]
				require.NoError(t, leaf.CheckSignatureFrom(root))
				require.False(t, leaf.NotAfter.After(root.NotAfter), "a certificate outlives its authority")
			}
		}
	}
}

// anIssuer returns a Secret as a certificate manager would create it.
func anIssuer(t *testing.T, authority bool) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "of the house"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: authority, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return map[string][]byte{keyCert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})}
}

// The authority may come from another system; when it is renewed there, the world follows.
func TestCertificates_WhenUserProvidesIssuer(t *testing.T) {
	t.Parallel()
	b := bedOf(t, interceptor.Funcs{}, Certificates{Load: time.Second})
	d := b.deployment("w", 1)
	d.Spec.Certificates.IssuerSecretName = "house"
	require.NoError(t, b.c.Create(t.Context(), d))
	refused := func(words string) {
		t.Helper()
		b.until("w", words, func(d *api.MoEDeployment) bool {
			return has(d, api.ConditionCertificatesValid, metav1.ConditionFalse, api.ReasonRenewalFailed) && strings.Contains(message(d, api.ConditionCertificatesValid), words)
		})
	}
	refused(`"house" not found`)
	waits := b.degraded("w", api.ReasonIssuerMissing, `"house" not found`)
	require.True(t, has(waits, api.ConditionStalled, metav1.ConditionTrue, api.ReasonIssuerMissing))
	require.True(t, has(waits, api.ConditionProgressing, metav1.ConditionFalse, api.ReasonIssuerMissing))
	require.Equal(t, api.ReasonIssuerMissing, waits.Status.State)
	issuer := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "house", Namespace: b.namespace}, Type: corev1.SecretTypeTLS, Data: anIssuer(t, false)}
	require.NoError(t, b.c.Create(t.Context(), issuer))
	refused("is not a self-signed authority")
	signs := func(data map[string][]byte) func() bool {
		return func() bool {
			root := certificatesIn(t, data[keyCert])[0]
			for name, key := range map[string]string{"w-0-tls": keyEngineCert, "w-gateway-tls": keyCert} {
				s := &corev1.Secret{}
				if b.c.Get(context.Background(), client.ObjectKey{Namespace: b.namespace, Name: name}, s) != nil ||
					certificatesIn(t, s.Data[key])[0].CheckSignatureFrom(root) != nil || len(certificatesIn(t, s.Data[keyCA])) != 1 {
					return false
				}
			}
			return true
		}
	}
	for range 2 {
		issuer.Data = anIssuer(t, true)
		require.NoError(t, b.c.Update(t.Context(), issuer))
		b.ready("w")
		require.Eventually(t, signs(issuer.Data), wait, tick)
	}
	require.NoError(t, b.c.Delete(t.Context(), issuer))
	refused(`"house" not found`)
	b.ready("w") // with the present authority
}

// A Secret with invalid content is filled again, and the world reports nothing.
func TestInvalidCertificateIsReplaced(t *testing.T) {
	b := newBed(t)
	b.serve("w", 1)
	s := b.secret("w-gateway-tls")
	s.Data[keyCert] = []byte("rubbish")
	require.NoError(t, b.c.Update(t.Context(), s))
	require.Eventually(t, func() bool {
		data := b.secret("w-gateway-tls").Data
		return new(pki.Identity).Set(data[keyCA], data[keyCert], data[keyKey]) == nil
	}, wait, tick)
	b.ready("w")
}
