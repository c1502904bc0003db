package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

func parse(t *testing.T, pair Pair) *x509.Certificate {
	t.Helper()
	both, err := tls.X509KeyPair(pair.Cert, pair.Key) // checks that they fit
	require.NoError(t, err)
	return both.Leaf
}

func TestCertificates(t *testing.T) {
	authority, err := NewAuthority("ca")
	require.NoError(t, err)
	other, err := NewAuthority("ca")
	require.NoError(t, err)
	roots, others := x509.NewCertPool(), x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(authority.Cert))
	require.True(t, others.AppendCertsFromPEM(other.Cert))

	server, err := authority.Server("kube-apiserver", []string{"kubernetes"}, []net.IP{net.ParseIP("10.96.0.1")})
	require.NoError(t, err)
	cert := parse(t, server)
	for _, name := range []string{"kubernetes", "10.96.0.1"} {
		_, err = cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
		require.NoError(t, err)
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "elsewhere"})
	require.Error(t, err)
	_, err = cert.Verify(x509.VerifyOptions{Roots: others})
	require.Error(t, err, "an authority of the same name")
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.Error(t, err, "a server is no client")

	client, err := authority.Client("system:node:n1", "system:nodes")
	require.NoError(t, err)
	cert = parse(t, client)
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
	require.Equal(t, "system:node:n1", cert.Subject.CommonName)
	require.Equal(t, []string{"system:nodes"}, cert.Subject.Organization)
	require.False(t, cert.IsCA)

	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, authority.WriteKubeconfig(path, "https://10.0.0.1:6443", "admin", client))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	require.Equal(t, "https://10.0.0.1:6443", config.Host)
	require.Equal(t, authority.Cert, config.CAData)
	require.Equal(t, client.Key, config.KeyData)
}

func TestSigningKey(t *testing.T) {
	pair, err := SigningKey()
	require.NoError(t, err)
	private, _ := pem.Decode(pair.Key)
	key, err := x509.ParseECPrivateKey(private.Bytes)
	require.NoError(t, err)
	public, _ := pem.Decode(pair.Cert)
	parsed, err := x509.ParsePKIXPublicKey(public.Bytes)
	require.NoError(t, err)
	require.True(t, key.PublicKey.Equal(parsed.(*ecdsa.PublicKey)))
}
